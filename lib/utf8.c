/* SPDX-License-Identifier: Apache-2.0
 *
 * utf8.c: see utf8.h. The bytes are a program's output, a client's or a guest's: any.
 */
#include "lib/utf8.h"

#include <string.h>

size_t utf8_take(const uint8_t *p, size_t n, size_t *bad)
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
