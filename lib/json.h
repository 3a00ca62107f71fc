/* SPDX-License-Identifier: Apache-2.0
 *
 * json.h: reads JSON into cJSON's tree, and gets typed members out of it. Daemon, command line,
 * image jobs and the image store. What cJSON leaves open is decided here, once:
 *  - text that is not UTF-8, or has a NUL (raw or as an escape, which would end cJSON's strings early), is refused;
 *  - two members of one name in an object are refused, because parsers disagree about which one counts;
 *  - more than JSON_DEPTH_MAX levels are refused before cJSON, which recurses, sees them;
 *  - bytes behind the value are refused;
 *  - cJSON's numbers are doubles: a number is read as an integer only where it is exact (up to 2^53). 64-bit values of our own are
 *    written as decimal text (json_put_i64).
 */
#pragma once

#include "lib/err.h"
#include "lib/utf8.h"

struct cJSON;

#define JSON_DEPTH_MAX 64

/* what json_read takes */
enum {
	JSON_OBJECT = 1,
	JSON_ARRAY = 2,
	JSON_ANY_BYTES =
		4, /* text may be no UTF-8: documents of registries, which old tools wrote */
};

/* n hostile bytes, not terminated. 0; -EBADMSG: not JSON, or refused; -EINVAL: JSON of a type that is not wanted; -ENOMEM. e may be NULL.
 * Free *out with cJSON_Delete. */
int json_read(struct cJSON **out, const void *p, size_t n, unsigned int want, struct err *e);
void json_freep(struct cJSON **j);
#define _cleanup_json_ _cleanup_(json_freep)

/* Typed members of an object; NULL when absent or of another type. Strings stay the object's. */
const char *json_str(const struct cJSON *o, const char *key);
const struct cJSON *json_obj(const struct cJSON *o, const char *key);
const struct cJSON *json_arr(const struct cJSON *o, const char *key);
/* A member that is there and not null. */
const struct cJSON *json_field(const struct cJSON *o, const char *key);
/* Is v a whole number from 0 to max, and not above 2^53? */
bool json_whole(const struct cJSON *v, uint64_t max, uint64_t *out);
/* -EINVAL unless it is a whole number from 0 to 2^53 */
int json_u64(const struct cJSON *o, const char *key, uint64_t *out);
/* Any 64-bit value, written as decimal text and read back exactly. Records of older builds have numbers. */
void json_put_i64(struct cJSON *o, const char *key, int64_t v);
int64_t json_get_i64(const struct cJSON *o, const char *key);
/* About how many bytes the tree takes in memory. NULL: 0. */
size_t json_memory(const struct cJSON *v);
