/* SPDX-License-Identifier: Apache-2.0
 *
 * resident_pause.c: see resident_pause.h. The guest's processes are frozen first, so that on resume none of
 * them runs before the agent has set the clock. mayflyd's loop.
 */
#include "api/sandbox/resident_pause.h"

#include <string.h>

#include "api/sandbox/entrypoint.h"
#include "api/sandbox/launch.h"
#include "api/sandbox/take.h"
#include "api/http/http.h"
#include "api/links/monitor_client.h"
#include "lib/log.h"

#define LIMIT_MS 10000u

/* A question to the agent or the monitor. The sandbox may be deleted, its VM gone, or another operation of the same kind
 * running when the answer comes. So a question holds a reference to the sandbox, and knows which operation asked. */
struct question {
	struct sandbox *sb;
	uint64_t begun_ns; /* of the operation that asked */
};

static struct question *question_new(struct sandbox *sb)
{
	struct question *q = malloc(sizeof(*q));

	if (!q)
		return NULL;
	*q = (struct question){sb, sb->op.begun_ns};
	sandbox_ref(sb);
	return q;
}

static void question_free(struct question *q)
{
	if (!q)
		return;
	sandbox_unref(q->sb);
	free(q);
}

/* Is the operation that asked still running, and in the step that waits for this answer? */
static bool question_stands(const struct question *q, enum op_kind k, enum op_step step)
{
	const struct sandbox *sb = q->sb;

	return sb->op.kind == k && sb->op.step == step && sb->op.begun_ns == q->begun_ns &&
	       sb->vm && sb->agent;
}

static void ignore(void *arg, const struct vmm_answer *a)
{
}

static void tell_vm(struct sandbox *sb, uint16_t what)
{
	if (sb->vm && sb->vm->ctl)
		vmmctl_call(sb->vm->ctl, what, NULL, NULL, 0, ignore, NULL);
}

/* ---- pause */

static void not_paused(struct sandbox *sb, const char *why)
{
	struct http_req *r = operation_client(sb);

	sandbox_apply(sb, EV_FAILED, "PAUSE_FAILED", "%s", why);
	operation_thaw(sb);
	entry_watch(sb);
	if (r)
		http_error(r, 500, "DOCKER::SANDBOX_PAUSE_FAILED", "%s", why);
}

/* Sends a continue after the request to pause. However late the monitor stops, it runs again, before any later
 * request. */
void resident_pause_late(struct sandbox *sb)
{
	if (sb->op.step == STEP_FREEZE) {
		not_paused(sb, "the agent did not freeze the guest's processes in time");
		return;
	}
	tell_vm(sb, VMM_CONTINUE);
	not_paused(sb, "the VMM did not stop the vCPUs in time");
}

static void paused_saved(struct sandbox *sb, bool saved)
{
	struct http_req *r;

	if (!saved) {
		tell_vm(sb, VMM_CONTINUE);
		not_paused(sb, "the record cannot be written");
		return;
	}
	r = operation_client(sb);
	operation_end(sb);
	if (r)
		http_reply_empty(r, 202);
}

static void stopped(void *arg, const struct vmm_answer *a)
{
	struct question *q = arg;

	if (question_stands(q, OP_PAUSE_MEMORY, STEP_STOP)) {
		if (a->err)
			not_paused(q->sb, a->text);
		else
			operation_commit(q->sb, EV_DONE, "CONTAINER_PAUSED", paused_saved);
	}
	question_free(q);
}

static void vm_stop(struct sandbox *sb)
{
	struct question *q = question_new(sb);

	agentc_down(sb->agent);
	operation_step(sb, STEP_STOP);
	if (q && sb->vm->ctl && vmmctl_call(sb->vm->ctl, VMM_PAUSE, NULL, NULL, 0, stopped, q) == 0)
		return;
	not_paused(sb, "the VMM takes no requests");
	question_free(q);
}

static void frozen(void *arg, const struct agent_reply *r)
{
	struct question *q = arg;

	if (question_stands(q, OP_PAUSE_MEMORY, STEP_FREEZE)) {
		if (r->err)
			not_paused(q->sb, *r->text ? r->text : strerror(r->err));
		else
			vm_stop(q->sb);
	}
	question_free(q);
}

