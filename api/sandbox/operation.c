/* SPDX-License-Identifier: Apache-2.0
 *
 * operation.c: starts, queues, refuses and ends the operations of a sandbox, as the table says. mayflyd's loop.
 */
#include "api/sandbox/operation.h"

#include <stdio.h>
#include <string.h>

#include "api/http/http.h"
#include "api/core/database.h"
#include "api/sandbox/identity.h"
#include "api/sandbox/launch.h"
#include "api/sandbox/record_writer.h"
#include "api/sandbox/resident_pause.h"
#include "api/sandbox/rollback.h"
#include "api/sandbox/take.h"
#include "api/sandbox/template_build.h"
#include "lib/log.h"

#define SEC           1000000000ull
#define THAW_LIMIT_MS 60000u

/* What an operation does at its beginning, when a deadline passes, and when those who ask have waited long (sb->pending).
 * begin is for operations that operation_ask() begins. */
static const struct {
	void (*begin)(struct sandbox *sb);
	void (*late)(struct sandbox *sb);
	void (*is_long)(struct sandbox *sb);
} kinds[OP_KINDS] = {
	[OP_CREATE] = {.late = launch_late, .is_long = launch_is_long},
	[OP_SNAPSHOT] = {.late = take_late},
	[OP_PAUSE] = {.begin = take_pause, .late = take_late, .is_long = pause_is_long},
	[OP_PAUSE_MEMORY] = {.begin = resident_pause,
		.late = resident_pause_late,
		.is_long = pause_is_long},
	[OP_RESUME] = {.begin = launch_resume, .late = launch_late, .is_long = idle_wake_is_long},
	[OP_RESUME_MEMORY] = {.begin = resident_resume_asked,
		.late = resident_resume_late,
		.is_long = idle_wake_is_long},
	[OP_DELETE] = {.late = sandbox_delete_again},
};

/* ---- the running operation */

static void operation_deadline(struct sandbox *sb)
{
	struct operation *op = &sb->op;
	uint64_t at = op->ends_ns, step_s = (uint64_t)sb->d->cfg.step_timeout_seconds;

	if (op_steps[op->step].limited && (!at || op->step_ns + step_s * SEC < at)) {
		op->limit_s = (int64_t)step_s;
		at = op->step_ns + step_s * SEC;
	} else if (at) {
		op->limit_s = (int64_t)((at - op->begun_ns) / SEC);
	}
	timer_set(sb->deadline, at);
}

void operation_step(struct sandbox *sb, enum op_step s)
{
	struct operation *op = &sb->op;
	uint64_t now = mono_ns();
	uint8_t phase = op_steps[op->step].phase;

	if (phase < PH_COUNT)
		sb->phase_ns[phase] += now - op->step_ns;
	op->step = s;
	op->step_ns = now;
	operation_deadline(sb);
	if (sb->state == SB_PENDING)
		snprintf(sb->message, sizeof(sb->message), "%s", op_steps[s].name);
}

static void operation_mark(struct sandbox *sb, enum op_kind k, int64_t limit_s)
{
	struct operation *op = &sb->op;

	op->kind = k;
	op->begun_ns = op->step_ns = mono_ns();
	op->ends_ns = limit_s ? op->begun_ns + (uint64_t)limit_s * SEC : 0;
	op->step = STEP_NONE;
	operation_deadline(sb);
}

void operation_begin(struct sandbox *sb, enum op_kind k, int64_t limit_s)
{
	operation_mark(sb, k, limit_s);
	sandbox_settle(sb, k);
}

/* ---- commits: the beginning of an operation, and its result */

struct commit {
	struct record_write w;
	enum op_step step; /* STEP_BEGIN, STEP_COMMIT */
	enum op_event ev;  /* of a result */
	int64_t changed_ns;
	uint64_t begun_ns; /* of the operation */
	char reason[64];
	op_saved_fn fn;
};

static const struct commit *commit_of(const struct record_write *w)
{
	return (const struct commit *)(const void *)w;
}

/* Has the operation of this commit not ended yet? If it has, its end writes the record after this commit. */
static bool commit_wanted(const struct record_write *w)
{
	const struct commit *c = commit_of(w);

	return w->sb->op.step == c->step && w->sb->op.begun_ns == c->begun_ns;
}

static struct transaction *commit_transaction(struct record_write *w)
{
	const struct commit *c = commit_of(w);
	struct sandbox *sb = w->sb;

