/* SPDX-License-Identifier: Apache-2.0
 *
 * fork.c: see fork.h. mayflyd's loop.
 *
 * All children are made as structs first, in no list, so that the limits of memory, CPU and records are asked for all of them before
 * anything is done. Then the point is taken, and then each child is created like a sandbox from a snapshot, in its turn. A child that fails
 * is an error in its item; the others go on. Until all children have been created or have failed, their
 * records are internal. If the daemon dies before that, the next daemon deletes all of them.
 */
#include "api/fleet/fork.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "api/checkpoint/checkpoint.h"
#include "api/core/database.h"
#include "api/sandbox/admission.h"
#include "api/sandbox/launch.h"
#include "api/sandbox/own_api.h"
#include "api/sandbox/snapshot.h"
#include "lib/json.h"
#include "lib/log.h"

#define TOKEN_ENV    "EXECD_ACCESS_TOKEN"
#define TOKEN_HEADER "X-EXECD-ACCESS-TOKEN"
#define FULL         "KUBERNETES::POOL_CAPACITY_EXHAUSTED"

struct fork_item {
	struct fork *f;
	struct sandbox *sb; /* with a reference; NULL: x says why there is none */
	bool own_token;     /* its token was made here, so the answer has it */
	struct refusal x;
};

struct fork {
	struct daemon *d;
	struct http_req *client; /* NULL: it left */
	struct sandbox *source;  /* with a reference; NULL: a snapshot */
	bool pause_source;
	bool has_point; /* disk and mem have references */
	struct disk disk;
	struct memory mem;
	int err; /* the point was not taken: errno and why */
	char why[300], origin_id[37];
	unsigned int n;    /* children */
	unsigned int open; /* steps of children in progress, and one more while they are begun */
	struct fork_item item[];
};

/* ---- the children, before anything is started */

static char *text_copy(const cJSON *base, const char *name)
{
	const char *s = json_str(base, name);

	return s ? strdup(s) : NULL;
}

static cJSON *item_copy(const cJSON *base, const char *name)
{
	const cJSON *v = json_field(base, name);

	return v ? cJSON_Duplicate(v, true) : NULL;
}

static void child_env(struct fork_item *i, const cJSON *env)
{
	struct spec *s = &i->sb->spec;
	const cJSON *v;
	char token[33];

	cJSON_ArrayForEach (v, env) {
		cJSON_DeleteItemFromObjectCaseSensitive(s->env, v->string);
		cJSON_AddStringToObject(s->env, v->string, v->valuestring);
	}
	/* a client that has the source's token must not reach the children with it */
	if (!json_str(s->env, TOKEN_ENV) || json_str(env, TOKEN_ENV))
		return;
	random_hex(token, sizeof(token));
	cJSON_DeleteItemFromObjectCaseSensitive(s->env, TOKEN_ENV);
	cJSON_AddStringToObject(s->env, TOKEN_ENV, token);
	i->own_token = true;
}

/* Copies the source's request, but for what only the source itself may have. */
static void child_spec(struct sandbox *sb, const cJSON *base)
{
	/* they say how the source itself was made */
	static const char *const not_inherited[] = {"mayfly.id", "mayfly.snapshot"};
	struct spec *s = &sb->spec;

	s->source = SRC_FORK;
	s->image = text_copy(base, "image");
	s->snapshot_id = text_copy(base, "snapshotId");
	s->template_id = text_copy(base, "templateId");
	s->extensions = item_copy(base, "extensions");
	s->platform = item_copy(base, "platform");
	s->lifecycle = item_copy(base, "lifecycle");
	s->idle = item_copy(base, "idle");
	for (size_t i = 0; i < ARRAY_LEN(not_inherited); i++)
		cJSON_DeleteItemFromObjectCaseSensitive(s->extensions, not_inherited[i]);
	/* what is guarded stays guarded, with a token of its own */
	s->secure_access = cJSON_IsTrue(json_field(base, "secureAccess"));
	if (s->secure_access)
		random_hex(sb->secure_token, sizeof(sb->secure_token));
	s->deny_webhook = text_copy(base, "denyWebhook");
	s->renew_s = (uint32_t)json_get_i64(base, "renew");
	s->cpu_millis = (uint32_t)json_get_i64(base, "cpu");
	s->vcpus = (s->cpu_millis + 999) / 1000;
	s->memory_bytes = (uint64_t)json_get_i64(base, "memory");
}

