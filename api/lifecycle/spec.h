/* SPDX-License-Identifier: Apache-2.0
 *
 * spec.h: what a client asked for in POST /sandboxes of the Sandbox Protocol, checked field by field. The JSON is hostile. Nothing here does
 * I/O: parse and validate only, so that every rule has a unit test. Also the grammars that other routes share.
 */
#pragma once

#include "api/core/create_request.h"
#include "api/core/text.h"
#include "lib/json.h"

struct cJSON;
struct config;

/* 0, or -EINVAL with x filled. s is to be given to spec_fini either way. body need not be
 * terminated. */
int spec_parse(
	struct spec *s, const void *body, size_t n, const struct config *c, struct refusal *x);

/* body as a JSON object; NULL: x says why. */
struct cJSON *json_object(const void *body, size_t n, struct refusal *x);
/* The create request's `lifecycle`: 0, or -EINVAL with x filled. */
int lifecycle_check(const struct cJSON *l, const struct config *c, struct refusal *x);
/* Limits of what a client has kept in a sandbox's record and shown in every answer. Beyond them: 413. Each key and value of metadata is bounded by
 * its grammar. */
#define METADATA_KEYS_MAX    128
#define ENV_KEYS_MAX         1024
#define EXTENSIONS_KEYS_MAX  128
#define EXTENSIONS_BYTES_MAX 65536
/* 0; -EINVAL with x filled: the object has more than max members. */
int members_check(const struct cJSON *map, const char *what, size_t max, struct refusal *x);
/* Checks env, and puts the variables that the sandbox gets into `to`, an object. */
int env_check(const struct cJSON *env, struct cJSON *to, struct refusal *x);
int timeout_check(
	const struct cJSON *t, const struct config *c, uint64_t *seconds, struct refusal *x);
/* nulls: it is a patch, in which null deletes a key. reserved_code: the error code for a key that the protocol reserves. */
int metadata_check(
	const struct cJSON *map, bool nulls, const char *reserved_code, struct refusal *x);
bool metadata_key_ok(const char *k);
bool metadata_value_ok(const char *v);
bool cpu_parse(const char *s, uint32_t *millis);
