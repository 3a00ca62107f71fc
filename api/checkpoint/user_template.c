/* SPDX-License-Identifier: Apache-2.0
 *
 * user_template.c: see utemplate.h. mayflyd's loop. Request bodies are hostile.
 */
#include "api/checkpoint/user_template.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "api/sandbox/template_build.h"
#include "api/links/images.h"
#include "api/lifecycle/route_lifecycle.h"
#include "api/lifecycle/spec.h"
#include "api/checkpoint/snapshot.h"
#include "api/core/database.h"
#include "api/lifecycle/template_request.h"
#include "api/checkpoint/working_set.h"
#include "lib/log.h"

#define BUILDS_MAX 2u /* at one time; the others are Pending */
#define ID_MAX     48

enum phase_of { UT_PENDING, UT_BUILDING, UT_SUCCEEDED, UT_FAILED };
static const char *const phases[] = {[UT_PENDING] = "Pending",
	[UT_BUILDING] = "Building",
	[UT_SUCCEEDED] = "Succeeded",
	[UT_FAILED] = "Failed"};

struct utemplate {
	struct utemplate *next;
	struct daemon *d;
	char id[ID_MAX], owner[OWNER_MAX];
	cJSON *req; /* the request's fields, as they are shown */
	enum phase_of phase;
	char message[300], boot_key[65];
	int64_t created_ns, updated_ns;
	/* the point; state "" = none yet. While a newer one is built the old one serves. */
	struct disk disk;
	struct memory mem;
	cJSON *base;
	struct workset ws;
	bool stale; /* to be built, whatever the phase says */
	struct build *build;
};

static struct utemplate *find(const struct daemon *d, const char *id)
{
	struct utemplate *t = d->utemplates;

	while (t && strcmp(t->id, id) != 0)
		t = t->next;
	return t;
}

static cJSON *to_json(const struct utemplate *t)
{
	cJSON *o = cJSON_Duplicate(t->req, true), *st = cJSON_AddObjectToObject(o, "status");
	char at[TIME_TEXT], ref[ID_MAX + 32];

	cJSON_AddStringToObject(o, "templateId", t->id);
	cJSON_AddStringToObject(st, "phase", phases[t->phase]);
	if (t->phase == UT_SUCCEEDED) {
		snprintf(ref, sizeof(ref), "mayfly://local/%s", t->id);
		cJSON_AddStringToObject(st, "manifestRef", ref);
	}
	if (*t->message)
		cJSON_AddStringToObject(st, "message", t->message);
	cJSON_AddStringToObject(o, "createdAt", time_format(t->created_ns, at));
	cJSON_AddStringToObject(o, "updatedAt", time_format(t->updated_ns, at));
	return o;
}

static int save(const struct utemplate *t, bool sync)
{
	cJSON *o = cJSON_CreateObject();
	struct err e;
	int rc;

	cJSON_AddItemToObject(o, "req", cJSON_Duplicate(t->req, true));
	cJSON_AddStringToObject(o, "owner", t->owner);
	cJSON_AddStringToObject(o, "phase", phases[t->phase]);
	cJSON_AddStringToObject(o, "message", t->message);
	cJSON_AddStringToObject(o, "boot_key", t->boot_key);
	json_put_i64(o, "created", t->created_ns);
	json_put_i64(o, "updated", t->updated_ns);
	cJSON_AddItemToObject(o, "disk", disk_to_json(&t->disk));
	cJSON_AddItemToObject(o, "mem", memory_to_json(&t->mem));
	cJSON_AddItemToObject(o, "workset", workset_to_json(&t->ws));
	if (t->base)
		cJSON_AddItemToObject(o, "base", cJSON_Duplicate(t->base, true));
	rc = database_put(t->d->database, DB_USER_TEMPLATE, t->id, o, sync, &e);
	if (rc < 0)
		log_error("template %s: %s", t->id, e.msg);
	cJSON_Delete(o);
	return rc;
}

