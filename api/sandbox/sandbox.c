/* SPDX-License-Identifier: Apache-2.0
 *
 * sandbox.c: the table of sandboxes, how they enter a phase, expiry, deletion, and the requests that wait for them. mayflyd's loop.
 */
#include "api/sandbox/sandbox.h"

#include <cjson/cJSON.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "api/http/http.h"
#include "api/sandbox/entrypoint_log.h"
#include "api/links/images.h"
#include "api/sandbox/fault.h"
#include "api/sandbox/launch.h"
#include "api/sandbox/template_build.h"
#include "api/core/database.h"
#include "api/volumes/volumes.h"
#include "lib/json.h"
#include "lib/log.h"

#define RECORD_AGAIN_NS (1ull * 1000000000)

#define WAITERS_MAX 256u

struct waiter {
	struct waiter *next;
	struct http_req *r;
};

struct sandbox *sandbox_find(struct daemon *d, const char *id)
{
	struct sandbox *sb = index_find(d->index, id);

	return sb && sandbox_listed(sb) ? sb : NULL;
}

static bool has_ended(const struct sandbox *sb)
{
	return sb->phase == PHASE_FAILED || sb->phase == PHASE_TERMINATED;
}

/* ---- what it costs its owner */

static void count_ended(struct sandbox *sb, bool ended)
{
	if (ended && !sb->counts_ended)
		account_force(&sb->budget->ended, 1);
	else if (!ended && sb->counts_ended)
		account_give(&sb->budget->ended, 1);
	sb->counts_ended = ended;
}

void sandbox_own(struct sandbox *sb, const char *owner)
{
	struct daemon *d = sb->d;
	bool ended = sb->counts_ended;

	if (owner != sb->owner)
		snprintf(sb->owner, sizeof(sb->owner), "%s", owner);
	count_ended(sb, false);
	sb->budget = budget_of(d->budgets, &d->cfg, sb->owner);
	account_move(&sb->traffic, &sb->budget->guests);
	account_move(&sb->record, &sb->budget->records);
	count_ended(sb, ended);
}

void sandbox_weigh(struct sandbox *sb)
{
	const struct spec *s = &sb->spec;
	const struct cJSON *parts[] = {s->entrypoint, s->env, s->metadata, s->extensions,
		s->platform, s->lifecycle, s->idle, s->network_policy, s->volumes,
		sb->image_config};
	uint64_t n = sizeof(*sb);

	for (size_t i = 0; i < ARRAY_LEN(parts); i++)
		n += json_memory(parts[i]);
	account_give(&sb->record, sb->weighed);
	account_force(&sb->record, n);
	sb->weighed = n;
}

bool sandbox_fits(const struct sandbox *sb, uint64_t more_bytes)
{
	/* account_full() does not change the account */
	return !account_full((struct account *)(uintptr_t)&sb->record, more_bytes);
}

void sandbox_settle(struct sandbox *sb, enum op_kind k)
{
	sb->state = operation_shows(sb->phase, k);
	ASSERT(sb->state != SB_STATES);
	index_count(sb->d->index, sb);
	count_ended(sb, has_ended(sb) && !sb->internal);
}

/* When it is to be deleted, wall clock; 0: never. */
static int64_t due_ns(const struct sandbox *sb)
{
	int64_t ended = has_ended(sb) && !sb->internal
				? sb->changed_ns + sb->d->cfg.ended_keep_seconds * 1000000000ll
				: 0;

	return !ended || (sb->expires_ns && sb->expires_ns < ended) ? sb->expires_ns : ended;
}

static void expired(void *arg)
{
	struct sandbox *sb = arg;
	int64_t left = due_ns(sb) - (int64_t)wall_ns();

	/* the timer runs on the monotonic clock: the wall clock may have been stepped either way */
	if (left > 0) {
		timer_after(sb->expiry, MIN((uint64_t)left, 60000000000ull));
		return;
	}
	sb->d->metrics.expired++;
	sandbox_delete(sb, has_ended(sb) ? "it ended long ago" : "expired");
}

struct sandbox *sandbox_new(struct daemon *d, const char *id)
{
	struct sandbox *sb = calloc(1, sizeof(*sb));