static int child_make(struct fork *f, struct fork_item *i, const cJSON *base, const char *owner,
	const struct fork_request *q, struct refusal *x)
{
	/* their files come with the point */
	static const struct memory no_memory;
	static const struct disk no_disk;
	struct sandbox *sb;
	char id[37];

	uuid_make(id);
	sb = sandbox_new(f->d, id);
	if (!sb)
		return refuse(x, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
	*i = (struct fork_item){.f = f, .sb = sb};
	sandbox_ref(sb);
	sb->internal =
		true; /* in no list, and deleted by the next daemon, until the client hears of it */
	child_spec(sb, base);
	snapshot_disk_into(sb, &no_disk, base);
	snapshot_memory_into(sb, &no_memory, base);
	child_env(i, q->env);
	sb->spec.metadata = q->metadata ? cJSON_Duplicate(q->metadata, true) : NULL;
	str_copy(sb->origin_id, sizeof(sb->origin_id), f->origin_id);
	if (sb->spec.network_policy)
		random_hex(sb->egress_token, sizeof(sb->egress_token));
	sandbox_own(sb, owner);
	sandbox_weigh(sb);
	if (!sandbox_fits(sb, 0))
		return refuse(x, 429, FULL, "%s have no room for %u more sandboxes.",
			sb->budget->records.whose, f->n);
	return admission_check(sb, x);
}

static void child_release(struct fork_item *i)
{
	if (i->sb)
		sandbox_unref(i->sb);
	i->sb = NULL;
}

static void child_drop(struct fork_item *i, const char *why)
{
	struct sandbox *sb = i->sb;

	if (!sb)
		return;
	sb->created = NULL;
	sandbox_delete(sb, why);
	child_release(i);
}

static void child_deleted(struct fork_item *i)
{
	refuse(&i->x, 409, "DOCKER::SANDBOX_NOT_RUNNING", "Sandbox %s was deleted meanwhile.",
		i->sb->id);
	child_release(i);
}

static void fork_free(struct fork *f)
{
	for (unsigned int i = 0; i < f->n; i++)
		child_release(&f->item[i]);
	if (f->has_point) {
		disk_unref(f->d->blobs, &f->disk);
		memory_unref(f->d->blobs, &f->mem);
	}
	if (f->source)
		sandbox_unref(f->source);
	free(f);
}

static void fork_abandon(struct fork *f, const char *why)
{
	for (unsigned int i = 0; i < f->n; i++)
		child_drop(&f->item[i], why);
	fork_free(f);
}

/* The client left: the fork continues, as a create does. */
static void fork_client_gone(struct http_req *r)
{
	struct fork *f = r->user;

	f->client = NULL;
	http_abort(r);
}

static struct fork *fork_new(struct http_req *r, const cJSON *base, const char *origin_id,
	const char *owner, const struct fork_request *q)
{
	struct fork *f = calloc(1, sizeof(*f) + q->count * sizeof(f->item[0]));
	struct refusal x = {0};
	int rc = 0;

	if (!f || !base) {
		free(f);
		http_error(r, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
		return NULL;
	}
	f->d = r->app;
	f->n = q->count;
	f->pause_source = q->pause_source;
	str_copy(f->origin_id, sizeof(f->origin_id), origin_id);
	for (unsigned int i = 0; i < f->n && rc == 0; i++)
		rc = child_make(f, &f->item[i], base, owner, q, &x);
	if (rc < 0) {
		if (x.status == 429)
			http_add_header(r, "Retry-After", "5");
		http_error(r, x.status, x.code, "%s", x.msg);
		fork_abandon(f, "refused");
		return NULL;
	}
	return f;
}

/* Called when the request cannot be answered at once: from now on the client may leave. */
static void fork_waits(struct fork *f, struct http_req *r)
{
	f->client = r;
	r->user = f;
	http_on_gone(r, fork_client_gone);
}

static void fork_expiry(const struct fork *f, const struct fork_request *q, int64_t source_ns)
{
	int64_t ns = q->has_timeout ? (int64_t)wall_ns() + (int64_t)q->timeout_s * 1000000000
				    : source_ns;

	for (unsigned int i = 0; i < f->n && ns; i++)
		sandbox_set_expiry(f->item[i].sb, ns);
}

/* ---- the answer */

static cJSON *item_json(const struct fork_item *i)
{
	cJSON *o = cJSON_CreateObject(), *part;

	if (i->sb) {
		cJSON_AddItemToObject(o, "sandbox", sandbox_to_json(i->sb, false));
		if (i->own_token) {
			part = cJSON_AddObjectToObject(o, "headers");
			cJSON_AddStringToObject(
				part, TOKEN_HEADER, json_str(i->sb->spec.env, TOKEN_ENV));
		}
	} else {
		part = cJSON_AddObjectToObject(o, "error");
		cJSON_AddStringToObject(part, "code", i->x.code);
		cJSON_AddStringToObject(part, "message", i->x.msg);
	}
	return o;
}

static void fork_answer(struct fork *f)
{
	cJSON *o, *items;

	if (f->client) {
		o = cJSON_CreateObject();
		items = cJSON_AddArrayToObject(o, "items");
		for (unsigned int i = 0; i < f->n; i++)
			cJSON_AddItemToArray(items, item_json(&f->item[i]));
		http_reply_json(f->client, 202, o);
	}
	fork_free(f);
}

/* The child's record is not internal any more, or could not be written. */
static void child_published(void *arg, const struct err *e)
{
	struct fork_item *i = arg;
	struct fork *f = i->f;

	if (e) {
		log_error("sandbox %s: %s", i->sb->id, e->msg);
		refuse(&i->x, 500, "SANDBOX::INTERNAL_ERROR", "Its record cannot be written.");
		child_drop(i, "its record cannot be written");
	} else if (sandbox_gone(i->sb)) {
		child_deleted(i);
	}
	if (--f->open == 0)
		fork_answer(f);
}

static void child_publish(struct fork *f, struct fork_item *i)
{
	static const struct err no_memory = {.code = ENOMEM, .msg = "no memory"};
	struct transaction *t;

	if (!i->sb)
		return;
	f->open++;
	i->sb->internal = false;
	if (i->sb->phase == PHASE_RUNNING)
		own_api_start(i->sb); /* not started for an internal sandbox */
	t = sandbox_gone(i->sb) ? NULL : sandbox_transaction_now(i->sb);
	if (t)
		database_commit(f->d->database, t, child_published, i);
	else
		child_published(i, sandbox_gone(i->sb) ? NULL : &no_memory);
}

/* Every child has been created or has failed. As long as their records are internal, the next daemon deletes them: no client knows
 * their ids. */
static void fork_end(struct fork *f)
{
	f->open = 1;
	for (unsigned int i = 0; i < f->n; i++)
		child_publish(f, &f->item[i]);
	if (--f->open == 0)
		fork_answer(f);
}

static void child_known(struct fork *f)
{
	if (--f->open == 0)
		fork_end(f);
}

static void child_created(void *arg, struct sandbox *sb, const struct refusal *x)
{
	struct fork_item *i = arg;

	if (x) {
		i->x = *x;
		child_release(i);
	}
	child_known(i->f);
}

/* ---- the point, and from it to running children */

static void child_start(struct fork *f, struct fork_item *i)
{
	struct sandbox *sb = i->sb;

	/* it may have expired while the point was taken */
	if (sandbox_gone(sb)) {
		child_deleted(i);
		return;
	}
	sb->disk = f->disk;
	disk_ref(f->d->blobs, &sb->disk);
	sb->memory = f->mem;
	memory_ref(f->d->blobs, &sb->memory);
	sb->created = child_created;
	sb->created_arg = i;
	f->open++;
	launch_create(sb);
}

static void fork_start(struct fork *f)
{
	f->open = 1;
	for (unsigned int i = 0; i < f->n; i++)
		child_start(f, &f->item[i]);
	child_known(f);
}

static enum op_event pause_of(const struct sandbox *sb)
{
	const char *mode = json_str(sb->spec.extensions, "mayfly.pause");

	return mode && !strcmp(mode, "resident") ? ASK_PAUSE_MEMORY : ASK_PAUSE;
}

static void fork_taken(void *arg)
{
	struct fork *f = arg;

	if (f->err) {
		if (f->client)
			http_error(f->client, 500, "SANDBOX::FORK_FAILED",
				"Sandbox %s was not forked: %s", f->source->id, f->why);
		fork_abandon(f, "its source was not forked");
		return;
	}
	if (f->pause_source && !sandbox_gone(f->source))
		operation_ask(f->source, pause_of(f->source), NULL);
	fork_start(f);
}

/* Called within the last step of the source's operation, so the rest is deferred. */
static void point_taken(void *arg, int err, const char *text, struct disk *disk, struct memory *mem)
{
	struct fork *f = arg;

	f->err = err;
	snprintf(f->why, sizeof(f->why), "%s", text);
	f->has_point = !err;
	if (!err) {
		f->disk = *disk;
		f->mem = *mem;
	}
	if (loop_defer(f->d->loop, fork_taken, f) < 0)
		fork_taken(f);
}

/* ---- what is asked */

static bool server_ends(struct http_req *r)
{
	const struct daemon *d = r->app;

	if (!d->ending)
		return false;
	http_add_header(r, "Retry-After", "5");
	http_error(r, 503, "SANDBOX::INTERNAL_ERROR", "the server is being stopped");
	return true;
}

static void not_now(struct http_req *r, const struct sandbox *source)
{
	if (source->state == SB_RUNNING)
		http_error(r, 409, "SNAPSHOT::INVALID_SOURCE_STATE",
			"A snapshot or fork of sandbox %s is being taken. Try again.", source->id);
	else
		http_error(r, 409, "SNAPSHOT::INVALID_SOURCE_STATE",
			"Sandbox %s is %s, not Running.", source->id,
			sb_state_names[source->state]);
}

void fork_sandbox(struct http_req *r, struct sandbox *source, const struct fork_request *q)
{
	_cleanup_json_ cJSON *base = NULL;
	struct fork *f;

	if (server_ends(r))
		return;
	if (source->state != SB_RUNNING) {
		not_now(r, source);
		return;
	}
	base = snapshot_base(source);
	f = fork_new(r, base, "", source->owner, q);
	if (!f)
		return;
	fork_expiry(f, q, source->expires_ns);
	f->source = source;
	sandbox_ref(source);
	if (operation_ask_fork(source, point_taken, f) < 0) {
		not_now(r, source);
		fork_abandon(f, "its source was not forked");
		return;
	}
	fork_waits(f, r);
}

void fork_checkpoint(struct http_req *r, const struct checkpoint *c, const struct fork_request *q)
{
	struct fork *f;

	if (server_ends(r))
		return;
	if (c->state != CP_READY || !*c->mem.state) {
		http_error(r, 409, "SNAPSHOT::NOT_READY", "Snapshot %s is %s.", c->id,
			c->state == CP_READY ? "without memory" : cp_state_names[c->state]);
		return;
	}
	f = fork_new(r, c->base, c->id, c->owner, q);
	if (!f)
		return;
	fork_expiry(f, q, 0);
	f->disk = c->disk;
	f->mem = c->mem;
	disk_ref(f->d->blobs, &f->disk);
	memory_ref(f->d->blobs, &f->mem);
	f->has_point = true;
	fork_waits(f, r);
	fork_start(f);
}