static int set_phase(struct utemplate *t, enum phase_of p, const char *message)
{
	t->phase = p;
	t->updated_ns = (int64_t)wall_ns();
	snprintf(t->message, sizeof(t->message), "%s", message);
	log_info("template %s of %s: %s %s", t->id,
		cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(t->req, "image")), phases[p],
		message);
	return save(t, p == UT_SUCCEEDED);
}

static void point_drop(struct utemplate *t)
{
	disk_unref(t->d->blobs, &t->disk);
	memory_unref(t->d->blobs, &t->mem);
	cJSON_Delete(t->base);
	t->base = NULL;
	t->disk = (struct disk){0};
	t->mem = (struct memory){0};
	t->ws = (struct workset){0};
	images_release(t->d);
}

bool utemplates_stand_on(const struct daemon *d, const char *image)
{
	for (const struct utemplate *t = d->utemplates; t; t = t->next)
		if (strstr(t->disk.base, image))
			return true;
	return false;
}

static void ut_free(struct utemplate *t)
{
	cJSON_Delete(t->req);
	cJSON_Delete(t->base);
	free(t);
}

/* ---- building */

static void builds_next(struct daemon *d);

static void built(
	void *arg, int err, const char *text, struct disk *disk, struct memory *mem, cJSON *base)
{
	struct utemplate *t = arg;

	t->build = NULL;
	if (!err) {
		point_drop(t);
		t->disk = *disk;
		t->mem = *mem;
		t->base = base;
		snprintf(t->boot_key, sizeof(t->boot_key), "%s", t->d->boot_key);
		set_phase(t, UT_SUCCEEDED, "");
	} else {
		set_phase(t, UT_FAILED, text);
	}
	builds_next(t->d);
}

static void build(struct utemplate *t)
{
	struct refusal x;
	struct probe p;
	struct spec s;
	int rc = template_req_spec(t->req, &t->d->cfg, &s, &p, &x);

	t->stale = false;
	if (rc == 0) {
		set_phase(t, UT_BUILDING, "");
		t->build = build_start(t->d, &s, &p, built, t, &x);
	}
	spec_fini(&s);
	if (rc < 0 || !t->build)
		set_phase(t, UT_FAILED, x.msg);
}

/* The oldest first: the list has the newest in front. */
static void builds_next(struct daemon *d)
{
	struct utemplate *next;
	unsigned int busy;

	do {
		busy = 0;
		next = NULL;
		for (struct utemplate *t = d->utemplates; t; t = t->next) {
			busy += t->build != NULL;
			if (!t->build && t->stale)
				next = t;
		}
		if (next && busy < BUILDS_MAX)
			build(next);
	} while (next && busy < BUILDS_MAX);
}

/* ---- the database */

