/* SPDX-License-Identifier: Apache-2.0
 *
 * claims.c: the records of claims, and who holds them. mayflyd's loop. Names were checked by their readers.
 *
 * A claim's record is written before its folder is made, and deleted after the folder was removed: no folder is ever without a record. In
 * between the record says "deleting", and the next daemon continues the deletion.
 */
#include "api/volumes/volumes_int.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "api/core/daemon.h"
#include "api/core/database.h"
#include "api/core/text.h"
#include "api/volumes/volume_request.h"
#include "lib/log.h"

/* A callback that waits for a commit. */
struct pending {
	struct volumes *v;
	struct claim *c;
	claim_fn fn;
	void *arg;
	enum { WRITE_NEW, WRITE_DELETING, WRITE_GONE } what;
};

struct volumes *volumes_create(struct daemon *d, struct err *e)
{
	struct volumes *v = calloc(1, sizeof(*v));

	if (v)
		v->d = d;
	else
		err_set(e, ENOMEM, "volumes");
	return v;
}

void volumes_destroy(struct volumes *v)
{
	if (!v)
		return;
	purges_destroy(v);
	while (v->servers)
		fileserver_destroy(v->servers);
	while (v->claims) {
		struct claim *c = v->claims;

		v->claims = c->next;
		free(c);
	}
	free(v);
}

void volumes_process_exited(struct volumes *v, const struct priv_msg *ev)
{
	if (!v)
		return;
	fileserver_exited(v, ev);
	purge_exited(v, ev);
}

/* ---- records */

static void claim_forget(struct volumes *v, struct claim *c)
{
	struct claim **at = &v->claims;

	while (*at && *at != c)
		at = &(*at)->next;
	if (*at)
		*at = c->next;
	free(c);
}

static cJSON *claim_record(const struct claim *c)
{
	cJSON *o = cJSON_CreateObject();

	cJSON_AddStringToObject(o, "name", c->name);
	cJSON_AddStringToObject(o, "owner", c->owner);
	json_put_i64(o, "created", c->created_ns);
	json_put_i64(o, "maxBytes", (int64_t)c->max_bytes);
	cJSON_AddBoolToObject(o, "deleteAfter", c->delete_after);
	cJSON_AddBoolToObject(o, "deleting", c->deleting);
	return o;
}

static void committed(void *arg, const struct err *e)
{
	struct pending p = *(struct pending *)arg;

	free(arg);
	if (e)
		log_error("claim %s: %s", p.c->name, e->msg);
	p.c->writes--;
	if (p.what == WRITE_NEW && !e)
		p.c->committed = true;
	if (p.what == WRITE_DELETING && e)
		p.c->deleting = false;
	if (p.fn)
		p.fn(p.arg, p.c, e);
	if (p.what == WRITE_DELETING && !e)
		purge_begin(p.v, p.c);
	else if (p.what == WRITE_GONE && !e)
		claim_forget(p.v, p.c);
	else if (e && !p.c->committed && !p.c->uses && !p.c->writes)
		/* The claim has no record. The last of its writes to end frees it. */
		claim_forget(p.v, p.c);
}

static int claim_write(struct volumes *v, struct claim *c, int what, claim_fn fn, void *arg)
{
	struct pending *p = calloc(1, sizeof(*p));
	struct transaction *t = transaction_new();
	cJSON *o = what == WRITE_GONE ? NULL : claim_record(c);

	if (!p || !t || (what != WRITE_GONE && !o)) {
		free(p);
		transaction_free(t);
		cJSON_Delete(o);
		return -ENOMEM;
	}
	*p = (struct pending){v, c, fn, arg, what};
	if (o)
		transaction_put(t, DB_CLAIM, c->folder, o);
	else
		transaction_delete(t, DB_CLAIM, c->folder);
	cJSON_Delete(o);
	transaction_sync(t);
	c->writes++;
	database_commit(v->d->database, t, committed, p);
	return 0;
}

