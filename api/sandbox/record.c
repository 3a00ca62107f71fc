/* SPDX-License-Identifier: Apache-2.0
 *
 * record.c: a sandbox as JSON: what clients see, and what the database keeps. mayflyd's loop.
 */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "api/sandbox/take.h"
#include "api/core/database.h"
#include "api/links/images.h"
#include "api/volumes/volumes.h"

static void add_time(cJSON *o, const char *name, int64_t ns)
{
	char t[TIME_TEXT];

	cJSON_AddStringToObject(o, name, time_format(ns, t));
}

static void add_copy(cJSON *o, const char *name, const cJSON *v)
{
	if (v)
		cJSON_AddItemToObject(o, name, cJSON_Duplicate(v, true));
}

static cJSON *public_extensions(const struct sandbox *sb)
{
	cJSON *o = NULL, *v;
	char image[512];

	cJSON_ArrayForEach (v, sb->spec.extensions) {
		if (strncmp(v->string, "opensandbox.extensions.", 23) != 0)
			continue;
		if (!o)
			o = cJSON_CreateObject();
		cJSON_AddStringToObject(o, v->string, v->valuestring);
	}
	/* an alias is always shown */
	if (sb->spec.source == SRC_IMAGE && sb->spec.image &&
		image_alias(sb->d, sb->spec.image, image, sizeof(image))) {
		if (!o)
			o = cJSON_CreateObject();
		cJSON_AddStringToObject(o, "opensandbox.extensions.mayfly.image", image);
	}
	return o;
}

cJSON *sandbox_to_json(const struct sandbox *sb, bool for_create)
{
	cJSON *o = cJSON_CreateObject(), *st = cJSON_AddObjectToObject(o, "status"),
	      *ext = public_extensions(sb);

	cJSON_AddStringToObject(o, "id", sb->id);
	if (!for_create && sb->spec.source != SRC_SNAPSHOT && sb->spec.image)
		cJSON_AddStringToObject(cJSON_AddObjectToObject(o, "image"), "uri", sb->spec.image);
	/* of a fork: the snapshot that its source was made from */
	if (!for_create && sb->spec.source != SRC_IMAGE && sb->spec.snapshot_id)
		cJSON_AddStringToObject(o, "snapshotId", sb->spec.snapshot_id);
	add_copy(o, "platform", sb->spec.platform);
	cJSON_AddStringToObject(st, "state", sb_state_names[sb->state]);
	if (*sb->reason)
		cJSON_AddStringToObject(st, "reason", sb->reason);
	if (*sb->message)
		cJSON_AddStringToObject(st, "message", sb->message);
	add_time(st, "lastTransitionAt", sb->changed_ns);
	add_copy(o, "metadata", sb->spec.metadata);
	if (sb->spec.pool) {
		cJSON *a = cJSON_AddObjectToObject(o, "allocation");

		cJSON_AddStringToObject(a, "mode", "pool");
		cJSON_AddStringToObject(a, "poolRef", sb->spec.pool);
		cJSON_AddStringToObject(a, "state", "allocated");
	}
	if (ext)
		cJSON_AddItemToObject(o, "extensions", ext);
	if (sb->spec.entrypoint)
		add_copy(o, "entrypoint", sb->spec.entrypoint);
	else
		cJSON_AddArrayToObject(o, "entrypoint");
	if (sb->expires_ns)
		add_time(o, "expiresAt", sb->expires_ns);
	add_time(o, "createdAt", sb->created_ns);
	return o;
}

/* ---- the record. 64-bit values as text: cJSON's numbers are doubles. */

static void put_str(cJSON *o, const char *name, const char *s)
{
	if (s && *s)
		cJSON_AddStringToObject(o, name, s);
}

static void get_str(const cJSON *o, const char *name, char *to, size_t cap)
{
	const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, name);

	snprintf(to, cap, "%s", cJSON_IsString(v) ? v->valuestring : "");
}

/* Both take what they return out of the document, so that no failed allocation can lose it. */
static char *take_str(cJSON *o, const char *name)
{
	cJSON *v = cJSON_GetObjectItemCaseSensitive(o, name);

	return cJSON_IsString(v) ? take_ptr(v->valuestring) : NULL;
}

static cJSON *take_item(cJSON *o, const char *name)
{
	return cJSON_DetachItemFromObjectCaseSensitive(o, name);
}

