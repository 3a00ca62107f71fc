/* SPDX-License-Identifier: Apache-2.0
 *
 * isolate.c: life of isolated sessions. The loop's thread, with jobs for storage. Hostile here: the lines on the status pipe, which the
 * session's programs can write. A struct iso outlives its session until its first process was reaped and its storage given to a job.
 *
 * When a session was made, the agent begins the next one ahead (the spare): storage, namespaces,
 * first process and the part of the view that is the same for all. The spare runs no program of the
 * image and has nobody's data. It is deleted after SPARE_MS. When a session needs it, it is deleted
 * instead of taken if the sandbox's mounts have changed, because its view lacks the change.
 */
#include "agent/isolate_int.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "agent/cgroup.h"
#include "agent/env.h"
#include "agent/fsutil.h"
#include "agent/jobs.h"
#include "agent/procio.h"
#include "agent/text.h"
#include "agent/tree.h"

#define SPARE_MS 5000u
#define SPARE_ID "session made ahead"

static void iso_died(struct iso *i, const char *why);
static void iso_failed(struct iso *i, int code, const char *text);
static void spare_begin(void *arg);

bool isolate_is_dead(const struct iso *i)
{
	return i->state == ISO_DEAD;
}

bool isolate_runs(const struct iso *i)
{
	return (i->s && i->s->run && !i->s->run->exited) || i->background;
}

uint64_t isolate_idle_left_ms(const struct iso *i)
{
	uint64_t now = mono_ns();

	if (!i->conf.r.idle_ms)
		return UINT64_MAX;
	return !i->idle_at_ns        ? i->conf.r.idle_ms
	       : i->idle_at_ns > now ? (i->idle_at_ns - now) / 1000000
				     : 0;
}

void isolate_exit(const struct iso *i, uint32_t *state, uint32_t *code)
{
	*state = i->exit_state;
	*code = i->exit_code;
}

int isolate_view_fds(const struct iso *i, int *ns, int *root)
{
	if (i->view_fd < 0 || i->root_fd < 0)
		return -ESRCH;
	*ns = fcntl(i->view_fd, F_DUPFD_CLOEXEC, 3);
	*root = fcntl(i->root_fd, F_DUPFD_CLOEXEC, 3);
	return *ns < 0 || *root < 0 ? -EMFILE : 0; /* the job closes what it got */
}

bool isolate_was_any(const struct agent *a)
{
	return a->next_store > 0;
}

bool isolate_has_cgroup(const struct agent *a, uint64_t cgroup)
{
	bool has = !cgroup;

	for (const struct iso *i = a->isos; i && !has; i = i->next)
		has = i->first && (!i->cgroup || i->cgroup == cgroup);
	for (size_t k = 0; k < MIN(a->nended, AGENT_ENDED_MAX) && !has; k++)
		has = !a->ended[k] || a->ended[k] == cgroup;
	return has;
}

int isolate_overlay(const struct iso *i, const char *dest, char upper[700],
	char lower[AGENT_PATH_MAX], char id[64])
{
	char path[600];
	ssize_t n;

	for (size_t k = 0; k < i->conf.r.nmounts; k++) {
		const struct iso_mount *m = &i->conf.r.mounts[k];

		if (m->mode != AGENT_IM_OVERLAY || (m->flags & AGENT_IM_EPHEMERAL) ||
			(*dest && strcmp(dest, m->dest) != 0))
			continue;
		snprintf(upper, 700, "%s/u%zu", i->conf.dir, k);
		snprintf(lower, AGENT_PATH_MAX, "%s", m->source);
		snprintf(path, sizeof(path), "%s/i%zu", i->conf.dir, k);
		n = readlink(path, id, 63);
		id[MAX(n, 0)] = 0;
		return n < 0 ? -errno : 0;
	}
	return -ENOENT;
}

static void iso_forget(void *arg)
{
	struct iso *i = arg;

	iso_conf_free(&i->conf);
	free(i);
}

