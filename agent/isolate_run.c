/* SPDX-License-Identifier: Apache-2.0
 *
 * isolate_run.c: runs of isolated sessions: what the shell is given to source, their ends, signals and time limits. The loop's thread. Hostile
 * here: the output pipe, and the files in DIR/run, which the session's programs can change: they are made by O_EXCL and never opened again.
 */
#include "agent/isolate_int.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include "agent/env.h"
#include "agent/procio.h"
#include "agent/text.h"

#define TRIM_EVERY_MS 500
#define PROD_EVERY_MS                                                                              \
	100 /* SIGINT again and again: a shell other than bash leaves one function with each */
#define PROD_KILL    30 /* after so many, the run's processes are killed */
#define PROD_GIVE_UP 60 /* and then the session */

void iso_idle_fired(void *arg)
{
	struct iso *i = arg;

	if (!i->s || isolate_runs(i))
		return;
	if (i->a->frozen) {
		timer_after(i->idle, 1000000000);
		return;
	}
	log_info("session %s was idle for %llu s: deleted", i->s->id,
		(unsigned long long)i->conf.r.idle_ms / 1000);
	(void)session_destroy(i->a, i->s->id);
}

void iso_idle(struct iso *i)
{
	bool idle = i->conf.r.idle_ms && i->s && !isolate_runs(i);

	if (!i->idle)
		return;
	i->idle_at_ns =
		idle ? mono_ns() + MIN(i->conf.r.idle_ms, UINT64_MAX / 4000000) * 1000000 : 0;
	timer_set(i->idle, i->idle_at_ns);
}

/* Between runs, what programs in the shell's background write is read and dropped, so that they do
 * not block. */
static void out_event(void *arg, uint32_t events)
{
	static char scratch[65536];
	struct iso *i = arg;
	ssize_t n = read(i->out_fd, scratch, sizeof(scratch));

	if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)))
		return;
	watch_remove(i->out_w);
	i->out_w = NULL;
}

void iso_drop_output(struct iso *i)
{
	if (i->out_fd >= 0 && !i->out_w)
		i->out_w = loop_watch(i->a->loop, i->out_fd, EPOLLIN, out_event, i);
}

/* Drops what was written before a run: it is not the run's. */
static void iso_drop_now(struct iso *i)
{
	static char scratch[65536];
	int left = 0;

	watch_remove(i->out_w);
	i->out_w = NULL;
	if (ioctl(i->out_fd, FIONREAD, &left) < 0)
		return;
	while (left > 0) {
		ssize_t n = read(i->out_fd, scratch, MIN((size_t)left, sizeof(scratch)));

		if (n <= 0)
			return;
		left -= (int)n;
	}
}

void isolate_drained(struct proc *p)
{
	struct iso *i = p->iso;

	if (!i || !i->s || i->s->run != p)
		return;
	i->s->run = NULL;
	iso_drop_output(i);
	iso_idle(i);
}

void isolate_lost(struct proc *p)
{
	struct iso *i = p->iso;

	if (p == i->first) {
		/* the agent ends (procs_free()). first_ended() and first_started() clear p->iso */
		i->first = NULL;
		return;
	}
	if (i->s && i->s->run == p)
		i->s->run = NULL;
	if (!p->exited && (p->flags & AGENT_X_BACKGROUND) && i->background)
		i->background--;
}

static void iso_unlink(struct iso *i, uint64_t n, bool background)
{
	static const char kinds[] = {'c', 'f', 'b', 'l'};

	for (size_t k = 0; k < (background ? sizeof(kinds) : 2); k++) {
		char name[32];

		snprintf(name, sizeof(name), "%c%llu", kinds[k], (unsigned long long)n);
		unlinkat(i->run_fd, name, 0);
	}
}

