/* SPDX-License-Identifier: Apache-2.0
 *
 * resident_pause.c: see resident.h. The guest's processes are frozen first, so that on resume none of
 * them runs before the agent has set the clock. mayflyd's loop.
 */
#include "api/sandbox/resident_pause.h"

#include <string.h>

#include "api/sandbox/entrypoint.h"
#include "api/sandbox/identity.h"
#include "api/sandbox/launch.h"
#include "api/sandbox/take.h"
#include "api/links/monitor_client.h"
#include "lib/log.h"

#define LIMIT_MS 10000u

static struct http_req *take_answer(struct sandbox *sb)
{
	struct http_req *r = sb->answer;

	sb->answer = NULL;
	return r;
}

static void thawed(void *arg, const struct agent_reply *r)
{
	struct sandbox *sb = arg;

	if (r->err && r->err != ECANCELED)
		log_warn("sandbox %s: going on after a pause: %s", sb->id,
			*r->text ? r->text : strerror(r->err));
	sandbox_let_go(sb);
	sandbox_unref(sb);
}

static void thaw(struct sandbox *sb)
{
	struct buf b;

	agentc_up(sb->agent);
	buf_init(&b, AGENT_FRAME_MAX);
	identity_put(&b, sb);
	sandbox_ref(sb);
	sb->frozen = agentc_call(sb->agent, AGENT_THAW, &b, LIMIT_MS * 6, thawed, sb) != NULL;
	if (!sb->frozen)
		sandbox_unref(sb);
	buf_fini(&b);
}

/* What only the VMM can answer has a limit; fn is not called when it did. */
static void limited(struct sandbox *sb, long long seconds, void (*fn)(void *arg))
{
	timer_remove(sb->deadline);
	sb->deadline = loop_timer(sb->d->loop, fn, sb);
	if (sb->deadline)
		timer_after(sb->deadline, (uint64_t)seconds * 1000000000u);
}

/* ---- pause. The sandbox may be deleted or its VM gone at every answer: each holds a reference and
 * looks. */

static bool still(const struct sandbox *sb, enum sb_state st)
{
	return !sb->gone && sb->vm && sb->agent && sb->state == st;
}

static void ignore(void *arg, const struct vmm_answer *a)
{
}

static void not_paused(struct sandbox *sb, const char *why)
{
	struct http_req *r = take_answer(sb);

	timer_remove(take_ptr(sb->deadline));
	timer_remove(take_ptr(sb->pending));
	sandbox_apply(sb, EV_PAUSE_FAILED, "PAUSE_FAILED", "%s", why);
	thaw(sb);
	entry_watch(sb);
	if (r)
		http_error(r, 500, "DOCKER::SANDBOX_PAUSE_FAILED", "%s", why);
}

static void pause_late(void *arg)
{
	not_paused(arg, "the VMM did not stop it in time");
}

static void stopped(void *arg, const struct vmm_answer *a)
{
	struct sandbox *sb = arg;
	struct http_req *r;

	if (!still(sb, SB_PAUSING) || sb->snap) {
		/* its end says the rest; or it came too late, and it goes on, also where a pause to
		 * disk was begun since */
		if (!a->err && (still(sb, SB_RUNNING) || still(sb, SB_PAUSING)) && sb->vm->ctl)
			vmmctl_call(sb->vm->ctl, VMM_CONTINUE, NULL, NULL, 0, ignore, NULL);
	} else if (a->err) {
		not_paused(sb, a->text);
	} else {
		timer_remove(take_ptr(sb->deadline));
		timer_remove(take_ptr(sb->pending));
		sb->resident = true;
		if (sandbox_apply_saved(sb, EV_PAUSED, "CONTAINER_PAUSED")) {
			r = take_answer(sb);
			if (r)
				http_reply_empty(r, 202);
		} else {
			sb->resident = false;
			vmmctl_call(sb->vm->ctl, VMM_CONTINUE, NULL, NULL, 0, ignore, NULL);
			not_paused(sb, "the record cannot be written");
		}
	}
	sandbox_unref(sb);
}

