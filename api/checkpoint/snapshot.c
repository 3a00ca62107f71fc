/* SPDX-License-Identifier: Apache-2.0
 *
 * snapshot.c: records of snapshots, their routes, and sandboxes made from them. mayflyd's loop.
 */
#include "api/checkpoint/snapshot.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "api/links/images.h"
#include "api/lifecycle/route_lifecycle.h"
#include "api/lifecycle/spec.h"
#include "api/sandbox/access.h"
#include "api/sandbox/take.h"
#include "api/core/database.h"
#include "api/checkpoint/working_set.h"
#include "lib/log.h"

enum snap_state { SS_CREATING, SS_READY, SS_FAILED };
static const char *const state_names[] = {
	[SS_CREATING] = "Creating", [SS_READY] = "Ready", [SS_FAILED] = "Failed"};

struct snapshot {
	struct snapshot *next;
	struct daemon *d;
	char id[37], sandbox_id[37], name[128], reason[64], message[300];
	char owner[OWNER_MAX]; /* its sandbox's */
	enum snap_state state;
	int64_t created_ns, changed_ns;
	struct disk disk;
	struct memory mem;
	struct workset ws;
	cJSON *base;  /* of the source: class, digest, config, env, entrypoint, image */
	bool deleted; /* while it was created */
};

static struct snapshot *find(const struct daemon *d, const char *id)
{
	struct snapshot *s = d->snapshots;

	while (s && strcmp(s->id, id) != 0)
		s = s->next;
	return s;
}

static cJSON *to_json(const struct snapshot *s)
{
	cJSON *o = cJSON_CreateObject(), *st;
	char t[TIME_TEXT];

	cJSON_AddStringToObject(o, "id", s->id);
	cJSON_AddStringToObject(o, "sandboxId", s->sandbox_id);
	if (*s->name)
		cJSON_AddStringToObject(o, "name", s->name);
	st = cJSON_AddObjectToObject(o, "status");
	cJSON_AddStringToObject(st, "state", state_names[s->state]);
	cJSON_AddStringToObject(st, "reason", s->reason);
	cJSON_AddStringToObject(st, "message", s->message);
	cJSON_AddStringToObject(st, "lastTransitionAt", time_format(s->changed_ns, t));
	cJSON_AddStringToObject(o, "createdAt", time_format(s->created_ns, t));
	return o;
}

static int save(const struct snapshot *s, bool sync)
{
	cJSON *o = to_json(s);
	struct err e;
	int rc;

	cJSON_AddStringToObject(o, "owner", s->owner);
	json_put_i64(o, "created_ns", s->created_ns);
	json_put_i64(o, "changed_ns", s->changed_ns);
	cJSON_AddItemToObject(o, "disk", disk_to_json(&s->disk));
	cJSON_AddItemToObject(o, "mem", memory_to_json(&s->mem));
	cJSON_AddItemToObject(o, "workset", workset_to_json(&s->ws));
	cJSON_AddItemToObject(o, "base", cJSON_Duplicate(s->base, true));
	rc = database_put(s->d->database, DB_SNAPSHOT, s->id, o, sync, &e);
	if (rc < 0)
		log_error("snapshot %s: %s", s->id, e.msg);
	cJSON_Delete(o);
	return rc;
}

/* 0 or -errno: the record says so, too. */
static int set_state(
	struct snapshot *s, enum snap_state st, const char *reason, const char *message)
{
	int rc;

	s->state = st;
	s->changed_ns = (int64_t)wall_ns();
	snprintf(s->reason, sizeof(s->reason), "%s", reason);
	snprintf(s->message, sizeof(s->message), "%s", message);
	log_info("snapshot %s: %s %s", s->id, state_names[st], message);
	rc = save(s, st == SS_READY);
	if (st != SS_CREATING)
		images_release(s->d);
	return rc;
}

bool snapshots_stand_on(const struct daemon *d, const char *image)
{
	for (const struct snapshot *s = d->snapshots; s; s = s->next)
		if (s->state == SS_CREATING || strstr(s->disk.base, image))
			return true;
	return false;
}

static void forget(struct snapshot *s)
{
	struct snapshot **at = &s->d->snapshots;

	while (*at && *at != s)
		at = &(*at)->next;
	if (*at)
		*at = s->next;
	disk_unref(s->d->blobs, &s->disk);
	memory_unref(s->d->blobs, &s->mem);
	images_release(s->d);
	cJSON_Delete(s->base);
	free(s);
}

