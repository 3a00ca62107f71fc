/* SPDX-License-Identifier: Apache-2.0
 *
 * event_stream.c: events of the execution API and the line splitter. mayflyd. The text is hostile output of
 * programs.
 */
#include "api/http/event_stream.h"

#include <string.h>

/* Length of the valid UTF-8 sequence at p (1..4), or 0 and *bad = bytes to replace by one U+FFFD.
 */
static size_t utf8_take(const uint8_t *p, size_t n, size_t *bad)
{
	size_t len, i;
	uint8_t lo = 0x80, hi = 0xbf, c = p[0];

	if (c < 0x80)
		return 1;
	*bad = 1;
	if (c < 0xc2 || c > 0xf4)
		return 0;
	len = c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
	if (c == 0xe0)
		lo = 0xa0; /* overlong */
	if (c == 0xed)
		hi = 0x9f; /* surrogates */
	if (c == 0xf0)
		lo = 0x90;
	if (c == 0xf4)
		hi = 0x8f; /* beyond U+10FFFF */
	for (i = 1; i < len; i++) {
		if (i >= n || p[i] < lo || p[i] > hi) {
			*bad = i;
			return 0;
		}
		lo = 0x80;
		hi = 0xbf;
	}
	return len;
}

static void escape_low(struct buf *out, uint8_t c)
{
	static const char hex[] = "0123456789abcdef";
	char e[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
	const char *brief = NULL;

	switch (c) {
	case '"':
		brief = "\\\"";
		break;
	case '\\':
		brief = "\\\\";
		break;
	case '\n':
		brief = "\\n";
		break;
	case '\r':
		brief = "\\r";
		break;
	case '\t':
		brief = "\\t";
		break;
	default:
		break;
	}
	if (brief)
		buf_put(out, brief, 2);
	else
		buf_put(out, e, sizeof(e));
}

void json_escape(struct buf *out, const void *s, size_t n)
{
	const uint8_t *p = s;
	size_t i = 0, plain = 0, bad = 0;

	while (i < n) {
		uint8_t c = p[i];
		size_t len;

		if (c >= 0x20 && c < 0x7f && c != '"' && c != '\\') {
			i++;
			continue;
		}
		len = utf8_take(p + i, n - i, &bad);
		if (len > 1) {
			i += len;
			continue;
		}
		buf_put(out, p + plain, i - plain);
		if (len == 1) {
			escape_low(out, c);
			i++;
		} else {
			buf_put(out, "\xef\xbf\xbd", 3);
			i += bad;
		}
		plain = i;
	}
	buf_put(out, p + plain, n - plain);
}

bool utf8_ok(const void *s, size_t n)
{
	const uint8_t *p = s;
	size_t bad = 0, len;

	for (size_t i = 0; i < n; i += len) {
		len = p[i] ? utf8_take(p + i, n - i, &bad) : 0;
		if (!len)
			return false;
	}
	return true;
}

void utf8_clean(struct buf *out, const void *s, size_t n)
{
	const uint8_t *p = s;
	size_t bad = 0;

	for (size_t i = 0; i < n;) {
		size_t len = p[i] ? utf8_take(p + i, n - i, &bad) : 0;

		if (len)
			buf_put(out, p + i, len);
		else
			buf_put(out, "\xef\xbf\xbd", 3);
		i += len ? len : p[i] ? bad : 1;
	}
}

void json_string(struct buf *out, const char *s)
{
	buf_put(out, "\"", 1);
	json_escape(out, s, strlen(s));
	buf_put(out, "\"", 1);
}

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

void sse_lines_flush(struct sse_lines *l, struct buf *out)
{
	if (l->carry.len)
		sse_text(out, l->type, l->carry.p, l->carry.len);
	buf_reset(&l->carry);
}

/* One whole line, with what was carried before it. */
static void give_line(struct sse_lines *l, const uint8_t *p, size_t n, struct buf *out)
{
	if (!l->carry.len) {
		sse_text(out, l->type, p, n);
		return;
	}
	buf_put(&l->carry, p, n);
	sse_lines_flush(l, out);
}

/* A line that does not end: its whole characters go out, a character cut in two waits for its rest.
 */
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