	return c->step == STEP_BEGIN
		       ? sandbox_transaction_begin(sb, sb->op.kind, c->changed_ns, c->reason)
		       : sandbox_transaction(sb, c->ev, c->changed_ns, c->reason);
}

static void begin_ended(struct sandbox *sb, const struct commit *c, bool saved)
{
	if (!saved) {
		c->fn(sb, false);
		operation_end(sb);
		return;
	}
	sandbox_settle(sb, sb->op.kind);
	sb->changed_ns = c->changed_ns;
	snprintf(sb->reason, sizeof(sb->reason), "%s", c->reason);
	sb->message[0] = 0;
	sandbox_said(sb);
	c->fn(sb, true);
}

static void commit_ended(struct record_write *w, enum record_end how)
{
	const struct commit *c = commit_of(w);
	bool saved = how == RECORD_SAVED;

	if (c->step == STEP_BEGIN) {
		begin_ended(w->sb, c, saved);
		return;
	}
	if (saved)
		sandbox_entered(w->sb, c->ev, c->changed_ns, c->reason);
	c->fn(w->sb, saved);
}

static const struct record_write_kind commit_kind = {.bytes = sizeof(struct commit),
	.wanted = commit_wanted,
	.transaction = commit_transaction,
	.ended = commit_ended};

static void commit_begin(
	struct sandbox *sb, enum op_step step, enum op_event ev, const char *reason, op_saved_fn fn)
{
	struct record_write *w = record_write_new(&commit_kind, sb, NULL);
	struct commit none = {.w.sb = sb, .step = step, .fn = fn}, *c;

	if (!w) {
		commit_ended(&none.w, RECORD_FAILED);
		return;
	}
	c = container_of(w, struct commit, w);
	c->step = step;
	c->ev = ev;
	c->fn = fn;
	c->begun_ns = sb->op.begun_ns;
	c->changed_ns = (int64_t)wall_ns();
	snprintf(c->reason, sizeof(c->reason), "%s", reason);
	record_write_submit(w);
}

void operation_begin_saved(
	struct sandbox *sb, enum op_kind k, int64_t limit_s, const char *reason, op_saved_fn fn)
{
	operation_mark(sb, k, limit_s);
	operation_step(sb, STEP_BEGIN);
	commit_begin(sb, STEP_BEGIN, EV_DONE, reason, fn);
}

void operation_commit(struct sandbox *sb, enum op_event ev, const char *reason, op_saved_fn fn)
{
	operation_step(sb, STEP_COMMIT);
	commit_begin(sb, STEP_COMMIT, ev, reason, fn);
}

bool operation_holds(const struct sandbox *sb)
{
	return op_steps[sb->op.step].holds;
}

struct http_req *operation_client(struct sandbox *sb)
{
	struct http_req *r = sb->op.client;

	sb->op.client = NULL;
	return r;
}

/* ---- the queue */

static struct op_wish *wish_of(struct sandbox *sb, enum op_kind k)
{
	for (size_t i = 0; i < OP_QUEUE_MAX; i++)
		if (sb->queue[i].kind == k)
			return &sb->queue[i];
	return NULL;
}

static struct op_wish wish_take(struct sandbox *sb, struct op_wish *w)
{
	struct op_wish x = *w;
	size_t i = (size_t)(w - sb->queue);

	memmove(w, w + 1, (OP_QUEUE_MAX - i - 1) * sizeof(*w));
	sb->queue[OP_QUEUE_MAX - 1] = (struct op_wish){0};
	if (x.kind != OP_SNAPSHOT)
		timer_set(sb->waited, 0);
	return x;
}

static bool wish_pause(const struct sandbox *sb)
{
	return sb->queue[0].kind == OP_PAUSE || sb->queue[0].kind == OP_PAUSE_MEMORY ||
	       sb->queue[1].kind == OP_PAUSE || sb->queue[1].kind == OP_PAUSE_MEMORY;
}

/* Answers 409, not 202: a pause that has not begun would be lost if this daemon ended. */
static void pause_waited_long(struct sandbox *sb)
{
	struct op_wish *w = wish_of(sb, OP_PAUSE), x;

	w = w ? w : wish_of(sb, OP_PAUSE_MEMORY);
	x = wish_take(sb, w);
	if (!x.client)
		return;
	http_error(x.client, 409, "DOCKER::SANDBOX_PAUSE_FAILED",
		"A snapshot of sandbox %s is still being written; try again.", sb->id);
}

