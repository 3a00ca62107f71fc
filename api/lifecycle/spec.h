/* SPDX-License-Identifier: Apache-2.0
 *
 * spec.h: what a client asked for in POST /sandboxes, checked field by field (protocol.md 1.3). The JSON is hostile. Nothing here does
 * I/O: parse and validate only, so that every rule has a unit test. Also the grammars that other routes share.
 */
#pragma once

#include "lib/base.h"

struct cJSON;
struct config;

/* an answer that refuses: status, code, message */
struct refusal {
	int status;
	const char *code;
	char msg[400];
};
/* returns -EINVAL, for `return refuse(...)` */
int refuse(struct refusal *x, int status, const char *code, const char *fmt, ...) _printf_(4, 5);
/* A whole number from 0 to max; looked at before it is converted, which for any other double is
 * undefined. */
bool whole_number(const struct cJSON *v, uint64_t max, uint64_t *out);

enum source { SRC_IMAGE, SRC_SNAPSHOT, SRC_TEMPLATE };

struct spec {
	enum source source;
	char *image, *snapshot_id, *template_id;
	char *auth_user, *auth_password; /* never stored */
	bool has_timeout, has_entrypoint, has_env;
	uint64_t timeout_s;
	uint32_t cpu_millis, vcpus;
	uint64_t memory_bytes;
	/* owned; NULL if absent */
	struct cJSON *env, *metadata, *entrypoint, *extensions, *platform, *lifecycle;
	uint32_t renew_s; /* access.renew.extend.seconds; 0 = none */
};

/* 0, or -EINVAL with x filled. s is to be given to spec_fini either way. body need not be
 * terminated. */
int spec_parse(
	struct spec *s, const void *body, size_t n, const struct config *c, struct refusal *x);
void spec_fini(struct spec *s);

/* body as a JSON object; NULL: x says why. */
struct cJSON *json_object(const void *body, size_t n, struct refusal *x);
/* The create request's `lifecycle`: 0, or -EINVAL with x filled. */
int lifecycle_check(const struct cJSON *l, struct refusal *x);
int metadata_check(
	const struct cJSON *map, bool nulls, const char *reserved_code, struct refusal *x);
bool metadata_key_ok(const char *k);
bool metadata_value_ok(const char *v);
bool cpu_parse(const char *s, uint32_t *millis);
bool memory_parse(const char *s, uint64_t *bytes);
/* RFC 3339, 0 to 9 fraction digits, any offset; none = UTC. false: not a time. */
bool time_parse(const char *s, int64_t *unix_ns);
#define TIME_TEXT 32
const char *time_format(int64_t unix_ns, char out[TIME_TEXT]);
bool uuid_ok(const char *s);
void uuid_make(char out[37]);
