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

/* A step: into { or [ (true), then for each member: json_key / json_item (true while there is one),
 * then its value is taken. */
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