static void client_gone(struct http_req *r)
{
	struct sandbox *sb = r->user;

	/* An operation that has begun goes on: whoever asked can look at the sandbox. */
	if (sb && sb->op.client == r)
		sb->op.client = NULL;
	for (size_t i = 0; sb && i < OP_QUEUE_MAX; i++)
		if (sb->queue[i].kind && sb->queue[i].client == r)
			wish_take(sb, &sb->queue[i]);
	http_abort(r);
}

void operation_client_waits(struct sandbox *sb, struct http_req *r)
{
	if (!r)
		return;
	sb->op.client = r;
	r->user = sb;
	http_on_gone(r, client_gone);
}

static void refuse_wrong(struct sandbox *sb, enum op_event ask, struct http_req *r)
{
	bool resume = ask == ASK_RESUME;

	if (!r)
		return;
	http_error(r, 409, resume ? "DOCKER::SANDBOX_NOT_PAUSED" : "DOCKER::SANDBOX_NOT_RUNNING",
		"Sandbox %s is %s, not %s.", sb->id, sb_state_names[sb->state],
		resume ? "Paused" : "Running");
}

static void refuse_busy(struct sandbox *sb, struct http_req *r)
{
	if (!r)
		return;
	http_error(r, 409, "DOCKER::SANDBOX_NOT_RUNNING",
		"Sandbox %s is being changed by another request.", sb->id);
}

static void pause_queue(struct sandbox *sb, enum op_kind k, struct http_req *r)
{
	struct op_wish *w = wish_of(sb, OP_NONE);

	if (!w || wish_pause(sb)) {
		refuse_busy(sb, r);
		return;
	}
	*w = (struct op_wish){.kind = k, .client = r};
	if (!r)
		return;
	r->user = sb;
	http_on_gone(r, client_gone);
	timer_after(sb->waited, (uint64_t)sb->d->cfg.pending_after_seconds * SEC);
}

void operation_ask(struct sandbox *sb, enum op_event ask, struct http_req *r)
{
	struct op_cell c = operation_cell(sb->phase, sb->op.kind, ask);

	/* An operation that was queued earlier begins earlier. */
	if (c.action == ACT_START && sb->queue[0].kind)
		c.action = ACT_QUEUE;
	if (c.action == ACT_START) {
		operation_client_waits(sb, r);
		kinds[c.what].begin(sb);
	} else if (c.action == ACT_QUEUE) {
		pause_queue(sb, (enum op_kind)c.what, r);
	} else if (c.action == ACT_BUSY) {
		refuse_busy(sb, r);
	} else {
		refuse_wrong(sb, ask, r);
	}
}

void operation_pause_memory(struct sandbox *sb)
{
	struct op_cell c = operation_cell(sb->phase, sb->op.kind, ASK_PAUSE_MEMORY);

	if (c.action == ACT_START && !sb->queue[0].kind)
		kinds[c.what].begin(sb);
}

static int point_take(struct sandbox *sb, bool in_ram, snap_fn fn, void *arg)
{
	return (in_ram ? take_fork : take_snapshot)(sb, fn, arg);
}

static int point_ask(struct sandbox *sb, bool in_ram, snap_fn fn, void *arg)
{
	struct op_cell c = operation_cell(sb->phase, sb->op.kind, ASK_SNAPSHOT);
	struct op_wish *w;

	if (c.action == ACT_START && !sb->queue[0].kind)
		return point_take(sb, in_ram, fn, arg);
	w = wish_of(sb, OP_NONE);
	if ((c.action != ACT_QUEUE && c.action != ACT_START) || !w || wish_of(sb, OP_SNAPSHOT))
		return c.action == ACT_WRONG ? -EINVAL : -EBUSY;
	*w = (struct op_wish){.kind = OP_SNAPSHOT, .in_ram = in_ram, .fn = fn, .arg = arg};
	return 0;
}

int operation_ask_snapshot(struct sandbox *sb, snap_fn fn, void *arg)
{
	return point_ask(sb, false, fn, arg);
}

int operation_ask_fork(struct sandbox *sb, snap_fn fn, void *arg)
{
	return point_ask(sb, true, fn, arg);
}

static void wish_begin(struct sandbox *sb)
{
	struct op_wish w = wish_take(sb, &sb->queue[0]);
	bool snapshot = w.kind == OP_SNAPSHOT;
	enum op_event ask = snapshot             ? ASK_SNAPSHOT
			    : w.kind == OP_PAUSE ? ASK_PAUSE
						 : ASK_PAUSE_MEMORY;
	bool may = operation_cell(sb->phase, OP_NONE, ask).action == ACT_START;

	if (snapshot && (!may || point_take(sb, w.in_ram, w.fn, w.arg) < 0)) {
		w.fn(w.arg, ECANCELED, "The sandbox did not run any more when its turn came.", NULL,
			NULL);
	} else if (!snapshot && may) {
		operation_client_waits(sb, w.client);
		kinds[w.kind].begin(sb);
	} else if (!snapshot) {
		refuse_wrong(sb, ask, w.client);
	}
}