	if (!sb)
		return NULL;
	sb->d = d;
	sb->refs = 1;
	snprintf(sb->id, sizeof(sb->id), "%s", id);
	sb->traffic.whose = "this sandbox";
	sb->traffic.limit = MIB((uint64_t)d->cfg.budget_sandbox_mib);
	sb->traffic.reserve = SANDBOX_RESERVE;
	sb->record.whose = "the record of this sandbox";
	sb->budget = budget_of(d->budgets, &d->cfg, OWNER_OPERATOR);
	sandbox_own(sb, OWNER_OPERATOR);
	sb->created_ns = sb->changed_ns = (int64_t)wall_ns();
	random_bytes(&sb->generation, sizeof(sb->generation));
	uuid_make(sb->boot_id);
	sb->expiry = loop_timer(d->loop, expired, sb);
	if (!operation_init(sb) || !sb->expiry || !idle_init(sb)) {
		operation_fini(sb);
		idle_fini(sb);
		timer_remove(sb->expiry);
		free(sb);
		return NULL;
	}
	sb->next = d->sandboxes;
	sb->prev = &d->sandboxes;
	if (sb->next)
		sb->next->prev = &sb->next;
	d->sandboxes = sb;
	d->nsandboxes++;
	index_add(d->index, sb);
	return sb;
}

void sandbox_ref(struct sandbox *sb)
{
	sb->refs++;
}

void sandbox_unref(struct sandbox *sb)
{
	if (--sb->refs > 0)
		return;
	spec_fini(&sb->spec);
	cJSON_Delete(sb->image_config);
	operation_fini(sb);
	idle_fini(sb);
	timer_remove(sb->expiry);
	timer_remove(sb->own_later);
	for (unsigned int i = 0; i < sb->nevents; i++)
		free(sb->events[i]);
	account_move(&sb->traffic, NULL);
	account_move(&sb->record, NULL);
	count_ended(sb, false);
	free(sb);
}

void sandbox_note(struct sandbox *sb, const char *fmt, ...)
{
	char text[120], when[TIME_TEXT], *line;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	/* without memory the event is lost */
	if (asprintf(&line, "%s %s", time_format((int64_t)wall_ns(), when), text) < 0)
		return;
	if (sb->nevents == ARRAY_LEN(sb->events)) {
		account_give(&sb->record, strlen(sb->events[0]) + 1);
		free(sb->events[0]);
		memmove(&sb->events[0], &sb->events[1], sizeof(sb->events) - sizeof(sb->events[0]));
		sb->nevents--;
	}
	account_force(&sb->record, strlen(line) + 1);
	sb->events[sb->nevents++] = line;
}

static void saved_later(void *arg, const struct err *e)
{
	if (e)
		log_error("sandbox: a record: %s", e->msg);
}

struct transaction *sandbox_transaction_now(struct sandbox *sb)
{
	struct transaction *t = fault_at(sb, FAULT_RECORD) < 0 ? NULL : transaction_new();
	cJSON *doc;

	sb->saves++;
	if (!t)
		return NULL;
	sandbox_weigh(sb);
	doc = sandbox_record(sb);
	transaction_put(t, DB_SANDBOX, sb->id, doc);
	cJSON_Delete(doc);
	return t;
}

void sandbox_save_later(struct sandbox *sb)
{
	struct transaction *t = sandbox_gone(sb) ? NULL : sandbox_transaction_now(sb);

	if (t)
		database_commit(sb->d->database, t, saved_later, NULL);
	else if (!sandbox_gone(sb))
		log_error("sandbox %s: its record cannot be written", sb->id);
}

void sandbox_accept(struct sandbox *sb)
{
	struct transaction *t = transaction_new();
	cJSON *doc;

	sb->phase = PHASE_ACCEPTED;
	snprintf(sb->reason, sizeof(sb->reason), "CREATING");
	sandbox_weigh(sb);
	doc = t ? sandbox_record(sb) : NULL;
	if (!t)
		return;
	transaction_put(t, DB_SANDBOX, sb->id, doc);
	cJSON_Delete(doc);
	database_commit(sb->d->database, t, NULL, NULL);
}

static void bound_later(void *arg)
{
	sandboxes_bound(arg);
}

/* Its record stays for a while, so that somebody can look at it. */
static void sandbox_ended(struct sandbox *sb)
{
	sandbox_due(sb);
	loop_undefer(sb->d->loop, bound_later, sb->d);
	(void)loop_defer(sb->d->loop, bound_later, sb->d);
}

