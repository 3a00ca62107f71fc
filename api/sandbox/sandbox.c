/* SPDX-License-Identifier: Apache-2.0
 *
 * sandbox.c: the table of sandboxes, their state machine, expiry, and who waits for them. mayflyd's loop.
 */
#include "api/sandbox/sandbox.h"

#include <cjson/cJSON.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "api/sandbox/entrypoint_log.h"
#include "api/links/images.h"
#include "api/sandbox/fault.h"
#include "api/sandbox/template_build.h"
#include "api/core/database.h"
#include "lib/log.h"

#define RECORD_AGAIN_NS (1ull * 1000000000)

struct waiter {
	struct waiter *next;
	struct http_req *r;
};

const char *const sb_state_names[SB_STATES] = {[SB_PENDING] = "Pending",
	[SB_RUNNING] = "Running",
	[SB_PAUSING] = "Pausing",
	[SB_PAUSED] = "Paused",
	[SB_RESUMING] = "Resuming",
	[SB_STOPPING] = "Stopping",
	[SB_TERMINATED] = "Terminated",
	[SB_FAILED] = "Failed"};

/* +1, so that an empty cell is "no such transition" */
#define TO(s) ((s) + 1)
static const uint8_t transitions[SB_STATES][SB_EVENTS] = {
	[SB_PENDING] = {[EV_STARTED] = TO(SB_RUNNING),
		[EV_START_FAILED] = TO(SB_FAILED),
		[EV_VM_DIED] = TO(SB_FAILED),
		[EV_DELETE] = TO(SB_STOPPING)},
	[SB_RUNNING] = {[EV_PAUSE] = TO(SB_PAUSING),
		[EV_ENTRY_OK] = TO(SB_TERMINATED),
		[EV_ENTRY_BAD] = TO(SB_FAILED),
		[EV_VM_DIED] = TO(SB_FAILED),
		[EV_DELETE] = TO(SB_STOPPING)},
	[SB_PAUSING] = {[EV_PAUSED] = TO(SB_PAUSED),
		[EV_PAUSE_FAILED] = TO(SB_RUNNING),
		[EV_VM_DIED] = TO(SB_FAILED),
		[EV_DELETE] = TO(SB_STOPPING)},
	/* VM_DIED: of a resident one; the others have none */
	[SB_PAUSED] = {[EV_RESUME] = TO(SB_RESUMING),
		[EV_VM_DIED] = TO(SB_FAILED),
		[EV_DELETE] = TO(SB_STOPPING)},
	/* START_FAILED: before the guest ran, so that what was paused is still whole */
	[SB_RESUMING] = {[EV_RESUMED] = TO(SB_RUNNING),
		[EV_START_FAILED] = TO(SB_PAUSED),
		[EV_VM_DIED] = TO(SB_FAILED),
		[EV_DELETE] = TO(SB_STOPPING)},
	[SB_TERMINATED] = {[EV_DELETE] = TO(SB_STOPPING)},
	[SB_FAILED] = {[EV_DELETE] = TO(SB_STOPPING)},
	[SB_STOPPING] = {0},
};

enum sb_state sb_next(enum sb_state s, enum sb_event ev)
{
	uint8_t to = transitions[s][ev];

	return to ? (enum sb_state)(to - 1) : SB_STATES;
}

struct sandbox *sandbox_find(struct daemon *d, const char *id)
{
	for (struct sandbox *sb = d->sandboxes; sb; sb = sb->next)
		if (!strcmp(sb->id, id))
			return sb;
	return NULL;
}

static void record_goes(void *arg);

static void expired(void *arg)
{
	struct sandbox *sb = arg;
	int64_t left = sb->expires_ns - (int64_t)wall_ns();

	if (sb->gone) {
		record_goes(sb);
		return;
	}
	/* the timer runs on the monotonic clock: the wall clock may have been stepped either way */
	if (left > 0) {
		timer_after(sb->expiry, MIN((uint64_t)left, 60000000000ull));
		return;
	}
	sb->d->metrics.expired++;
	sandbox_delete(sb, "expired");
}

struct sandbox *sandbox_new(struct daemon *d, const char *id)
{
	struct sandbox *sb = calloc(1, sizeof(*sb));