static int load_one(void *arg, const char *id, cJSON *o)
{
	struct daemon *d = arg;
	struct utemplate *t = calloc(1, sizeof(*t)), **at;
	const cJSON *v;

	if (!t || !disk_from_json(&t->disk, cJSON_GetObjectItemCaseSensitive(o, "disk")) ||
		!memory_from_json(&t->mem, cJSON_GetObjectItemCaseSensitive(o, "mem")) ||
		!cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(o, "req"))) {
		cJSON_Delete(o);
		free(t);
		return t ? -EINVAL : -ENOMEM;
	}
	t->d = d;
	snprintf(t->id, sizeof(t->id), "%s", id);
	/* "": an older record, the operator's */
	snprintf(
		t->owner, sizeof(t->owner), "%s", json_str(o, "owner") ? json_str(o, "owner") : "");
	t->req = cJSON_DetachItemFromObjectCaseSensitive(o, "req");
	v = cJSON_GetObjectItemCaseSensitive(o, "phase");
	for (size_t i = 0; i < ARRAY_LEN(phases); i++)
		if (cJSON_IsString(v) && !strcmp(v->valuestring, phases[i]))
			t->phase = (enum phase_of)i;
	v = cJSON_GetObjectItemCaseSensitive(o, "message");
	snprintf(t->message, sizeof(t->message), "%s", cJSON_IsString(v) ? v->valuestring : "");
	v = cJSON_GetObjectItemCaseSensitive(o, "boot_key");
	snprintf(t->boot_key, sizeof(t->boot_key), "%s", cJSON_IsString(v) ? v->valuestring : "");
	t->created_ns = json_get_i64(o, "created");
	t->updated_ns = json_get_i64(o, "updated");
	if (!*t->mem.state) {
		t->disk = (struct disk){0};
		t->mem = (struct memory){0};
	}
	workset_from_json(&t->ws, cJSON_GetObjectItemCaseSensitive(o, "workset"));
	t->base = cJSON_DetachItemFromObjectCaseSensitive(o, "base");
	disk_ref(d->blobs, &t->disk);
	memory_ref(d->blobs, &t->mem);
	/* half built; or of another kernel, board or agent: what there is serves until the new one
	 * is there */
	t->stale = t->phase == UT_PENDING || t->phase == UT_BUILDING ||
		   (t->phase == UT_SUCCEEDED &&
			   (!*t->mem.state || strcmp(t->boot_key, d->boot_key) != 0));
	for (at = &d->utemplates; *at && (*at)->created_ns > t->created_ns; at = &(*at)->next)
		;
	t->next = *at;
	*at = t;
	cJSON_Delete(o);
	return 0;
}

void utemplates_load(struct daemon *d)
{
	database_load(d->database, DB_USER_TEMPLATE, load_one, d);
}

void utemplates_go_on(struct daemon *d)
{
	builds_next(d);
}

/* ---- a sandbox from one */

int utemplate_source(struct sandbox *sb, struct refusal *x)
{
	const struct utemplate *t;
	const cJSON *v;

	if (sb->spec.source != SRC_TEMPLATE)
		return 0;
	t = find(sb->d, sb->spec.template_id);
	/* one that is built again still has its old point, unless that was refused */
	if (!t || !*t->mem.state || !owner_may(sb->owner, t->owner))
		return refuse(x, 404, "FSB::TEMPLATE_NOT_FOUND", "Template %.64s %s.",
			sb->spec.template_id,
			t && owner_may(sb->owner, t->owner) ? "is not built" : "not found");
	snapshot_disk_into(sb, &t->disk, t->base);
	snapshot_memory_into(sb, &t->mem, t->base);
	v = cJSON_GetObjectItemCaseSensitive(t->base, "cpu");
	sb->spec.cpu_millis = cJSON_IsString(v) ? (uint32_t)strtoul(v->valuestring, NULL, 10)
						: sb->spec.cpu_millis;
	sb->spec.vcpus = (sb->spec.cpu_millis + 999) / 1000;
	v = cJSON_GetObjectItemCaseSensitive(t->base, "memory");
	sb->spec.memory_bytes =
		cJSON_IsString(v) ? strtoull(v->valuestring, NULL, 10) : sb->spec.memory_bytes;
	v = cJSON_GetObjectItemCaseSensitive(t->req, "image");
	sb->spec.image = cJSON_IsString(v) ? strdup(v->valuestring) : NULL;
	snprintf(sb->origin_id, sizeof(sb->origin_id), "%.36s", t->id + 4); /* without "tpl-" */
	return 0;
}

void utemplate_bad(struct sandbox *sb)
{
	struct utemplate *t =
		sb->spec.source == SRC_TEMPLATE ? find(sb->d, sb->spec.template_id) : NULL;

	/* another was built meanwhile, or is being built */
	if (!t || t->build || t->stale || strcmp(t->mem.state, sb->memory.state) != 0)
		return;
	log_warn("template %s cannot be restored: it is built again", t->id);
	point_drop(t);
	t->stale = true;
	builds_next(sb->d);
}

static void save_owner(void *owner)
{
	save(owner, false);
}

