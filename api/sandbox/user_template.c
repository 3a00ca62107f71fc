/* SPDX-License-Identifier: Apache-2.0
 *
 * user_template.c: see user_template.h. mayflyd's loop. Request bodies are hostile.
 */
#include "api/sandbox/user_template.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "api/sandbox/template_build.h"
#include "api/links/images.h"
#include "api/http/listing.h"
#include "api/lifecycle/route_lifecycle.h"
#include "api/lifecycle/spec.h"
#include "api/sandbox/snapshot.h"
#include "api/lifecycle/template_request.h"
#include "lib/json.h"
#include "lib/log.h"

#define BUILDS_MAX 2u /* at one time; the others are Pending */

/* as the protocol names the states of a template */
static const char *const phases[CP_STATES] = {[CP_PENDING] = "Pending",
	[CP_CREATING] = "Building",
	[CP_READY] = "Succeeded",
	[CP_FAILED] = "Failed"};

struct utemplate {
	struct checkpoint c; /* its files: while a newer one is built the old ones serve */
	cJSON *req;          /* the request's fields, as they are shown */
	char boot_key[65];
	bool stale; /* to be built, whatever the state says */
	bool made;  /* its record is committed */
	struct build *build;
};

static struct utemplate *of(struct checkpoint *c)
{
	return (struct utemplate *)(void *)c;
}

static const struct utemplate *of_const(const struct checkpoint *c)
{
	return (const struct utemplate *)(const void *)c;
}

static struct checkpoint *first(const struct daemon *d)
{
	return checkpoint_first(d, &user_template_kind);
}

static struct utemplate *find(const struct daemon *d, const char *id)
{
	struct checkpoint *c = checkpoint_find(d, &user_template_kind, id);

	return c && of(c)->made ? of(c) : NULL;
}

static cJSON *to_json(const struct checkpoint *c)
{
	cJSON *o = cJSON_Duplicate(of_const(c)->req, true),
	      *st = cJSON_AddObjectToObject(o, "status");
	char at[TIME_TEXT], ref[sizeof(c->id) + 32];

	cJSON_AddStringToObject(o, "templateId", c->id);
	cJSON_AddStringToObject(st, "phase", phases[c->state]);
	if (c->state == CP_READY) {
		snprintf(ref, sizeof(ref), "mayfly://local/%s", c->id);
		cJSON_AddStringToObject(st, "manifestRef", ref);
	}
	if (*c->message)
		cJSON_AddStringToObject(st, "message", c->message);
	cJSON_AddStringToObject(o, "createdAt", time_format(c->created_ns, at));
	cJSON_AddStringToObject(o, "updatedAt", time_format(c->changed_ns, at));
	return o;
}

/* ---- the record */

static void utemplate_save(const struct checkpoint *c, cJSON *doc, cJSON *local)
{
	cJSON_AddItemToObject(doc, "req", cJSON_Duplicate(of_const(c)->req, true));
	cJSON_AddStringToObject(local, "boot_key", of_const(c)->boot_key);
}

static int utemplate_load(struct checkpoint *c, cJSON *doc, const cJSON *local)
{
	const char *key = json_str(local, "boot_key");
	struct utemplate *t = of(c);

	if (!json_obj(doc, "req"))
		return -EINVAL;
	t->made = true;
	t->req = cJSON_DetachItemFromObjectCaseSensitive(doc, "req");
	snprintf(t->boot_key, sizeof(t->boot_key), "%s", key ? key : "");
	/* half built; or of another kernel, board or agent: what there is serves until the new one
	 * is there */
	t->stale = c->state == CP_PENDING || c->state == CP_CREATING ||
		   (c->state == CP_READY &&
			   (!checkpoint_has_files(c) || strcmp(t->boot_key, c->d->boot_key) != 0));
	return 0;
}

static void utemplate_fini(struct checkpoint *c)
{
	cJSON_Delete(of(c)->req);
}

static void builds_next(struct daemon *d);

static void utemplate_damaged(struct checkpoint *c, const char *text)
{
	if (of(c)->build)
		return;
	checkpoint_files_drop(c);
	of(c)->stale = true;
	builds_next(c->d);
}