static void queue_refuse(struct sandbox *sb)
{
	while (sb->queue[0].kind) {
		struct op_wish w = wish_take(sb, &sb->queue[0]);

		if (w.kind == OP_SNAPSHOT)
			w.fn(w.arg, ECANCELED, "The sandbox ended before its snapshot was taken.",
				NULL, NULL);
		else if (w.client)
			http_error(w.client, 409, "DOCKER::SANDBOX_NOT_RUNNING",
				"Sandbox %s was deleted meanwhile.", sb->id);
	}
}

/* ---- the end of an operation */

static void operation_clear(struct sandbox *sb)
{
	sb->op = (struct operation){0};
	timer_set(sb->deadline, 0);
	timer_set(sb->pending, 0);
}

void operation_end(struct sandbox *sb)
{
	ASSERT(!sb->op.client && !sb->op.launch && !sb->op.snap);
	operation_clear(sb);
	sandbox_settle(sb, OP_NONE);
	sandboxes_wake(sb);
	idle_settle(sb);
	if (sb->build)
		build_changed(sb->build);
	while (sb->queue[0].kind && sb->op.kind == OP_NONE)
		wish_begin(sb);
}

void operation_drop(struct sandbox *sb)
{
	struct http_req *r = operation_client(sb);

	if (r)
		http_error(r, 409, "DOCKER::SANDBOX_NOT_RUNNING",
			"Sandbox %s was deleted meanwhile.", sb->id);
	launch_free(sb);
	rollback_drop(sb);
	snap_sandbox_gone(sb);
	queue_refuse(sb);
	operation_clear(sb);
}

/* ---- the guest's processes go on */

static void thaw_over(struct sandbox *sb)
{
	if (sb->op.snap) {
		operation_step(sb, STEP_WRITE);
		sandboxes_wake(sb);
	} else {
		operation_end(sb);
	}
}

static void thawed(void *arg, const struct agent_reply *r)
{
	struct sandbox *sb = arg;

	if (r->err && r->err != ECANCELED)
		log_warn("sandbox %s: the agent's answer to the thaw: %s", sb->id,
			*r->text ? r->text : strerror(r->err));
	/* any other step: the sandbox ended meanwhile */
	if (sb->op.step == STEP_RELEASE)
		thaw_over(sb);
	sandbox_unref(sb);
}

void operation_thaw(struct sandbox *sb)
{
	struct buf b;
	bool asked;

	if (!sb->op.kind)
		operation_begin(sb, OP_THAW, 0);
	operation_step(sb, STEP_RELEASE);
	agentc_up(sb->agent);
	buf_init(&b, AGENT_FRAME_MAX);
	identity_put(&b, sb);
	sandbox_ref(sb);
	asked = agentc_call(sb->agent, AGENT_THAW, &b, THAW_LIMIT_MS, thawed, sb) != NULL;
	buf_fini(&b);
	if (asked)
		return;
	thaw_over(sb);
	sandbox_unref(sb);
}

/* ---- timers */

static void deadline_passed(void *arg)
{
	struct sandbox *sb = arg;

	if (kinds[sb->op.kind].late)
		kinds[sb->op.kind].late(sb);
}

static void client_waited(void *arg)
{
	struct sandbox *sb = arg;

	if (kinds[sb->op.kind].is_long)
		kinds[sb->op.kind].is_long(sb);
}

static void queue_waited(void *arg)
{
	struct sandbox *sb = arg;

	if (wish_pause(sb))
		pause_waited_long(sb);
}

bool operation_init(struct sandbox *sb)
{
	sb->deadline = loop_timer(sb->d->loop, deadline_passed, sb);
	sb->pending = loop_timer(sb->d->loop, client_waited, sb);
	sb->waited = loop_timer(sb->d->loop, queue_waited, sb);
	return sb->deadline && sb->pending && sb->waited;
}

void operation_fini(struct sandbox *sb)
{
	timer_remove(take_ptr(sb->deadline));
	timer_remove(take_ptr(sb->pending));
	timer_remove(take_ptr(sb->waited));
}
