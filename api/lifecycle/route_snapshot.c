/* SPDX-License-Identifier: Apache-2.0
 *
 * route_snapshot.c: snapshots, as the protocol has them (1.10). Requests are hostile. mayflyd's loop.
 */
#include <cjson/cJSON.h>
#include <string.h>

#include "api/http/listing.h"
#include "api/lifecycle/route_lifecycle.h"
#include "api/lifecycle/spec.h"
#include "api/sandbox/access.h"
#include "api/sandbox/rollback.h"
#include "api/sandbox/snapshot.h"

static cJSON *to_json(const struct checkpoint *c)
{
	const struct snapshot *s = snapshot_of_const(c);
	cJSON *o = cJSON_CreateObject(), *st;
	char t[TIME_TEXT];

	cJSON_AddStringToObject(o, "id", c->id);
	cJSON_AddStringToObject(o, "sandboxId", s->sandbox_id);
	if (*s->name)
		cJSON_AddStringToObject(o, "name", s->name);
	st = cJSON_AddObjectToObject(o, "status");
	cJSON_AddStringToObject(st, "state", cp_state_names[c->state]);
	cJSON_AddStringToObject(st, "reason", c->reason);
	cJSON_AddStringToObject(st, "message", c->message);
	cJSON_AddStringToObject(st, "lastTransitionAt", time_format(c->changed_ns, t));
	cJSON_AddStringToObject(o, "createdAt", time_format(c->created_ns, t));
	return o;
}

/* The snapshot could not be taken. Its record was deleted. If e is set, the record could not be deleted, and becomes Failed. */
static void begin_refused(struct checkpoint *c, struct http_req *r, const struct err *e)
{
	const struct sandbox *sb = sandbox_find(c->d, snapshot_of(c)->sandbox_id);

	if (e)
		snapshot_failed(c, "It was not taken.");
	if (sb && sb->state == SB_RUNNING)
		http_error(r, 409, "SNAPSHOT::INVALID_SOURCE_STATE",
			"Another snapshot of sandbox %s is being taken.", sb->id);
	else
		http_error(r, 409, "SNAPSHOT::INVALID_SOURCE_STATE",
			"Sandbox %s is not Running any more.", snapshot_of(c)->sandbox_id);
}

/* The record (Creating) is written: takes the snapshot and answers the client. */
static void create_ended(struct checkpoint *c, struct http_req *r, const struct err *e)
{
	if (e) {
		http_error(r, 500, "SNAPSHOT::RUNTIME_CREATE_FAILED",
			"The snapshot's record cannot be written.");
		checkpoint_forget(c);
	} else if (snapshot_take(c) < 0) {
		checkpoint_delete(c, begin_refused, r);
	} else {
		http_add_header(r, "Location", http_printf(r, "/v1/snapshots/%s", c->id));
		http_reply_json(r, 202, to_json(c));
	}
}

/* 0 and the name ("": none), or -EINVAL: answered. */
static int name_of(struct http_req *r, char to[static 128])
{
	struct refusal x;
	const cJSON *name;
	cJSON *j = NULL;
	int rc = 0;

	to[0] = 0;
	if (r->body_len && !(j = json_object(r->body, r->body_len, &x))) {
		http_error(r, x.status, x.code, "%s", x.msg);
		return -EINVAL;
	}
	name = json_field(j, "name");
	if (name && (!cJSON_IsString(name) || strlen(name->valuestring) > 127)) {
		http_error(r, 400, "SANDBOX::INVALID_PARAMETER",
			"name must be a string of at most 127 characters.");
		rc = -EINVAL;
	} else if (name) {
		str_copy(to, 128, name->valuestring);
	}
	cJSON_Delete(j);
	return rc;
}

void route_snapshot_create(struct http_req *r)
{
	struct sandbox *sb = route_sandbox(r);
	struct account *full = NULL;
	char name[128];
	int rc;

	if (!sb || name_of(r, name) < 0)
		return;
	if (sb->state != SB_RUNNING) {
		http_error(r, 409, "SNAPSHOT::INVALID_SOURCE_STATE",
			"Sandbox %s is %s, not Running.", sb->id, sb_state_names[sb->state]);
		return;
	}
	rc = snapshot_accept(sb, name, create_ended, r, &full);
	if (rc == -EDQUOT)
		route_records_full(r, full);
	else if (rc < 0)
		http_error(r, 500, "SNAPSHOT::RUNTIME_CREATE_FAILED", "out of memory");
}