/* false: the table has no phase for it. */
static bool sandbox_enter(struct sandbox *sb, enum op_event ev)
{
	struct op_cell c = operation_cell(sb->phase, sb->op.kind, ev);

	if (c.action == ACT_NEVER)
		log_error("sandbox %s: a bug: %s while it is %s and its operation is %s", sb->id,
			op_event_names[ev], sb_phase_names[sb->phase], op_kind_names[sb->op.kind]);
	if (c.action != ACT_TO)
		return false;
	sb->phase = (enum sb_phase)c.what;
	if (ev == EV_DONE || ev == EV_FAILED)
		sb->op.kind = OP_NONE;
	sandbox_settle(sb, OP_NONE);
	sb->changed_ns = (int64_t)wall_ns();
	if (has_ended(sb))
		sandbox_ended(sb);
	return true;
}

void sandboxes_damaged(struct daemon *d, const char *blob, const char *text)
{
	for (struct sandbox *sb = d->sandboxes; sb; sb = sb->next)
		if (memory_has(&sb->memory, blob))
			sandbox_note(sb,
				"a memory file that it was restored from is damaged: %.80s", text);
}

void sandbox_said(struct sandbox *sb)
{
	sandbox_note(sb, "%s %s %s", sb_state_names[sb->state], sb->reason, sb->message);
	log_info("sandbox %s: %s (%s) %s", sb->id, sb_state_names[sb->state], sb->reason,
		sb->message);
	sandboxes_wake(sb);
	idle_settle(sb);
	if (sb->build)
		build_changed(sb->build);
}

bool sandbox_apply(struct sandbox *sb, enum op_event ev, const char *reason, const char *fmt, ...)
{
	va_list ap;

	if (!sandbox_enter(sb, ev))
		return false;
	snprintf(sb->reason, sizeof(sb->reason), "%s", reason);
	va_start(ap, fmt);
	vsnprintf(sb->message, sizeof(sb->message), fmt, ap);
	va_end(ap);
	sandbox_save_later(sb);
	sandbox_said(sb);
	return true;
}

/* The record as it will be in that phase and state. NULL: no memory, or a test wants it to fail. */
static struct transaction *transaction_as(struct sandbox *sb, enum sb_phase phase,
	enum sb_state state, int64_t changed_ns, const char *reason)
{
	enum sb_phase old_phase = sb->phase;
	enum sb_state old_state = sb->state;
	char old_reason[sizeof(sb->reason)], message = sb->message[0];
	int64_t old_changed_ns = sb->changed_ns;
	struct transaction *t = NULL;
	cJSON *doc;

	if (fault_at(sb, FAULT_RECORD) < 0 || !(t = transaction_new()))
		return NULL;
	sandbox_weigh(sb);
	memcpy(old_reason, sb->reason, sizeof(old_reason));
	sb->phase = phase;
	sb->state = state;
	sb->changed_ns = changed_ns;
	snprintf(sb->reason, sizeof(sb->reason), "%s", reason);
	sb->message[0] = 0;
	doc = sandbox_record(sb);
	transaction_put(t, DB_SANDBOX, sb->id, doc);
	cJSON_Delete(doc);
	if (state == SB_PAUSED)
		transaction_sync(t);
	sb->phase = old_phase;
	sb->state = old_state;
	sb->changed_ns = old_changed_ns;
	memcpy(sb->reason, old_reason, sizeof(old_reason));
	sb->message[0] = message;
	return t;
}

struct transaction *sandbox_transaction(
	struct sandbox *sb, enum op_event ev, int64_t changed_ns, const char *reason)
{
	const struct op_cell c = operation_cell(sb->phase, sb->op.kind, ev);
	enum sb_phase phase = (enum sb_phase)c.what;

	ASSERT(c.action == ACT_TO);
	return transaction_as(sb, phase, operation_shows(phase, OP_NONE), changed_ns, reason);
}

struct transaction *sandbox_transaction_begin(
	struct sandbox *sb, enum op_kind k, int64_t changed_ns, const char *reason)
{
	return transaction_as(sb, sb->phase, operation_shows(sb->phase, k), changed_ns, reason);
}

