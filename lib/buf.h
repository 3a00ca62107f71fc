/* SPDX-License-Identifier: Apache-2.0
 *
 * buf.h: bytes. `struct buf` grows up to a limit and is what we write; `struct cur` is a cursor over bytes somebody else wrote.
 * A cursor read either yields a whole value or fails and marks the cursor bad; once bad it stays bad and yields zeros, so
 * that a parser may read a whole record and test once. Numbers on the wire are little endian.
 */
#pragma once

#include "lib/base.h"

struct buf {
	uint8_t *p;
	size_t len, cap;
	size_t max; /* growth beyond it sets `bad` */
	bool bad;   /* an append failed: memory or max */
};

void buf_init(struct buf *b, size_t max);
void buf_fini(struct buf *b);
static inline void buf_reset(struct buf *b)
{
	b->len = 0;
	b->bad = false;
}
/* Room for n more bytes at b->p + b->len, or NULL (and bad). The caller raises len. */
uint8_t *buf_room(struct buf *b, size_t n);
void buf_put(struct buf *b, const void *p, size_t n);
void buf_u8(struct buf *b, uint8_t v);
void buf_u16(struct buf *b, uint16_t v);
void buf_u32(struct buf *b, uint32_t v);
void buf_u64(struct buf *b, uint64_t v);
/* u32 length, then the bytes: the form of every string on our wires. NULL is written as an empty
 * string. */
void buf_str(struct buf *b, const char *s);
void buf_blob(struct buf *b, const void *p, size_t n);
void buf_printf(struct buf *b, const char *fmt, ...) _printf_(2, 3);
/* Drops n bytes from the front. */
void buf_consume(struct buf *b, size_t n);
/* Terminates with a NUL that is not counted; "" if that or an earlier append failed. */
const char *buf_cstr(struct buf *b);

struct cur {
	const uint8_t *p, *end;
	bool bad;
};

static inline struct cur cur_of(const void *p, size_t n)
{
	/* p may be NULL if n is 0, and C does not allow to add even 0 to NULL */
	return (struct cur){.p = p, .end = n ? (const uint8_t *)p + n : p};
}
static inline size_t cur_left(const struct cur *c)
{
	return c->bad ? 0 : (size_t)(c->end - c->p);
}
/* n bytes in place, or NULL and bad. Only for private memory, never for memory a guest can still
 * write. */
const void *cur_bytes(struct cur *c, size_t n);
bool cur_copy(struct cur *c, void *to, size_t n);
uint8_t cur_u8(struct cur *c);
uint16_t cur_u16(struct cur *c);
uint32_t cur_u32(struct cur *c);
uint64_t cur_u64(struct cur *c);
/* u32-length string into a terminated fixed field; bad if it does not fit or holds a NUL. */
bool cur_str(struct cur *c, char *to, size_t cap);
/* the same, in place: not terminated; NULL only when bad. */
const char *cur_strp(struct cur *c, size_t *len, size_t max);
/* True if nothing went wrong and nothing is left over: the last test of every parser. */
bool cur_done(const struct cur *c);
