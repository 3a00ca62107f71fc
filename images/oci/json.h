/* SPDX-License-Identifier: Apache-2.0
 *
 * json.h: JSON from registries and archives: lib/json.h within the length that an image's documents may have.
 */
#pragma once

#include <cjson/cJSON.h>

#include "lib/json.h"

/* len bytes of hostile text. An object or array, or NULL and e. Free with cJSON_Delete. */
cJSON *json_parse(const void *p, size_t len, struct err *e);
