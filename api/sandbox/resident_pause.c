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

/* The sandbox may be deleted or its VM gone at every answer: each holds a reference and looks. */
static bool still(const struct sandbox *sb, enum op_kind k)
{
	return sb->op.kind == k && sb->vm && sb->agent;
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

/* The request is taken back behind itself: the monitor runs, however late it stops, and whatever is asked of it next
 * comes after that. */
void resident_pause_late(struct sandbox *sb)
{
	tell_vm(sb, VMM_CONTINUE);
	not_paused(sb, "the VMM did not stop it in time");
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
	struct sandbox *sb = arg;

	if (still(sb, OP_PAUSE_MEMORY) && sb->op.step == STEP_STOP) {
		if (a->err)
			not_paused(sb, a->text);
		else
			operation_commit(sb, EV_DONE, "CONTAINER_PAUSED", paused_saved);
	}
	sandbox_unref(sb);
}

static void frozen(void *arg, const struct agent_reply *r)
{
	struct sandbox *sb = arg;
	bool ours = still(sb, OP_PAUSE_MEMORY) && sb->op.step == STEP_FREEZE;

	if (ours && !r->err) {
		agentc_down(sb->agent);
		if (sb->vm->ctl &&
			vmmctl_call(sb->vm->ctl, VMM_PAUSE, NULL, NULL, 0, stopped, sb) == 0) {
			operation_step(sb, STEP_STOP);
			return;
		}
	}
	if (ours)
		not_paused(sb, !r->err    ? "the VMM takes no requests"
			       : *r->text ? r->text
					  : strerror(r->err));
	sandbox_unref(sb);
}

static void pause_begun(struct sandbox *sb, bool saved)
{
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
	buf_init(&b, 64);
	buf_u32(&b, AGENT_PREP_FREEZE);
	buf_u32(&b, LIMIT_MS);
	sandbox_ref(sb);
	asked = agentc_call(sb->agent, AGENT_PREPARE, &b, LIMIT_MS * 2, frozen, sb) != NULL;
	buf_fini(&b);
	if (asked) {
		pause_in_time(sb);
		return;
	}
	not_paused(sb, "the agent takes no requests");
	sandbox_unref(sb);
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
	not_resumed(sb, 504, "the VMM did not let it go on in time");
}

static void went_on(void *arg, const struct vmm_answer *a)
{
	struct sandbox *sb = arg;
	bool ours = still(sb, OP_RESUME_MEMORY) && sb->op.step == STEP_CONTINUE;

	/* EBUSY: it runs: a daemon before this one had asked for it */
	if (ours && (!a->err || a->err == EBUSY))
		running(sb);
	else if (ours)
		not_resumed(sb, 500, a->text);
	/* too late: its client heard that it is Paused */
	else if (!a->err && sb->phase == PHASE_RESIDENT && sb->op.kind == OP_NONE)
		tell_vm(sb, VMM_PAUSE);
	sandbox_unref(sb);
}

static void resident_resume(struct sandbox *sb)
{
	operation_step(sb, STEP_CONTINUE);
	sandbox_ref(sb);
	if (sb->vm && sb->vm->ctl &&
		vmmctl_call(sb->vm->ctl, VMM_CONTINUE, NULL, NULL, 0, went_on, sb) == 0)
		return;
	not_resumed(sb, 500, "the VMM takes no requests");
	sandbox_unref(sb);
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
	/* Pausing: whether it stands is the VM's to say; one that runs refuses to go on, and that
	 * is all */
	if (sb->op.kind != OP_PAUSE_MEMORY)
		return;
	tell_vm(sb, VMM_CONTINUE);
	sandbox_apply(sb, EV_FAILED, "CONTAINER_RUNNING", "%s", "");
	operation_thaw(sb);
}
