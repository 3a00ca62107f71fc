/* SPDX-License-Identifier: Apache-2.0
 *
 * json_slice.h: reads a JSON text in place, without a tree. For hostile messages that may be large, of which a few members count: a tree would cost
 * many times the text's size. json_slice_read() checks the whole text once; all other functions take slices of a text that was checked, and use no memory.
 * Of two members with one name the first counts.
 */
#pragma once

#include "lib/buf.h"

#define JSON_SLICE_DEPTH_MAX 256

/* A value as it was written, without blanks around it. p NULL: there is none. */
struct json_slice {
	const char *p;
	size_t n;
};

/* n hostile bytes, not terminated. true: the text is one JSON value in UTF-8 without NUL bytes, at most JSON_SLICE_DEPTH_MAX levels deep. */
bool json_slice_read(struct json_slice *out, const void *p, size_t n);

/* The members of an object, or the items of an array, in order. */
struct json_walk {
	const char *p, *end;
};
/* s may be of any kind: what has no members yields none. */
struct json_walk json_walk_of(struct json_slice s);
/* false: there is no further one. key may be NULL; it is empty for the items of an array. */
bool json_walk_next(struct json_walk *w, struct json_slice *key, struct json_slice *value);

/* The first member of that name; absent if s is no object. */
struct json_slice json_slice_member(struct json_slice s, const char *name);
/* The first character says what it is: { [ " or another; 0 if absent. */
static inline char json_slice_kind(struct json_slice s)
{
	return s.p ? *s.p : 0;
}
/* Is it a string with exactly this text? Escapes are not decoded: for names of plain letters. */
bool json_slice_is(struct json_slice s, const char *text);
/* A whole number from 0 to max. */
bool json_slice_whole(struct json_slice s, uint64_t max, uint64_t *out);
/* A string without escapes that fits: copied, terminated. */
bool json_slice_copy(struct json_slice s, char *to, size_t cap);
/* Any value as a JSON string: a string as it is, everything else as its JSON text. An escape that not every reader takes (a NUL, half of a
 * surrogate pair) becomes U+FFFD. */
void json_slice_put(struct buf *out, struct json_slice s);
