/* SPDX-License-Identifier: Apache-2.0
 *
 * json_slice.c: see json_slice.h. The text is hostile: a guest's. Nothing here recurses: open brackets are bits of a fixed array.
 */
#include "lib/json_slice.h"

#include <string.h>

#include "lib/utf8.h"

/* ---- one pass over the whole text */

struct check {
	const char *p, *end;
	uint32_t open[JSON_SLICE_DEPTH_MAX / 32]; /* a bit for each level: 1 is an object */
	unsigned int depth;
};

static bool is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void check_blanks(struct check *c)
{
	while (c->p < c->end && is_blank(*c->p))
		c->p++;
}

static bool check_char(struct check *c, char want)
{
	check_blanks(c);
	if (c->p >= c->end || *c->p != want)
		return false;
	c->p++;
	return true;
}

static bool is_hex(char c)
{
	return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'f');
}

static bool check_escape(struct check *c)
{
	if (c->p >= c->end || !*c->p || !strchr("\"\\/bfnrtu", *c->p))
		return false;
	if (*c->p++ != 'u')
		return true;
	for (int i = 0; i < 4; i++, c->p++)
		if (c->p >= c->end || !is_hex(*c->p))
			return false;
	return true;
}

static bool check_string(struct check *c)
{
	if (!check_char(c, '"'))
		return false;
	while (c->p < c->end && *c->p != '"') {
		char b = *c->p++;

		if ((unsigned char)b < 0x20 || (b == '\\' && !check_escape(c)))
			return false;
	}
	if (c->p >= c->end)
		return false;
	c->p++;
	return true;
}

static bool check_digits(struct check *c)
{
	const char *from = c->p;

	while (c->p < c->end && *c->p >= '0' && *c->p <= '9')
		c->p++;
	return c->p > from;
}

static bool check_number(struct check *c)
{
	const char *from;

	if (*c->p == '-')
		c->p++;
	from = c->p;
	if (!check_digits(c) || (*from == '0' && c->p > from + 1))
		return false;
	if (c->p < c->end && *c->p == '.') {
		c->p++;
		if (!check_digits(c))
			return false;
	}
	if (c->p < c->end && (*c->p | 32) == 'e') {
		c->p++;
		if (c->p < c->end && (*c->p == '+' || *c->p == '-'))
			c->p++;
		return check_digits(c);
	}
	return true;
}

/* NaN and the infinities: Python writes them. */
static bool check_word(struct check *c)
{
	static const char *const words[] = {
		"true", "false", "null", "NaN", "Infinity", "-Infinity"};

	for (size_t i = 0; i < ARRAY_LEN(words); i++) {
		size_t n = strlen(words[i]);

		if ((size_t)(c->end - c->p) >= n && !memcmp(c->p, words[i], n)) {
			c->p += n;
			return true;
		}
	}
	return false;
}

static bool check_scalar(struct check *c)
{
	if (*c->p == '"')
		return check_string(c);
	return check_word(c) ||
	       ((*c->p == '-' || (*c->p >= '0' && *c->p <= '9')) && check_number(c));
}

static bool in_object(const struct check *c)
{
	unsigned int d = c->depth - 1;

	return c->open[d / 32] >> (d % 32) & 1;
}

static bool check_open(struct check *c)
{
	unsigned int d = c->depth;
	bool object = *c->p++ == '{';

	if (d == JSON_SLICE_DEPTH_MAX)
		return false;
	c->open[d / 32] &= ~(1u << d % 32);
	c->open[d / 32] |= (uint32_t)object << d % 32;
	c->depth++;
	return true;
}

static bool check_name(struct check *c)
{
	return check_string(c) && check_char(c, ':');
}

/* After a value: closes levels and takes the comma. *more: another value follows. */
static bool check_after(struct check *c, bool *more)
{
	while (c->depth) {
		if (check_char(c, ',')) {
			*more = true;
			return !in_object(c) || check_name(c);
		}
		if (!check_char(c, in_object(c) ? '}' : ']'))
			return false;
		c->depth--;
	}
	*more = false;
	return true;
}

static bool check_text(struct check *c)
{
	bool more = true;

	while (more) {
		check_blanks(c);
		if (c->p >= c->end)
			return false;
		if (*c->p == '{' || *c->p == '[') {
			if (!check_open(c))
				return false;
			if (check_char(c, in_object(c) ? '}' : ']')) {
				c->depth--;
			} else {
				if (in_object(c) && !check_name(c))
					return false;
				continue;
			}
		} else if (!check_scalar(c)) {
			return false;
		}
		if (!check_after(c, &more))
			return false;
	}
	check_blanks(c);
	return c->p == c->end;
}

bool json_slice_read(struct json_slice *out, const void *p, size_t n)
{
	struct check c = {.p = p, .end = n ? (const char *)p + n : p};

	if (!n || !utf8_ok(p, n) || !check_text(&c))
		return false;
	while (is_blank(*(const char *)p)) {
		p = (const char *)p + 1;
		n--;
	}
	while (is_blank(((const char *)p)[n - 1]))
		n--;
	*out = (struct json_slice){p, n};
	return true;
}

