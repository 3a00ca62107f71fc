/* SPDX-License-Identifier: Apache-2.0
 *
 * json.h: JSON from registries and archives, by cJSON within bounds of our own: length, depth, nothing left over.
 */
#pragma once

#include "lib/err.h"

#include <cjson/cJSON.h>

/* len bytes of hostile text. An object or array, or NULL and e. Free with cJSON_Delete. */
cJSON *json_parse(const void *p, size_t len, struct err *e);
static inline void json_freep(cJSON **j)
{
	cJSON_Delete(*j);
}

/* Typed members of an object; the default when absent or of another type. Strings stay the
 * object's. */
const char *json_str(const cJSON *o, const char *key);
const cJSON *json_obj(const cJSON *o, const char *key);
const cJSON *json_arr(const cJSON *o, const char *key);
/* -EINVAL unless it is a whole number from 0 to 2^53 */
int json_u64(const cJSON *o, const char *key, uint64_t *out);
