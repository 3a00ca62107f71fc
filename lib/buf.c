/* SPDX-License-Identifier: Apache-2.0
 *
 * buf.c: growing buffers and bounded cursors. Every process. The cursor half reads hostile bytes: each read checks what is left
 * by subtraction, so that no sum can overflow, and a failed cursor never yields data again.
 */
#include "lib/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void buf_init(struct buf *b, size_t max)
{
	*b = (struct buf){.max = max};
}

void buf_fini(struct buf *b)
{
	free(b->p);
	*b = (struct buf){.max = b->max};
}

uint8_t *buf_room(struct buf *b, size_t n)
{
	size_t cap = b->cap ? b->cap : 256;
	uint8_t *p;

	if (b->bad || n > b->max || b->len > b->max - n)
		goto fail;
	if (b->len + n <= b->cap && b->p)
		return b->p + b->len;
	while (cap < b->len + n)
		cap *= 2;
	p = realloc(b->p, cap);
	if (!p)
		goto fail;
	b->p = p;
	b->cap = cap;
	return p + b->len;
fail:
	b->bad = true;
	return NULL;
}

void buf_put(struct buf *b, const void *p, size_t n)
{
	uint8_t *to = buf_room(b, n);

	if (!to)
		return;
	if (n)
		memcpy(to, p, n);
	b->len += n;
}

static void put_le(struct buf *b, uint64_t v, size_t n)
{
	uint8_t le[8];

	for (size_t i = 0; i < n; i++)
		le[i] = (uint8_t)(v >> (8 * i));
	buf_put(b, le, n);
}

void buf_u8(struct buf *b, uint8_t v)
{
	put_le(b, v, 1);
}

void buf_u16(struct buf *b, uint16_t v)
{
	put_le(b, v, 2);
}

void buf_u32(struct buf *b, uint32_t v)
{
	put_le(b, v, 4);
}

void buf_u64(struct buf *b, uint64_t v)
{
	put_le(b, v, 8);
}

void buf_blob(struct buf *b, const void *p, size_t n)
{
	if (n > UINT32_MAX) {
		b->bad = true;
		return;
	}
	buf_u32(b, (uint32_t)n);
	buf_put(b, p, n);
}

void buf_str(struct buf *b, const char *s)
{
	buf_blob(b, s, s ? strlen(s) : 0);
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
	va_list ap, again;
	uint8_t *to;
	int n;

	va_start(ap, fmt);
	va_copy(again, ap);
	n = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	to = n < 0 ? NULL : buf_room(b, (size_t)n + 1);
	if (to) {
		vsnprintf((char *)to, (size_t)n + 1, fmt, again);
		b->len += (size_t)n;
	} else {
		b->bad = true;
	}
	va_end(again);
}

void buf_consume(struct buf *b, size_t n)
{
	ASSERT(n <= b->len);
	if (n == 0)
		return;
	memmove(b->p, b->p + n, b->len - n);
	b->len -= n;
}

const char *buf_cstr(struct buf *b)
{
	uint8_t *to = buf_room(b, 1);

	if (!to)
		return "";
	*to = 0;
	return (const char *)b->p;
}

const void *cur_bytes(struct cur *c, size_t n)
{
	const uint8_t *p = c->p;

	if (c->bad || n > (size_t)(c->end - c->p)) {
		c->bad = true;
		return NULL;
	}
	c->p += n;
	return p;
}

bool cur_copy(struct cur *c, void *to, size_t n)
{
	const void *p = cur_bytes(c, n);

	if (!p) {
		memset(to, 0, n);
		return false;
	}
	if (n)
		memcpy(to, p, n);
	return true;
}

static uint64_t get_le(struct cur *c, size_t n)
{
	const uint8_t *p = cur_bytes(c, n);
	uint64_t v = 0;

	for (size_t i = 0; p && i < n; i++)
		v |= (uint64_t)p[i] << (8 * i);
	return v;
}

uint8_t cur_u8(struct cur *c)
{
	return (uint8_t)get_le(c, 1);
}

uint16_t cur_u16(struct cur *c)
{
	return (uint16_t)get_le(c, 2);
}

uint32_t cur_u32(struct cur *c)
{
	return (uint32_t)get_le(c, 4);
}

uint64_t cur_u64(struct cur *c)
{
	return get_le(c, 8);
}

const char *cur_strp(struct cur *c, size_t *len, size_t max)
{
	uint32_t n = cur_u32(c);
	const char *p;

	if (n > max)
		c->bad = true;
	p = cur_bytes(c, n);
	if (p && memchr(p, 0, n))
		c->bad = true;
	if (c->bad) {
		*len = 0;
		return NULL;
	}
	*len = n;
	return p;
}

bool cur_str(struct cur *c, char *to, size_t cap)
{
	size_t n;
	const char *p = cur_strp(c, &n, cap - 1);

	if (p && n)
		memcpy(to, p, n);
	to[n] = 0;
	return p != NULL;
}

bool cur_done(const struct cur *c)
{
	return !c->bad && c->p == c->end;
}
