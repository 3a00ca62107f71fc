/* SPDX-License-Identifier: Apache-2.0
 *
 * user_template.c: see user_template.h. mayflyd's loop. Request bodies are hostile.
 */
#include "api/sandbox/user_template.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "api/sandbox/image_template.h"
#include "api/sandbox/snapshot.h"
#include "lib/json.h"
#include "lib/log.h"

#define BUILDS_MAX 2u /* at one time; the others are Pending */

static struct checkpoint *first(const struct daemon *d)
{
	return checkpoint_first(d, &user_template_kind);
}

struct utemplate *utemplate_find(const struct daemon *d, const char *id)
{
	struct checkpoint *c = checkpoint_find(d, &user_template_kind, id);

	return c && utemplate_of(c)->made ? utemplate_of(c) : NULL;
}

/* ---- the record */

static void utemplate_save(const struct checkpoint *c, cJSON *doc, cJSON *local)
{
	cJSON_AddItemToObject(doc, "req", cJSON_Duplicate(utemplate_of_const(c)->req, true));
	cJSON_AddStringToObject(local, "boot_key", utemplate_of_const(c)->boot_key);
}

static int utemplate_load(struct checkpoint *c, cJSON *doc, const cJSON *local)
{
	const char *key = json_str(local, "boot_key");
	struct utemplate *t = utemplate_of(c);

	if (!json_obj(doc, "req"))
		return -EINVAL;
	t->made = true;
	t->req = cJSON_DetachItemFromObjectCaseSensitive(doc, "req");
	snprintf(t->boot_key, sizeof(t->boot_key), "%s", key ? key : "");
	/* not finished, or of another kernel, board or agent: old files are used until the new ones are
	 * built */
	t->stale = c->state == CP_PENDING || c->state == CP_CREATING ||
		   (c->state == CP_READY &&
			   (!checkpoint_has_files(c) || strcmp(t->boot_key, c->d->boot_key) != 0));
	return 0;
}

static void utemplate_fini(struct checkpoint *c)
{
	cJSON_Delete(utemplate_of(c)->req);
}

static uint64_t utemplate_weight(const struct checkpoint *c)
{
	return json_memory(utemplate_of_const(c)->req);
}

static void builds_next(struct daemon *d);

static void utemplate_damaged(struct checkpoint *c, const char *text)
{
	if (utemplate_of(c)->build)
		return;
	checkpoint_files_drop(c);
	utemplate_of(c)->stale = true;
	builds_next(c->d);
}

const struct checkpoint_kind user_template_kind = {.purpose = "user-template",
	.word = "template",
	.bytes = sizeof(struct utemplate),
	.old_files_serve = true,
	.save = utemplate_save,
	.load = utemplate_load,
	.fini = utemplate_fini,
	.weight = utemplate_weight,
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
		/* if the deletion of its record fails, it is built again */
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
	int rc = t->c.d->templates->request_read(t->req, &t->c.d->cfg, &s, &p, &x);

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
			busy += utemplate_of(c)->build != NULL;
			if (!utemplate_of(c)->build && utemplate_of(c)->stale &&
				utemplate_of(c)->made && !c->deleting)
				next = utemplate_of(c);
		}
		if (next && busy < BUILDS_MAX)
			build(next);
	} while (next && busy < BUILDS_MAX);
}

void utemplates_go_on(struct daemon *d)
{
	builds_next(d);
}

/* ---- from the routes */

unsigned int utemplates_count(const struct daemon *d)
{
	unsigned int n = 0;

	for (const struct checkpoint *c = first(d); c; c = checkpoint_next(c))
		n++;
	return n;
}

int utemplate_accept(struct daemon *d, cJSON *req, const char *owner, checkpoint_fn fn,
	struct http_req *r, struct account **full)
{
	char id[4 + 37] = "tpl-";
	struct checkpoint *c;

	uuid_make(id + 4);
	c = checkpoint_new(d, &user_template_kind, id);
	if (!c)
		return -ENOMEM;
	str_copy(c->owner, sizeof(c->owner), owner);
	utemplate_of(c)->req = req;
	utemplate_of(c)->stale = true;
	*full = checkpoint_charge(c);
	if (*full) {
		utemplate_of(c)->req = NULL;
		checkpoint_forget(c);
		return -EDQUOT;
	}
	checkpoint_list_add(c);
	checkpoint_set(c, CP_PENDING, false, "", "", fn, r);
	return 0;
}

void utemplate_begin(struct checkpoint *c)
{
	utemplate_of(c)->made = true;
	builds_next(c->d);
}

/* Its sandboxes keep the files for as long as they use them. */
void utemplate_deleted(struct checkpoint *c)
{
	struct utemplate *t = utemplate_of(c);

	if (t->build)
		build_cancel(take_ptr(t->build));
	builds_next(c->d);
}

/* ---- a sandbox from one */

int utemplate_source(struct sandbox *sb, struct refusal *x)
{
	const struct utemplate *t;
	const cJSON *v;

	if (sb->spec.source != SRC_TEMPLATE)
		return 0;
	t = utemplate_find(sb->d, sb->spec.template_id);
	/* while it is built again it still has its old files, unless their restore failed */
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
	struct utemplate *t = sb->spec.source == SRC_TEMPLATE
				      ? utemplate_find(sb->d, sb->spec.template_id)
				      : NULL;

	/* the sandbox used older files, or it is being built again already */
	if (!t || t->build || t->stale || strcmp(t->c.mem.state, sb->memory.state) != 0)
		return;
	log_warn("template %s cannot be restored: it is built again", t->c.id);
	checkpoint_files_drop(&t->c);
	t->stale = true;
	builds_next(sb->d);
}