/* ---- list, get, delete */

void route_snapshot_list(struct http_req *r)
{
	struct daemon *d = r->app;
	const char *sandbox = http_query(r, "sandboxId"), *name = http_query(r, "name");
	struct list l;

	if (!list_begin(r, &l, false))
		return;
	l.cursor_lives = checkpoint_find(d, &snapshot_kind, l.cursor_id);
	for (struct checkpoint *c = checkpoint_first(d, &snapshot_kind); c; c = checkpoint_next(c))
		if (list_reached(&l, c->id, c->created_ns) && snapshot_is_visible(c) &&
			principal_may(&r->principal, c->owner) &&
			list_wants(&l, cp_state_names[c->state], NULL) &&
			(!sandbox || !strcmp(sandbox, snapshot_of(c)->sandbox_id)) &&
			(!name || !strcmp(name, snapshot_of(c)->name)) &&
			list_shows(&l, c->id, c->created_ns))
			list_put(&l, to_json(c));
	list_end(&l);
}

struct checkpoint *route_snapshot(struct http_req *r)
{
	struct checkpoint *c = checkpoint_find(r->app, &snapshot_kind, http_param(r, "id"));

	if (c && snapshot_is_visible(c) && principal_may(&r->principal, c->owner))
		return c;
	http_error(r, 404, "SNAPSHOT::NOT_FOUND", "Snapshot %.64s not found.", http_param(r, "id"));
	return NULL;
}

void route_snapshot_get(struct http_req *r)
{
	struct checkpoint *c = route_snapshot(r);

	if (c)
		http_reply_json(r, 200, to_json(c));
}

static void delete_ended(struct checkpoint *c, struct http_req *r, const struct err *e)
{
	if (e)
		http_error(r, 500, "SNAPSHOT::INVALID_STATE",
			"Snapshot %s cannot be deleted: its record cannot be written.", c->id);
	else
		http_reply_empty(r, 204);
}

void route_snapshot_delete(struct http_req *r)
{
	struct checkpoint *c = route_snapshot(r);

	if (!c)
		return;
	if (c->state == CP_CREATING || c->deleting)
		http_error(r, 409, "SNAPSHOT::INVALID_STATE", "Snapshot %s is being %s.", c->id,
			c->deleting ? "deleted" : "created");
	else
		/* a sandbox that uses its files keeps them: they are counted */
		checkpoint_delete(c, delete_ended, r);
}

/* ---- rollback to a snapshot */

/* The snapshot that the body names, if it is one of this sandbox. NULL: answered. */
static struct checkpoint *restore_snapshot(struct http_req *r, const struct sandbox *sb)
{
	_cleanup_json_ cJSON *body = NULL;
	struct checkpoint *c;
	struct refusal x;
	const char *id;

	body = json_object(r->body, r->body_len, &x);
	id = json_str(body, "snapshotId");
	if (!body || !id) {
		if (body)
			refuse(&x, 400, "SANDBOX::INVALID_PARAMETER", "snapshotId is required.");
		http_error(r, x.status, x.code, "%s", x.msg);
		return NULL;
	}
	c = checkpoint_find(r->app, &snapshot_kind, id);
	if (!c || !snapshot_is_visible(c) || strcmp(snapshot_of(c)->sandbox_id, sb->id) != 0) {
		http_error(r, 404, "SNAPSHOT::NOT_FOUND", "Sandbox %s has no snapshot %.64s.",
			sb->id, id);
		return NULL;
	}
	if (c->state == CP_READY && *c->mem.state)
		return c;
	http_error(r, 409, "SNAPSHOT::NOT_READY", "Snapshot %s is %s.", c->id,
		cp_state_names[c->state]);
	return NULL;
}

void route_sandbox_restore(struct http_req *r)
{
	struct sandbox *sb = route_sandbox(r);
	struct checkpoint *c = sb ? restore_snapshot(r, sb) : NULL;

	if (c)
		rollback_asked(sb, c, r);
}
