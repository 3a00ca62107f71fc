/* SPDX-License-Identifier: Apache-2.0
 *
 * freeze.c: before and after a snapshot. The loop's thread; what may block (sync, trim, FIFREEZE) runs in a job's.
 *
 * While a->frozen nothing is started and no file request is taken, so that the agent never waits for a frozen root. The root's freeze ends by
 * itself after its time limit, the processes' does not: in a restored machine they may not run before it has got its identity, and
 * the agent cannot know which of the two it is in.
 */
#include "agent/freeze.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

#include "agent/hooks.h"
#include "agent/jobs.h"
#include "agent/request.h"
#include "agent/text.h"

#define FREEZE_LIMIT_MS 3000u

struct freeze {
	struct agent *a;
	uint64_t conn;
	uint32_t id, flags, limit_ms;
	int events_fd, root_fd;
	struct watch *events_w;
	struct timer *late;  /* processes that do not freeze */
	struct timer *limit; /* of the root's freeze */
	bool root_frozen, busy;
};

static int poke_freezer(struct agent *a, bool on)
{
	char path[sizeof(a->cgroup) + 20];

	if (!a->cgroup[0])
		return a->opts.init ? -ENOTSUP : 0;
	snprintf(path, sizeof(path), "%s/cgroup.freeze", a->cgroup);
	return text_poke(path, on ? "1" : "0");
}

static bool is_frozen(struct freeze *f)
{
	char text[256];
	ssize_t n = pread(f->events_fd, text, sizeof(text) - 1, 0);

	if (n <= 0)
		return false;
	text[n] = 0;
	return strstr(text, "frozen 1") != NULL;
}

static void unwatch(struct freeze *f)
{
	watch_remove(f->events_w);
	f->events_w = NULL;
	close_fd(&f->events_fd);
	timer_set(f->late, 0);
}

static void root_thaw(struct freeze *f)
{
	if (f->root_frozen && ioctl(f->root_fd, FITHAW, 0) < 0 && errno != EINVAL)
		log_warn("thawing the root: %s", strerror(errno));
	f->root_frozen = false;
	timer_set(f->limit, 0);
	close_fd(&f->root_fd);
}

static void limit_fired(void *arg)
{
	struct freeze *f = arg;

	log_warn("the root was frozen for longer than was allowed");
	root_thaw(f);
}

static void prepare_failed(struct freeze *f, int code, const char *what)
{
	struct conn *c = conn_find(f->a, f->conn);

	unwatch(f);
	root_thaw(f);
	poke_freezer(f->a, false);
	f->a->frozen = f->busy = false;
	if (c)
		conn_error(c, f->id, code, AGENT_STEP_FREEZE, "%s: %s", what, strerror(code < 0 ? -code : code));
}

/* In a thread: all that may take its time. */
static void run_quiet(struct job *j)
{
	struct freeze *f = j->arg;
	struct fstrim_range all = {.len = UINT64_MAX};

	if (f->flags & (AGENT_PREP_DROP | AGENT_PREP_FSFREEZE))
		sync();
	if (f->flags & AGENT_PREP_DROP) {
		text_poke("/proc/sys/vm/drop_caches", "3");
		/* a disk without discard says so: then there is nothing to give back */
		if (f->root_fd >= 0 && ioctl(f->root_fd, FITRIM, &all) < 0)
			log_debug("trim: %s", strerror(errno));
		text_poke("/proc/sys/vm/compact_memory", "1");
	}
	if ((f->flags & AGENT_PREP_FSFREEZE) && ioctl(f->root_fd, FIFREEZE, 0) < 0)
		job_fail(j, errno, AGENT_STEP_FREEZE, "freezing the root: %s", strerror(errno));
}

static void quiet_done(struct agent *a, struct job *j)
{
	struct freeze *f = j->arg;

	f->busy = false;
	if (j->code) {
		f->conn = 0; /* it has its answer */
		prepare_failed(f, j->code, "freezing the root");
		return;
	}
	f->root_frozen = f->flags & AGENT_PREP_FSFREEZE;
	if (f->root_frozen)
		timer_after(f->limit, (uint64_t)(f->limit_ms ? f->limit_ms : 10000) * 1000000);
	else
		close_fd(&f->root_fd);
}

/* All processes stand still. */
static void go_quiet(struct freeze *f)
{
	struct conn *c = conn_find(f->a, f->conn);
	struct cur none = cur_of(NULL, 0);
	struct job *j;

	unwatch(f);
	if (!c) {
		prepare_failed(f, ECONNRESET, "nobody waits for it");
		return;
	}
	j = job_create(f->a, c, f->id, AGENT_PREPARE, &none, run_quiet);
	if (!j) {
		prepare_failed(f, ENOMEM, "a job");
		return;
	}
	j->arg = f;
	j->done = quiet_done;
	if (f->flags & (AGENT_PREP_DROP | AGENT_PREP_FSFREEZE))
		f->root_fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (job_submit(j) < 0) {
		job_free(j);
		prepare_failed(f, EAGAIN, "a thread");
	}
}