bool utemplate_view(struct daemon *d, const char *id, struct point_view *v)
{
	struct utemplate *t = d->utemplates;

	while (t && strcmp(t->id + 4, id) != 0)
		t = t->next;
	if (!t || !*t->mem.state)
		return false;
	*v = (struct point_view){"template", &t->disk, &t->mem, &t->ws, t->owner, t, save_owner};
	return true;
}

void utemplates_damaged(struct daemon *d, const char *blob)
{
	for (struct utemplate *t = d->utemplates; t; t = t->next) {
		if (!memory_has(&t->mem, blob) || t->build)
			continue;
		point_drop(t);
		t->stale = true;
	}
	builds_next(d);
}

/* ---- routes */

void route_template_create(struct http_req *r)
{
	struct daemon *d = r->app;
	struct utemplate *t;
	struct refusal x;
	unsigned int n = 0;
	cJSON *req = template_req_parse(r->body, r->body_len, &d->cfg, &x);

	if (!req) {
		http_error(r, x.status, x.code, "%s", x.msg);
		return;
	}
	for (t = d->utemplates; t; t = t->next)
		n++;
	t = n < (unsigned int)d->cfg.template_max ? calloc(1, sizeof(*t)) : NULL;
	if (!t) {
		cJSON_Delete(req);
		http_error(r, 409, "FSB::TEMPLATE_CONFLICT",
			"This host keeps at most %lld templates: delete one.",
			(long long)d->cfg.template_max);
		return;
	}
	t->d = d;
	memcpy(t->id, "tpl-", 4);
	uuid_make(t->id + 4);
	principal_owner(&r->principal, t->owner);
	t->req = req;
	t->created_ns = (int64_t)wall_ns();
	t->stale = true;
	if (set_phase(t, UT_PENDING, "") < 0) {
		ut_free(t);
		http_error(r, 503, "FSB::API_ERROR", "The template's record cannot be written.");
		return;
	}
	t->next = d->utemplates;
	d->utemplates = t;
	http_reply_json(r, 201, to_json(t));
	builds_next(d);
}

void route_template_list(struct http_req *r)
{
	struct daemon *d = r->app;
	struct list l;

	if (!list_begin(r, &l, true))
		return;
	for (const struct utemplate *t = d->utemplates; t; t = t->next)
		if (principal_may(&r->principal, t->owner) &&
			list_wants(
				&l, NULL, cJSON_GetObjectItemCaseSensitive(t->req, "metadata")) &&
			list_shows(&l))
			cJSON_AddItemToArray(l.items, to_json(t));
	list_end(r, &l);
}

static struct utemplate *route_one(struct http_req *r)
{
	struct utemplate *t = find(r->app, http_param(r, "id"));

	if (t && principal_may(&r->principal, t->owner))
		return t;
	http_error(r, 404, "FSB::TEMPLATE_NOT_FOUND", "Template %.64s not found.",
		http_param(r, "id"));
	return NULL;
}

void route_template_get(struct http_req *r)
{
	struct utemplate *t = route_one(r);

	if (t)
		http_reply_json(r, 200, to_json(t));
}

void route_template_delete(struct http_req *r)
{
	struct utemplate *t = route_one(r), **at;
	struct daemon *d = r->app;
	struct err e;

	if (!t)
		return;
	if (database_delete(d->database, DB_USER_TEMPLATE, t->id, true, &e) < 0) {
		log_error("template %s: %s", t->id, e.msg);
		http_error(r, 500, "FSB::API_ERROR",
			"Template %s cannot be deleted: its record cannot be written.", t->id);
		return;
	}
	for (at = &d->utemplates; *at != t; at = &(*at)->next)
		;
	*at = t->next;
	if (t->build)
		build_cancel(t->build);
	/* the files go when no sandbox stands on them any more */
	point_drop(t);
	ut_free(t);
	http_reply_empty(r, 204);
	builds_next(d);
}