/* 0; -errno: its record cannot be deleted, and it stays. */
static int drop(struct snapshot *s)
{
	struct err e;
	int rc = database_delete(s->d->database, DB_SNAPSHOT, s->id, true, &e);

	if (rc < 0) {
		log_error("snapshot %s: %s", s->id, e.msg);
		return rc;
	}
	forget(s);
	return 0;
}

static void load_text(const cJSON *o, const char *name, char *to, size_t cap)
{
	const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, name);

	snprintf(to, cap, "%s", cJSON_IsString(v) ? v->valuestring : "");
}

static int load_one(void *arg, const char *id, cJSON *o)
{
	struct daemon *d = arg;
	struct snapshot *s = calloc(1, sizeof(*s)), **at;
	const cJSON *st = cJSON_GetObjectItemCaseSensitive(o, "status");
	char state[16];

	if (!s || !disk_from_json(&s->disk, cJSON_GetObjectItemCaseSensitive(o, "disk")) ||
		!memory_from_json(&s->mem, cJSON_GetObjectItemCaseSensitive(o, "mem"))) {
		cJSON_Delete(o);
		free(s);
		return s ? -EINVAL : -ENOMEM;
	}
	s->d = d;
	snprintf(s->id, sizeof(s->id), "%s", id);
	load_text(o, "sandboxId", s->sandbox_id, sizeof(s->sandbox_id));
	load_text(o, "name", s->name, sizeof(s->name));
	load_text(o, "owner", s->owner, sizeof(s->owner)); /* "": an older record, the operator's */
	load_text(st, "state", state, sizeof(state));
	load_text(st, "reason", s->reason, sizeof(s->reason));
	load_text(st, "message", s->message, sizeof(s->message));
	s->created_ns = json_get_i64(o, "created_ns");
	s->changed_ns = json_get_i64(o, "changed_ns");
	if (!s->changed_ns)
		s->changed_ns = s->created_ns;
	s->state = !strcmp(state, "Ready") ? SS_READY : SS_FAILED;
	disk_ref(d->blobs, &s->disk);
	memory_ref(d->blobs, &s->mem);
	workset_from_json(&s->ws, cJSON_GetObjectItemCaseSensitive(o, "workset"));
	s->base = cJSON_DetachItemFromObjectCaseSensitive(o, "base");
	for (at = &d->snapshots; *at && (*at)->created_ns > s->created_ns; at = &(*at)->next)
		;
	s->next = *at;
	*at = s;
	if (!strcmp(state, "Creating"))
		set_state(s, SS_FAILED, "snapshot_interrupted",
			"The server was stopped while the snapshot was taken.");
	cJSON_Delete(o);
	return 0;
}

void snapshots_load(struct daemon *d)
{
	database_load(d->database, DB_SNAPSHOT, load_one, d);
}

void snapshots_destroy(struct daemon *d)
{
	while (d->snapshots) {
		struct snapshot *s = d->snapshots;

		d->snapshots = s->next;
		cJSON_Delete(s->base);
		free(s);
	}
}

static void save_owner(void *owner)
{
	save(owner, false);
}

bool snapshot_view(struct daemon *d, const char *id, struct point_view *v)
{
	struct snapshot *s = find(d, id);

	if (!s || s->state != SS_READY)
		return false;
	*v = (struct point_view){"snapshot", &s->disk, &s->mem, &s->ws, s->owner, s, save_owner};
	return true;
}

void snapshots_damaged(struct daemon *d, const char *blob, const char *text)
{
	for (struct snapshot *s = d->snapshots; s; s = s->next)
		if (s->state == SS_READY && memory_has(&s->mem, blob))
			set_state(s, SS_FAILED, "snapshot_damaged", text);
}

/* ---- taking one */

static void taken(void *arg, int err, const char *text, struct disk *disk, struct memory *mem)
{
	struct snapshot *s = arg;

	if (err) {
		set_state(s, SS_FAILED, "snapshot_failed", text);
		return;
	}
	s->disk = *disk;
	s->mem = *mem;
	if (set_state(s, SS_READY, "snapshot_ready", "Snapshot is ready.") == 0)
		return;
	/* ready is what a restart finds, too */
	disk_unref(s->d->blobs, &s->disk);
	memory_unref(s->d->blobs, &s->mem);
	s->disk = (struct disk){0};
	s->mem = (struct memory){0};
	set_state(s, SS_FAILED, "snapshot_failed", "The record cannot be written.");
}