static void frozen(void *arg, const struct agent_reply *r)
{
	struct sandbox *sb = arg;

	if (!still(sb, SB_PAUSING)) {
		sandbox_unref(sb);
		return;
	}
	if (!r->err) {
		agentc_down(sb->agent);
		if (sb->vm->ctl &&
			vmmctl_call(sb->vm->ctl, VMM_PAUSE, NULL, NULL, 0, stopped, sb) == 0) {
			limited(sb, sb->d->cfg.step_timeout_seconds, pause_late);
			return;
		}
	}
	not_paused(
		sb, r->err ? *r->text ? r->text : strerror(r->err) : "the VMM takes no requests");
	sandbox_unref(sb);
}

void resident_pause(struct sandbox *sb)
{
	struct buf b;
	bool asked;

	if (!sandbox_apply_saved(sb, EV_PAUSE, "PAUSING")) {
		http_error(take_answer(sb), 500, "DOCKER::SANDBOX_PAUSE_FAILED",
			"The record of sandbox %s cannot be written.", sb->id);
		return;
	}
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

/* ---- resume */

static void running(struct sandbox *sb)
{
	struct http_req *r = take_answer(sb);

	timer_remove(take_ptr(sb->deadline));
	thaw(sb);
	sb->resident = false;
	sandbox_apply(sb, EV_RESUMED, "CONTAINER_RUNNING", "%s", "");
	entry_watch(sb);
	sb->phase_ns[PH_RESUME] = mono_ns() - sb->begun_ns;
	hist_add(&sb->d->metrics.phase[PH_RESUME], sb->phase_ns[PH_RESUME]);
	if (r)
		http_reply_empty(r, 202);
}

/* It stays Paused. */
static void not_resumed(struct sandbox *sb, int status, const char *why)
{
	struct http_req *r = take_answer(sb);

	timer_remove(take_ptr(sb->deadline));
	sandbox_apply(sb, EV_START_FAILED, "RESUME_FAILED", "%s", why);
	if (r)
		http_error(r, status, "DOCKER::SANDBOX_RESUME_FAILED", "%s", why);
}

static void resume_late(void *arg)
{
	not_resumed(arg, 504, "the VMM did not let it go on in time");
}

static void went_on(void *arg, const struct vmm_answer *a)
{
	struct sandbox *sb = arg;

	/* EBUSY: it runs: a daemon before this one had asked for it */
	if (still(sb, SB_RESUMING) && (!a->err || a->err == EBUSY))
		running(sb);
	else if (still(sb, SB_RESUMING))
		not_resumed(sb, 500, a->text);
	/* too late: its client heard that it is Paused */
	else if (!a->err && still(sb, SB_PAUSED) && sb->resident && sb->vm->ctl)
		vmmctl_call(sb->vm->ctl, VMM_PAUSE, NULL, NULL, 0, ignore, NULL);
	sandbox_unref(sb);
}

void resident_resume(struct sandbox *sb)
{
	sb->begun_ns = mono_ns();
	sandbox_ref(sb);
	if (sb->vm && sb->vm->ctl &&
		vmmctl_call(sb->vm->ctl, VMM_CONTINUE, NULL, NULL, 0, went_on, sb) == 0) {
		limited(sb, sb->d->cfg.resume_timeout_seconds, resume_late);
		return;
	}
	not_resumed(sb, 500, "the VMM takes no requests");
	sandbox_unref(sb);
}

void resident_take_up(struct sandbox *sb)
{
	if (sb->state == SB_RESUMING) {
		resident_resume(sb);
		return;
	}
	/* Pausing: whether it stands is the VM's to say; one that runs refuses to go on, and that
	 * is all */
	if (sb->state != SB_PAUSING || !sb->vm->ctl)
		return;
	vmmctl_call(sb->vm->ctl, VMM_CONTINUE, NULL, NULL, 0, ignore, NULL);
	sandbox_apply(sb, EV_PAUSE_FAILED, "CONTAINER_RUNNING", "%s", "");
	thaw(sb);
}
