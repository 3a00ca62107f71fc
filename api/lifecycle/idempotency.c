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

/* A key on its way into the database. */
struct key_write {
	struct key_write *next;
	struct daemon *d;
	char key[65], sandbox[37];
};

struct idempotency {
	struct timer *prune;
	struct key_write *writes;
};

static bool key_digest(struct http_req *r, char out[65])
{
	const char *key = http_header(r, "Idempotency-Key");
	char owner[OWNER_MAX];
	uint8_t md[SHA256_DIGEST_LENGTH];
	char *both;

	if (!key || !*key)
		return false;
	/* a header cannot have the separator, a newline, in it */
	principal_owner(&r->principal, owner);
	both = http_printf(r, "%s\n%s", owner, key);
	if (!both)
		return false;
	SHA256((const unsigned char *)both, strlen(both), md);
	for (size_t i = 0; i < sizeof(md); i++)
		snprintf(out + 2 * i, 3, "%02x", md[i]);
	return true;
}

/* The sandbox that this key made in the last 24 hours, NULL: none. -errno: it cannot be looked up, and
 * a second sandbox must not be made. */
static int key_sandbox(struct daemon *d, const char *key, struct sandbox **sb)
{
	const struct key_write *w = d->keys->writes;
	const cJSON *id, *at;
	struct err e;
	cJSON *o;
	int rc;

	while (w && strcmp(w->key, key) != 0)
		w = w->next;
	*sb = w ? sandbox_find(d, w->sandbox) : NULL;
	if (*sb)
		return 0;
	rc = database_get(d->database, DB_IDEMPOTENCY, key, &o, &e);

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

static void promised(struct sandbox *sb, struct http_req *r, bool saved)
{
	if (r && saved)
		http_reply_json(r, 202, sandbox_to_json(sb, true));
	else if (r)
		http_error(r, 500, "SANDBOX::INTERNAL_ERROR",
			"The sandbox's record cannot be written, or it was deleted.");
}

void idempotency_answer(struct http_req *r, struct sandbox *sb)
{
	/* A client that has the id was promised the sandbox: if this daemon does not make it, the next one does. */
	if (launch_promise(sb, r, promised) < 0)
		promised(sb, r, false);
}

/* The key is committed before the sandbox's own record, so no client knows of the sandbox yet. Its client gets the error when the record is deleted and no
 * daemon can find it. */
static void key_failed(struct daemon *d, const char *sandbox)
{
	static const char text[] = "The Idempotency-Key cannot be written.";
	struct sandbox *sb = sandbox_find(d, sandbox);
	struct http_req *r;

	if (!sb || sandbox_gone(sb))
		return;
	sandbox_ref(sb);
	r = operation_client(sb);
	sandbox_delete(sb, "its Idempotency-Key cannot be written");
	if (r && sb->op.kind == OP_DELETE) {
		operation_client_waits(sb, r);
		sb->op.refused = text;
	} else if (r) {
		http_error(r, 500, "SANDBOX::INTERNAL_ERROR", "%s", text);
	}
	sandbox_unref(sb);
}

static void key_written(void *arg, const struct err *e)
{
	struct key_write *w = arg, **at = &w->d->keys->writes;

	while (*at != w)
		at = &(*at)->next;
	*at = w->next;
	if (e) {
		log_error("idempotency key: %s", e->msg);
		key_failed(w->d, w->sandbox);
	}
	free(w);
}

int idempotency_remember(struct http_req *r, const struct sandbox *sb)
{
	struct daemon *d = r->app;
	struct transaction *t;
	struct key_write *w;
	char key[65];
	cJSON *o;

	if (!key_digest(r, key))
		return 0;
	w = malloc(sizeof(*w));
	t = w ? transaction_new() : NULL;
	if (!t) {
		free(w);
		return -ENOMEM;
	}
	*w = (struct key_write){.next = d->keys->writes, .d = d};
	memcpy(w->key, key, sizeof(key));
	memcpy(w->sandbox, sb->id, sizeof(w->sandbox));
	d->keys->writes = w;
	o = cJSON_CreateObject();
	cJSON_AddStringToObject(o, "sandbox", sb->id);
	cJSON_AddNumberToObject(o, "at", (double)wall_ns());
	transaction_put(t, DB_IDEMPOTENCY, key, o);
	cJSON_Delete(o);
	database_commit(d->database, t, key_written, w);
	return 0;
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
	timer_after(d->keys->prune, PRUNE_NS);
}

void idempotency_start(struct daemon *d)
{
	d->keys = calloc(1, sizeof(*d->keys));
	ASSERT(d->keys);
	d->keys->prune = loop_timer(d->loop, keys_prune, d);
	ASSERT(d->keys->prune);
	keys_prune(d);
}

void idempotency_forget(struct sandbox *sb)
{
	keys_forget(sb->d, DB_FORGET_SANDBOX_KEYS, sb->id);
}
