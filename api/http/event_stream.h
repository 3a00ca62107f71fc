/* SPDX-License-Identifier: Apache-2.0
 *
 * event_stream.h: the event stream of the execution API: each event is a bare JSON object and "\n\n", no
 * "data:" before it. Pure functions on buffers; mayflyd. What goes in is a program's output, so any
 * bytes: what comes out is always valid JSON in valid UTF-8.
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
	struct buf carry; /* the line begun; ends in '\r' when only its "\n" may still come */
};
void sse_lines_init(struct sse_lines *l, const char *type);
void sse_lines_fini(struct sse_lines *l);
void sse_lines_feed(struct sse_lines *l, const uint8_t *p, size_t n, struct buf *out);
/* A whole line is held back for a "\n" after its "\r". */
bool sse_lines_cr(const struct sse_lines *l);
/* What is held goes out: at the end, or when no "\n" came. */
void sse_lines_flush(struct sse_lines *l, struct buf *out);