void sandbox_entered(struct sandbox *sb, enum op_event ev, int64_t changed_ns, const char *reason)
{
	if (!sandbox_enter(sb, ev))
		return;
	sb->changed_ns = changed_ns;
	snprintf(sb->reason, sizeof(sb->reason), "%s", reason);
	sb->message[0] = 0;
	sandbox_said(sb);
}

/* ---- requests that wait for it to run */

static void answer_not_running(struct http_req *r, const struct sandbox *sb)
{
	if (sandbox_gone(sb))
		http_error(r, 404, "DOCKER::SANDBOX_NOT_FOUND", "Sandbox %s not found.", sb->id);
	else
		/* a client with an idle policy, or of the gateway, knows 503 as "not now" */
		http_error(r, r->gateway || (sb->spec.idle && sb->state == SB_PAUSED) ? 503 : 409,
			"DOCKER::SANDBOX_NOT_RUNNING", "Sandbox %s is %s. %s", sb->id,
			sb_state_names[sb->state], sb->message);
}

/* The mark by which clients know that the same request may be sent again, whatever its method. */
static void answer_wake_expired(struct http_req *r, const struct sandbox *sb)
{
	http_add_header(r, "OpenSandbox-Wake", "expired");
	http_add_header(r, "Retry-After", "1");
	http_error(r, 503, "DOCKER::SANDBOX_NOT_RUNNING", "Sandbox %s is %s. Ask again.", sb->id,
		sb_state_names[sb->state]);
}

enum use { USE_NOW, USE_LATER, USE_NEVER };

static enum use sandbox_use(const struct sandbox *sb)
{
	uint8_t act = operation_cell(sb->phase, sb->op.kind, ASK_USE).action;

	/* The record is being written: the operation may not begin at all, or its last step, which may thaw the guest, is still to
	 * come. */
	if (sb->op.step == STEP_BEGIN || sb->op.step == STEP_COMMIT)
		return USE_LATER;
	if (act == ACT_HOLD || (act == ACT_GO && operation_holds(sb)))
		return USE_LATER;
	if (act != ACT_GO && idle_wakes(sb))
		return USE_LATER;
	return act == ACT_GO ? USE_NOW : USE_NEVER;
}

/* The client left: frees its place among the waiters, and the request. */
static void waiter_gone(struct http_req *r)
{
	struct waiter **at = &r->sandbox->waiters, *w;

	while (*at && (*at)->r != r)
		at = &(*at)->next;
	w = *at;
	if (w) {
		*at = w->next;
		free(w);
	}
	http_abort(r);
}

static size_t waiters_count(const struct sandbox *sb)
{
	size_t n = 0;

	for (const struct waiter *w = sb->waiters; w; w = w->next)
		n++;
	return n;
}

void sandbox_when_up(struct sandbox *sb, struct http_req *r)
{
	enum use use = sandbox_use(sb);
	struct waiter *w;

	if (use == USE_NOW) {
		r->route->fn(r);
		return;
	}
	if (use == USE_LATER && waiters_count(sb) >= WAITERS_MAX) {
		http_add_header(r, "Retry-After", "1");
		http_error(r, 429, "KUBERNETES::POOL_CAPACITY_EXHAUSTED",
			"%u requests wait for sandbox %s already.", WAITERS_MAX, sb->id);
		return;
	}
	w = use == USE_LATER ? calloc(1, sizeof(*w)) : NULL;
	if (!w) {
		answer_not_running(r, sb);
		return;
	}
	*w = (struct waiter){.next = sb->waiters, .r = r};
	sb->waiters = w;
	http_on_gone(r, waiter_gone);
	if (idle_wakes(sb))
		idle_wake(sb);
}

bool sandbox_has_waiters(const struct sandbox *sb)
{
	return sb->waiters != NULL;
}

void sandbox_refuse_waiters(struct sandbox *sb)
{
	struct waiter *w = take_ptr(sb->waiters);

	while (w) {
		struct waiter *next = w->next;

		http_on_gone(w->r, NULL);
		if (http_client_gone(w->r))
			http_abort(w->r);
		else
			answer_wake_expired(w->r, sb);
		free(w);
		w = next;
	}
}