/* Makes a file of a run in DIR/run, for the session's user only. The descriptor or -errno. */
static int put_file(struct iso *i, char kind, uint64_t n, const struct buf *text)
{
	char name[32];
	int fd, rc = 0;

	snprintf(name, sizeof(name), "%c%llu", kind, (unsigned long long)n);
	fd = openat(i->run_fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	if (text)
		rc = write_full(fd, text->p, text->len);
	if (rc == 0 && fchown(fd, i->conf.user.uid, i->conf.user.gid) < 0)
		rc = -errno;
	if (rc == 0)
		return fd;
	close(fd);
	unlinkat(i->run_fd, name, 0);
	return rc;
}

static bool is_name(const char *s, size_t n)
{
	for (size_t k = 0; k < n; k++)
		if (!(s[k] == '_' || (s[k] >= 'A' && s[k] <= 'Z') || (s[k] >= 'a' && s[k] <= 'z') ||
			    (k && s[k] >= '0' && s[k] <= '9')))
			return false;
	return n > 0;
}

/* Which file the shell sources: c, the code itself, or a wrapper that runs it: f with variables or
 * a directory, b in the background. The code has a file of its own, so that a bracket or quote in it
 * cannot close one of the wrapper's. */
static char run_kind(const struct exec_req *r)
{
	return r->flags & AGENT_X_BACKGROUND ? 'b' : r->env->n || r->cwd[0] ? 'f' : 'c';
}

static void put_quoted(struct buf *b, const char *text)
{
	buf_u8(b, '\'');
	for (const char *v = text; *v; v++)
		*v == '\'' ? buf_put(b, "'\\''", 4) : buf_u8(b, (uint8_t)*v);
	buf_u8(b, '\'');
}

/* export NAME='value' for each; false: a name that no shell takes. */
static bool put_exports(struct buf *b, const struct envset *env)
{
	for (size_t k = 0; k < env->n; k++) {
		const char *kv = env->kv[k], *eq = strchr(kv, '=');

		if (!is_name(kv, (size_t)(eq - kv)))
			return false;
		buf_printf(b, "export %.*s=", (int)(eq - kv), kv);
		put_quoted(b, eq + 1);
		buf_u8(b, '\n');
	}
	return true;
}

static bool put_wrapper(struct buf *b, const struct exec_req *r, uint64_t n)
{
	bool background = r->flags & AGENT_X_BACKGROUND;
	unsigned long long k = n;

	/* with job control a job has a process group of its own. Its leader outlives the signals that are meant for the run */
	buf_printf(b, "%s(\n", background ? "set -m 2>/dev/null\n{ " : "");
	if (!put_exports(b, r->env))
		return false;
	if (r->cwd[0]) {
		buf_printf(b, "cd -- ");
		put_quoted(b, r->cwd);
		buf_printf(b, " || exit\n");
	}
	if (!background) {
		buf_printf(b, ". " ISO_RUN_DIR "/c%llu\n)\n", k);
		return !b->bad;
	}
	buf_printf(b,
		"exec \"${BASH:-sh}\" " ISO_RUN_DIR "/c%llu 9>&-\n)\n"
		"printf 'b %llu %%s\\n' \"$?\" >&9; } >>" ISO_RUN_DIR "/l%llu 2>&1 &\n"
		"printf 'p %llu %%s\\n' \"$!\" >&9\nset +m 2>/dev/null\n",
		k, k, k, k);
	return !b->bad;
}

static int put_text(struct iso *i, char kind, uint64_t n, const struct buf *text)
{
	int fd = put_file(i, kind, n, text);

	if (fd >= 0)
		close(fd);
	return MIN(fd, 0);
}

static int put_run(struct iso *i, const struct exec_req *r, uint64_t n, int *log_fd)
{
	char kind = run_kind(r);
	struct buf code, wrap;
	int rc = 0;

	buf_init(&code, AGENT_ARGS_MAX);
	buf_init(&wrap, 4 * AGENT_ARGS_MAX);
	buf_put(&code, r->argv[0], strlen(r->argv[0]));
	buf_put(&code, "\n", 1);
	if (kind != 'c' && !put_wrapper(&wrap, r, n))
		rc = -EINVAL;
	if (rc == 0)
		rc = code.bad ? -E2BIG : put_text(i, 'c', n, &code);
	if (rc == 0 && kind != 'c')
		rc = put_text(i, kind, n, &wrap);
	if (rc == 0 && kind == 'b' && (*log_fd = put_file(i, 'l', n, NULL)) < 0)
		rc = *log_fd;
	buf_fini(&code);
	buf_fini(&wrap);
	return rc;
}

struct run_start {
	struct agent *a;
	uint64_t number;
	exec_started_fn fn;
	void *arg;
	uint64_t timeout_ms;
};

/* Deferred, because fn must not be called from within isolate_run. */
static void run_begins(void *arg)
{
	_cleanup_free_ struct run_start *w = arg;
	struct proc *p = w->a->procs;
	struct iso *i;

	while (p && p->number != w->number)
		p = p->next;
	if (!p) {
		free(w->arg);
		return;
	}
	i = p->iso;
	proc_started(p, w->timeout_ms);
	w->fn(w->a, p, w->arg, 0, AGENT_STEP_NONE, "");
	if (i && !(p->flags & AGENT_X_BACKGROUND)) {
		p->out[0].fd = fcntl(i->out_fd, F_DUPFD_CLOEXEC, 3);
		procio_start(p);
	}
	/* its end, or its session's, may have come already */
	if (p->has_status)
		proc_ended(p, p->state, p->code);
	else if (!i || i->state == ISO_DEAD)
		proc_ended(p, AGENT_SIGNALED, SIGKILL);
}

static int iso_order(struct iso *i, char kind, uint64_t n)
{
	char text[32];
	int k = snprintf(text, sizeof(text), "%c%llu\n", kind, (unsigned long long)n);

	/* does not block: if the pipe is full, this is an error */
	return write(i->cmd_fd, text, (size_t)k) == k ? 0 : -EPIPE;
}

int isolate_run(struct session *s, const struct exec_req *r, exec_started_fn fn, void *arg,
	enum agent_step *step, struct err *e)
{
	struct iso *i = s->iso;
	bool background = r->flags & AGENT_X_BACKGROUND;
	struct run_start *w;
	struct proc *p;
	uint64_t n;
	int rc;

	*step = AGENT_STEP_SESSION;
	if (i->state != ISO_LIVES)
		return err_plain(e, ESRCH, "the shell of session %s has ended", s->id);
	*step = AGENT_STEP_BUSY;
	if (s->run)
		return err_plain(e, EBUSY, "session %s is busy", s->id);
	*step = AGENT_STEP_START;
	p = proc_create(s->a, r->id, r->flags);
	w = calloc(1, sizeof(*w));
	if (!p || !w) {
		proc_destroy(p);
		free(w);
		return err_plain(e, EAGAIN, "too many processes");
	}
	n = ++i->nruns;
	if (!background)
		iso_drop_now(i);
	*w = (struct run_start){
		.a = s->a, .number = p->number, .fn = fn, .arg = arg, .timeout_ms = r->timeout_ms};
	proc_keep_argv(p, r->argv, r->argc);
	p->run_number = n;
	rc = put_run(i, r, n, &p->file_fd);
	if (rc == 0)
		rc = loop_defer(s->a->loop, run_begins, w);
	if (rc == 0)
		rc = iso_order(i, run_kind(r), n);
	if (rc < 0) {
		loop_undefer(s->a->loop, run_begins, w);
		iso_unlink(i, n, true);
		iso_drop_output(i);
		proc_destroy(p);
		free(w);
		return rc == -EINVAL ? err_plain(e, EINVAL, "the name of a variable is not valid")
				     : err_set(e, -rc, "session %s", s->id);
	}
	p->iso = i;
	s->last_run_ns = wall_ns();
	if (background) {
		/* only with the first: otherwise runs that begin often would put the timer off for
		 * ever */
		if (!i->background++)
			timer_after(i->trim, TRIM_EVERY_MS * 1000000ull);
	} else {
		s->run = p;
	}
	timer_set(i->idle, 0);
	i->idle_at_ns = 0;
	return 0;
}

void iso_run_ended(struct iso *i, struct proc *p, uint32_t state, uint32_t code)
{
	bool background = p->flags & AGENT_X_BACKGROUND;
	struct stat st;

	if (p->exited)
		return;
	if (!background) {
		timer_set(i->prod, 0);
		i->prods = 0;
	}
	iso_unlink(i, p->run_number, background);
	if (background && i->background)
		i->background--;
	if (background && fstat(p->file_fd, &st) == 0 && st.st_size > (off_t)ISO_LOG_MAX &&
		ftruncate(p->file_fd, ISO_LOG_MAX) < 0)
		log_debug("cannot cut the log of a run: %s", strerror(errno));
	if (!background) {
		i->exit_state = state;
		i->exit_code = code;
	}
	if (i->s)
		i->s->last_run_ns = wall_ns();
	if (!p->started) {
		p->has_status = true; /* run_begins reports it */
		p->state = (enum agent_state)state;
		p->code = code;
		return;
	}
	proc_ended(p, p->timed_out ? AGENT_TIMED_OUT : (enum agent_state)state, code);
	iso_idle(i);
}

/* Punches out what a background run wrote beyond ISO_LOG_MAX, so that it takes no space. The file's
 * length keeps growing, because the run appends; the file is cut at the run's end. */
static void log_trim(int fd)
{
	struct stat st;

	if (fstat(fd, &st) < 0 || st.st_size <= (off_t)ISO_LOG_MAX ||
		st.st_blocks * 512 <= (blkcnt_t)(ISO_LOG_MAX + MIB(1)))
		return;
	if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, ISO_LOG_MAX,
		    st.st_size - (off_t)ISO_LOG_MAX) < 0)
		log_limited(LOG_WARN, "cannot free the end of a run's log: %s", strerror(errno));
}