struct storage {
	char dir[512];
	bool tmpfs, counted;
};

static void run_remove(struct job *j)
{
	struct storage *st = j->arg;
	int rc = 0;

	if (st->tmpfs && umount2(st->dir, MNT_DETACH) < 0)
		rc = -errno;
	if (rc == 0)
		rc = tree_remove(st->dir);
	if (rc < 0 && rc != -ENOENT)
		log_warn("storage %s of a session is not removed: %s", st->dir, strerror(-rc));
}

static void iso_removed(struct agent *a, struct job *j)
{
	const struct storage *st = j->arg;

	a->n.stores -= st->counted;
	free(j->arg);
}

static void iso_remove_storage(struct iso *i)
{
	struct job *j;
	struct storage *st;

	if (!i->stored || !i->a->jobs) /* the agent itself ends */
		return;
	j = job_own(i->a, run_remove);
	st = j ? calloc(1, sizeof(*st)) : NULL;

	if (st) {
		snprintf(st->dir, sizeof(st->dir), "%s", i->conf.dir);
		st->tmpfs = i->tmpfs;
		st->counted = i->counted;
		j->arg = st;
		j->done = iso_removed;
	}
	if (!st || job_submit(j) < 0) {
		log_warn("storage %s of a session stays: no memory or thread", i->conf.dir);
		free(st);
		job_free(j);
	}
	i->stored = false;
}

static void iso_close(struct iso *i)
{
	watch_remove(i->status_w);
	watch_remove(i->out_w);
	i->status_w = i->out_w = NULL;
	close_fd(&i->cmd_fd);
	close_fd(&i->status_fd);
	close_fd(&i->out_fd);
	close_fd(&i->view_fd);
	close_fd(&i->root_fd);
	close_fd(&i->run_fd);
	close_fd(&i->conf_fd);
	close_fd(&i->mounts_fd);
	timer_remove(i->idle);
	timer_remove(i->prod);
	timer_remove(i->trim);
	i->idle = i->prod = i->trim = NULL;
	buf_fini(&i->line);
}

/* Takes it off the list; the memory is freed later, because callers up the stack still look at
 * it. */
static void iso_finally(struct iso *i)
{
	if (i->finished)
		return;
	i->finished = true;
	/* isolate_free() was not called for a spare whose process ended by itself */
	iso_close(i);
	if (i->a->spare_iso == i)
		i->a->spare_iso = NULL;
	for (struct iso **l = &i->a->isos; *l; l = &(*l)->next)
		if (*l == i) {
			*l = i->next;
			break;
		}
	if (loop_defer(i->a->loop, iso_forget, i) < 0)
		log_limited(LOG_WARN, "no memory to free a session");
}

void isolate_free(struct iso *i)
{
	if (!i)
		return;
	i->s = NULL;
	if (i->a->spare_iso == i)
		i->a->spare_iso = NULL;
	for (struct proc *p = i->a->procs, *next; p; p = next) {
		next = p->next;
		if (p->iso != i || p == i->first)
			continue;
		p->iso = NULL;
		if (p->started && !p->exited)
			proc_ended(p, AGENT_SIGNALED, SIGKILL);
		/* the record of a run ends with its session, unless a client still waits for the
		 * run's end */
		if (p->started && p->exited && (!p->conn || p->exit_sent))
			proc_destroy(p);
	}
	iso_close(i);
	i->state = ISO_DEAD;
	if (i->storing)
		return; /* iso_stored() continues with it */
	/* the storage can be removed when the last process in its mounts has ended */
	if (i->first) {
		i->first->id[0] = 0;
		proc_signal(i->first, SIGKILL);
	} else {
		iso_remove_storage(i);
		iso_finally(i);
	}
}