void sandboxes_wake(struct sandbox *sb)
{
	struct waiter *w = sb->waiters;
	enum use use = sandbox_use(sb);

	if (use == USE_LATER) {
		if (w && idle_wakes(sb))
			idle_wake(sb);
		return;
	}
	sb->waiters = NULL;
	while (w) {
		struct waiter *next = w->next;

		http_on_gone(w->r, NULL);
		if (http_client_gone(w->r))
			http_abort(w->r);
		else if (use == USE_NOW)
			w->r->route->fn(w->r);
		else
			answer_not_running(w->r, sb);
		free(w);
		w = next;
	}
}

/* ---- expiry */

void sandbox_due(struct sandbox *sb)
{
	int64_t due = due_ns(sb), left = due - (int64_t)wall_ns();

	if (!due)
		timer_set(sb->expiry, 0);
	else
		timer_after(sb->expiry, left > 0 ? MIN((uint64_t)left, 60000000000ull) : 1);
}

void sandbox_set_expiry(struct sandbox *sb, int64_t expires_ns)
{
	sb->expires_ns = expires_ns;
	sandbox_due(sb);
}

bool sandboxes_need_image(const struct daemon *d, const char *image)
{
	for (const struct sandbox *sb = d->sandboxes; sb; sb = sb->next)
		if (strcmp(sb->image_digest, image) == 0 || strstr(sb->disk.base, image))
			return true;
	return false;
}

static struct sandbox *oldest_ended(struct sandbox *first, const struct owner_budget *of)
{
	struct sandbox *oldest = NULL;

	for (struct sandbox *sb = first; sb; sb = sb->next)
		if (sb->counts_ended && sb->budget == of &&
			(!oldest || sb->changed_ns < oldest->changed_ns))
			oldest = sb;
	return oldest;
}

void sandboxes_bound(struct daemon *d)
{
	struct sandbox *sb;

	for (struct owner_budget *o = d->budgets->owners; o; o = o->next)
		while (account_full(&o->ended, 0) && (sb = oldest_ended(d->sandboxes, o)))
			sandbox_delete(sb, "too many sandboxes ended after it");
}

void sandbox_renew_on_access(struct sandbox *sb)
{
	uint64_t now = mono_ns();
	int64_t to;

	if (!sb->d->cfg.renew_enabled || !sb->spec.renew_s || !sb->expires_ns ||
		sb->state != SB_RUNNING)
		return;
	if (sb->renewed_ns &&
		now - sb->renewed_ns < (uint64_t)sb->d->cfg.renew_min_interval_seconds * 1000000000)
		return;
	to = (int64_t)wall_ns() + (int64_t)sb->spec.renew_s * 1000000000;
	if (to <= sb->expires_ns)
		return;
	sb->renewed_ns = now;
	sandbox_set_expiry(sb, to);
	sandbox_save_later(sb);
}

/* ---- deletion */

static void sandbox_forget(struct sandbox *sb)
{
	*sb->prev = sb->next;
	if (sb->next)
		sb->next->prev = sb->prev;
	sb->prev = NULL;
	sb->d->nsandboxes--;
	index_remove(sb->d->index, sb);
	if (sb->d->capacity_changed)
		sb->d->capacity_changed(sb->d);
}

void sandbox_renew_birth(struct sandbox *sb)
{
	struct daemon *d = sb->d;

	*sb->prev = sb->next;
	if (sb->next)
		sb->next->prev = sb->prev;
	sb->next = d->sandboxes;
	sb->prev = &d->sandboxes;
	if (sb->next)
		sb->next->prev = &sb->next;
	d->sandboxes = sb;
	sb->created_ns = (int64_t)wall_ns();
}

static void files_go(void *arg)
{
	struct sandbox *sb = arg;

	disk_unref(sb->d->blobs, &sb->disk);
	memory_unref(sb->d->blobs, &sb->memory);
	entrylog_forget(sb);
	images_release(sb->d);
	sandbox_unref(sb);
}

/* ---- the record goes first: from then on no daemon knows the sandbox, and the sweep at the next start finds what is
 * left of it */

static void record_deleted(void *arg, const struct err *e);

/* A create or a delete that a peer sends again, because it heard no answer, must not meet another sandbox of the same id. */
static void id_spend(const struct sandbox *sb, struct transaction *t)
{
	char key[ID_SPENT_KEY];
	cJSON *o = cJSON_CreateObject();

	cJSON_AddStringToObject(o, "sandbox", sb->id);
	cJSON_AddNumberToObject(o, "at", (double)wall_ns());
	transaction_put(t, DB_IDEMPOTENCY, id_spent_key(sb->id, key), o);
	cJSON_Delete(o);
}

