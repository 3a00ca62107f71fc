/* SPDX-License-Identifier: Apache-2.0
 *
 * json.h: just enough JSON to take the lifecycle text apart without a library in the guest: a cursor that steps into objects and arrays.
 */
#pragma once

#include "lib/buf.h"

struct json {
	const char *p, *end;
	bool bad;
	unsigned depth;
};

/* json_object and json_array enter a { or a [. Then json_key or json_item is called for each member
 * until it returns false; after each call that returns true the caller takes the member's value.
 * *first is true before the first call. */
bool json_object(struct json *j);
bool json_key(struct json *j, char *key, size_t cap, bool *first);
bool json_array(struct json *j);
bool json_item(struct json *j, bool *first);
/* A string into to (NUL inside is bad). */
bool json_string(struct json *j, struct buf *to);
bool json_u64(struct json *j, uint64_t *v);
bool json_null(struct json *j); /* true and taken if it is one */
void json_skip(struct json *j);
bool json_end(struct json *j);