static void iso_answer(struct iso *i, int code, const char *text)
{
	struct conn *c = conn_find(i->a, i->conn);

	i->conn = 0;
	if (c && code) {
		conn_error(c, i->id, code, AGENT_STEP_START, "%s", text);
	} else if (c) {
		struct buf b;

		buf_init(&b, 16);
		buf_u64(&b, i->s->created_ns);
		conn_ok(c, i->id, &b);
		buf_fini(&b);
	}
}

static void iso_ready(struct iso *i)
{
	char path[48];

	if (i->state != ISO_MAKES)
		return;
	snprintf(path, sizeof(path), "/proc/%d/ns/mnt", i->pid);
	i->view_fd = open(path, O_RDONLY | O_CLOEXEC);
	snprintf(path, sizeof(path), "/proc/%d/root", i->pid);
	i->root_fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (i->view_fd < 0 || i->root_fd < 0) {
		iso_died(i, "its view cannot be opened");
		return;
	}
	i->state = ISO_LIVES;
	/* The shell was forked before, so it does not inherit this score. When memory is short, the
	 * kernel kills the shell before this process. */
	snprintf(path, sizeof(path), "/proc/%d/oom_score_adj", i->pid);
	text_poke(path, "-500");
	iso_drop_output(i);
	iso_idle(i);
	iso_answer(i, 0, "");
	/* deferred, so that the answer is sent first */
	loop_undefer(i->a->loop, spare_begin, i->a);
	if (loop_defer(i->a->loop, spare_begin, i->a) < 0)
		log_debug("no session is made ahead");
}

/* The shell or the whole session has ended. */
static void iso_died(struct iso *i, const char *why)
{
	bool making = i->state == ISO_MAKES;

	i->state = ISO_DEAD;
	close_fd(&i->view_fd);
	close_fd(&i->root_fd);
	watch_remove(i->status_w);
	i->status_w = NULL;
	for (struct proc *p = i->a->procs; p; p = p->next)
		if (p->iso == i && p != i->first)
			iso_run_ended(i, p, AGENT_SIGNALED, SIGKILL);
	if (i->first)
		proc_signal(i->first, SIGKILL);
	if (making) {
		iso_answer(i, i->exit_code ? (int)i->exit_code : EIO, why);
		if (i->s)
			(void)session_destroy(i->a, i->s->id);
	}
}

static void iso_shell_ended(struct iso *i, int wait_status)
{
	uint32_t state = WIFSIGNALED(wait_status) ? AGENT_SIGNALED : AGENT_EXITED;
	uint32_t code = (uint32_t)(WIFSIGNALED(wait_status) ? WTERMSIG(wait_status)
							    : WEXITSTATUS(wait_status));

	if (i->s && i->s->run)
		iso_run_ended(i, i->s->run, state, code);
	i->exit_state = state;
	i->exit_code = code;
	iso_died(i, "its shell ended at once");
}

static void iso_hear(struct iso *i, const char *line)
{
	struct iso_line l;
	struct proc *p;

	if (!iso_line_parse(line, &l))
		return;
	switch (l.word) {
	case ISO_READY:
		iso_ready(i);
		break;
	case ISO_FAILED:
		if (i->state == ISO_WAITS)
			iso_failed(i, (int)l.a, l.text);
		if (i->state != ISO_MAKES)
			break;
		i->exit_code = l.a;
		iso_died(i, l.text);
		break;
	case ISO_DONE:
		if (i->s && i->s->run)
			iso_run_ended(i, i->s->run, AGENT_EXITED, l.a & 0xff);
		break;
	case ISO_STARTED:
		if ((p = iso_background_run(i, l.a)))
			p->inner_pid = l.b;
		break;
	case ISO_ENDED:
		if ((p = iso_background_run(i, l.a)))
			iso_run_ended(i, p, AGENT_EXITED, l.b & 0xff);
		break;
	case ISO_GONE:
		iso_shell_ended(i, (int)l.a);
		break;
	}
}

