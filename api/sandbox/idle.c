/* SPDX-License-Identifier: Apache-2.0
 *
 * idle.c: see idle.h. mayflyd's loop. The policy is the client's; it was checked when it came (api/lifecycle/spec_hooks.c).
 *
 * A pause that is moved from memory to disk is a resume and a second pause: the machine runs for some milliseconds, and clients see the
 * states. A request that comes meanwhile finds it running, and it stays so.
 */
#include "api/sandbox/idle.h"

#include <cjson/cJSON.h>
#include <string.h>

#include "api/sandbox/admission.h"
#include "api/sandbox/sandbox.h"
#include "lib/json.h"

#define SEC          1000000000ull
#define WAKE_LIMIT_S 20u /* then the client is told to ask again */

static uint64_t idle_timeout_ns(const struct sandbox *sb)
{
	uint64_t s = 0;

	if (!sb->d->cfg.idle_enabled)
		return 0;
	return json_whole(json_field(sb->spec.idle, "idleTimeoutSeconds"), 86400, &s) ? s * SEC : 0;
}

static bool idle_deletes(const struct sandbox *sb)
{
	const char *what = json_str(sb->spec.idle, "onIdle");

	return what && !strcmp(what, "delete");
}

/* ---- what is done when it is idle */

static void idle_act(struct sandbox *sb)
{
	bool disk = sb->idle.to_disk || !sb->d->cfg.idle_disk_after_seconds ||
		    admission_is_tight(sb->d);

	if (idle_deletes(sb)) {
		sandbox_note(sb, "idle: it is deleted");
		sandbox_delete(sb, "it was idle");
		return;
	}
	sb->idle.to_disk = false;
	sb->idle.paused = true;
	sb->d->metrics.idle_pauses++;
	sandbox_note(sb, "idle: it is paused %s", disk ? "to disk" : "in memory");
	operation_ask(sb, disk ? ASK_PAUSE : ASK_PAUSE_MEMORY, NULL);
}

static void probed(void *arg, bool active)
{
	struct sandbox *sb = arg;

	sb->idle.probe = NULL;
	if (active)
		sb->idle.active_ns = mono_ns();
	else if (!sb->idle.open && sb->phase == PHASE_RUNNING && sb->op.kind == OP_NONE)
		idle_act(sb);
	idle_settle(sb);
}

static void idle_timeout_passed(struct sandbox *sb)
{
	const cJSON *probe = json_obj(sb->spec.idle, "activeProbe");

	if (sb->idle.probe)
		return;
	/* a sandbox that was resumed only to be paused to disk was probed before */
	if (probe && !sb->idle.to_disk)
		sb->idle.probe = idle_probe_start(sb, probe, probed, sb);
	if (!sb->idle.probe)
		idle_act(sb);
}

static void idle_fired(void *arg)
{
	struct sandbox *sb = arg;

	if (sb->op.kind != OP_NONE)
		return; /* idle_settle() is called again when it ends */
	if (sb->phase == PHASE_RESIDENT && sb->idle.paused) {
		sb->idle.to_disk = true;
		operation_ask(sb, ASK_RESUME, NULL);
	} else if (sb->phase == PHASE_RUNNING && !sb->idle.open) {
		idle_timeout_passed(sb);
	}
}

/* When the next thing is due, monotonic; 0: nothing is. */
static uint64_t idle_due_ns(const struct sandbox *sb)
{
	uint64_t timeout = idle_timeout_ns(sb);

	if (!timeout || sb->op.kind != OP_NONE || sb->idle.probe)
		return 0;
	if (sb->phase == PHASE_RUNNING && !sb->idle.open)
		return sb->idle.to_disk ? mono_ns() + 1 : sb->idle.active_ns + timeout;
	if (sb->phase == PHASE_RESIDENT && sb->idle.paused)
		return sb->idle.active_ns + timeout +
		       (uint64_t)sb->d->cfg.idle_disk_after_seconds * SEC;
	return 0;
}

void idle_settle(struct sandbox *sb)
{
	struct idle *i = &sb->idle;

	if (!sb->spec.idle)
		return;
	if (sb->phase != PHASE_RUNNING && sb->phase != PHASE_RESIDENT)
		idle_probe_cancel(take_ptr(i->probe));
	if (sb->phase == PHASE_RUNNING && sb->op.kind == OP_NONE) {
		/* it was resumed, or runs for the first time */
		if (!i->to_disk && (i->paused || i->waking || !i->active_ns))
			i->active_ns = mono_ns();
		i->waking = false;
		i->paused = i->paused && i->to_disk;
	}
	timer_set(i->timer, idle_due_ns(sb));
}

bool idle_init(struct sandbox *sb)
{
	sb->idle.timer = loop_timer(sb->d->loop, idle_fired, sb);
	return sb->idle.timer != NULL;
}

/* ---- activity */

void idle_entered(struct sandbox *sb)
{
	sb->idle.open++;
	sb->idle.active_ns = mono_ns();
	sb->idle.to_disk = false;
	idle_settle(sb);
}

void idle_left(struct sandbox *sb)
{
	sb->idle.open--;
	sb->idle.active_ns = mono_ns();
	idle_settle(sb);
}

/* ---- wake */

bool idle_wakes(const struct sandbox *sb)
{
	const cJSON *wake = json_field(sb->spec.idle, "wakeOnAccess");

	return sb->spec.idle && sb->d->cfg.idle_enabled && !cJSON_IsFalse(wake) &&
	       (sb->phase == PHASE_PAUSED || sb->phase == PHASE_RESIDENT ||
		       sb->op.kind == OP_PAUSE || sb->op.kind == OP_PAUSE_MEMORY);
}

static void wake_now(void *arg)
{
	struct sandbox *sb = arg;
	bool paused = sb->phase == PHASE_PAUSED || sb->phase == PHASE_RESIDENT;

	/* no request waits any more; or the pause has not ended, and its end calls idle_wake() again; or the resume has begun already */
	if (!sandbox_has_waiters(sb) || !paused || sb->op.kind != OP_NONE) {
		sandbox_unref(sb);
		return;
	}
	if (!sb->idle.waking) {
		sb->idle.waking = true;
		sb->d->metrics.idle_wakes++;
		sandbox_note(sb, "idle: a request wakes it");
		operation_ask(sb, ASK_RESUME, NULL);
	}
	/* this host has no room for it, or the resume that began for these requests has failed */
	if (sb->op.kind == OP_NONE) {
		sb->idle.waking = false;
		sandbox_refuse_waiters(sb);
	} else {
		timer_after(sb->pending, WAKE_LIMIT_S * SEC);
	}
	sandbox_unref(sb);
}

void idle_wake(struct sandbox *sb)
{
	/* not inside the last step of the pause that has just ended */
	sandbox_ref(sb);
	if (loop_defer(sb->d->loop, wake_now, sb) < 0)
		sandbox_unref(sb);
}

void idle_wake_is_long(struct sandbox *sb)
{
	sandbox_refuse_waiters(sb);
}

void idle_fini(struct sandbox *sb)
{
	idle_probe_cancel(take_ptr(sb->idle.probe));
	timer_remove(take_ptr(sb->idle.timer));
}
