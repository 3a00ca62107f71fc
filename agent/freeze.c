/* SPDX-License-Identifier: Apache-2.0
 *
 * freeze.c: before and after a snapshot. The loop's thread; what may block (sync, trim, FIFREEZE)
 * runs in a job's.
 *
 * While a->frozen nothing is started and no file request is taken, so that the agent never waits
 * for a frozen root. The root's freeze ends by itself after its time limit, the processes' does
 * not: in a restored machine they may not run before it has its identity. When the limit expires
 * there, the agent may not have seen the reset yet that tells it of the restore (ready.c).
 *
 * A set-up or thaw that comes while AGENT_PREPARE is in progress means that the host no longer
 * waits for the preparation. The agent cancels the preparation, and does not wait for a sync that a
 * busy disk holds up. Only if the root's freeze has begun, the request waits until it is done.
 */
#include "agent/freeze.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

#include "agent/hooks.h"
#include "agent/jobs.h"
#include "agent/request.h"
#include "agent/text.h"
#include "agent/warm.h"

#define FREEZE_LIMIT_MS 3000u
#define PARKED_MAX      4u

/* The first of the two decides: the thread that is about to freeze the root, or the loop that
 * cancels. */
enum quiet_state { QUIET_WORKS, QUIET_FREEZES, QUIET_CANCELLED };

/* What one preparation's thread works with; it outlives a preparation that was cancelled. */
struct quiet {
	uint32_t flags;
	int root_fd;
	atomic_int state;
};

/* A set-up or thaw that waits. */
struct parked {
	struct parked *next;
	uint64_t conn;
	uint32_t id;
	request_fn fn;
	struct buf body;
};

struct freeze {
	struct agent *a;
	uint64_t conn;
	uint32_t id, flags, limit_ms;
	int events_fd, root_fd;
	struct watch *events_w;
	struct timer *late;  /* fires if the processes do not freeze in time */
	struct timer *limit; /* ends the root's freeze */
	struct quiet *quiet; /* in use by this preparation's thread; NULL: none */
	struct parked *parked;
	bool root_frozen, busy;
};

static void parked_run(void *arg);

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
		conn_error(c, f->id, code, AGENT_STEP_FREEZE, "%s: %s", what,
			strerror(code < 0 ? -code : code));
	if (f->parked)
		loop_defer(f->a->loop, parked_run, f);
}

static void quiet_free(struct quiet *q)
{
	close_fd(&q->root_fd);
	free(q);
}

static bool quiet_is_cancelled(struct job *j, struct quiet *q)
{
	if (atomic_load(&q->state) != QUIET_CANCELLED)
		return false;
	job_fail(j, EINTR, AGENT_STEP_FREEZE, "cancelled");
	return true;
}

/* In a thread: everything that may block. */
static void run_quiet(struct job *j)
{
	struct quiet *q = j->arg;
	struct fstrim_range all = {.len = UINT64_MAX};
	int works = QUIET_WORKS;

	if (q->flags & (AGENT_PREP_DROP | AGENT_PREP_FSFREEZE))
		sync();
	if (q->flags & AGENT_PREP_DROP && !quiet_is_cancelled(j, q)) {
		text_poke("/proc/sys/vm/drop_caches", "3");
		/* a disk without discard says so: then there is nothing to give back */
		if (q->root_fd >= 0 && ioctl(q->root_fd, FITRIM, &all) < 0)
			log_debug("trim: %s", strerror(errno));
		warm_files();
		text_poke("/proc/sys/vm/compact_memory", "1");
	}
	if (!atomic_compare_exchange_strong(&q->state, &works, QUIET_FREEZES)) {
		quiet_is_cancelled(j, q);
		return;
	}
	if ((q->flags & AGENT_PREP_FSFREEZE) && ioctl(q->root_fd, FIFREEZE, 0) < 0)
		job_fail(j, errno, AGENT_STEP_FREEZE, "freezing the root: %s", strerror(errno));
}

static void quiet_done(struct agent *a, struct job *j)
{
	struct freeze *f = a->freeze;
	struct quiet *q = j->arg;

	if (!f || f->quiet != q) { /* cancelled: this is not the current preparation */
		quiet_free(q);
		return;
	}
	f->quiet = NULL;
	f->busy = false;
	if (j->code) {
		f->conn = 0; /* jobs.c has answered already */
		prepare_failed(f, j->code, "freezing the root");
	} else if (q->flags & AGENT_PREP_FSFREEZE) {
		f->root_frozen = true;
		f->root_fd = take_fd(&q->root_fd);
		timer_after(f->limit, (uint64_t)(f->limit_ms ? f->limit_ms : 10000) * 1000000);
	}
	quiet_free(q);
	if (f->parked)
		loop_defer(a->loop, parked_run, f);
}

