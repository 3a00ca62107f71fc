/* SPDX-License-Identifier: Apache-2.0
 *
 * snapshot.c: see snapshot.h. mayflyd's loop.
 */
#include "api/sandbox/snapshot.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "api/links/images.h"
#include "api/sandbox/fault.h"
#include "api/sandbox/take.h"
#include "api/core/database.h"
#include "lib/json.h"
#include "api/volumes/volumes.h"
#include "lib/log.h"

/* ---- the record */

static void snapshot_save(const struct checkpoint *c, cJSON *doc, cJSON *local)
{
	cJSON_AddStringToObject(doc, "sandbox", snapshot_of_const(c)->sandbox_id);
	cJSON_AddStringToObject(doc, "name", snapshot_of_const(c)->name);
}

static int snapshot_load(struct checkpoint *c, cJSON *doc, const cJSON *local)
{
	struct snapshot *s = snapshot_of(c);
	const char *sandbox = json_str(doc, "sandbox"), *name = json_str(doc, "name");

	snprintf(s->sandbox_id, sizeof(s->sandbox_id), "%s", sandbox ? sandbox : "");
	snprintf(s->name, sizeof(s->name), "%s", name ? name : "");
	return 0;
}

static void snapshot_damaged(struct checkpoint *c, const char *text)
{
	if (c->state != CP_READY)
		return;
	/* The damage is there whatever the database says. So the state changes at once, and no restore begins while the record is written. */
	c->state = CP_FAILED;
	snprintf(c->reason, sizeof(c->reason), "snapshot_damaged");
	snprintf(c->message, sizeof(c->message), "%s", text);
	checkpoint_set(c, CP_FAILED, false, c->reason, c->message, NULL, NULL);
}

const struct checkpoint_kind snapshot_kind = {.purpose = "snapshot",
	.word = "snapshot",
	.bytes = sizeof(struct snapshot),
	.image_comes_later = true,
	.save = snapshot_save,
	.load = snapshot_load,
	.damaged = snapshot_damaged};

void snapshots_go_on(struct daemon *d)
{
	for (struct checkpoint *c = checkpoint_first(d, &snapshot_kind); c; c = checkpoint_next(c))
		if (c->state < CP_READY)
			checkpoint_set(c, CP_FAILED, false, "snapshot_interrupted",
				"The server was stopped while the snapshot was taken.", NULL, NULL);
}

/* ---- taking one */

void snapshot_failed(struct checkpoint *c, const char *text)
{
	checkpoint_set(c, CP_FAILED, false, "snapshot_failed", text, NULL, NULL);
}

static void ready_ended(struct checkpoint *c, struct http_req *r, const struct err *e)
{
	images_release(c->d);
	if (!e) {
		fault_at(sandbox_find(c->d, snapshot_of(c)->sandbox_id), FAULT_POINT_SAVED);
		return;
	}
	/* the next daemon would not find it Ready, so it is not */
	checkpoint_files_drop(c);
	snapshot_failed(c, "The record cannot be written.");
}

static void taken(void *arg, int err, const char *text, struct disk *disk, struct memory *mem)
{
	struct checkpoint *c = arg;

	if (err) {
		snapshot_failed(c, text);
		return;
	}
	checkpoint_files_set(c, disk, mem);
	checkpoint_set(
		c, CP_READY, true, "snapshot_ready", "Snapshot is ready.", ready_ended, NULL);
}

int snapshot_take(struct checkpoint *c)
{
	struct sandbox *sb = sandbox_find(c->d, snapshot_of(c)->sandbox_id);

	return sb && sb->state == SB_RUNNING ? operation_ask_snapshot(sb, taken, c) : -EBUSY;
}

int snapshot_accept(struct sandbox *sb, const char *name, checkpoint_fn fn, struct http_req *r,
	struct account **full)
{
	struct checkpoint *c;
	char id[37];

	uuid_make(id);
	c = checkpoint_new(sb->d, &snapshot_kind, id);
	if (!c)
		return -ENOMEM;
	str_copy(snapshot_of(c)->sandbox_id, sizeof(snapshot_of(c)->sandbox_id), sb->id);
	str_copy(c->owner, sizeof(c->owner), sb->owner);
	str_copy(snapshot_of(c)->name, sizeof(snapshot_of(c)->name), name);
	c->base = snapshot_base(sb);
	*full = checkpoint_charge(c);
	if (*full) {
		checkpoint_forget(c);
		return -EDQUOT;
	}
	checkpoint_list_add(c);
	checkpoint_set(
		c, CP_CREATING, false, "snapshot_accepted", "Snapshot creation accepted.", fn, r);
	return 0;
}

bool snapshot_is_visible(const struct checkpoint *c)
{
	return c->state != CP_PENDING;
}