void iso_trim_fired(void *arg)
{
	struct iso *i = arg;

	if (!i->s || !i->background)
		return;
	/* a frozen disk would hold up the loop; nobody writes then */
	for (struct proc *p = i->a->procs; p && !i->a->frozen; p = p->next)
		if (p->iso == i && (p->flags & AGENT_X_BACKGROUND) && !p->exited && p->file_fd >= 0)
			log_trim(p->file_fd);
	timer_after(i->trim, TRIM_EVERY_MS * 1000000ull);
}

static uint64_t pid_space(pid_t pid)
{
	char path[48];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%d/ns/pid", pid);
	return stat(path, &st) < 0 ? 0 : st.st_ino;
}

/* A process of the session. */
struct inner {
	pid_t pid, parent;
	uint32_t number; /* in the session */
	bool hit;
};
#define INNER_MAX 4096u

/* The last number of a line of /proc/PID/status; 0: no such line. */
static uint32_t last_number(const char *status, const char *name)
{
	const char *p = strstr(status, name);
	uint32_t v = 0;

	for (p = p ? p + strlen(name) : ""; *p && *p != '\n'; p++)
		v = *p >= '0' && *p <= '9' ? v * 10 + (uint32_t)(*p - '0') : 0;
	return v;
}

/* Lists the processes of the session, except its first process and its shell. */
static size_t inner_list(struct iso *i, struct inner *v)
{
	uint64_t space = pid_space(i->pid);
	DIR *d = space ? opendir("/proc") : NULL;
	size_t n = 0;

	for (struct dirent *e; d && n < INNER_MAX && (e = readdir(d));) {
		_cleanup_free_ char *text = NULL;
		char path[48];
		uint64_t pid;
		int fd;
		ssize_t k;

		if (!text_u64(e->d_name, INT32_MAX, &pid) || pid_space((pid_t)pid) != space)
			continue;
		snprintf(path, sizeof(path), "/proc/%d/status", (pid_t)pid);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		text = calloc(1, KIB(4));
		k = fd < 0 || !text ? -1 : read(fd, text, KIB(4) - 1);
		close_fd(&fd);
		if (k <= 0)
			continue;
		v[n] = (struct inner){.pid = (pid_t)pid,
			.parent = (pid_t)last_number(text, "\nPPid:"),
			.number = last_number(text, "\nNSpid:")};
		n += v[n].number > 2;
	}
	if (d)
		closedir(d);
	return n;
}