static void pause_begun(struct sandbox *sb, bool saved)
{
	struct question *q;
	struct http_req *r;
	struct buf b;
	bool asked;

	if (!saved) {
		r = operation_client(sb);
		entry_watch(sb);
		if (r)
			http_error(r, 500, "DOCKER::SANDBOX_PAUSE_FAILED",
				"The record of sandbox %s cannot be written.", sb->id);
		return;
	}
	operation_step(sb, STEP_FREEZE);
	q = question_new(sb);
	buf_init(&b, 64);
	buf_u32(&b, AGENT_PREP_FREEZE);
	buf_u32(&b, LIMIT_MS);
	asked = q && agentc_call(sb->agent, AGENT_PREPARE, &b, LIMIT_MS * 2, frozen, q) != NULL;
	buf_fini(&b);
	if (asked) {
		pause_in_time(sb);
		return;
	}
	not_paused(sb, "the agent takes no requests");
	question_free(q);
}

void resident_pause(struct sandbox *sb)
{
	operation_begin_saved(sb, OP_PAUSE_MEMORY, 0, "PAUSING", pause_begun);
}

/* ---- resume */

/* It stays Paused. */
static void not_resumed(struct sandbox *sb, int status, const char *why)
{
	struct http_req *r = operation_client(sb);

	sandbox_apply(sb, EV_FAILED, "RESUME_FAILED", "%s", why);
	operation_end(sb);
	if (r)
		http_error(r, status, "DOCKER::SANDBOX_RESUME_FAILED", "%s", why);
}

static void running_saved(struct sandbox *sb, bool saved)
{
	struct http_req *r;

	if (!saved) {
		tell_vm(sb, VMM_PAUSE);
		not_resumed(sb, 500, "the record cannot be written");
		return;
	}
	r = operation_client(sb);
	operation_thaw(sb);
	entry_watch(sb);
	if (r)
		http_reply_empty(r, 202);
}

static void running(struct sandbox *sb)
{
	sb->phase_ns[PH_RESUME] = mono_ns() - sb->op.begun_ns;
	hist_add(&sb->d->metrics.phase[PH_RESUME], sb->phase_ns[PH_RESUME]);
	operation_commit(sb, EV_DONE, "CONTAINER_RUNNING", running_saved);
}

void resident_resume_late(struct sandbox *sb)
{
	if (sb->op.step == STEP_COMMIT)
		tell_vm(sb, VMM_PAUSE);
	not_resumed(sb, 504, "the VMM did not continue the vCPUs in time");
}

static void went_on(void *arg, const struct vmm_answer *a)
{
	struct question *q = arg;
	struct sandbox *sb = q->sb;
	bool stands = question_stands(q, OP_RESUME_MEMORY, STEP_CONTINUE);

	/* EBUSY: it runs already, because an earlier daemon asked for that */
	if (stands && (!a->err || a->err == EBUSY))
		running(sb);
	else if (stands)
		not_resumed(sb, 500, a->text);
	/* too late: its client heard that the resume failed, and the sandbox is shown as Paused */
	else if (!a->err && sb->phase == PHASE_RESIDENT && sb->op.kind == OP_NONE)
		tell_vm(sb, VMM_PAUSE);
	question_free(q);
}

static void resident_resume(struct sandbox *sb)
{
	struct question *q = question_new(sb);

	operation_step(sb, STEP_CONTINUE);
	if (q && sb->vm && sb->vm->ctl &&
		vmmctl_call(sb->vm->ctl, VMM_CONTINUE, NULL, NULL, 0, went_on, q) == 0)
		return;
	not_resumed(sb, 500, "the VMM takes no requests");
	question_free(q);
}

static void resume_begun(struct sandbox *sb, bool saved)
{
	struct http_req *r;

	if (saved) {
		resident_resume(sb);
		return;
	}
	r = operation_client(sb);
	if (r)
		http_error(r, 500, "DOCKER::SANDBOX_RESUME_FAILED",
			"The record of sandbox %s cannot be written; it stays Paused.", sb->id);
}

void resident_resume_asked(struct sandbox *sb)
{
	operation_begin_saved(
		sb, OP_RESUME_MEMORY, sb->d->cfg.resume_timeout_seconds, "RESUMING", resume_begun);
}

void resident_take_up(struct sandbox *sb)
{
	if (sb->op.kind == OP_RESUME_MEMORY) {
		operation_begin(sb, OP_RESUME_MEMORY, sb->d->cfg.resume_timeout_seconds);
		resident_resume(sb);
		return;
	}
	/* Pausing: only the VM knows whether it has stopped. A VM that runs refuses a continue, which does
	 * no harm */
	if (sb->op.kind != OP_PAUSE_MEMORY)
		return;
	tell_vm(sb, VMM_CONTINUE);
	sandbox_apply(sb, EV_FAILED, "CONTAINER_RUNNING", "%s", "");
	operation_thaw(sb);
}