	if (!sb)
		return NULL;
	sb->d = d;
	sb->refs = 1;
	snprintf(sb->id, sizeof(sb->id), "%s", id);
	snprintf(sb->owner, sizeof(sb->owner), "%s", OWNER_OPERATOR);
	sb->created_ns = sb->changed_ns = (int64_t)wall_ns();
	sb->begun_ns = mono_ns();
	random_bytes(&sb->generation, sizeof(sb->generation));
	uuid_make(sb->boot_id);
	sb->expiry = loop_timer(d->loop, expired, sb);
	if (!sb->expiry) {
		free(sb);
		return NULL;
	}
	sb->next = d->sandboxes;
	sb->prev = &d->sandboxes;
	if (sb->next)
		sb->next->prev = &sb->next;
	d->sandboxes = sb;
	d->nsandboxes++;
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
	timer_remove(sb->expiry);
	free(sb);
}

void sandbox_note(struct sandbox *sb, const char *fmt, ...)
{
	char text[120], when[TIME_TEXT];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (sb->nevents == ARRAY_LEN(sb->events)) {
		memmove(sb->events[0], sb->events[1], sizeof(sb->events) - sizeof(sb->events[0]));
		sb->nevents--;
	}
	snprintf(sb->events[sb->nevents++], sizeof(sb->events[0]), "%s %s",
		time_format((int64_t)wall_ns(), when), text);
}

int sandbox_save(struct sandbox *sb, bool sync)
{
	struct err e;
	cJSON *doc;
	int rc;

	if (sb->gone)
		return -ENOENT;
	doc = sandbox_record(sb);
	rc = fault_at(sb, FAULT_RECORD) < 0
		     ? err_plain(&e, ENOSPC, "no space (asked for by a test)")
		     : database_put(sb->d->database, DB_SANDBOX, sb->id, doc, sync, &e);
	cJSON_Delete(doc);
	if (rc < 0)
		log_error("sandbox %s: %s", sb->id, e.msg);
	sb->persisted = true;
	return rc;
}

bool sandbox_apply(struct sandbox *sb, enum sb_event ev, const char *reason, const char *fmt, ...)
{
	enum sb_state to = sb_next(sb->state, ev);
	va_list ap;

	if (to == SB_STATES)
		return false;
	sb->state = to;
	sb->changed_ns = (int64_t)wall_ns();
	snprintf(sb->reason, sizeof(sb->reason), "%s", reason);
	va_start(ap, fmt);
	vsnprintf(sb->message, sizeof(sb->message), fmt, ap);
	va_end(ap);
	sandbox_note(sb, "%s %s %s", sb_state_names[to], sb->reason, sb->message);
	log_info("sandbox %s: %s (%s) %s", sb->id, sb_state_names[to], sb->reason, sb->message);
	if (ev != EV_DELETE)
		sandbox_save(sb, to == SB_PAUSED);
	sandboxes_wake(sb);
	if (sb->build)
		build_changed(sb->build);
	return true;
}

bool sandbox_apply_saved(struct sandbox *sb, enum sb_event ev, const char *reason)
{
	enum sb_state was = sb->state, to = sb_next(sb->state, ev);
	char old_reason[sizeof(sb->reason)];
	int64_t changed_ns = sb->changed_ns;

	if (to == SB_STATES)
		return false;
	memcpy(old_reason, sb->reason, sizeof(old_reason));
	sb->state = to;
	sb->changed_ns = (int64_t)wall_ns();
	snprintf(sb->reason, sizeof(sb->reason), "%s", reason);
	sb->message[0] = 0;
	if (sandbox_save(sb, false) < 0) {
		sb->state = was;
		sb->changed_ns = changed_ns;
		memcpy(sb->reason, old_reason, sizeof(old_reason));
		return false;
	}
	sandbox_note(sb, "%s %s", sb_state_names[to], sb->reason);
	log_info("sandbox %s: %s (%s)", sb->id, sb_state_names[to], sb->reason);
	sandboxes_wake(sb);
	if (sb->build)
		build_changed(sb->build);
	return true;
}

/* ---- who waits for it to run */