static int load_claim(void *arg, const char *key, cJSON *doc)
{
	struct volumes *v = arg;
	const char *name = json_str(doc, "name"), *owner = json_str(doc, "owner");
	struct claim *c = NULL;

	if (name && owner && claim_name_ok(name) && strlen(key) == CLAIM_FOLDER - 1 &&
		strlen(owner) < OWNER_MAX)
		c = calloc(1, sizeof(*c));
	if (c) {
		str_copy(c->folder, sizeof(c->folder), key);
		str_copy(c->name, sizeof(c->name), name);
		str_copy(c->owner, sizeof(c->owner), owner);
		c->created_ns = json_get_i64(doc, "created");
		c->max_bytes = (uint64_t)json_get_i64(doc, "maxBytes");
		c->delete_after = cJSON_IsTrue(json_field(doc, "deleteAfter"));
		c->deleting = cJSON_IsTrue(json_field(doc, "deleting"));
		c->committed = true;
		c->next = v->claims;
		v->claims = c;
	}
	cJSON_Delete(doc);
	return c ? 0 : -EINVAL;
}

void volumes_load(struct volumes *v)
{
	database_load(v->d->database, DB_CLAIM, load_claim, v);
}

void volumes_loaded(struct volumes *v, bool complete)
{
	for (struct claim *c = v->claims, *next; c; c = next) {
		next = c->next;
		if (c->deleting)
			purge_begin(v, c);
		else if (complete && c->delete_after && !c->uses)
			/* its last sandbox ended with the last daemon */
			claim_delete(v, c, NULL, NULL);
	}
	fileservers_loaded(v);
}

/* ---- finding, making, deleting */

struct claim *claims_first(const struct volumes *v)
{
	return v->claims;
}

static bool same_namespace(const char *a, const char *b)
{
	size_t n = strcspn(a, "/");

	return n == strcspn(b, "/") && strncmp(a, b, n) == 0;
}

bool claims_have_room(const struct volumes *v, const char *owner)
{
	unsigned int n = 0;

	for (struct claim *c = v->claims; c; c = c->next)
		n += same_namespace(c->owner, owner);
	return n < CLAIMS_MAX;
}

struct claim *claim_find(const struct volumes *v, const char *owner, const char *name)
{
	for (struct claim *c = v->claims; c; c = c->next)
		if (!c->deleting && !strcmp(c->name, name) && same_namespace(c->owner, owner))
			return c;
	for (struct claim *c = v->claims; c; c = c->next)
		if (!c->deleting && !strcmp(c->folder, name) && owner_may(owner, c->owner))
			return c;
	return NULL;
}

struct claim *claim_new(struct volumes *v, const char *owner, const char *name,
	struct claim_options o, claim_fn done, void *arg)
{
	struct claim *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	random_hex(c->folder, sizeof(c->folder));
	str_copy(c->name, sizeof(c->name), name);
	str_copy(c->owner, sizeof(c->owner), owner);
	c->created_ns = (int64_t)wall_ns();
	c->delete_after = o.delete_after;
	c->max_bytes = o.max_bytes;
	if (claim_write(v, c, WRITE_NEW, done, arg) < 0) {
		free(c);
		return NULL;
	}
	c->next = v->claims;
	v->claims = c;
	return c;
}

void claim_delete(struct volumes *v, struct claim *c, claim_fn done, void *arg)
{
	struct err e;

	c->deleting = true;
	if (claim_write(v, c, WRITE_DELETING, done, arg) == 0)
		return;
	c->deleting = false;
	err_set(&e, ENOMEM, "claim %s", c->name);
	if (done)
		done(arg, c, &e);
}

void claim_purged(struct volumes *v, struct claim *c)
{
	/* without memory the record stays: the next start removes it */
	if (claim_write(v, c, WRITE_GONE, NULL, NULL) < 0)
		log_error("claim %s: its record stays until the next start", c->name);
}