/* Marks everything that descends from a marked one. */
static void inner_spread(struct inner *v, size_t n)
{
	for (bool more = true; more;) {
		more = false;
		for (size_t k = 0; k < n; k++)
			for (size_t l = 0; l < n && !v[k].hit; l++)
				if (v[l].hit && v[l].pid == v[k].parent)
					v[k].hit = more = true;
	}
}

/* Sends sig to the processes of a run. number 0: those of the foreground run, which are in the
 * shell's group. Otherwise those of a background run: the descendants of the process with this
 * number, and its group, but not that process itself, which reports the end. */
static int iso_signal_others(struct iso *i, uint32_t number, int sig)
{
	_cleanup_free_ struct inner *v = calloc(INNER_MAX, sizeof(*v));
	size_t n = v ? inner_list(i, v) : 0;
	pid_t leader = 0;
	int hit = 0;

	for (size_t k = 0; k < n && number; k++)
		if (v[k].number == number) {
			leader = v[k].pid;
			v[k].hit = true;
		}
	if (leader)
		inner_spread(v, n);
	for (size_t k = 0; k < n; k++)
		if (v[k].pid != leader &&
			(v[k].hit || getpgid(v[k].pid) == (number ? leader : i->pid)))
			hit += kill(v[k].pid, sig) == 0;
	return hit ? 0 : -ESRCH;
}

