/* SPDX-License-Identifier: Apache-2.0
 *
 * idempotency.c: keys of POST /sandboxes and the sandboxes they made. mayflyd's loop. The client's
 * key is hostile: it is kept as the digest of itself and of the API key, so that one client cannot
 * ask for another's.
 */
#include "api/core/idempotency.h"

#include <cjson/cJSON.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <string.h>

#include "api/sandbox/launch.h"
#include "api/core/database.h"
#include "lib/log.h"

#define KEEP_NS (24ll * 3600 * 1000000000)

/* In the database only: creates with a key are rare, and a lookup there is cheap. */
struct lookup {
	const char *want;
	char sandbox[37];
	int64_t at;
};

static bool key_digest(struct http_req *r, char out[65])
{
	const char *key = http_header(r, "Idempotency-Key"),
		   *api = http_header(r, "OPEN-SANDBOX-API-KEY");
	uint8_t md[SHA256_DIGEST_LENGTH];
	char *both;

	if (!key || !*key)
		return false;
	/* the separator cannot be in a header */
	both = http_printf(r, "%s\n%s", api ? api : "", key);
	if (!both)
		return false;
	SHA256((const unsigned char *)both, strlen(both), md);
	for (size_t i = 0; i < sizeof(md); i++)
		snprintf(out + 2 * i, 3, "%02x", md[i]);
	return true;
}

static void look(void *arg, const char *id, cJSON *o)
{
	struct lookup *l = arg;
	const cJSON *sb = cJSON_GetObjectItemCaseSensitive(o, "sandbox"),
		    *at = cJSON_GetObjectItemCaseSensitive(o, "at");

	if (!strcmp(id, l->want) && cJSON_IsString(sb) && cJSON_IsNumber(at)) {
		snprintf(l->sandbox, sizeof(l->sandbox), "%s", sb->valuestring);
		l->at = (int64_t)at->valuedouble;
	}
	cJSON_Delete(o);
}

bool idempotency_answered(struct http_req *r)
{
	struct daemon *d = r->app;
	struct sandbox *sb;
	struct lookup l = {0};
	char key[65];

	if (!key_digest(r, key))
		return false;
	l.want = key;
	state_each(d->state, ST_IDEMPOTENCY, look, &l, NULL);
	if (!*l.sandbox || l.at + KEEP_NS < (int64_t)wall_ns())
		return false;
	sb = sandbox_find(d, l.sandbox);
	if (!sb)
		return false;
	/* told here, it is promised: the next daemon makes it, if this one does not */
	if (sb->state == SB_PENDING && launch_promise(sb) < 0) {
		http_error(r, 500, "SANDBOX::INTERNAL_ERROR",
			"The sandbox's record cannot be written.");
		return true;
	}
	http_reply_json(r, 202, sandbox_to_json(sb, true));
	return true;
}

int idempotency_remember(struct http_req *r, const struct sandbox *sb)
{
	struct daemon *d = r->app;
	char key[65];
	struct err e;
	cJSON *o;
	int rc;

	if (!key_digest(r, key))
		return 0;
	o = cJSON_CreateObject();
	cJSON_AddStringToObject(o, "sandbox", sb->id);
	cJSON_AddNumberToObject(o, "at", (double)wall_ns());
	rc = state_put(d->state, ST_IDEMPOTENCY, key, o, false, &e);
	if (rc < 0)
		log_error("%s", e.msg);
	cJSON_Delete(o);
	return rc;
}

/* Keys that go: what is too old, and that of one sandbox. */
struct useless {
	struct daemon *d;
	const char *sandbox;
};

static void drop_useless(void *arg, const char *id, cJSON *o)
{
	struct useless *u = arg;
	const cJSON *at = cJSON_GetObjectItemCaseSensitive(o, "at");
	const char *sb = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(o, "sandbox"));

	if (!cJSON_IsNumber(at) || (int64_t)at->valuedouble + KEEP_NS < (int64_t)wall_ns() || !sb ||
		(u->sandbox && !strcmp(sb, u->sandbox)))
		state_delete(u->d->state, ST_IDEMPOTENCY, id, false, NULL);
	cJSON_Delete(o);
}

void idempotency_load(struct daemon *d)
{
	struct useless u = {.d = d};

	state_each(d->state, ST_IDEMPOTENCY, drop_useless, &u, NULL);
}

void idempotency_forget(struct sandbox *sb)
{
	struct useless u = {.d = sb->d, .sandbox = sb->id};

	state_each(sb->d->state, ST_IDEMPOTENCY, drop_useless, &u, NULL);
}
