/* SPDX-License-Identifier: Apache-2.0
 *
 * frame.c: frames in memory. The host's bytes are hostile: a header is copied once, its length is checked before it is used.
 */
#include "agent/frame.h"

#include <string.h>

int frame_header(const uint8_t p[12], struct agent_hdr *h)
{
	struct cur c = cur_of(p, sizeof(*h));

	h->len = cur_u32(&c);
	h->type = cur_u16(&c);
	h->flags = cur_u16(&c);
	h->id = cur_u32(&c);
	return h->len > AGENT_FRAME_MAX ? -EPROTO : 0;
}

int frame_next(const uint8_t *p, size_t n, struct frame *f, size_t *used)
{
	struct agent_hdr h;

	if (n < sizeof(h))
		return 0;
	if (frame_header(p, &h) < 0)
		return -EPROTO;
	if (n - sizeof(h) < h.len)
		return 0;
	f->h = h;
	f->body = cur_of(p + sizeof(h), h.len);
	*used = sizeof(h) + h.len;
	return 1;
}

size_t frame_begin(struct buf *b, uint16_t type, uint16_t flags, uint32_t id)
{
	size_t at = b->len;

	buf_u32(b, 0);
	buf_u16(b, type);
	buf_u16(b, flags);
	buf_u32(b, id);
	return at;
}

void frame_end(struct buf *b, size_t at)
{
	uint32_t len;

	if (b->bad)
		return;
	len = (uint32_t)(b->len - at - sizeof(struct agent_hdr));
	for (size_t i = 0; i < 4; i++)
		b->p[at + i] = (uint8_t)(len >> (8 * i));
}

void frame_put(struct buf *b, uint16_t type, uint16_t flags, uint32_t id, const void *p, size_t n)
{
	size_t at = frame_begin(b, type, flags, id);

	buf_put(b, p, n);
	frame_end(b, at);
}

void frame_error(struct buf *b, uint32_t id, int code, enum agent_step step, const char *text)
{
	size_t at = frame_begin(b, AGENT_ERR, 0, id);

	buf_u32(b, (uint32_t)code);
	buf_u32(b, step);
	buf_str(b, text);
	frame_end(b, at);
}
