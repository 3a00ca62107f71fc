/* SPDX-License-Identifier: Apache-2.0
 *
 * event_stream.c: events of the execution API and the line splitter. mayflyd. The text is hostile output of
 * programs.
 */
#include "api/http/event_stream.h"

#include <string.h>

uint64_t sse_now_ms(void)
{
	return wall_ns() / 1000000;
}

static void end_event(struct buf *out)
{
	buf_printf(out, ",\"timestamp\":%llu}\n\n", (unsigned long long)sse_now_ms());
}

void sse_text(struct buf *out, const char *type, const void *text, size_t n)
{
	buf_printf(out, "{\"type\":\"%s\",\"text\":\"", type);
	json_escape(out, text, n);
	buf_put(out, "\"", 1);
	end_event(out);
}

void sse_complete(struct buf *out, uint64_t took_ms)
{
	buf_printf(out, "{\"type\":\"execution_complete\",\"execution_time\":%llu",
		(unsigned long long)took_ms);
	end_event(out);
}

void sse_error(struct buf *out, const char *ename, const char *evalue, const char *traceback)
{
	buf_printf(out, "{\"type\":\"error\",\"error\":{\"ename\":");
	json_string(out, ename);
	buf_printf(out, ",\"evalue\":");
	json_string(out, evalue);
	buf_printf(out, ",\"traceback\":[");
	json_string(out, traceback);
	buf_printf(out, "]}");
	end_event(out);
}

void sse_lines_init(struct sse_lines *l, const char *type)
{
	l->type = type;
	l->strip = false;
	buf_init(&l->carry, 3 * SSE_LINE_MAX);
}

void sse_lines_fini(struct sse_lines *l)
{
	buf_fini(&l->carry);
}

bool sse_lines_cr(const struct sse_lines *l)
{
	return l->carry.len && l->carry.p[l->carry.len - 1] == '\r';
}

static void give_text(struct sse_lines *l, const uint8_t *p, size_t n, struct buf *out)
{
	size_t k = n;

	while (l->strip && k && (p[k - 1] == '\n' || p[k - 1] == '\r'))
		k--;
	if (n && !k && l->strip)
		sse_text(out, l->type, "\n", 1);
	else
		sse_text(out, l->type, p, k);
}

void sse_lines_flush(struct sse_lines *l, struct buf *out)
{
	if (l->carry.len)
		give_text(l, l->carry.p, l->carry.len, out);
	buf_reset(&l->carry);
}

/* The rest of a line, after its beginning in l->carry. */
static void give_line(struct sse_lines *l, const uint8_t *p, size_t n, struct buf *out)
{
	if (!l->carry.len) {
		give_text(l, p, n, out);
		return;
	}
	buf_put(&l->carry, p, n);
	sse_lines_flush(l, out);
}

/* The line is longer than SSE_LINE_MAX: its complete characters leave now. A character that is cut in two waits for its rest. */
static void give_piece(struct sse_lines *l, struct buf *out)
{
	size_t keep = 0, bad;

	for (size_t k = 1; k <= 3 && k <= l->carry.len; k++) {
		uint8_t c = l->carry.p[l->carry.len - k];

		if ((c & 0xc0) != 0x80) {
			if (c >= 0xc2 && !utf8_take(l->carry.p + l->carry.len - k, k, &bad) &&
				bad == k)
				keep = k;
			break;
		}
	}
	sse_text(out, l->type, l->carry.p, l->carry.len - keep);
	buf_consume(&l->carry, l->carry.len - keep);
}

static size_t line_end(const uint8_t *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] == '\n' || p[i] == '\r')
			return i;
	return n;
}

void sse_lines_feed(struct sse_lines *l, const uint8_t *p, size_t n, struct buf *out)
{
	if (n && sse_lines_cr(l)) {
		size_t nl = p[0] == '\n';

		buf_put(&l->carry, p, nl);
		sse_lines_flush(l, out);
		p += nl;
		n -= nl;
	}
	while (n) {
		size_t i = line_end(p, MIN(n, (size_t)SSE_LINE_MAX));

		if (i == n || (p[i] != '\n' && p[i] != '\r')) {
			buf_put(&l->carry, p, i);
			if (l->carry.len >= SSE_LINE_MAX)
				give_piece(l, out);
			p += i;
			n -= i;
			continue;
		}
		if (p[i] == '\r' && i + 1 == n) {
			buf_put(&l->carry, p, n); /* perhaps half of a \r\n */
			return;
		}
		i += p[i] == '\r' && p[i + 1] == '\n' ? 2 : 1;
		give_line(l, p, i, out);
		p += i;
		n -= i;
	}
}