cJSON *sandbox_record(const struct sandbox *sb)
{
	cJSON *o = cJSON_CreateObject(), *local = cJSON_AddObjectToObject(o, DB_LOCAL),
	      *taking = snap_record(sb->op.snap);

	put_str(o, "owner", sb->owner);
	put_str(o, "state", sb_state_names[sb->state]);
	put_str(o, "reason", sb->reason);
	put_str(o, "message", sb->message);
	json_put_i64(o, "changed", sb->changed_ns);
	json_put_i64(o, "created", sb->created_ns);
	json_put_i64(o, "expires", sb->expires_ns);
	json_put_i64(o, "source", sb->spec.source);
	put_str(o, "image", sb->spec.image);
	put_str(o, "snapshotId", sb->spec.snapshot_id);
	put_str(o, "templateId", sb->spec.template_id);
	put_str(o, "denyWebhook", sb->spec.deny_webhook);
	put_str(o, "pool", sb->spec.pool);
	add_copy(o, "entrypoint", sb->spec.entrypoint);
	add_copy(o, "env", sb->spec.env);
	add_copy(o, "metadata", sb->spec.metadata);
	add_copy(o, "extensions", sb->spec.extensions);
	add_copy(o, "platform", sb->spec.platform);
	add_copy(o, "lifecycle", sb->spec.lifecycle);
	add_copy(o, "idle", sb->spec.idle);
	add_copy(o, "networkPolicy", sb->spec.network_policy);
	add_copy(o, "volumes", sb->spec.volumes);
	if (sb->spec.volumes)
		cJSON_AddBoolToObject(o, "volumesHeld", sb->volumes_held);
	put_str(o, "egressToken", sb->egress_token);
	if (sb->spec.secure_access)
		cJSON_AddTrueToObject(o, "secureAccess");
	put_str(o, "secureToken", sb->secure_token);
	json_put_i64(o, "renew", sb->spec.renew_s);
	json_put_i64(o, "cpu", sb->spec.cpu_millis);
	json_put_i64(o, "memory", (int64_t)sb->spec.memory_bytes);
	json_put_i64(o, "class_mib", sb->cls.mem_mib);
	json_put_i64(o, "class_vcpus", sb->cls.vcpus);
	put_str(o, "digest", sb->image_digest);
	add_copy(o, "config", sb->image_config);
	put_str(o, "template", sb->template_key);
	json_put_i64(o, "origin", sb->origin);
	put_str(o, "origin_id", sb->origin_id);
	put_str(o, "boot_id", sb->boot_id);
	cJSON_AddItemToObject(local, "disk", disk_to_json(sb->d->blobs, &sb->disk));
	cJSON_AddItemToObject(local, "mem", memory_to_json(&sb->memory));
	json_put_i64(local, "vm_slot", sb->vm_slot);
	json_put_i64(local, "vm_pid", sb->vm_pid);
	json_put_i64(local, "vm_start", (int64_t)sb->vm_start);
	put_str(local, "boot", sb->d->host_boot_id);
	if (sb->phase == PHASE_RESIDENT)
		cJSON_AddTrueToObject(local, "resident");
	if (taking)
		cJSON_AddItemToObject(local, "taking", taking);
	if (sb->internal)
		cJSON_AddBoolToObject(o, "internal", true);
	return o;
}

static enum sb_state state_from_record(const cJSON *o)
{
	char state[32];

	get_str(o, "state", state, sizeof(state));
	for (int s = 0; s < SB_STATES; s++)
		if (!strcmp(sb_state_names[s], state))
			return (enum sb_state)s;
	return SB_FAILED;
}

static void phase_from_record(struct sandbox *sb, const cJSON *o, const cJSON *local)
{
	static const enum sb_phase phases[SB_STATES] = {[SB_PENDING] = PHASE_ACCEPTED,
		[SB_RUNNING] = PHASE_RUNNING,
		[SB_PAUSING] = PHASE_RUNNING,
		[SB_PAUSED] = PHASE_PAUSED,
		[SB_RESUMING] = PHASE_PAUSED,
		[SB_STOPPING] = PHASE_FAILED,
		[SB_TERMINATED] = PHASE_TERMINATED,
		[SB_FAILED] = PHASE_FAILED};
	bool resident = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(local, "resident"));

	sb->phase = phases[state_from_record(o)];
	if (sb->phase == PHASE_PAUSED && resident)
		sb->phase = PHASE_RESIDENT;
}

/* Restores the operation that an earlier daemon was running. If the record names no checkpoint, a pause had only
 * stopped the guest's processes and perhaps the vCPUs: the same as a pause in memory. */
static void operation_from_record(struct sandbox *sb, const cJSON *o, const cJSON *local)
{
	enum sb_state s = state_from_record(o);

	if (sb->phase == PHASE_RUNNING)
		snap_from_record(sb, cJSON_GetObjectItemCaseSensitive(local, "taking"));
	if (sb->phase == PHASE_FAILED || sb->op.kind)
		sandbox_settle(sb, sb->op.kind);
	else if (s == SB_PAUSING)
		operation_begin(sb, OP_PAUSE_MEMORY, 0);
	else if (s == SB_RESUMING)
		operation_begin(sb, sb->phase == PHASE_RESIDENT ? OP_RESUME_MEMORY : OP_RESUME, 0);
	else
		sandbox_settle(sb, OP_NONE);
	if (sb->op.kind)
		operation_step(sb, STEP_SETTLE);
}