static void status_event(void *arg, uint32_t events)
{
	struct iso *i = arg;
	uint8_t *to = buf_room(&i->line, KIB(4));
	ssize_t n = to ? read(i->status_fd, to, KIB(4)) : 0;

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		/* end of file: the process ended, and is reaped elsewhere */
		watch_remove(i->status_w);
		i->status_w = NULL;
		return;
	}
	i->line.len += (size_t)n;
	/* take each line out before it is handled: it may end the session */
	for (uint8_t *end; (end = memchr(i->line.p, '\n', i->line.len));) {
		char line[ISO_LINE_MAX + 1];
		size_t k = MIN((size_t)(end - i->line.p), sizeof(line) - 1);

		memcpy(line, i->line.p, k);
		line[k] = 0;
		buf_consume(&i->line, (size_t)(end - i->line.p) + 1);
		if (strlen(line) == k)
			iso_hear(i, line);
		if (!i->status_w)
			return;
	}
	if (i->line.len > ISO_LINE_MAX)
		buf_reset(&i->line);
}

static void first_ended(struct agent *a, struct proc *p)
{
	struct iso *i = p->iso;

	/* its last lines may still be in the pipe */
	while (i->status_w && i->state != ISO_DEAD) {
		struct pollfd f = {.fd = i->status_fd, .events = POLLIN};

		if (poll(&f, 1, 0) <= 0 || !(f.revents & POLLIN))
			break;
		status_event(i, EPOLLIN);
	}
	/* all of its processes are gone. Connections of theirs may still wait (inward.c) */
	if (i->was_told)
		i->a->ended[i->a->nended++ % AGENT_ENDED_MAX] = i->cgroup;
	i->first = NULL;
	p->iso = NULL;
	p->forget = true;
	if (i->s && i->state != ISO_DEAD)
		iso_died(i, "its first process ended at once");
	if (!i->s) {
		iso_remove_storage(i);
		iso_finally(i);
	}
}

static void first_started(struct agent *a, struct proc *p, void *arg, int code,
	enum agent_step step, const char *text)
{
	struct iso *i = arg;

	if (code) {
		i->first = NULL;
		p->iso = NULL;
		if (!i->s) {
			iso_remove_storage(i);
			iso_finally(i);
			return;
		}
		i->exit_code = (uint32_t)code;
		iso_died(i, text);
		return;
	}
	p->on_end = first_ended;
	if (!i->s && i->state != ISO_WAITS)
		return;
	i->out_fd = take_fd(&p->out[0].fd);
	fd_set_nonblock(i->out_fd, true);
}

/* Makes the file that the first process reads (isolate_conf.h), with the path of the storage in
 * it. */
static int make_conf(struct iso *i)
{
	int fd = memfd_create("session", MFD_CLOEXEC), rc = fd < 0 ? -errno : 0;

	if (rc == 0)
		rc = pwrite_full(fd, i->conf.dir, sizeof(i->conf.dir), 0);
	if (rc < 0 && fd >= 0)
		close(fd);
	return rc < 0 ? rc : fd;
}

static int put_conf(struct iso *i)
{
	struct buf b;
	int rc;

	buf_init(&b, MIB(4));
	iso_conf_put(&b, &i->conf);
	rc = b.bad ? -E2BIG : pwrite_full(i->conf_fd, b.p, b.len, ISO_CONF_AT);
	buf_fini(&b);
	return rc;
}

/* Tells the first process which session it is. */
static int iso_go(struct iso *i, struct err *e)
{
	const struct iso_req *r = &i->conf.r;
	int rc = put_conf(i);

	if (rc == 0 && fchown(i->run_fd, i->conf.user.uid, i->conf.user.gid) < 0)
		rc = -errno;
	if (rc == 0 && (r->memory_bytes || r->pids))
		rc = cgroup_limit(i->a, &i->first->cgroup, r->memory_bytes, r->pids);
	if (rc < 0)
		return err_set(e, -rc, "start");
	close_fd(&i->conf_fd);
	i->was_told = true;
	/* cannot block: the pipe is empty */
	if (write(i->cmd_fd, ISO_GO, strlen(ISO_GO)) != (ssize_t)strlen(ISO_GO))
		return err_set(e, EPIPE, "start");
	return 0;
}