cJSON *snapshot_base(const struct sandbox *sb)
{
	cJSON *o = sandbox_record(sb);
	static const char *const drop_these[] = {"disk", "mem", "metadata", "vm_slot", "vm_pid",
		"vm_start", "boot", "boot_id", "owner", "expires", "taking", "resident",
		"internal"};

	for (size_t i = 0; i < ARRAY_LEN(drop_these); i++)
		cJSON_DeleteItemFromObjectCaseSensitive(o, drop_these[i]);
	return o;
}

void route_snapshot_create(struct http_req *r)
{
	struct daemon *d = r->app;
	struct sandbox *sb = route_sandbox(r);
	struct snapshot *s;
	struct refusal x;
	cJSON *j = NULL;
	const cJSON *name;

	if (!sb)
		return;
	if (r->body_len && !(j = json_object(r->body, r->body_len, &x))) {
		http_error(r, x.status, x.code, "%s", x.msg);
		return;
	}
	name = cJSON_GetObjectItemCaseSensitive(j, "name");
	if (name && !cJSON_IsNull(name) &&
		(!cJSON_IsString(name) || strlen(name->valuestring) > 127)) {
		cJSON_Delete(j);
		http_error(r, 400, "SANDBOX::INVALID_PARAMETER",
			"name must be a string of at most 127 characters.");
		return;
	}
	if (sb->state != SB_RUNNING) {
		cJSON_Delete(j);
		http_error(r, 409, "SNAPSHOT::INVALID_SOURCE_STATE",
			"Sandbox %s is %s, not Running.", sb->id, sb_state_names[sb->state]);
		return;
	}
	s = calloc(1, sizeof(*s));
	ASSERT(s);
	s->d = d;
	uuid_make(s->id);
	snprintf(s->sandbox_id, sizeof(s->sandbox_id), "%s", sb->id);
	snprintf(s->owner, sizeof(s->owner), "%s", sb->owner);
	snprintf(s->name, sizeof(s->name), "%s", cJSON_IsString(name) ? name->valuestring : "");
	cJSON_Delete(j);
	s->created_ns = (int64_t)wall_ns();
	s->base = snapshot_base(sb);
	s->next = d->snapshots;
	d->snapshots = s;
	if (set_state(s, SS_CREATING, "snapshot_accepted", "Snapshot creation accepted.") < 0) {
		forget(s);
		http_error(r, 500, "SNAPSHOT::RUNTIME_CREATE_FAILED",
			"The snapshot's record cannot be written.");
		return;
	}
	if (snap_live(sb, taken, s) < 0) {
		drop(s);
		http_error(r, 409, "SNAPSHOT::INVALID_SOURCE_STATE",
			"Another snapshot of sandbox %s is being taken.", sb->id);
		return;
	}
	http_add_header(r, "Location", http_printf(r, "/v1/snapshots/%s", s->id));
	http_reply_json(r, 202, to_json(s));
}

/* ---- list, get, delete */

void route_snapshot_list(struct http_req *r)
{
	struct daemon *d = r->app;
	const char *sandbox = http_query(r, "sandboxId"), *name = http_query(r, "name");
	struct list l;

	if (!list_begin(r, &l, false))
		return;
	for (const struct snapshot *s = d->snapshots; s; s = s->next)
		if (principal_may(&r->principal, s->owner) &&
			list_wants(&l, state_names[s->state], NULL) &&
			(!sandbox || !strcmp(sandbox, s->sandbox_id)) &&
			(!name || !strcmp(name, s->name)) && list_shows(&l))
			cJSON_AddItemToArray(l.items, to_json(s));
	list_end(r, &l);
}

static struct snapshot *route_one(struct http_req *r)
{
	struct snapshot *s = find(r->app, http_param(r, "id"));

	if (s && principal_may(&r->principal, s->owner))
		return s;
	http_error(r, 404, "SNAPSHOT::NOT_FOUND", "Snapshot %.64s not found.", http_param(r, "id"));
	return NULL;
}

void route_snapshot_get(struct http_req *r)
{
	struct snapshot *s = route_one(r);

	if (s)
		http_reply_json(r, 200, to_json(s));
}

void route_snapshot_delete(struct http_req *r)
{
	struct snapshot *s = route_one(r);

	if (!s)
		return;
	if (s->state == SS_CREATING) {
		http_error(
			r, 409, "SNAPSHOT::INVALID_STATE", "Snapshot %s is being created.", s->id);
		return;
	}
	/* what stands on its files keeps them: they are counted */
	if (drop(s) < 0)
		http_error(r, 500, "SNAPSHOT::INVALID_STATE",
			"Snapshot %s cannot be deleted: its record cannot be written.", s->id);
	else
		http_reply_empty(r, 204);
}

