/* SPDX-License-Identifier: Apache-2.0
 *
 * checkpoint.c: the list of checkpoints, their records, and the commits that change their states.
 */
#include "api/checkpoint/checkpoint.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "api/checkpoint/digest.h"
#include "api/core/database.h"
#include "api/links/images.h"
#include "lib/json.h"
#include "api/core/budgets.h"
#include "lib/log.h"

const char *const cp_state_names[CP_STATES] = {[CP_PENDING] = "Pending",
	[CP_CREATING] = "Creating",
	[CP_READY] = "Ready",
	[CP_FAILED] = "Failed"};

/* A commit under way. */
struct cp_step {
	struct cp_step *next;
	struct checkpoint *c;
	bool deletes, keeps; /* keeps: the step does not change the state */
	enum cp_state to;
	int64_t changed_ns;
	char reason[sizeof(((struct checkpoint *)0)->reason)];
	char message[sizeof(((struct checkpoint *)0)->message)];
	checkpoint_fn fn;
	struct http_req *r;
	struct workset ws; /* as this step writes it */
};

/* ---- one of them */

struct checkpoint *checkpoint_new(struct daemon *d, const struct checkpoint_kind *k, const char *id)
{
	struct checkpoint *c = calloc(1, k->bytes);

	if (!c)
		return NULL;
	c->d = d;
	c->kind = k;
	str_copy(c->id, sizeof(c->id), id);
	str_copy(c->owner, sizeof(c->owner), OWNER_OPERATOR);
	c->created_ns = c->changed_ns = (int64_t)wall_ns();
	return c;
}

static bool is_newer(const struct checkpoint *a, const struct checkpoint *b)
{
	return a->created_ns != b->created_ns ? a->created_ns > b->created_ns
					      : strcmp(a->id, b->id) > 0;
}

/* Replaces the charge for c by its present size. */
static void checkpoint_weigh(struct checkpoint *c)
{
	uint64_t n = c->kind->bytes + json_memory(c->base);

	if (c->kind->weight)
		n += c->kind->weight(c);
	if (!c->record.parent)
		account_move(&c->record, &budget_of(c->d->budgets, &c->d->cfg, c->owner)->records);
	account_give(&c->record, c->weighed);
	account_force(&c->record, n);
	c->weighed = n;
}

struct account *checkpoint_charge(struct checkpoint *c)
{
	struct account *full;

	checkpoint_weigh(c);
	full = account_full(&c->record, 0);
	if (full)
		account_move(&c->record, NULL);
	return full;
}

void checkpoint_list_add(struct checkpoint *c)
{
	struct checkpoint **at = &c->d->checkpoints;

	while (*at && is_newer(*at, c))
		at = &(*at)->next;
	c->next = *at;
	*at = c;
	c->listed = true;
	checkpoint_weigh(c);
}

static void list_remove(struct checkpoint *c)
{
	struct checkpoint **at = &c->d->checkpoints;

	if (!c->listed)
		return;
	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	c->listed = false;
}

void checkpoint_files_drop(struct checkpoint *c)
{
	disk_unref(c->d->blobs, &c->disk);
	memory_unref(c->d->blobs, &c->mem);
	c->disk = (struct disk){0};
	c->mem = (struct memory){0};
	c->ws.rounds = 0;
	c->ws.read = c->ws.written = 0;
	images_release(c->d);
}

void checkpoint_files_set(struct checkpoint *c, const struct disk *disk, const struct memory *mem)
{
	checkpoint_files_drop(c);
	c->disk = *disk;
	c->mem = *mem;
}

static void step_end(struct cp_step *s)
{
	struct cp_step **at = &s->c->steps;

	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	free(s);
}

void checkpoint_forget(struct checkpoint *c)
{
	list_remove(c);
	while (c->steps) {
		database_forget(c->d->database, c->steps);
		step_end(c->steps);
	}
	checkpoint_files_drop(c);
	if (c->kind->fini)
		c->kind->fini(c);
	account_move(&c->record, NULL);
	cJSON_Delete(c->base);
	free(c);
}

bool checkpoint_has_files(const struct checkpoint *c)
{
	return *c->mem.state != 0;
}

/* ---- the record */

static void put_str(cJSON *o, const char *name, const char *text)
{
	if (*text)
		cJSON_AddStringToObject(o, name, text);
}

/* The record as it is after the step s. */
static cJSON *record_of(const struct checkpoint *c, const struct cp_step *s)
{
	cJSON *o = cJSON_CreateObject(), *local = cJSON_AddObjectToObject(o, DB_LOCAL);

	cJSON_AddStringToObject(o, "purpose", c->kind->purpose);
	cJSON_AddStringToObject(o, "owner", c->owner);
	cJSON_AddStringToObject(o, "state", cp_state_names[s->to]);
	put_str(o, "reason", s->reason);
	put_str(o, "message", s->message);
	json_put_i64(o, "created", c->created_ns);
	json_put_i64(o, "changed", s->changed_ns);
	if (c->base)
		cJSON_AddItemToObject(o, "base", cJSON_Duplicate(c->base, true));
	cJSON_AddItemToObject(local, "disk", disk_to_json(c->d->blobs, &c->disk));
	cJSON_AddItemToObject(local, "mem", memory_to_json(&c->mem));
	cJSON_AddItemToObject(local, "workset", workset_to_json(&c->ws));
	if (c->kind->save)
		c->kind->save(c, o, local);
	return o;
}