cJSON *snapshot_base(const struct sandbox *sb)
{
	cJSON *o = sandbox_record(sb);
	static const char *const drop_these[] = {DB_LOCAL, "metadata", "boot_id", "expires",
		"internal", "owner", "egressToken", "secureToken"};

	for (size_t i = 0; i < ARRAY_LEN(drop_these); i++)
		cJSON_DeleteItemFromObjectCaseSensitive(o, drop_these[i]);
	return o;
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

/* The guest has its mounts already: what the request says must be the same places. */
static bool volumes_go_on(const struct sandbox *sb, const struct checkpoint *s)
{
	const cJSON *theirs = cJSON_GetObjectItemCaseSensitive(s->base, "volumes");

	return !theirs || !sb->spec.volumes || volumes_fit(theirs, sb->spec.volumes);
}

/* Can the clone continue from the memory? Not if the request has other volumes, or (without
 * mayfly.snapshot = memory) another entrypoint or environment: running processes cannot get them. */
static bool memory_fits(const struct sandbox *sb, const struct checkpoint *s)
{
	const cJSON *force =
		cJSON_GetObjectItemCaseSensitive(sb->spec.extensions, "mayfly.snapshot");
	const cJSON *theirs = cJSON_GetObjectItemCaseSensitive(s->base, "env"), *v;

	if (!*s->mem.state || (force && !strcmp(force->valuestring, "disk")) ||
		!volumes_go_on(sb, s))
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

/* With mayfly.snapshot = memory the environment stays the source's. A token that guards the execution API must not vanish that way. */
static bool loses_token(const struct sandbox *sb, const struct checkpoint *s)
{
	const cJSON *theirs = cJSON_GetObjectItemCaseSensitive(s->base, "env"),
		    *mine = cJSON_GetObjectItemCaseSensitive(sb->spec.env, "EXECD_ACCESS_TOKEN"),
		    *had = cJSON_GetObjectItemCaseSensitive(theirs, "EXECD_ACCESS_TOKEN");

	return mine && memory_fits(sb, s) && !cJSON_Compare(mine, had, true);
}

static long number(const cJSON *o, const char *name)
{
	const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, name);

	return cJSON_IsString(v) ? strtol(v->valuestring, NULL, 10) : 0;
}

void snapshot_disk_into(struct sandbox *sb, const struct disk *disk, const cJSON *base)
{
	cJSON *item;
	const cJSON *v = cJSON_GetObjectItemCaseSensitive(base, "config");

	sb->disk = *disk;
	disk_ref(sb->d->blobs, &sb->disk);
	sb->image_config = v ? cJSON_Duplicate(v, true) : cJSON_CreateObject();
	v = cJSON_GetObjectItemCaseSensitive(base, "digest");
	snprintf(sb->image_digest, sizeof(sb->image_digest), "%s",
		cJSON_IsString(v) ? v->valuestring : "");
	/* the source's network policy holds, unless the request has one */
	v = cJSON_GetObjectItemCaseSensitive(base, "networkPolicy");
	if (v && !sb->spec.network_policy)
		sb->spec.network_policy = cJSON_Duplicate(v, true);
	v = cJSON_GetObjectItemCaseSensitive(base, "denyWebhook");
	if (cJSON_IsString(v) && !sb->spec.deny_webhook)
		sb->spec.deny_webhook = strdup(v->valuestring);
	/* the same volumes, unless the request says which */
	v = cJSON_GetObjectItemCaseSensitive(base, "volumes");
	if (v && !sb->spec.volumes) {
		sb->spec.volumes = cJSON_Duplicate(v, true);
		/* The source made its claims, not this sandbox, so a failed create must not delete them. The member
		 * "folder" is kept: it says which claims they are. */
		cJSON_ArrayForEach (item, sb->spec.volumes)
			cJSON_DeleteItemFromObjectCaseSensitive(item, "made");
	}
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
	const struct checkpoint *s;

	if (sb->spec.source != SRC_SNAPSHOT)
		return 0;
	s = checkpoint_find(sb->d, &snapshot_kind, sb->spec.snapshot_id);
	if (!s || !snapshot_is_visible(s) || !owner_may(sb->owner, s->owner))
		return refuse(x, 404, "SNAPSHOT::NOT_FOUND", "Snapshot %.64s not found.",
			sb->spec.snapshot_id);
	if (s->state != CP_READY)
		return refuse(x, 409, "SNAPSHOT::NOT_READY", "Snapshot %s is %s.", s->id,
			cp_state_names[s->state]);
	if (loses_token(sb, s))
		return refuse(x, 400, "SANDBOX::INVALID_PARAMETER",
			"env.EXECD_ACCESS_TOKEN differs from the snapshot's, and its memory cannot "
			"be "
			"given another one. Leave extensions[\"mayfly.snapshot\"] away.");
	if (json_str(sb->spec.extensions, "mayfly.snapshot") &&
		!strcmp(json_str(sb->spec.extensions, "mayfly.snapshot"), "memory") &&
		!volumes_go_on(sb, s))
		return refuse(x, 400, "SANDBOX::INVALID_PARAMETER",
			"volumes differ from the snapshot's in number, kind, readOnly or "
			"mountPath, and "
			"its memory has them mounted. Leave extensions[\"mayfly.snapshot\"] away.");
	snapshot_disk_into(sb, &s->disk, s->base);
	snprintf(sb->origin_id, sizeof(sb->origin_id), "%.36s", s->id);
	if (memory_fits(sb, s))
		snapshot_memory_into(sb, &s->mem, s->base);
	else if (!sb->spec.entrypoint)
		sb->spec.entrypoint = cJSON_CreateStringArray(tail, 3);
	return 0;
}