struct sandbox *sandbox_from_record(struct daemon *d, const char *id, cJSON *o)
{
	const cJSON *local = cJSON_GetObjectItemCaseSensitive(o, DB_LOCAL), *held;
	struct sandbox *sb;
	struct memory memory;
	struct disk disk;
	char boot[40];

	if (!uuid_ok(id) ||
		!disk_from_json(d->blobs, &disk, cJSON_GetObjectItemCaseSensitive(local, "disk")) ||
		!memory_from_json(&memory, cJSON_GetObjectItemCaseSensitive(local, "mem")) ||
		!(sb = sandbox_new(d, id)))
		return NULL;
	sb->internal = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(o, "internal"));
	/* a record without an owner is the operator's: sandbox_new() sets that */
	if (json_str(o, "owner"))
		get_str(o, "owner", sb->owner, sizeof(sb->owner));
	sandbox_own(sb, sb->owner);
	phase_from_record(sb, o, local);
	get_str(o, "reason", sb->reason, sizeof(sb->reason));
	get_str(o, "message", sb->message, sizeof(sb->message));
	sb->changed_ns = json_get_i64(o, "changed");
	sb->created_ns = json_get_i64(o, "created");
	sb->expires_ns = json_get_i64(o, "expires");
	sb->spec.source = (enum source)json_get_i64(o, "source");
	sb->spec.image = take_str(o, "image");
	sb->spec.snapshot_id = take_str(o, "snapshotId");
	sb->spec.template_id = take_str(o, "templateId");
	sb->spec.deny_webhook = take_str(o, "denyWebhook");
	sb->spec.pool = take_str(o, "pool");
	sb->spec.entrypoint = take_item(o, "entrypoint");
	sb->spec.env = take_item(o, "env");
	sb->spec.metadata = take_item(o, "metadata");
	sb->spec.extensions = take_item(o, "extensions");
	sb->spec.platform = take_item(o, "platform");
	sb->spec.lifecycle = take_item(o, "lifecycle");
	sb->spec.idle = take_item(o, "idle");
	sb->spec.network_policy = take_item(o, "networkPolicy");
	sb->spec.volumes = take_item(o, "volumes");
	/* A create that an earlier daemon did not finish may hold no claims yet. Records of older builds have no volumesHeld: they hold
	 * their claims. */
	held = json_field(o, "volumesHeld");
	if (sb->spec.volumes && (!held || cJSON_IsTrue(held))) {
		volumes_hold_again(d->volumes, sb->spec.volumes);
		sb->volumes_held = true;
	}
	get_str(o, "egressToken", sb->egress_token, sizeof(sb->egress_token));
	sb->spec.secure_access = cJSON_IsTrue(json_field(o, "secureAccess"));
	get_str(o, "secureToken", sb->secure_token, sizeof(sb->secure_token));
	sb->spec.renew_s = (uint32_t)json_get_i64(o, "renew");
	sb->spec.cpu_millis = (uint32_t)json_get_i64(o, "cpu");
	sb->spec.vcpus = (sb->spec.cpu_millis + 999) / 1000;
	sb->spec.memory_bytes = (uint64_t)json_get_i64(o, "memory");
	sb->cls = (struct size_class){
		(uint32_t)json_get_i64(o, "class_mib"), (uint32_t)json_get_i64(o, "class_vcpus")};
	get_str(o, "digest", sb->image_digest, sizeof(sb->image_digest));
	sb->image_config = take_item(o, "config");
	get_str(o, "template", sb->template_key, sizeof(sb->template_key));
	sb->origin = (enum origin)json_get_i64(o, "origin");
	get_str(o, "origin_id", sb->origin_id, sizeof(sb->origin_id));
	sb->disk = disk;
	sb->memory = memory;
	disk_ref(d->blobs, &sb->disk);
	memory_ref(d->blobs, &sb->memory);
	/* a record without one keeps what sandbox_new() made */
	if (cJSON_GetObjectItemCaseSensitive(o, "boot_id"))
		get_str(o, "boot_id", sb->boot_id, sizeof(sb->boot_id));
	sandbox_weigh(sb);
	operation_from_record(sb, o, local);
	get_str(local, "boot", boot, sizeof(boot));
	if (!strcmp(boot, d->host_boot_id)) {
		sb->vm_slot = (uint32_t)json_get_i64(local, "vm_slot");
		sb->vm_pid = (int)json_get_i64(local, "vm_pid");
		sb->vm_start = (uint64_t)json_get_i64(local, "vm_start");
	}
	return sb;
}