static void record_delete(struct sandbox *sb)
{
	struct transaction *t = transaction_new();
	struct err e;

	if (!t) {
		err_set(&e, ENOMEM, "deleting the record");
		record_deleted(sb, &e);
		return;
	}
	transaction_delete(t, DB_SANDBOX, sb->id);
	if (sb->spent)
		id_spend(sb, t);
	transaction_sync(t);
	database_commit(sb->d->database, t, record_deleted, sb);
}

void sandbox_delete_again(struct sandbox *sb)
{
	record_delete(sb);
}

/* Nobody finds it any more. Its files go after the answer, also when the record could not be deleted: on a full disk
 * they make the room that this needs. */
static void sandbox_forgotten(struct sandbox *sb)
{
	sandbox_forget(sb);
	sandbox_ref(sb);
	if (loop_defer(sb->d->loop, files_go, sb) < 0)
		files_go(sb);
}

static void record_deleted(void *arg, const struct err *e)
{
	struct sandbox *sb = arg;
	struct http_req *r = operation_client(sb);

	if (sb->prev)
		sandbox_forgotten(sb);
	if (e) {
		log_error("sandbox %s: %s", sb->id, e->msg);
		timer_after(sb->deadline, RECORD_AGAIN_NS);
		if (r && sb->op.refused)
			http_error(r, 500, "SANDBOX::INTERNAL_ERROR", "%s", sb->op.refused);
		else if (r)
			http_error(r, 500, "DOCKER::SANDBOX_DELETE_FAILED",
				"Sandbox %s is gone, but its record cannot be deleted yet.",
				sb->id);
		return;
	}
	if (sb->volumes_held)
		volumes_release(sb->d->volumes, sb->spec.volumes, false);
	sb->volumes_held = false;
	if (r && sb->op.refused)
		http_error(r, 500, "SANDBOX::INTERNAL_ERROR", "%s", sb->op.refused);
	else if (r)
		http_reply_empty(r, 204);
	sb->op = (struct operation){0};
	sandbox_unref(sb);
}

bool sandbox_created(struct sandbox *sb, const struct refusal *x)
{
	created_fn fn = sb->created;

	sb->created = NULL;
	if (fn)
		fn(sb->created_arg, sb, x);
	return fn != NULL;
}

void sandbox_delete(struct sandbox *sb, const char *why)
{
	bool has_record = sb->phase != PHASE_NEW;
	struct refusal x;

	if (sandbox_gone(sb))
		return;
	/* The id is spent if the create has ended, also as failed (PHASE_FAILED), or if a client asked for the deletion. Otherwise, as
	 * after a create that was refused, a peer may use the id again. */
	sb->spent = (sb->spent || (sb->phase != PHASE_NEW && sb->phase != PHASE_ACCEPTED)) &&
		    json_str(sb->spec.extensions, "mayfly.id");
	snprintf(sb->reason, sizeof(sb->reason), "DELETED");
	snprintf(sb->message, sizeof(sb->message), "%s", why);
	sb->phase = PHASE_DELETED;
	sandbox_settle(sb, OP_NONE);
	sb->d->metrics.deleted++;
	timer_set(sb->expiry, 0);
	sandbox_said(sb);
	launch_teardown(sb);
	refuse(&x, 409, "DOCKER::SANDBOX_NOT_RUNNING", "Sandbox %s was deleted meanwhile.", sb->id);
	sandbox_created(sb, &x);
	operation_begin(sb, OP_DELETE, 0);
	operation_step(sb, STEP_RECORD);
	if (has_record)
		record_delete(sb);
	else
		record_deleted(sb, NULL);
}

void sandbox_delete_asked(struct sandbox *sb, struct http_req *r)
{
	if (sandbox_gone(sb)) {
		http_error(r, 409, "DOCKER::SANDBOX_NOT_RUNNING",
			"Sandbox %s is being deleted by another request.", sb->id);
		return;
	}
	sandbox_ref(sb);
	sb->spent = true;
	sandbox_delete(sb, "deleted");
	operation_client_waits(sb, r);
	sandbox_unref(sb);
}