static void frozen_event(void *arg, uint32_t events)
{
	struct freeze *f = arg;

	if (is_frozen(f))
		go_quiet(f);
}

static void late_fired(void *arg)
{
	prepare_failed(arg, ETIMEDOUT, "the processes do not stand still");
}

static struct freeze *freeze_get(struct agent *a)
{
	struct freeze *f = a->freeze;

	if (f)
		return f;
	f = calloc(1, sizeof(*f));
	if (!f)
		return NULL;
	*f = (struct freeze){.a = a, .events_fd = -1, .root_fd = -1};
	f->late = loop_timer(a->loop, late_fired, f);
	f->limit = loop_timer(a->loop, limit_fired, f);
	a->freeze = f;
	return f;
}

static void freeze_processes(struct freeze *f)
{
	char path[sizeof(f->a->cgroup) + 20];
	int rc = poke_freezer(f->a, true);

	if (rc < 0) {
		prepare_failed(f, -rc, "the freezer");
		return;
	}
	if (!f->a->cgroup[0]) {
		go_quiet(f);
		return;
	}
	snprintf(path, sizeof(path), "%s/cgroup.events", f->a->cgroup);
	f->events_fd = open(path, O_RDONLY | O_CLOEXEC);
	/* the kernel raises POLLPRI when the file changes */
	f->events_w = f->events_fd < 0 ? NULL : loop_watch(f->a->loop, f->events_fd, EPOLLPRI, frozen_event, f);
	if (!f->events_w) {
		prepare_failed(f, errno, "watching the freezer");
		return;
	}
	timer_after(f->late, FREEZE_LIMIT_MS * 1000000ull);
	if (is_frozen(f))
		go_quiet(f);
}

void req_prepare(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	uint32_t flags = cur_u32(b), limit_ms = cur_u32(b);
	struct freeze *f = freeze_get(a);

	if (!cur_done(b)) {
		req_bad(a, c, id);
		return;
	}
	if (!f || !f->late || !f->limit || a->frozen || a->shutting_down) {
		conn_error(c, id, f ? EALREADY : ENOMEM, AGENT_STEP_FREEZE, f ? "frozen or being shut down" : "no memory");
		return;
	}
	f->conn = conn_number(c);
	f->id = id;
	f->flags = flags;
	f->limit_ms = limit_ms;
	f->busy = true;
	a->frozen = true;
	if (flags & AGENT_PREP_FREEZE)
		freeze_processes(f);
	else
		go_quiet(f);
}

int freeze_end(struct agent *a, struct identity *id, enum agent_step *step, struct err *e)
{
	struct freeze *f = a->freeze;
	int rc;

	*step = AGENT_STEP_BUSY;
	if (f && f->busy)
		return err_plain(e, EBUSY, "a snapshot is being prepared");
	rc = identity_apply(a, id, step, e);
	if (rc < 0)
		return rc;
	if (f)
		root_thaw(f);
	rc = identity_apply_root(a, id, step, e);
	if (rc < 0)
		return rc;
	*step = AGENT_STEP_FREEZE;
	rc = a->frozen && (f->flags & AGENT_PREP_FREEZE) ? poke_freezer(a, false) : 0;
	if (rc < 0)
		return err_set(e, -rc, "thawing the processes");
	a->frozen = false;
	hooks_clock_changed(a);
	return 0;
}

void req_thaw(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	enum agent_step step = AGENT_STEP_NONE;
	struct identity idn;
	struct err e = {0};
	int rc = identity_parse(b, &idn);

	if (rc == 0 && !cur_done(b)) {
		identity_free(&idn);
		rc = -EPROTO;
	}
	if (rc < 0) {
		req_bad(a, c, id);
		return;
	}
	rc = freeze_end(a, &idn, &step, &e);
	identity_free(&idn);
	if (rc < 0)
		conn_error(c, id, rc, step, "%s", e.msg);
	else
		conn_ok(c, id, NULL);
}

void freeze_fini(struct agent *a)
{
	struct freeze *f = a->freeze;

	if (!f)
		return;
	unwatch(f);
	root_thaw(f);
	if (a->frozen)
		poke_freezer(a, false);
	timer_remove(f->late);
	timer_remove(f->limit);
	free(f);
	a->freeze = NULL;
}
