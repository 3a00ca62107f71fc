/* SPDX-License-Identifier: Apache-2.0
 *
 * schema.h: the part of JSON Schema that the worker contract uses (docs/api.md): does a value satisfy a schema? mayflyd. Schema and value are hostile.
 *
 * Supported: type (a name or a list of names), properties, required, additionalProperties (true or false), items (one schema), enum and const (of
 * scalars), minLength, maxLength, minItems, maxItems, minimum, maximum. Passed over: $schema, $id, title, description, default, examples. Every other
 * keyword is refused, because a schema that is checked in part would let values through that its author excluded.
 */
#pragma once

#include "lib/err.h"

struct cJSON;

#define SCHEMA_DEPTH_MAX 16u   /* schemas in schemas */
#define SCHEMA_PARTS_MAX 1000u /* keywords, properties and list entries of one schema */
/* Comparisons of names and scalars in one check: about 10 ms of the loop. */
#define SCHEMA_WORK_MAX 1000000u

/* 0; -EINVAL: it is not a schema, or has a keyword that is not supported: e names the place. what: the schema's name in e. */
int schema_check(const struct cJSON *schema, const char *what, struct err *e);
/* schema has passed schema_check(). 0; -EINVAL: the value does not satisfy it: e names the place; -E2BIG: the value is too large to check. what: the
 * value's name in e. */
int schema_match(
	const struct cJSON *schema, const struct cJSON *value, const char *what, struct err *e);