const struct checkpoint_kind user_template_kind = {.purpose = "user-template",
	.word = "template",
	.bytes = sizeof(struct utemplate),
	.old_files_serve = true,
	.save = utemplate_save,
	.load = utemplate_load,
	.fini = utemplate_fini,
	.damaged = utemplate_damaged};

/* ---- building */

static void ready_ended(struct checkpoint *c, struct http_req *r, const struct err *e)
{
	if (e)
		checkpoint_set(c, CP_FAILED, false, "", e->msg, NULL, NULL);
}

static void built(
	void *arg, int err, const char *text, struct disk *disk, struct memory *mem, cJSON *base)
{
	struct utemplate *t = arg;
	struct daemon *d = t->c.d;

	t->build = NULL;
	if (t->c.deleting) {
		/* if its record stays after all, it is built again */
		t->stale = true;
		if (!err) {
			disk_unref(d->blobs, disk);
			memory_unref(d->blobs, mem);
			cJSON_Delete(base);
		}
	} else if (err) {
		checkpoint_set(&t->c, CP_FAILED, false, "", text, NULL, NULL);
	} else {
		checkpoint_files_set(&t->c, disk, mem);
		cJSON_Delete(t->c.base);
		t->c.base = base;
		snprintf(t->boot_key, sizeof(t->boot_key), "%s", d->boot_key);
		checkpoint_set(&t->c, CP_READY, true, "", "", ready_ended, NULL);
	}
	builds_next(d);
}

static void build(struct utemplate *t)
{
	struct refusal x;
	struct probe p;
	struct spec s;
	int rc = template_req_spec(t->req, &t->c.d->cfg, &s, &p, &x);

	t->stale = false;
	if (rc == 0) {
		checkpoint_set(&t->c, CP_CREATING, false, "", "", NULL, NULL);
		t->build = build_start(t->c.d, &s, t->c.owner, &p, built, t, &x);
	}
	spec_fini(&s);
	if (rc < 0 || !t->build)
		checkpoint_set(&t->c, CP_FAILED, false, "", x.msg, NULL, NULL);
}

/* The oldest first: the list has the newest in front. */
static void builds_next(struct daemon *d)
{
	struct utemplate *next;
	unsigned int busy;

	do {
		busy = 0;
		next = NULL;
		for (struct checkpoint *c = first(d); c; c = checkpoint_next(c)) {
			busy += of(c)->build != NULL;
			if (!of(c)->build && of(c)->stale && of(c)->made && !c->deleting)
				next = of(c);
		}
		if (next && busy < BUILDS_MAX)
			build(next);
	} while (next && busy < BUILDS_MAX);
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
	if (!t || !checkpoint_has_files(&t->c) || !owner_may(sb->owner, t->c.owner))
		return refuse(x, 404, "FSB::TEMPLATE_NOT_FOUND", "Template %.64s %s.",
			sb->spec.template_id,
			t && owner_may(sb->owner, t->c.owner) ? "is not built" : "not found");
	snapshot_disk_into(sb, &t->c.disk, t->c.base);
	snapshot_memory_into(sb, &t->c.mem, t->c.base);
	v = cJSON_GetObjectItemCaseSensitive(t->c.base, "cpu");
	sb->spec.cpu_millis = cJSON_IsString(v) ? (uint32_t)strtoul(v->valuestring, NULL, 10)
						: sb->spec.cpu_millis;
	sb->spec.vcpus = (sb->spec.cpu_millis + 999) / 1000;
	v = cJSON_GetObjectItemCaseSensitive(t->c.base, "memory");
	sb->spec.memory_bytes =
		cJSON_IsString(v) ? strtoull(v->valuestring, NULL, 10) : sb->spec.memory_bytes;
	v = cJSON_GetObjectItemCaseSensitive(t->req, "image");
	sb->spec.image = cJSON_IsString(v) ? strdup(v->valuestring) : NULL;
	snprintf(sb->origin_id, sizeof(sb->origin_id), "%.36s", t->c.id + 4); /* without "tpl-" */
	return 0;
}