/* ---- who holds them */

struct claim *claim_by_folder(const struct volumes *v, const char *folder)
{
	struct claim *c = v->claims;

	while (c && (!folder || strcmp(c->folder, folder) != 0))
		c = c->next;
	return c;
}

static void release_one(struct volumes *v, const cJSON *item, bool undo)
{
	struct claim *c = claim_by_folder(v, json_str(item, "folder"));
	bool made = undo && cJSON_IsTrue(json_field(item, "made"));

	if (!c || !c->uses)
		return;
	c->uses--;
	if (!c->uses && !c->deleting && (c->delete_after || made))
		claim_delete(v, c, NULL, NULL);
}

static int hold_one(struct volumes *v, cJSON *item, const char *owner, struct refusal *x)
{
	struct volume_item i;
	struct claim *c;

	if (!volume_item_get(item, &i))
		return refuse(
			x, 500, "SANDBOX::INTERNAL_ERROR", "a volume of the record is damaged");
	if (i.host)
		return 0;
	/* the list of a snapshot names the claim itself; it is used if it exists and the owner may use it */
	c = i.folder ? claim_find(v, owner, i.folder) : NULL;
	if (!c)
		c = claim_find(v, owner, i.source);
	cJSON_DeleteItemFromObjectCaseSensitive(item, "folder");
	cJSON_DeleteItemFromObjectCaseSensitive(item, "made");
	if (!c && !i.create)
		return refuse(x, 400, "VOLUME::PVC_NOT_FOUND",
			"Claim '%s' does not exist, and createIfNotExists is false.", i.source);
	if (!c && !claims_have_room(v, owner))
		return refuse(x, 429, "VOLUME::PVC_LIMIT_EXCEEDED",
			"There are %u claims already, which is the limit. Delete some.",
			CLAIMS_MAX);
	if (!c) {
		c = claim_new(v, owner, i.source,
			(struct claim_options){i.delete_after, i.max_bytes}, NULL, NULL);
		if (!c || !cJSON_AddTrueToObject(item, "made"))
			return refuse(x, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
	}
	if (!cJSON_AddStringToObject(item, "folder", c->folder))
		return refuse(x, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
	c->uses++;
	return 0;
}

int volumes_hold(struct volumes *v, cJSON *list, const char *owner, struct refusal *x)
{
	cJSON *item, *bad;

	cJSON_ArrayForEach (bad, list)
		if (hold_one(v, bad, owner, x) < 0)
			break;
	if (!bad)
		return 0;
	/* only the items before `bad` are held; the folders of the others may come from another sandbox's record */
	for (item = list->child; item != bad; item = item->next)
		release_one(v, item, true);
	cJSON_ArrayForEach (item, list) {
		cJSON_DeleteItemFromObjectCaseSensitive(item, "folder");
		cJSON_DeleteItemFromObjectCaseSensitive(item, "made");
	}
	return -EINVAL;
}

bool volumes_fit(const cJSON *had, const cJSON *want)
{
	const cJSON *a = had ? had->child : NULL, *b = want ? want->child : NULL;

	for (; a && b; a = a->next, b = b->next) {
		struct volume_item i, k;

		if (!volume_item_get(a, &i) || !volume_item_get(b, &k) ||
			strcmp(i.mount, k.mount) != 0 || i.host != k.host ||
			i.read_only != k.read_only)
			return false;
	}
	return !a && !b;
}

void volumes_hold_again(struct volumes *v, const cJSON *list)
{
	const cJSON *item;

	cJSON_ArrayForEach (item, list) {
		struct claim *c = claim_by_folder(v, json_str(item, "folder"));

		if (c)
			c->uses++;
	}
}

void volumes_release(struct volumes *v, const cJSON *list, bool undo)
{
	const cJSON *item;

	cJSON_ArrayForEach (item, list)
		release_one(v, item, undo);
}