static void get_str(const cJSON *o, const char *name, char *to, size_t cap)
{
	const char *v = json_str(o, name);

	snprintf(to, cap, "%s", v ? v : "");
}

static const struct checkpoint_kind *kind_of(
	const struct checkpoint_kind *const *kinds, const cJSON *doc)
{
	const char *purpose = json_str(doc, "purpose");

	while (*kinds && (!purpose || strcmp(purpose, (*kinds)->purpose) != 0))
		kinds++;
	return *kinds;
}

static bool state_of(const cJSON *doc, enum cp_state *to)
{
	const char *text = json_str(doc, "state");

	for (enum cp_state s = 0; s < CP_STATES; s++)
		if (text && !strcmp(text, cp_state_names[s])) {
			*to = s;
			return true;
		}
	return false;
}

static int record_read(struct checkpoint *c, cJSON *doc)
{
	const cJSON *local = json_obj(doc, DB_LOCAL);

	if (!state_of(doc, &c->state) ||
		!disk_from_json(
			c->d->blobs, &c->disk, cJSON_GetObjectItemCaseSensitive(local, "disk")) ||
		!memory_from_json(&c->mem, cJSON_GetObjectItemCaseSensitive(local, "mem")))
		return -EINVAL;
	get_str(doc, "owner", c->owner, sizeof(c->owner));
	get_str(doc, "reason", c->reason, sizeof(c->reason));
	get_str(doc, "message", c->message, sizeof(c->message));
	c->created_ns = json_get_i64(doc, "created");
	c->changed_ns = json_get_i64(doc, "changed");
	workset_from_json(&c->ws, cJSON_GetObjectItemCaseSensitive(local, "workset"));
	c->base = cJSON_DetachItemFromObjectCaseSensitive(doc, "base");
	return c->kind->load ? c->kind->load(c, doc, local) : 0;
}

struct load {
	struct daemon *d;
	const struct checkpoint_kind *const *kinds;
};

static int load_one(void *arg, const char *id, cJSON *doc)
{
	const struct load *l = arg;
	const struct checkpoint_kind *k = kind_of(l->kinds, doc);
	struct checkpoint *c = NULL;
	int rc = -EINVAL;

	if (k && strlen(id) < sizeof(c->id)) {
		c = checkpoint_new(l->d, k, id);
		rc = c ? record_read(c, doc) : -ENOMEM;
	}
	cJSON_Delete(doc);
	if (rc < 0) {
		/* not checkpoint_forget(): no references were taken */
		if (c && k->fini)
			k->fini(c);
		if (c)
			cJSON_Delete(c->base);
		free(c);
		return rc;
	}
	disk_ref(c->d->blobs, &c->disk);
	memory_ref(c->d->blobs, &c->mem);
	c->ws_saved = c->ws;
	checkpoint_list_add(c);
	return 0;
}

void checkpoints_load(struct daemon *d, const struct checkpoint_kind *const *kinds)
{
	struct load l = {.d = d, .kinds = kinds};

	database_load(d->database, DB_CHECKPOINT, load_one, &l);
}

/* ---- commits */

static void step_ended(void *arg, const struct err *e)
{
	struct cp_step *s = arg, was = *s;
	struct checkpoint *c = s->c;

	step_end(s);
	if (was.deletes) {
		c->deleting = false;
		if (!e)
			list_remove(c);
	} else if (!was.keeps && (!e || was.to == CP_FAILED)) {
		/* enters Failed also if the commit failed: the next daemon finds out by itself */
		c->state = was.to;
		c->changed_ns = was.changed_ns;
		memcpy(c->reason, was.reason, sizeof(c->reason));
		memcpy(c->message, was.message, sizeof(c->message));
	}
	if (e)
		log_error("%s %s: %s", c->kind->word, c->id, e->msg);
	else
		c->ws_saved = was.ws;
	if (!e && !was.deletes && was.to == CP_READY)
		digests_make(c);
	if (was.fn)
		was.fn(c, was.r, e);
	if (was.deletes && !e)
		checkpoint_forget(c);
}

/* Without memory for the transaction the step fails at once, with its callback. */
static void step_commit(struct cp_step *s, bool sync)
{
	struct transaction *t = transaction_new();
	struct checkpoint *c = s->c;
	cJSON *doc = NULL;

	if (!t) {
		struct err e;

		err_set(&e, ENOMEM, "state");
		step_ended(s, &e);
		return;
	}
	if (s->deletes) {
		transaction_delete(t, DB_CHECKPOINT, c->id);
	} else {
		/* a template's base is replaced when it was built again */
		if (c->listed)
			checkpoint_weigh(c);
		doc = record_of(c, s);
		transaction_put(t, DB_CHECKPOINT, c->id, doc);
	}
	if (sync)
		transaction_sync(t);
	cJSON_Delete(doc);
	database_commit(c->d->database, t, step_ended, s);
}