/* ---- a sandbox from one */

static bool default_entrypoint(const cJSON *e)
{
	static const char *const tail[] = {"tail", "-f", "/dev/null"};

	if (cJSON_GetArraySize(e) != 3)
		return false;
	for (int i = 0; i < 3; i++) {
		const cJSON *v = cJSON_GetArrayItem(e, i);

		if (!cJSON_IsString(v) || strcmp(v->valuestring, tail[i]) != 0)
			return false;
	}
	return true;
}

/* Memory goes on only where the request asks for nothing that a process which already runs cannot
 * be given. */
static bool memory_fits(const struct sandbox *sb, const struct snapshot *s)
{
	const cJSON *force =
		cJSON_GetObjectItemCaseSensitive(sb->spec.extensions, "mayfly.snapshot");
	const cJSON *theirs = cJSON_GetObjectItemCaseSensitive(s->base, "env"), *v;

	if (!*s->mem.state || (force && !strcmp(force->valuestring, "disk")))
		return false;
	if (force && !strcmp(force->valuestring, "memory"))
		return true;
	if (sb->spec.has_entrypoint && !default_entrypoint(sb->spec.entrypoint) &&
		!cJSON_Compare(sb->spec.entrypoint,
			cJSON_GetObjectItemCaseSensitive(s->base, "entrypoint"), true))
		return false;
	cJSON_ArrayForEach (v, sb->spec.env) {
		const cJSON *t = cJSON_GetObjectItemCaseSensitive(theirs, v->string);

		if (!cJSON_IsString(t) || strcmp(t->valuestring, v->valuestring) != 0)
			return false;
	}
	return true;
}

static long number(const cJSON *o, const char *name)
{
	const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, name);

	return cJSON_IsString(v) ? strtol(v->valuestring, NULL, 10) : 0;
}

void snapshot_disk_into(struct sandbox *sb, const struct disk *disk, const cJSON *base)
{
	const cJSON *v = cJSON_GetObjectItemCaseSensitive(base, "config");

	sb->disk = *disk;
	disk_ref(sb->d->blobs, &sb->disk);
	sb->image_config = v ? cJSON_Duplicate(v, true) : cJSON_CreateObject();
	v = cJSON_GetObjectItemCaseSensitive(base, "digest");
	snprintf(sb->image_digest, sizeof(sb->image_digest), "%s",
		cJSON_IsString(v) ? v->valuestring : "");
}

void snapshot_memory_into(struct sandbox *sb, const struct memory *mem, const cJSON *base)
{
	const cJSON *v;

	sb->memory = *mem;
	memory_ref(sb->d->blobs, &sb->memory);
	/* the machine is as large as it was */
	sb->cls = (struct size_class){
		(uint32_t)number(base, "class_mib"), (uint32_t)number(base, "class_vcpus")};
	cJSON_Delete(sb->spec.entrypoint);
	v = cJSON_GetObjectItemCaseSensitive(base, "entrypoint");
	sb->spec.entrypoint = v ? cJSON_Duplicate(v, true) : NULL;
	cJSON_Delete(sb->spec.env);
	v = cJSON_GetObjectItemCaseSensitive(base, "env");
	sb->spec.env = v ? cJSON_Duplicate(v, true) : cJSON_CreateObject();
}

int snapshot_source(struct sandbox *sb, struct refusal *x)
{
	static const char *const tail[] = {"tail", "-f", "/dev/null"};
	const struct snapshot *s;

	if (sb->spec.source != SRC_SNAPSHOT)
		return 0;
	s = find(sb->d, sb->spec.snapshot_id);
	if (!s || !owner_may(sb->owner, s->owner))
		return refuse(x, 404, "SNAPSHOT::NOT_FOUND", "Snapshot %.64s not found.",
			sb->spec.snapshot_id);
	if (s->state != SS_READY)
		return refuse(x, 409, "SNAPSHOT::NOT_READY", "Snapshot %s is %s.", s->id,
			state_names[s->state]);
	snapshot_disk_into(sb, &s->disk, s->base);
	snprintf(sb->origin_id, sizeof(sb->origin_id), "%s", s->id);
	if (memory_fits(sb, s))
		snapshot_memory_into(sb, &s->mem, s->base);
	else if (!sb->spec.entrypoint)
		sb->spec.entrypoint = cJSON_CreateStringArray(tail, 3);
	return 0;
}