static void answer_not_running(struct http_req *r, const struct sandbox *sb)
{
	if (sb->gone)
		http_error(r, 404, "DOCKER::SANDBOX_NOT_FOUND", "Sandbox %s not found.", sb->id);
	else
		http_error(r, 409, "DOCKER::SANDBOX_NOT_RUNNING", "Sandbox %s is %s. %s", sb->id,
			sb_state_names[sb->state], sb->message);
}

static bool is_coming(const struct sandbox *sb)
{
	return !sb->gone && (sb->state == SB_PENDING || sb->state == SB_RESUMING ||
				    (sb->state == SB_RUNNING && sb->frozen));
}

void sandbox_let_go(struct sandbox *sb)
{
	sb->frozen = false;
	sandboxes_wake(sb);
}

void sandbox_when_up(struct sandbox *sb, struct http_req *r)
{
	struct waiter *w;

	if (sb->state == SB_RUNNING && !sb->gone && !sb->frozen) {
		r->route->fn(r);
		return;
	}
	w = is_coming(sb) ? calloc(1, sizeof(*w)) : NULL;
	if (!w) {
		answer_not_running(r, sb);
		return;
	}
	*w = (struct waiter){.next = sb->waiters, .r = r};
	sb->waiters = w;
}

void sandboxes_wake(struct sandbox *sb)
{
	struct waiter *w = sb->waiters;

	if (is_coming(sb))
		return;
	sb->waiters = NULL;
	while (w) {
		struct waiter *next = w->next;

		if (http_client_gone(w->r))
			http_abort(w->r);
		else if (sb->state == SB_RUNNING)
			w->r->route->fn(w->r);
		else
			answer_not_running(w->r, sb);
		free(w);
		w = next;
	}
}

/* ---- expiry */

void sandbox_set_expiry(struct sandbox *sb, int64_t expires_ns)
{
	int64_t left = expires_ns - (int64_t)wall_ns();

	sb->expires_ns = expires_ns;
	if (!expires_ns)
		timer_set(sb->expiry, 0);
	else
		timer_after(sb->expiry, left > 0 ? MIN((uint64_t)left, 60000000000ull) : 1);
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
	sandbox_save(sb, false);
}

/* ---- deletion */

static void sandbox_forget(struct sandbox *sb)
{
	*sb->prev = sb->next;
	if (sb->next)
		sb->next->prev = sb->prev;
	sb->prev = NULL;
	sb->d->nsandboxes--;
}

/* Of one that is gone. */
static void record_goes(void *arg)
{
	struct sandbox *sb = arg;

	sb->zombie =
		sb->zombie && database_delete(sb->d->database, DB_SANDBOX, sb->id, true, NULL) < 0;
	if (sb->zombie)
		timer_after(sb->expiry, RECORD_AGAIN_NS);
	else
		sandbox_unref(sb);
}

static void files_go(void *arg)
{
	struct sandbox *sb = arg;

	disk_unref(sb->d->blobs, &sb->disk);
	memory_unref(sb->d->blobs, &sb->memory);
	entrylog_forget(sb);
	images_release(sb->d);
	record_goes(sb);
}

int sandbox_delete(struct sandbox *sb, const char *why)
{
	bool zombie = false;
	struct err e;

	if (sb->gone)
		return 0;
	sandbox_apply(sb, EV_DELETE, "DELETED", "%s", why);
	/* the record first: from now on no daemon knows it, and the sweep at the next start finds
	 * what is left of it */
	if (sb->persisted && database_delete(sb->d->database, DB_SANDBOX, sb->id, true, &e) < 0) {
		log_error("sandbox %s: %s", sb->id, e.msg);
		zombie = true;
	}
	sb->gone = true;
	sb->d->metrics.deleted++;
	timer_set(sb->expiry, 0);
	sandboxes_wake(sb);
	sandbox_forget(sb);
	launch_teardown(sb);
	sb->zombie = zombie;
	if (zombie) {
		/* on a full disk its files make the room that the deletion of its record needs */
		sandbox_ref(sb);
		files_go(sb);
		zombie = sb->zombie;
		sandbox_unref(sb);
		return zombie ? -EIO : 0;
	}
	/* after the answer */
	if (loop_defer(sb->d->loop, files_go, sb) < 0)
		files_go(sb);
	return 0;
}