static struct cp_step *step_new(struct checkpoint *c, checkpoint_fn fn, struct http_req *r)
{
	struct cp_step *s = calloc(1, sizeof(*s));

	ASSERT(s);
	*s = (struct cp_step){.next = c->steps, .c = c, .fn = fn, .r = r, .ws = c->ws};
	c->steps = s;
	return s;
}

void checkpoint_set(struct checkpoint *c, enum cp_state to, bool sync, const char *reason,
	const char *message, checkpoint_fn fn, struct http_req *r)
{
	struct cp_step *s;

	/* a row that is put after its deletion would come back */
	if (c->deleting)
		return;
	s = step_new(c, fn, r);
	s->to = to;
	s->changed_ns = (int64_t)wall_ns();
	snprintf(s->reason, sizeof(s->reason), "%s", reason);
	snprintf(s->message, sizeof(s->message), "%s", message);
	log_info("%s %s: %s %s", c->kind->word, c->id, cp_state_names[to], message);
	step_commit(s, sync);
}

void checkpoint_save(struct checkpoint *c)
{
	/* the newest step is the first in the list: what c will be when all have ended */
	const struct cp_step *last = c->steps;
	struct cp_step *s;

	if (c->deleting)
		return;
	s = step_new(c, NULL, NULL);
	s->keeps = true;
	s->to = last ? last->to : c->state;
	s->changed_ns = last ? last->changed_ns : c->changed_ns;
	memcpy(s->reason, last ? last->reason : c->reason, sizeof(s->reason));
	memcpy(s->message, last ? last->message : c->message, sizeof(s->message));
	step_commit(s, false);
}

void checkpoint_delete(struct checkpoint *c, checkpoint_fn fn, struct http_req *r)
{
	struct cp_step *s = step_new(c, fn, r);

	s->deletes = c->deleting = true;
	step_commit(s, true);
}

void checkpoint_drop(struct checkpoint *c)
{
	struct transaction *t = transaction_new();

	/* without memory the record stays, and the next start drops it: its files are gone */
	if (t) {
		transaction_delete(t, DB_CHECKPOINT, c->id);
		database_commit(c->d->database, t, NULL, NULL);
	}
	checkpoint_forget(c);
}

/* ---- all of them */

struct checkpoint *checkpoint_first(const struct daemon *d, const struct checkpoint_kind *k)
{
	struct checkpoint *c = d->checkpoints;

	while (c && c->kind != k)
		c = c->next;
	return c;
}

struct checkpoint *checkpoint_next(const struct checkpoint *c)
{
	struct checkpoint *n = c->next;

	while (n && n->kind != c->kind)
		n = n->next;
	return n;
}

struct checkpoint *checkpoint_find(
	const struct daemon *d, const struct checkpoint_kind *k, const char *id)
{
	struct checkpoint *c = checkpoint_first(d, k);

	while (c && strcmp(c->id, id) != 0)
		c = checkpoint_next(c);
	return c;
}

static const char *plain_id(const char *id)
{
	return strncmp(id, "tpl-", 4) ? id : id + 4;
}

struct checkpoint *checkpoint_usable(const struct daemon *d, const char *id)
{
	for (struct checkpoint *c = d->checkpoints; c; c = c->next)
		if (!strcmp(plain_id(c->id), plain_id(id)) && checkpoint_has_files(c) &&
			(c->state == CP_READY || c->kind->old_files_serve))
			return c;
	return NULL;
}

bool checkpoints_need_image(const struct daemon *d, const char *image)
{
	for (const struct checkpoint *c = d->checkpoints; c; c = c->next)
		if (strstr(c->disk.base, image) ||
			(c->kind->image_comes_later && c->state < CP_READY))
			return true;
	return false;
}

void checkpoints_damaged(struct daemon *d, const char *blob, const char *text)
{
	struct checkpoint *next;

	for (struct checkpoint *c = d->checkpoints; c; c = next) {
		next = c->next;
		if (memory_has(&c->mem, blob) && c->kind->damaged)
			c->kind->damaged(c, text);
	}
}

/* ---- working sets, as records have them */

cJSON *workset_to_json(const struct workset *w)
{
	cJSON *o = cJSON_CreateObject();

	cJSON_AddNumberToObject(o, "rounds", w->rounds);
	cJSON_AddNumberToObject(o, "pagesRead", (double)w->read);
	cJSON_AddNumberToObject(o, "pagesWritten", (double)w->written);
	return o;
}

void workset_from_json(struct workset *w, const cJSON *o)
{
	uint64_t rounds = 0, read = 0, written = 0;

	json_whole(cJSON_GetObjectItemCaseSensitive(o, "rounds"), 1000000, &rounds);
	json_whole(cJSON_GetObjectItemCaseSensitive(o, "pagesRead"), 1ull << 40, &read);
	json_whole(cJSON_GetObjectItemCaseSensitive(o, "pagesWritten"), 1ull << 40, &written);
	*w = (struct workset){.rounds = (unsigned int)rounds, .read = read, .written = written};
}
