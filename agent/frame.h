/* SPDX-License-Identifier: Apache-2.0
 *
 * frame.h: frames of lib/proto_agent.h in memory: reads them from bytes that a hostile host wrote,
 * and builds them.
 */
#pragma once

#include "lib/buf.h"
#include "lib/proto_agent.h"

struct frame {
	struct agent_hdr h;
	struct cur body; /* into the bytes given */
};

/* Looks at n bytes: 1 = a whole frame, *used bytes long; 0 = more bytes are needed; -EPROTO = the
 * frame would be longer than AGENT_FRAME_MAX. */
int frame_next(const uint8_t *p, size_t n, struct frame *f, size_t *used);
/* Reads a header that came alone: 0 or -EPROTO. */
int frame_header(const uint8_t p[12], struct agent_hdr *h);

/* Appends a frame. frame_begin returns its offset. frame_end takes that offset and fills in the
 * length of what was put meanwhile. */
size_t frame_begin(struct buf *b, uint16_t type, uint16_t flags, uint32_t id);
void frame_end(struct buf *b, size_t at);
void frame_put(struct buf *b, uint16_t type, uint16_t flags, uint32_t id, const void *p, size_t n);
void frame_error(struct buf *b, uint32_t id, int code, enum agent_step step, const char *text);