/* All processes are frozen, or AGENT_PREP_FREEZE was not asked for. */
static void go_quiet(struct freeze *f)
{
	struct conn *c = conn_find(f->a, f->conn);
	struct cur none = cur_of(NULL, 0);
	struct quiet *q;
	struct job *j;

	unwatch(f);
	if (!c) {
		prepare_failed(f, ECONNRESET, "nobody waits for it");
		return;
	}
	q = calloc(1, sizeof(*q));
	j = q ? job_create(f->a, c, f->id, AGENT_PREPARE, &none, run_quiet) : NULL;
	if (!j) {
		free(q);
		prepare_failed(f, ENOMEM, "starting a job");
		return;
	}
	q->flags = f->flags;
	q->root_fd = f->flags & (AGENT_PREP_DROP | AGENT_PREP_FSFREEZE)
			     ? open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC)
			     : -1;
	f->quiet = j->arg = q;
	j->done = quiet_done;
	/* not queued behind file requests that a hanging file system blocks */
	j->own_thread = true;
	if (job_submit(j) < 0) {
		f->quiet = NULL;
		job_free(j);
		quiet_free(q);
		prepare_failed(f, EAGAIN, "starting a thread");
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
	prepare_failed(arg, ETIMEDOUT, "the processes do not freeze in time");
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
		prepare_failed(f, -rc, "freezing the processes");
		return;
	}
	if (!f->a->cgroup[0]) {
		go_quiet(f);
		return;
	}
	snprintf(path, sizeof(path), "%s/cgroup.events", f->a->cgroup);
	f->events_fd = open(path, O_RDONLY | O_CLOEXEC);
	/* the kernel raises POLLPRI when the file changes */
	f->events_w = f->events_fd < 0
			      ? NULL
			      : loop_watch(f->a->loop, f->events_fd, EPOLLPRI, frozen_event, f);
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
		conn_error(c, id, f ? EALREADY : ENOMEM, AGENT_STEP_FREEZE,
			f ? "frozen or being shut down" : "no memory");
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

/* Serves the requests that were kept, as if they came now. */
static void parked_run(void *arg)
{
	struct freeze *f = arg;
	struct parked *p = f->parked;

	f->parked = NULL;
	while (p) {
		struct parked *next = p->next;
		struct conn *c = conn_find(f->a, p->conn);
		struct cur body = cur_of(p->body.p, p->body.len);

		if (c)
			p->fn(f->a, c, p->id, &body);
		buf_fini(&p->body);
		free(p);
		p = next;
	}
}

/* Cancels the preparation, unless its thread has begun to freeze the root. */
static void prepare_cancel(struct freeze *f)
{
	int works = QUIET_WORKS;

	if (!f->busy)
		return;
	if (f->quiet && !atomic_compare_exchange_strong(&f->quiet->state, &works, QUIET_CANCELLED))
		return;
	if (f->quiet)
		f->conn = 0; /* its thread answers */
	f->quiet = NULL;
	prepare_failed(f, EINTR, "the host cancelled it");
}

bool freeze_park(struct agent *a, struct conn *c, uint32_t id, request_fn fn, const struct cur *b)
{
	struct freeze *f = a->freeze;
	struct parked *p, **at;
	unsigned n = 0;

	if (!f)
		return false;
	prepare_cancel(f);
	if (!f->busy)
		return false;
	for (at = &f->parked; *at; at = &(*at)->next)
		n++;
	p = n < PARKED_MAX ? calloc(1, sizeof(*p)) : NULL;
	if (!p)
		return false; /* freeze_end() refuses it with EBUSY */
	*p = (struct parked){.conn = conn_number(c), .id = id, .fn = fn};
	buf_init(&p->body, AGENT_FRAME_MAX);
	buf_put(&p->body, b->p, cur_left(b));
	*at = p;
	return true;
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
	int rc;

	if (freeze_park(a, c, id, req_thaw, b))
		return;
	rc = identity_parse(b, &idn);
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
	while (f->parked) {
		struct parked *p = f->parked;

		f->parked = p->next;
		buf_fini(&p->body);
		free(p);
	}
	loop_undefer(a->loop, parked_run, f);
	unwatch(f);
	root_thaw(f);
	if (a->frozen)
		poke_freezer(a, false);
	timer_remove(f->late);
	timer_remove(f->limit);
	free(f);
	a->freeze = NULL;
}
