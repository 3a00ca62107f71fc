/* SPDX-License-Identifier: Apache-2.0
 *
 * event_stream.h: the event stream of the execution API: each event is a bare JSON object and "\n\n", no
 * "data:" before it. Pure functions on buffers; mayflyd. The input is a program's output and may be any
 * bytes. The output is always valid JSON in valid UTF-8.
 */
#pragma once

#include "lib/json.h"

uint64_t sse_now_ms(void);

void sse_text(struct buf *out, const char *type, const void *text, size_t n);
void sse_complete(struct buf *out, uint64_t took_ms);
/* traceback: one line */
void sse_error(struct buf *out, const char *ename, const char *evalue, const char *traceback);

/* Cuts a stream into lines that keep their ending (\n, \r, \r\n); the events concatenate to the
 * stream. With `strip` an event has no ending, and an empty line is "\n": older clients expect that. */
#define SSE_LINE_MAX (64u * 1024) /* a longer line is given in pieces */
struct sse_lines {
	const char *type; /* "stdout" */
	bool strip;
	struct buf carry; /* a line's beginning; ends in '\r' if only a "\n" may follow */
};
void sse_lines_init(struct sse_lines *l, const char *type);
void sse_lines_fini(struct sse_lines *l);
void sse_lines_feed(struct sse_lines *l, const uint8_t *p, size_t n, struct buf *out);
/* Is a complete line held back, because a "\n" may follow its "\r"? */
bool sse_lines_cr(const struct sse_lines *l);
/* Writes what is held: at the end of the stream, or when no "\n" came. */
void sse_lines_flush(struct sse_lines *l, struct buf *out);
