/* SPDX-License-Identifier: Apache-2.0
 *
 * json.c: the JSON cursor. The loop's thread. The text is a client's, passed on by the host: hostile. Every step checks the end, nesting is
 * bounded by DEPTH_MAX, and once bad nothing is taken any more.
 */
#include "agent/json.h"

#include <string.h>

#define DEPTH_MAX 16u

static void blanks(struct json *j)
{
	while (j->p < j->end && (*j->p == ' ' || *j->p == '\t' || *j->p == '\n' || *j->p == '\r'))
		j->p++;
}

static bool take(struct json *j, char c)
{
	blanks(j);
	if (j->bad || j->p >= j->end || *j->p != c)
		return false;
	j->p++;
	return true;
}

static bool fail(struct json *j)
{
	j->bad = true;
	return false;
}

static bool step_in(struct json *j, char c)
{
	if (!take(j, c) || ++j->depth > DEPTH_MAX)
		return fail(j);
	return true;
}

bool json_object(struct json *j)
{
	return step_in(j, '{');
}

bool json_array(struct json *j)
{
	return step_in(j, '[');
}

static bool next_member(struct json *j, char close, bool *first)
{
	if (j->bad)
		return false;
	if (take(j, close)) {
		j->depth--;
		return false;
	}
	if (!*first && !take(j, ','))
		return fail(j);
	*first = false;
	return true;
}

bool json_item(struct json *j, bool *first)
{
	return next_member(j, ']', first);
}

bool json_key(struct json *j, char *key, size_t cap, bool *first)
{
	struct buf b;
	bool ok;

	if (!next_member(j, '}', first))
		return false;
	buf_init(&b, 4096);
	ok = json_string(j, &b) && take(j, ':');
	if (!ok)
		fail(j);
	/* a name that is too long is none that we know */
	key[0] = 0;
	if (ok && b.len < cap)
		memcpy(key, buf_cstr(&b), b.len + 1);
	buf_fini(&b);
	return ok;
}

static int hex4(struct json *j)
{
	int v = 0;

	if (j->end - j->p < 4)
		return -1;
	for (int i = 0; i < 4; i++) {
		char c = *j->p++;
		int d = c >= '0' && c <= '9'                 ? c - '0'
			: (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
							     : -1;

		if (d < 0)
			return -1;
		v = v * 16 + d;
	}
	return v;
}

static bool put_code(struct json *j, struct buf *to)
{
	int v = hex4(j), low;
	uint32_t u = (uint32_t)v;

	if (v <= 0)
		return false;
	if (v >= 0xd800 && v < 0xdc00) {
		if (j->end - j->p < 6 || j->p[0] != '\\' || j->p[1] != 'u')
			return false;
		j->p += 2;
		low = hex4(j);
		if (low < 0xdc00 || low > 0xdfff)
			return false;
		u = 0x10000u + (((uint32_t)v - 0xd800u) << 10) + ((uint32_t)low - 0xdc00u);
	} else if (v >= 0xdc00 && v < 0xe000) {
		return false;
	}
	if (u < 0x80) {
		buf_u8(to, (uint8_t)u);
	} else if (u < 0x800) {
		buf_u8(to, (uint8_t)(0xc0 | u >> 6));
		buf_u8(to, (uint8_t)(0x80 | (u & 63)));
	} else if (u < 0x10000) {
		buf_u8(to, (uint8_t)(0xe0 | u >> 12));
		buf_u8(to, (uint8_t)(0x80 | (u >> 6 & 63)));
		buf_u8(to, (uint8_t)(0x80 | (u & 63)));
	} else {
		buf_u8(to, (uint8_t)(0xf0 | u >> 18));
		buf_u8(to, (uint8_t)(0x80 | (u >> 12 & 63)));
		buf_u8(to, (uint8_t)(0x80 | (u >> 6 & 63)));
		buf_u8(to, (uint8_t)(0x80 | (u & 63)));
	}
	return true;
}

bool json_string(struct json *j, struct buf *to)
{
	static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";

	if (!take(j, '"'))
		return fail(j);
	while (j->p < j->end && *j->p != '"') {
		char c = *j->p++;
		const char *e;

		if ((unsigned char)c < 0x20)
			return fail(j);
		if (c != '\\') {
			buf_u8(to, (uint8_t)c);
			continue;
		}
		if (j->p >= j->end)
			return fail(j);
		c = *j->p++;
		if (c == 'u') {
			if (!put_code(j, to))
				return fail(j);
		} else if (c && (e = strchr(from, c))) {
			buf_u8(to, (uint8_t)into[e - from]);
		} else {
			return fail(j);
		}
	}
	if (j->p >= j->end || to->bad)
		return fail(j);
	j->p++;
	return true;
}

bool json_u64(struct json *j, uint64_t *v)
{
	const char *start;

	blanks(j);
	start = j->p;
	for (*v = 0; j->p < j->end && *j->p >= '0' && *j->p <= '9'; j->p++) {
		if (*v > 100000000000ull)
			return fail(j);
		*v = *v * 10 + (uint64_t)(*j->p - '0');
	}
	return j->p > start ? true : fail(j);
}

bool json_null(struct json *j)
{
	blanks(j);
	if (j->bad || j->end - j->p < 4 || memcmp(j->p, "null", 4) != 0)
		return false;
	j->p += 4;
	return true;
}

void json_skip(struct json *j)
{
	bool first = true;
	char key[8];
	struct buf b;

	blanks(j);
	if (j->bad || j->p >= j->end) {
		j->bad = true;
		return;
	}
	switch (*j->p) {
	case '{':
		for (json_object(j); json_key(j, key, sizeof(key), &first);)
			json_skip(j);
		return;
	case '[':
		for (json_array(j); json_item(j, &first);)
			json_skip(j);
		return;
	case '"':
		buf_init(&b, 1u << 20);
		json_string(j, &b);
		buf_fini(&b);
		return;
	default:
		/* a number or a word: whatever it is made of */
		if (!memchr("-0123456789tfn", *j->p, 14)) {
			j->bad = true;
			return;
		}
		while (j->p < j->end &&
			memchr("+-.0123456789abcdefghijklmnopqrstuvwxyzE", *j->p, 40))
			j->p++;
	}
}

bool json_end(struct json *j)
{
	blanks(j);
	return !j->bad && j->p == j->end && j->depth == 0;
}