void utemplate_bad(struct sandbox *sb)
{
	struct utemplate *t =
		sb->spec.source == SRC_TEMPLATE ? find(sb->d, sb->spec.template_id) : NULL;

	/* another was built meanwhile, or is being built */
	if (!t || t->build || t->stale || strcmp(t->c.mem.state, sb->memory.state) != 0)
		return;
	log_warn("template %s cannot be restored: it is built again", t->c.id);
	checkpoint_files_drop(&t->c);
	t->stale = true;
	builds_next(sb->d);
}

/* ---- routes */

static void create_ended(struct checkpoint *c, struct http_req *r, const struct err *e)
{
	if (e) {
		checkpoint_forget(c);
		http_error(r, 503, "FSB::API_ERROR", "The template's record cannot be written.");
		return;
	}
	of(c)->made = true;
	http_reply_json(r, 201, to_json(c));
	builds_next(c->d);
}

void route_template_create(struct http_req *r)
{
	struct daemon *d = r->app;
	struct checkpoint *c;
	struct refusal x;
	unsigned int n = 0;
	char id[4 + 37] = "tpl-";
	cJSON *req = template_req_parse(r->body, r->body_len, &d->cfg, &x);

	if (!req) {
		http_error(r, x.status, x.code, "%s", x.msg);
		return;
	}
	for (c = first(d); c; c = checkpoint_next(c))
		n++;
	uuid_make(id + 4);
	c = n < (unsigned int)d->cfg.template_max ? checkpoint_new(d, &user_template_kind, id)
						  : NULL;
	if (!c) {
		cJSON_Delete(req);
		http_error(r, 409, "FSB::TEMPLATE_CONFLICT",
			"This host keeps at most %lld templates: delete one.",
			(long long)d->cfg.template_max);
		return;
	}
	principal_owner(&r->principal, c->owner);
	of(c)->req = req;
	of(c)->stale = true;
	checkpoint_list_add(c);
	checkpoint_set(c, CP_PENDING, false, "", "", create_ended, r);
}

void route_template_list(struct http_req *r)
{
	struct list l;

	if (!list_begin(r, &l, true))
		return;
	l.cursor_lives = checkpoint_find(r->app, &user_template_kind, l.cursor_id);
	for (struct checkpoint *c = first(r->app); c; c = checkpoint_next(c))
		if (list_reached(&l, c->id, c->created_ns) && of(c)->made &&
			principal_may(&r->principal, c->owner) &&
			list_wants(&l, NULL,
				cJSON_GetObjectItemCaseSensitive(of(c)->req, "metadata")) &&
			list_shows(&l, c->id, c->created_ns))
			list_put(&l, to_json(c));
	list_end(&l);
}

static struct utemplate *route_one(struct http_req *r)
{
	struct utemplate *t = find(r->app, http_param(r, "id"));

	if (t && principal_may(&r->principal, t->c.owner) &&
		(!t->c.deleting || strcmp(r->method, "DELETE") != 0))
		return t;
	http_error(r, 404, "FSB::TEMPLATE_NOT_FOUND", "Template %.64s not found.",
		http_param(r, "id"));
	return NULL;
}

void route_template_get(struct http_req *r)
{
	struct utemplate *t = route_one(r);

	if (t)
		http_reply_json(r, 200, to_json(&t->c));
}

/* Its sandboxes keep the files for as long as they use them. */
static void delete_ended(struct checkpoint *c, struct http_req *r, const struct err *e)
{
	struct utemplate *t = of(c);

	if (e) {
		http_error(r, 500, "FSB::API_ERROR",
			"Template %s cannot be deleted: its record cannot be written.", c->id);
		builds_next(c->d);
		return;
	}
	if (t->build)
		build_cancel(take_ptr(t->build));
	http_reply_empty(r, 204);
	builds_next(c->d);
}

void route_template_delete(struct http_req *r)
{
	struct utemplate *t = route_one(r);

	if (t)
		checkpoint_delete(&t->c, delete_ended, r);
}
