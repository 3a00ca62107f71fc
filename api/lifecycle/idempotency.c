/* SPDX-License-Identifier: Apache-2.0
 *
 * idempotency.c: keys of POST /sandboxes and the sandboxes they made. mayflyd's loop. The client's
 * key is hostile: it is kept as the digest of itself and of the principal, so that one client cannot
 * ask for another's.
 */
#include "api/lifecycle/idempotency.h"

#include <cjson/cJSON.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <string.h>

#include "api/http/http.h"
#include "api/sandbox/launch.h"
#include "api/core/database.h"
#include "lib/json.h"
#include "lib/log.h"

#define KEEP_NS  (24ll * 3600 * 1000000000)
#define PRUNE_NS (3600ull * 1000000000)

static bool key_digest(struct http_req *r, char out[65])
{
	const char *key = http_header(r, "Idempotency-Key");
	char owner[OWNER_MAX];
	uint8_t md[SHA256_DIGEST_LENGTH];
	char *both;

	if (!key || !*key)
		return false;
	/* the separator cannot be in a header */
	principal_owner(&r->principal, owner);
	both = http_printf(r, "%s\n%s", owner, key);
	if (!both)
		return false;
	SHA256((const unsigned char *)both, strlen(both), md);
	for (size_t i = 0; i < sizeof(md); i++)
		snprintf(out + 2 * i, 3, "%02x", md[i]);
	return true;
}

/* The sandbox that this key made in the last 24 hours, NULL: none. -errno: that cannot be told, and
 * a second sandbox must not be made. */
static int key_sandbox(struct daemon *d, const char *key, struct sandbox **sb)
{
	const cJSON *id, *at;
	struct err e;
	cJSON *o;
	int rc = database_get(d->database, DB_IDEMPOTENCY, key, &o, &e);

	*sb = NULL;
	if (rc < 0) {
		log_error("idempotency key: %s", e.msg);
		return rc;
	}
	id = cJSON_GetObjectItemCaseSensitive(o, "sandbox");
	at = cJSON_GetObjectItemCaseSensitive(o, "at");
	if (cJSON_IsString(id) && cJSON_IsNumber(at) &&
		(int64_t)at->valuedouble + KEEP_NS >= (int64_t)wall_ns())
		*sb = sandbox_find(d, id->valuestring);
	cJSON_Delete(o);
	return 0;
}

bool idempotency_answered(struct http_req *r)
{
	struct daemon *d = r->app;
	struct sandbox *sb;
	char key[65];

	if (!key_digest(r, key))
		return false;
	if (key_sandbox(d, key, &sb) < 0) {
		http_error(r, 500, "SANDBOX::INTERNAL_ERROR",
			"The Idempotency-Key cannot be looked up.");
		return true;
	}
	if (!sb)
		return false;
	idempotency_answer(r, sb);
	return true;
}

void idempotency_answer(struct http_req *r, struct sandbox *sb)
{
	/* told here, it is promised: the next daemon makes it, if this one does not */
	if (sb->state == SB_PENDING && launch_promise(sb) < 0) {
		http_error(r, 500, "SANDBOX::INTERNAL_ERROR",
			"The sandbox's record cannot be written.");
		return;
	}
	http_reply_json(r, 202, sandbox_to_json(sb, true));
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
	rc = database_put(d->database, DB_IDEMPOTENCY, key, o, false, &e);
	if (rc < 0)
		log_error("%s", e.msg);
	cJSON_Delete(o);
	return rc;
}

int idempotency_id_spent(struct daemon *d, const char *id)
{
	char key[ID_SPENT_KEY];
	struct err e;
	cJSON *o = NULL;
	int rc = database_get(d->database, DB_IDEMPOTENCY, id_spent_key(id, key), &o, &e);

	if (rc < 0)
		log_error("id of a sandbox: %s", e.msg);
	else
		rc = (o && json_field(o, "at") &&
			(int64_t)json_field(o, "at")->valuedouble + KEEP_NS >= (int64_t)wall_ns());
	cJSON_Delete(o);
	return rc;
}

static void keys_forget(struct daemon *d, enum db_query q, const char *value)
{
	struct transaction *t = transaction_new();

	/* without memory: a later round deletes them, and a key of no sandbox makes a new one */
	if (!t)
		return;
	transaction_query(t, q, value);
	database_commit(d->database, t, NULL, NULL);
}

static void keys_prune(void *arg)
{
	struct daemon *d = arg;
	char before[32];

	snprintf(before, sizeof(before), "%lld", (long long)wall_ns() - KEEP_NS);
	keys_forget(d, DB_PRUNE_KEYS, before);
	timer_after(d->keys_prune, PRUNE_NS);
}

void idempotency_start(struct daemon *d)
{
	d->keys_prune = loop_timer(d->loop, keys_prune, d);
	ASSERT(d->keys_prune);
	keys_prune(d);
}

void idempotency_forget(struct sandbox *sb)
{
	keys_forget(sb->d, DB_FORGET_SANDBOX_KEYS, sb->id);
}