/* A pipe whose numbers are above those that the child uses itself. */
static int pipe_above(int p[2])
{
	int low[2];

	if (pipe2(low, O_CLOEXEC) < 0)
		return -errno;
	for (int k = 0; k < 2; k++) {
		p[k] = fcntl(low[k], F_DUPFD_CLOEXEC, SESSION_DUMP_FD + 1);
		close(low[k]);
	}
	if (p[0] >= 0 && p[1] >= 0)
		return 0;
	close_fd(&p[0]);
	close_fd(&p[1]);
	return -EMFILE;
}

static int iso_spawn(struct iso *i, enum agent_step *step, struct err *e)
{
	static char program[] = "/proc/self/fd/198", option[] = "--isolate";
	char *argv[] = {program, option, NULL}, cwd[] = "/";
	int cmd[2] = {-1, -1}, status[2] = {-1, -1}, low = make_conf(i);
	_cleanup_close_ int conf = low < 0 ? -1 : fcntl(low, F_DUPFD_CLOEXEC, SESSION_DUMP_FD + 1);
	struct exec_inner in = {
		.new_namespaces = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWIPC |
				  (i->conf.r.flags & AGENT_IS_NO_NET ? CLONE_NEWNET : 0)};
	struct envset *none = env_new(); /* the shell has its own, by the configuration */
	struct exec_req r = {.inner = &in,
		.flags = AGENT_X_MERGE,
		.uid = 0,
		.gid = 0,
		.cwd = cwd,
		.argc = 2,
		.argv = argv,
		.env = none};
	int rc = !none ? -ENOMEM : conf < 0 ? -EMFILE : pipe_above(cmd);

	i->conf_fd = low;
	if (rc == 0)
		rc = pipe_above(status);
	if (rc < 0) {
		close_fd(&cmd[0]);
		close_fd(&cmd[1]);
		env_unref(none);
		return err_set(e, -rc, "descriptors for a session");
	}
	in.fd[0] = conf;
	in.as[0] = ISO_FD_CONF;
	in.fd[1] = cmd[0];
	in.as[1] = ISO_FD_CMD;
	in.fd[2] = status[1];
	in.as[2] = ISO_FD_STATUS;
	i->cmd_fd = cmd[1];
	i->status_fd = status[0];
	fd_set_nonblock(i->cmd_fd, true);
	fd_set_nonblock(i->status_fd, true);
	i->status_w = loop_watch(i->a->loop, i->status_fd, EPOLLIN, status_event, i);
	snprintf(r.id, sizeof(r.id), "%s", i->s ? i->s->id : SPARE_ID);
	rc = i->status_w ? exec_start(i->a, &r, first_started, i, step, e)
			 : err_set(e, errno, "watching a session");
	close(cmd[0]);
	close(status[1]);
	env_unref(none);
	if (rc < 0)
		return rc;
	i->first = proc_find(i->a, r.id);
	i->first->iso = i;
	i->pid = i->first->pid;
	i->cgroup = cgroup_id(i->a, &i->first->cgroup);
	return 0;
}

static void iso_failed(struct iso *i, int code, const char *text)
{
	if (!i->s) {
		log_debug("no session is made ahead: %s", text);
		isolate_free(i);
		return;
	}
	iso_answer(i, code, text);
	(void)session_destroy(i->a, i->s->id);
}

static void iso_count(struct iso *i)
{
	i->counted = i->stored;
	i->a->n.stores += i->stored;
}

/* In a thread: makes DIR and what must be there before the session's first process begins.
 * Meanwhile the loop leaves i->conf, i->stored and i->tmpfs alone. */