/* ---- slices of a text that was checked */

static const char *after_string(const char *p)
{
	for (p++; *p != '"'; p++)
		if (*p == '\\')
			p++;
	return p + 1;
}

/* The end of the value at p. */
static const char *after_value(const char *p, const char *end)
{
	unsigned int depth = 0;

	for (; p < end; p++) {
		if (*p == '"') {
			p = after_string(p);
			if (!depth)
				return p;
			p--;
		} else if (*p == '{' || *p == '[') {
			depth++;
		} else if (*p == '}' || *p == ']') {
			if (!depth)
				return p;
			if (!--depth)
				return p + 1;
		} else if (!depth && (*p == ',' || is_blank(*p))) {
			return p;
		}
	}
	return end;
}

struct json_walk json_walk_of(struct json_slice s)
{
	char kind = json_slice_kind(s);

	if (kind != '{' && kind != '[')
		return (struct json_walk){NULL, NULL};
	return (struct json_walk){s.p + 1, s.p + s.n - 1};
}

static void walk_blanks(struct json_walk *w)
{
	while (w->p < w->end && (is_blank(*w->p) || *w->p == ','))
		w->p++;
}

bool json_walk_next(struct json_walk *w, struct json_slice *key, struct json_slice *value)
{
	struct json_slice k = {NULL, 0};
	bool object;

	if (!w->p)
		return false;
	object = *w->end == '}';
	walk_blanks(w);
	if (w->p >= w->end) {
		w->p = NULL;
		return false;
	}
	if (object) {
		k.p = w->p;
		w->p = after_string(w->p);
		k.n = (size_t)(w->p - k.p);
		while (*w->p != ':')
			w->p++;
		w->p++;
		while (is_blank(*w->p))
			w->p++;
	}
	value->p = w->p;
	w->p = after_value(w->p, w->end);
	value->n = (size_t)(w->p - value->p);
	if (key)
		*key = k;
	return true;
}

struct json_slice json_slice_member(struct json_slice s, const char *name)
{
	struct json_walk w = json_walk_of(s);
	struct json_slice key, value;

	while (json_slice_kind(s) == '{' && json_walk_next(&w, &key, &value))
		if (json_slice_is(key, name))
			return value;
	return (struct json_slice){NULL, 0};
}

bool json_slice_is(struct json_slice s, const char *text)
{
	size_t n = strlen(text);

	return json_slice_kind(s) == '"' && s.n == n + 2 && !memcmp(s.p + 1, text, n);
}

bool json_slice_whole(struct json_slice s, uint64_t max, uint64_t *out)
{
	uint64_t v = 0;

	if (!s.p || s.n > 18)
		return false;
	for (size_t i = 0; i < s.n; i++) {
		if (s.p[i] < '0' || s.p[i] > '9')
			return false;
		v = v * 10 + (uint64_t)(s.p[i] - '0');
	}
	if (v > max)
		return false;
	*out = v;
	return true;
}

bool json_slice_copy(struct json_slice s, char *to, size_t cap)
{
	if (json_slice_kind(s) != '"' || s.n - 2 >= cap || memchr(s.p, '\\', s.n))
		return false;
	memcpy(to, s.p + 1, s.n - 2);
	to[s.n - 2] = 0;
	return true;
}

static unsigned int hex4(const char *p)
{
	unsigned int v = 0;

	for (int i = 0; i < 4; i++)
		v = v * 16 + (unsigned int)(p[i] <= '9' ? p[i] - '0' : (p[i] | 32) - 'a' + 10);
	return v;
}

/* How many bytes of the escape at p may be copied. 0: the escape, *skip bytes long, is to be
 * replaced. */
static size_t good_escape(const char *p, const char *end, size_t *skip)
{
	unsigned int v, low;

	*skip = 6;
	if (p[1] != 'u')
		return 2;
	v = hex4(p + 2);
	if (v >= 0xd800 && v < 0xdc00) {
		low = end - p >= 12 && p[6] == '\\' && p[7] == 'u' ? hex4(p + 8) : 0;
		return low >= 0xdc00 && low <= 0xdfff ? 12 : 0;
	}
	return v == 0 || (v >= 0xdc00 && v < 0xe000) ? 0 : 6;
}

void json_slice_put(struct buf *out, struct json_slice s)
{
	const char *p = s.p, *end = s.p + s.n, *from = p;

	if (json_slice_kind(s) != '"') {
		buf_put(out, "\"", 1);
		json_escape(out, p, s.n);
		buf_put(out, "\"", 1);
		return;
	}
	while ((p = memchr(p, '\\', (size_t)(end - p)))) {
		size_t skip, n = good_escape(p, end, &skip);

		if (!n) {
			buf_put(out, from, (size_t)(p - from));
			buf_put(out, "\\ufffd", 6);
			from = p + skip;
		}
		p += n ? n : skip;
	}
	buf_put(out, from, (size_t)(end - from));
}