void iso_prod_fired(void *arg)
{
	struct iso *i = arg;
	uint64_t every_ms;

	if (i->state != ISO_LIVES || !i->s || !i->s->run || i->s->run->exited)
		return;
	i->prods++;
	if (i->prods == PROD_GIVE_UP) {
		log_info("session %s does not leave its run: killed", i->s->id);
		proc_signal(i->first, SIGKILL);
		return;
	}
	/* to the shell's group; the session's first process, its leader, blocks SIGINT */
	kill(-i->pid, SIGINT);
	if (i->prods >= PROD_KILL && i->prods % 5 == 0)
		iso_signal_others(i, 0, SIGKILL);
	every_ms = i->a->opts.prod_ms ? i->a->opts.prod_ms : PROD_EVERY_MS;
	timer_after(i->prod, every_ms * 1000000ull);
}

static void iso_prod(struct iso *i, unsigned from)
{
	if (i->prods > from)
		return;
	i->prods = from;
	iso_prod_fired(i);
}

int isolate_signal(struct proc *p, int sig)
{
	struct iso *i = p->iso;

	if (p->exited || i->state != ISO_LIVES)
		return -ESRCH;
	if (p->flags & AGENT_X_BACKGROUND) {
		/* a run whose process is not known yet is about to report it */
		return p->inner_pid ? iso_signal_others(i, p->inner_pid, sig) : -EAGAIN;
	}
	if (sig == SIGINT) {
		iso_prod(i, 0);
	} else if (sig == SIGKILL || sig == SIGTERM) {
		iso_signal_others(i, 0, sig);
		iso_prod(i, sig == SIGKILL ? PROD_KILL : 0);
	} else {
		return iso_signal_others(i, 0, sig);
	}
	return 0;
}

void isolate_timeout(struct proc *p)
{
	p->timed_out = true;
	if (p->flags & AGENT_X_BACKGROUND)
		isolate_signal(p, SIGKILL);
	else
		iso_prod(p->iso, 0);
}

struct proc *iso_background_run(struct iso *i, uint64_t n)
{
	for (struct proc *p = i->a->procs; p; p = p->next)
		if (p->iso == i && p->run_number == n && (p->flags & AGENT_X_BACKGROUND))
			return p;
	return NULL;
}