static void run_store(struct job *j)
{
	static const char *const subs[] = {"root", "run"};
	struct iso *i = j->arg;
	const struct iso_conf *c = &i->conf;
	bool made;
	int rc = fs_make_dirs(c->state_dir, NULL, &made);

	if (rc == 0 && chmod(c->state_dir, 0700) < 0)
		rc = -errno;
	if (rc == 0)
		rc = mkdir(c->dir, 0700) < 0 ? -errno : 0;
	i->stored = rc == 0;
	if (rc == 0 && c->r.upper_bytes) {
		char data[80];

		snprintf(data, sizeof(data), "size=%llu,mode=0700",
			(unsigned long long)c->r.upper_bytes);
		rc = mount("tmpfs", c->dir, "tmpfs", MS_NOSUID | MS_NODEV, data) < 0 ? -errno : 0;
		i->tmpfs = rc == 0;
	}
	for (size_t k = 0; k < ARRAY_LEN(subs) && rc == 0; k++) {
		char path[600];

		snprintf(path, sizeof(path), "%s/%s", c->dir, subs[k]);
		rc = mkdir(path, 0755) < 0 ? -errno : 0;
	}
	if (rc < 0)
		job_fail(j, rc, AGENT_STEP_START, "storage %s: %s", c->dir, strerror(-rc));
}

static void iso_stored(struct agent *a, struct job *j)
{
	struct iso *i = j->arg;
	enum agent_step step = AGENT_STEP_NONE;
	struct err e = {0};
	char path[600];

	i->storing = false;
	if (i->state != ISO_WAITS)
		iso_count(i);
	if (!i->s && i->state != ISO_WAITS) { /* deleted meanwhile */
		iso_remove_storage(i);
		iso_finally(i);
		return;
	}
	if (j->code) {
		iso_failed(i, j->code, j->text);
		return;
	}
	snprintf(path, sizeof(path), "%s/run", i->conf.dir);
	i->run_fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (i->run_fd < 0)
		iso_failed(i, errno, "the session's storage");
	else if (iso_spawn(i, &step, &e) < 0 || (i->s && iso_go(i, &e) < 0))
		iso_failed(i, e.code, e.msg);
}

static int iso_configure(struct iso *i, struct iso_req *r, struct err *e)
{
	struct agent *a = i->a;
	struct envset *base = exec_base_env(a);
	struct iso_conf *c = &i->conf;
	const char *file = base ? env_get(base, "EXECD_ENVS") : NULL;
	int rc = exec_user(a, r->user, r->uid, r->gid, &c->user, e);

	c->r = *r;
	*r = (struct iso_req){0};
	snprintf(c->env_file, sizeof(c->env_file), "%s", file ? file : ENV_FILE_DEFAULT);
	snprintf(c->cwd, sizeof(c->cwd), "%s", i->s->cwd);
	if (rc == 0 && base)
		c->env = iso_env(base, &c->r, c->user.home);
	env_unref(base);
	return rc < 0 ? rc : c->env ? 0 : err_plain(e, ENOMEM, "no memory for a session");
}

static struct iso *iso_new(struct agent *a)
{
	struct iso *i = calloc(1, sizeof(*i));
	struct iso_conf *c;
	uint32_t tag;

	if (!i)
		return NULL;
	*i = (struct iso){.a = a,
		.cmd_fd = -1,
		.status_fd = -1,
		.out_fd = -1,
		.view_fd = -1,
		.root_fd = -1,
		.run_fd = -1,
		.conf_fd = -1,
		.mounts_fd = -1};
	c = &i->conf;
	snprintf(c->state_dir, sizeof(c->state_dir), "%s", a->opts.state_dir);
	/* numbers begin again in each boot, and the root disk may hold a session's directory of an earlier one */
	random_bytes(&tag, sizeof(tag));
	snprintf(c->dir, sizeof(c->dir), "%.400s/%llu-%08x", a->opts.state_dir,
		(unsigned long long)++a->next_store, tag);
	buf_init(&i->line, KIB(16));
	i->next = a->isos;
	a->isos = i;
	i->idle = loop_timer(a->loop, iso_idle_fired, i);
	i->prod = loop_timer(a->loop, iso_prod_fired, i);
	i->trim = loop_timer(a->loop, iso_trim_fired, i);
	return i;
}

/* Makes the storage in a thread; iso_stored() then starts the first process. */
static int iso_begin(struct iso *i, struct err *e)
{
	struct job *j = i->idle && i->prod && i->trim ? job_own(i->a, run_store) : NULL;

	if (!j)
		return err_plain(e, ENOMEM, "no memory for a session");
	j->arg = i;
	j->done = iso_stored;
	i->storing = true;
	if (job_submit(j) == 0)
		return 0;
	i->storing = false;
	job_free(j);
	return err_plain(e, EAGAIN, "no thread for a session");
}

static void spare_end(struct agent *a)
{
	isolate_free(a->spare_iso);
	if (a->spare_timer)
		timer_set(a->spare_timer, 0);
}

static void spare_late(void *arg)
{
	struct agent *a = arg;

	if (a->frozen)
		timer_after(a->spare_timer, 1000000000);
	else
		spare_end(a);
}

/* Was something mounted or unmounted since i->mounts_fd (/proc/self/mountinfo) was opened? */
static bool spare_is_stale(const struct iso *i)
{
	struct pollfd p = {.fd = i->mounts_fd, .events = POLLPRI};

	return i->mounts_fd < 0 || poll(&p, 1, 0) != 0;
}

static void spare_begin(void *arg)
{
	struct agent *a = arg;
	struct err e = {0};
	struct iso *i;

	if (a->frozen || a->shutting_down || !a->jobs)
		return;
	if (!a->spare_timer && !(a->spare_timer = loop_timer(a->loop, spare_late, a)))
		return;
	timer_after(a->spare_timer, SPARE_MS * 1000000ull);
	if (a->spare_iso && !spare_is_stale(a->spare_iso))
		return;
	spare_end(a);
	timer_after(a->spare_timer, SPARE_MS * 1000000ull);
	i = iso_new(a);
	if (!i)
		return;
	a->spare_iso = i;
	i->mounts_fd = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
	if (iso_begin(i, &e) < 0)
		isolate_free(i);
}

/* The one made ahead, if it can be what r asks for. */
static struct iso *spare_take(struct agent *a, const struct session *s, const struct iso_req *r)
{
	struct iso *i = a->spare_iso;

	/* A spare has no limit of storage and shares the network. While a thread makes its storage,
	 * it cannot be taken. */
	if (!i || i->storing || r->upper_bytes || (r->flags & AGENT_IS_NO_NET) ||
		proc_find(a, s->id))
		return NULL;
	if (spare_is_stale(i)) {
		spare_end(a);
		return NULL;
	}
	a->spare_iso = NULL;
	timer_set(a->spare_timer, 0);
	close_fd(&i->mounts_fd);
	iso_count(i);
	a->n.ahead++;
	snprintf(i->first->id, sizeof(i->first->id), "%s", s->id);
	return i;
}

void isolate_fini(struct agent *a)
{
	spare_end(a);
	loop_undefer(a->loop, spare_begin, a);
	timer_remove(a->spare_timer);
	a->spare_timer = NULL;
}

int isolate_make(struct session *s, struct conn *c, uint32_t id, struct iso_req *r, struct err *e)
{
	struct iso *ahead = spare_take(s->a, s, r), *i = ahead ? ahead : iso_new(s->a);
	int rc;

	if (!i)
		return err_plain(e, ENOMEM, "no memory for a session");
	i->s = s;
	i->state = ISO_MAKES;
	i->conn = conn_number(c);
	i->id = id;
	s->iso = i;
	rc = iso_configure(i, r, e);
	if (rc < 0)
		return rc;
	return ahead ? iso_go(i, e) : iso_begin(i, e);
}
