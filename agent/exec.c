/* SPDX-License-Identifier: Apache-2.0
 *
 * exec.c: from AGENT_EXEC to a running process. The loop's thread. The request is the host's,
 * hostile until exec_parse has taken it apart; passwd, group and the environment file are the
 * image's.
 */
#include "agent/exec.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "agent/harden.h"
#include "agent/hooks.h"
#include "agent/isolate.h"
#include "agent/procio.h"
#include "agent/session.h"
#include "agent/spawn.h"
#include "agent/text.h"
#include "agent/users.h"

#define PATH_DEFAULT "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#define TRIES_MAX    64

int exec_parse_argv(struct cur *c, uint32_t *argc, char ***argv)
{
	uint32_t n = cur_u32(c);
	size_t bytes = cur_left(c), at;
	char **v, *text;

	if (c->bad || n > EXEC_ARGS_MAX)
		return -E2BIG;
	v = malloc((n + 1) * sizeof(*v) + bytes + n);
	if (!v)
		return -ENOMEM;
	text = (char *)(v + n + 1);
	at = 0;
	for (uint32_t i = 0; i < n; i++) {
		size_t k;
		const char *s = cur_strp(c, &k, AGENT_ARGS_MAX);

		if (!s) {
			free(v);
			return -EPROTO;
		}
		v[i] = text + at;
		memcpy(text + at, s, k);
		text[at + k] = 0;
		at += k + 1;
	}
	v[n] = NULL;
	*argc = n;
	*argv = v;
	return 0;
}

void exec_req_free(struct exec_req *r)
{
	free(r->cwd);
	free(r->argv);
	env_unref(r->env);
	*r = (struct exec_req){0};
}

static void parse_limits(struct cur *c, struct exec_req *r)
{
	r->nlimits = cur_u32(c);
	if (r->nlimits > AGENT_LIMITS_MAX) {
		c->bad = true;
		return;
	}
	for (uint32_t i = 0; i < r->nlimits; i++) {
		struct spawn_limit *l = &r->limits[i];

		l->resource = cur_u32(c);
		l->value[0] = cur_u64(c);
		l->value[1] = cur_u64(c);
	}
}

int exec_parse(struct cur *c, uint32_t version, struct exec_req *r)
{
	char cwd[AGENT_PATH_MAX];
	int rc;

	*r = (struct exec_req){0};
	cur_str(c, r->id, sizeof(r->id));
	r->flags = cur_u32(c);
	r->uid = cur_u32(c);
	r->gid = cur_u32(c);
	cur_str(c, r->user, sizeof(r->user));
	cur_str(c, cwd, sizeof(cwd));
	r->timeout_ms = cur_u64(c);
	r->cols = cur_u16(c);
	r->rows = cur_u16(c);
	cur_str(c, r->session, sizeof(r->session));
	if (c->bad || !r->id[0])
		return -EPROTO;
	r->cwd = strdup(cwd);
	r->env = env_new();
	rc = r->cwd && r->env ? exec_parse_argv(c, &r->argc, &r->argv) : -ENOMEM;
	if (rc == 0)
		rc = env_parse(r->env, c);
	if (rc == 0 && version >= 2)
		parse_limits(c, r);
	if (rc == 0 && !cur_done(c))
		rc = -EPROTO;
	/* AGENT_X_SHELL without an argument: a plain shell, but not in a session (below) */
	if (rc == 0 && r->argc == 0 && !(r->flags & AGENT_X_SHELL))
		rc = -EINVAL;
	if (rc == 0 && (r->flags & PROC_X_REPLAY))
		rc = -EINVAL;
	/* AGENT_X_BACKGROUND in a session is checked later (find_session) */
	if (rc == 0 && r->session[0] && (r->argc != 1 || !(r->flags & AGENT_X_SHELL)))
		rc = -EINVAL;
	if (rc < 0)
		exec_req_free(r);
	return rc;
}

/* These configure the agent, and some are credentials: no command gets them. */
static const char *const internal_vars[] = {"EXECD_ACCESS_TOKEN", "EXECD_API_GRACE_SHUTDOWN",
	"EXECD_BOOTSTRAP_PRE_SCRIPT", "EXECD_INIT", "OPENSANDBOX_EGRESS_TOKEN",
	"OPENSANDBOX_SECURE_ACCESS_KEYS"};

const char *exec_setup_var(const struct agent *a, const char *name)
{
	const char *v = a->setup_env ? env_get(a->setup_env, name) : NULL;

	return v ? v : env_get(a->image_env, name);
}

struct envset *exec_base_env(struct agent *a)
{
	struct envset *e = env_new();
	const char *path;
	_cleanup_free_ char *text = NULL;

	if (!e)
		return NULL;
	if (env_set(e, "PATH", PATH_DEFAULT) < 0 || env_merge(e, a->image_env) < 0 ||
		env_merge(e, a->setup_env) < 0 ||
		(a->pre_script && session_apply(a->pre_script, e) < 0))
		goto fail;
	path = env_get(e, "EXECD_ENVS");
	if (!path || !*path) {
		path = ENV_FILE_DEFAULT;
		if (env_set(e, "EXECD_ENVS", path) < 0)
			goto fail;
	}
	text = text_load(path, ENV_FILE_MAX, NULL);
	if (text && env_merge_text(e, text) < 0)
		log_limited(LOG_WARN, "the environment file ($EXECD_ENVS) is too large");
	for (size_t i = 0; i < ARRAY_LEN(internal_vars); i++)
		env_unset(e, internal_vars[i]);
	return e;
fail:
	env_unref(e);
	return NULL;
}

const char *exec_home(struct agent *a, const struct envset *env)
{
	const char *h = env_get(env, "HOME");

	return h && *h ? h : "/root";
}

/* Everything that must live until the child has called execve. */
struct launch {
	struct agent *a;
	struct proc *p;
	struct spawn s;
	struct user user;
	struct envset *env;
	char **argv, *cwd, *script;
	char *shell_argv[5];
	struct spawn_try tries[TRIES_MAX];
	struct buf paths; /* the text behind tries */
	int pipe_fd;
	bool theirs_closed;
	struct watch *w;
	uint64_t timeout_ms;
	exec_started_fn fn;
	void *arg;
};

/* Closes the child's ends of the pipes. */
static void close_theirs(struct launch *l)
{
	if (l->theirs_closed)
		return;
	l->theirs_closed = true;
	for (size_t i = 0; i < 3; i++)
		if (l->s.fd[i] >= 0)
			close(l->s.fd[i]);
	if (l->s.err_fd >= 0)
		close(l->s.err_fd);
}

static void launch_free(struct launch *l)
{
	if (!l)
		return;
	watch_remove(l->w);
	close_fd(&l->pipe_fd);
	close_theirs(l);
	env_unref(l->env);
	free(l->argv);
	free(l->cwd);
	free(l->script);
	buf_fini(&l->paths);
	free(l->s.stack);
	free(l);
}

static void launch_freep(struct launch **l)
{
	launch_free(*l);
}

/* Adds a try of "dir/name" for each absolute entry of PATH. The path of a try is first an offset into
 * l->paths; set_tries makes a pointer of it when the buffer no longer moves. */
static size_t add_path_tries(struct launch *l, const char *name, size_t n)
{
	const char *path = env_get(l->env, "PATH");

	for (const char *p = path ? path : ""; *p && n < TRIES_MAX;) {
		size_t k = strcspn(p, ":");

		if (*p == '/') {
			l->tries[n].argv0 = name;
			l->tries[n++].path = (const char *)(uintptr_t)l->paths.len;
			buf_put(&l->paths, p, k);
			buf_put(&l->paths, "/", 1);
			buf_put(&l->paths, name, strlen(name) + 1);
		}
		p += k + (p[k] == ':');
	}
	return n;
}

static int set_tries(struct launch *l, const struct exec_req *r)
{
	const char *name = r->argc ? l->argv[0] : "";
	size_t n = 0;

	buf_init(&l->paths, MIB(1));
	if (r->flags & AGENT_X_SHELL) {
		n = add_path_tries(l, "bash", 0);
		n = add_path_tries(l, "sh", n);
		l->s.argv = l->shell_argv;
		l->shell_argv[0] = l->shell_argv[1] = NULL;
		if (r->argc) {
			l->shell_argv[1] = (char *)(uintptr_t) "-c";
			l->shell_argv[2] = l->script ? l->script : l->argv[0];
		}
	} else if (strchr(name, '/')) {
		buf_put(&l->paths, name, strlen(name) + 1);
		l->tries[n++] = (struct spawn_try){.path = NULL, .argv0 = name};
		l->s.argv = l->argv;
	} else {
		n = *name ? add_path_tries(l, name, 0) : 0;
		l->s.argv = l->argv;
	}
	if (l->paths.bad)
		return -E2BIG;
	for (size_t i = 0; i < n; i++)
		l->tries[i].path = (const char *)l->paths.p + (uintptr_t)l->tries[i].path;
	l->s.tries = l->tries;
	l->s.ntries = n;
	return 0;
}

int exec_user(struct agent *a, const char *user, uint32_t uid, uint32_t gid, struct user *u,
	struct err *e)
{
	const char *spec = user[0] ? user : a->user ? a->user : "";
	bool plain_root = !*spec || !strcmp(spec, "root") || !strcmp(spec, "0");
	struct userdb db = {0};
	int rc = 0;

	if (uid == AGENT_NO_ID && gid != AGENT_NO_ID)
		return err_plain(e, EINVAL, "a group without a user");
	if (uid == AGENT_NO_ID && plain_root && !user[0]) {
		*u = (struct user){.home = "/root", .name = "root", .ngroups = 1};
	} else {
		userdb_load(&db);
		if (uid != AGENT_NO_ID)
			user_by_id(&db, uid, gid, u);
		else
			rc = user_by_spec(&db, spec, u);
		userdb_free(&db);
	}
	return rc < 0 ? err_plain(e, ENOENT, "no user %s in this image", spec) : 0;
}

static int set_user(struct launch *l, const struct exec_req *r, struct err *e)
{
	int rc = exec_user(l->a, r->user, r->uid, r->gid, &l->user, e);

	if (rc < 0)
		return rc;
	l->s.uid = l->user.uid;
	l->s.gid = l->user.gid;
	l->s.groups = l->user.groups;
	l->s.ngroups = l->user.ngroups;
	/* skip the calls that change nothing: a test without rights could not make them */
	l->s.set_ids = l->user.uid != geteuid() || l->user.gid != getegid() || l->a->opts.init;
	return 0;
}

static int set_env(struct launch *l, const struct exec_req *r, struct session *s)
{
	bool own_user = r->user[0] || r->uid != AGENT_NO_ID;
	int rc = 0;

	if (r->inner) {
		l->env = env_ref(r->env);
		l->s.envp = l->env->kv;
		return 0;
	}
	l->env = exec_base_env(l->a);
	if (!l->env)
		return -ENOMEM;
	if (own_user || !env_get(l->env, "HOME"))
		rc = env_set(l->env, "HOME", l->user.home);
	if (rc == 0 && own_user && l->user.name[0]) {
		rc = env_set(l->env, "USER", l->user.name);
		if (rc == 0)
			rc = env_set(l->env, "LOGNAME", l->user.name);
	}
	if (rc == 0 && (r->flags & AGENT_X_PTY) && !env_get(l->env, "TERM"))
		rc = env_set(l->env, "TERM", "xterm-256color");
	if (rc == 0 && s)
		rc = session_apply(s, l->env);
	if (rc == 0)
		rc = env_merge(l->env, r->env);
	l->s.envp = l->env->kv;
	return rc;
}

static int set_cwd(struct launch *l, const struct exec_req *r, struct session *s, struct err *e)
{
	const char *dir = r->cwd[0]                         ? r->cwd
			  : s                               ? session_cwd(s)
			  : l->a->workdir && *l->a->workdir ? l->a->workdir
							    : "/";
	char name[64];
	struct buf b;
	int rc = 0;

	if (!(r->flags & AGENT_X_EXPAND_CWD) || !r->cwd[0]) {
		l->cwd = strdup(dir);
	} else {
		buf_init(&b, AGENT_PATH_MAX);
		rc = env_expand(l->env, dir, exec_home(l->a, l->env), &b, name);
		if (rc == 0)
			l->cwd = strdup(buf_cstr(&b));
		buf_fini(&b);
	}
	if (rc == -ENOENT)
		return err_plain(e, EINVAL, "variable %s is not set", name);
	if (rc < 0 || !l->cwd)
		return err_plain(e, rc < 0 ? -rc : ENOMEM, "no working directory");
	l->s.cwd = l->cwd;
	return 0;
}

/* Opens a file without a name. It lives as long as a descriptor is open, and is in snapshots with
 * the disk. */
static int open_output(struct agent *a)
{
	static const char *const dirs[] = {"/var/tmp", "/tmp", "/", "/run"};
	int fd;

	for (size_t i = 0; i < ARRAY_LEN(dirs); i++) {
		fd = open(dirs[i], O_TMPFILE | O_RDWR | O_APPEND | O_CLOEXEC, 0600);
		if (fd >= 0)
			return fd;
	}
	fd = memfd_create("output", MFD_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

static int dup_above(int fd)
{
	int n = fcntl(fd, F_DUPFD_CLOEXEC, 3);

	return n < 0 ? -errno : n;
}

static int open_pty(struct launch *l, struct proc *p, const struct exec_req *r)
{
	struct winsize ws = {.ws_col = r->cols ? r->cols : 80, .ws_row = r->rows ? r->rows : 24};
	_cleanup_close_ int m = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
	int unlock = 0, peer;

	if (m < 0)
		return -errno;
	if (ioctl(m, TIOCSPTLCK, &unlock) < 0)
		return -errno;
	peer = ioctl(m, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (peer < 0)
		return -errno;
	ioctl(m, TIOCSWINSZ, &ws);
	if (l->s.set_ids && fchown(peer, l->user.uid, (gid_t)-1) < 0)
		log_debug("a terminal stays root's: %s", strerror(errno));
	l->s.fd[0] = peer;
	l->s.fd[1] = dup_above(peer);
	l->s.fd[2] = dup_above(peer);
	l->s.tty = true;
	p->in_fd = dup_above(m);
	p->out[0].fd = take_fd(&m);
	return l->s.fd[1] < 0 || l->s.fd[2] < 0 || p->in_fd < 0 ? -EMFILE : 0;
}

static int open_pipe_to(int *ours, int *theirs, bool child_reads)
{
	int pi[2];

	if (pipe2(pi, O_CLOEXEC) < 0)
		return -errno;
	*ours = pi[child_reads];
	*theirs = pi[!child_reads];
	return 0;
}

static int open_stdio(struct launch *l, struct proc *p, const struct exec_req *r)
{
	int rc = 0;

	if (r->flags & AGENT_X_PTY)
		return open_pty(l, p, r);
	if ((r->flags & AGENT_X_STDIN) && !(r->flags & AGENT_X_BACKGROUND))
		rc = open_pipe_to(&p->in_fd, &l->s.fd[0], true);
	else if ((l->s.fd[0] = open("/dev/null", O_RDONLY | O_CLOEXEC)) < 0)
		rc = -errno;
	if (rc < 0)
		return rc;
	if (r->flags & AGENT_X_BACKGROUND) {
		p->file_fd = open_output(l->a);
		if (p->file_fd < 0)
			return p->file_fd;
		l->s.fd[1] = dup_above(p->file_fd);
		l->s.fd[2] = dup_above(p->file_fd);
		return l->s.fd[1] < 0 || l->s.fd[2] < 0 ? -EMFILE : 0;
	}
	rc = open_pipe_to(&p->out[0].fd, &l->s.fd[1], false);
	if (rc < 0)
		return rc;
	if (!(r->flags & AGENT_X_MERGE))
		return open_pipe_to(&p->out[1].fd, &l->s.fd[2], false);
	l->s.fd[2] = dup_above(l->s.fd[1]);
	return l->s.fd[2] < 0 ? -EMFILE : 0;
}

/* The child has called execve, or has said why it could not. */
static void launch_event(void *arg, uint32_t events)
{
	struct launch *l = arg;
	struct agent *a = l->a;
	struct proc *p = l->p;
	exec_started_fn fn = l->fn;
	void *fn_arg = l->arg;
	uint64_t timeout_ms = l->timeout_ms;
	struct spawn_fail f = {0};
	char what[200];
	ssize_t k = read(l->pipe_fd, &f, sizeof(f));

	if (k < 0 && (errno == EINTR || errno == EAGAIN))
		return;
	if (k != sizeof(f))
		f = (struct spawn_fail){0};
	snprintf(what, sizeof(what), "%s",
		f.step == AGENT_STEP_CWD ? l->cwd
		: l->s.argv[0]           ? l->s.argv[0]
					 : "a shell");
	launch_free(l);
	if (f.code) {
		snprintf(
			what + strlen(what), sizeof(what) - strlen(what), ": %s", strerror(f.code));
		p->pid = 0;
		fn(a, p, fn_arg, f.code, (enum agent_step)f.step, what);
		proc_destroy(p);
		return;
	}
	proc_started(p, timeout_ms);
	fn(a, p, fn_arg, 0, AGENT_STEP_NONE, "");
	procio_start(p);
	if (p->has_status)
		proc_reaped(p, p->wait_status);
	else
		procio_pump(p);
}

/* The child moves descriptors to the numbers ISO_FD_STATUS to SESSION_DUMP_FD one after the other.
 * A source among these numbers would be overwritten, so it is moved above them. */
static int keep_fd(struct launch *l, size_t i, int *fd, int as)
{
	if (*fd >= ISO_FD_STATUS && *fd <= SESSION_DUMP_FD) {
		int above = fcntl(*fd, F_DUPFD_CLOEXEC, SESSION_DUMP_FD + 1);

		if (above < 0)
			return -errno;
		close(*fd);
		*fd = above;
	}
	l->s.keep_fd[i] = *fd;
	l->s.keep_as[i] = as;
	return 0;
}

static void keep_inner(struct launch *l, const struct exec_inner *in)
{
	l->s.keep_fd[0] = l->a->exe_fd;
	l->s.keep_as[0] = SESSION_HELPER_FD;
	for (size_t i = 0; i < ARRAY_LEN(in->fd); i++) {
		l->s.keep_fd[i + 1] = in->fd[i];
		l->s.keep_as[i + 1] = in->as[i];
	}
	l->s.new_namespaces = in->new_namespaces;
	l->s.drop_caps = 0; /* seal.c: the process gives its capabilities up itself */
}

static int launch_spawn(
	struct launch *l, struct proc *p, struct session *s, const struct exec_req *r)
{
	int dump = -1, rc = 0;
	pid_t pid;

	if (s) {
		dump = memfd_create("state", MFD_CLOEXEC);
		if (dump < 0)
			return -errno;
		fchmod(dump, 0600);
		if (l->s.set_ids && fchown(dump, l->user.uid, l->user.gid) < 0)
			log_debug("a session's dump stays root's: %s", strerror(errno));
		rc = keep_fd(l, 1, &dump, SESSION_DUMP_FD);
		if (rc < 0) {
			close(dump);
			return rc;
		}
		l->s.keep_fd[0] = l->a->exe_fd;
		l->s.keep_as[0] = SESSION_HELPER_FD;
		session_run_begins(s, p, env_ref(l->env), dump, r->cwd[0] != 0);
		p->run_cwd = strdup(l->cwd);
		if (!p->run_cwd)
			return -ENOMEM;
	}
	cgroup_make(l->a, &p->cgroup);
	if (r->inner)
		keep_inner(l, r->inner);
	l->s.cgroup_fd = p->cgroup.dir_fd;
	pid = spawn_child(&l->s);
	if (pid < 0)
		return pid;
	close_fd(&p->cgroup.dir_fd);
	p->pid = pid;
	l->a->n.execs_total++;
	/* the child has its own of these, and reads their numbers in l->s, which must not change */
	close_theirs(l);
	return 0;
}

static struct launch *launch_make(struct agent *a, const struct exec_req *r)
{
	struct launch *l = calloc(1, sizeof(*l));
	int pi[2];

	if (!l)
		return NULL;
	l->a = a;
	l->pipe_fd = l->s.err_fd = l->s.cgroup_fd = l->s.landlock_fd = -1;
	for (size_t i = 0; i < 3; i++)
		l->s.fd[i] = -1;
	for (size_t i = 0; i < ARRAY_LEN(l->s.keep_fd); i++)
		l->s.keep_fd[i] = -1;
	l->s.reset_oom = a->opts.init;
	/* without CAP_SYS_PTRACE root cannot look into the agent: its memory, environment, root,
	 * descriptors */
	if (a->opts.init || a->opts.guarded)
		l->s.drop_caps = 1ull << CAP_SYS_PTRACE;
	/* an isolated session has a floor of its own (seal.c): stricter, but without the Landlock
	 * rules of AGENT_HARDEN */
	if (!r->inner)
		harden_spawn(a, &l->s);
	if (a->opts.init)
		l->s.limits[l->s.nlimits++] =
			(struct spawn_limit){.resource = RLIMIT_NOFILE, .value = {65536, 1048576}};
	memcpy(l->s.limits + l->s.nlimits, r->limits, r->nlimits * sizeof(r->limits[0]));
	l->s.nlimits += r->nlimits;
	l->timeout_ms = r->timeout_ms;
	l->s.stack = aligned_alloc(16, SPAWN_STACK);
	if (!l->s.stack || pipe2(pi, O_CLOEXEC) < 0) {
		launch_free(l);
		return NULL;
	}
	l->pipe_fd = pi[0];
	l->s.err_fd = pi[1];
	return l;
}

/* Copies the strings of the request, which ends before the launch does. */
static int launch_take_argv(struct launch *l, const struct exec_req *r, bool session)
{
	size_t bytes = (r->argc + 1) * sizeof(char *);
	char *text;

	for (uint32_t i = 0; i < r->argc; i++)
		bytes += strlen(r->argv[i]) + 1;
	l->argv = malloc(bytes);
	if (!l->argv)
		return -ENOMEM;
	text = (char *)(l->argv + r->argc + 1);
	for (uint32_t i = 0; i < r->argc; i++) {
		l->argv[i] = text;
		text = stpcpy(text, r->argv[i]) + 1;
	}
	l->argv[r->argc] = NULL;
	if (session && !(l->script = session_script(r->argv[0])))
		return -ENOMEM;
	return 0;
}

static int find_session(struct agent *a, const struct exec_req *r, struct session **s,
	enum agent_step *step, struct err *e)
{
	if (!r->session[0])
		return 0;
	*s = session_find(a, r->session);
	if (!*s) {
		*step = AGENT_STEP_SESSION;
		return err_plain(e, ENOENT, "no session %s", r->session);
	}
	if ((*s)->kind == AGENT_SE_ISOLATED)
		return 0;
	if ((*s)->kind == AGENT_SE_SHELL && session_busy(*s))
		return err_plain(e, EBUSY, "session %s is busy", r->session);
	*step = AGENT_STEP_NONE;
	if ((*s)->kind == AGENT_SE_TERMINAL)
		return err_plain(e, EINVAL, "session %s is a terminal: attach to it", r->session);
	if ((r->flags & AGENT_X_BACKGROUND) && strcmp(r->session, HOOKS_SCRIPT_ID) != 0)
		return err_plain(e, EINVAL, "session %s takes no background run", r->session);
	return 0;
}

int exec_start(struct agent *a, const struct exec_req *r, exec_started_fn fn, void *arg,
	enum agent_step *step, struct err *e)
{
	_cleanup_(launch_freep) struct launch *l = NULL;
	struct session *s = NULL;
	struct proc *p = NULL;
	int rc;

	*step = AGENT_STEP_BUSY;
	if (a->frozen || a->shutting_down)
		return err_plain(
			e, EBUSY, "the sandbox is %s", a->frozen ? "frozen" : "being shut down");
	if (proc_find(a, r->id))
		return err_plain(e, EEXIST, "there is a process %s", r->id);
	rc = find_session(a, r, &s, step, e);
	if (rc < 0)
		return rc;
	if (s && s->kind == AGENT_SE_ISOLATED)
		return isolate_run(s, r, fn, arg, step, e);
	*step = AGENT_STEP_START;
	l = launch_make(a, r);
	if (!l || launch_take_argv(l, r, s != NULL) < 0)
		return err_plain(e, ENOMEM, "no memory or descriptor left in the sandbox");
	*step = AGENT_STEP_USER;
	rc = set_user(l, r, e);
	if (rc < 0)
		return rc;
	*step = AGENT_STEP_START;
	if (set_env(l, r, s) < 0 || set_tries(l, r) < 0)
		return err_plain(e, E2BIG, "the environment is too large");
	*step = AGENT_STEP_CWD;
	rc = set_cwd(l, r, s, e);
	if (rc < 0)
		return rc;
	*step = AGENT_STEP_START;
	p = proc_create(a, r->id, r->flags);
	if (!p)
		return err_plain(e, EAGAIN, "too many processes");
	proc_keep_argv(p, r->argv, r->argc);
	rc = open_stdio(l, p, r);
	/* watch the pipe before the child exists: once the child runs in our memory, the start
	 * cannot be undone */
	if (rc == 0 && !(l->w = loop_watch(a->loop, l->pipe_fd, EPOLLIN, launch_event, l)))
		rc = -errno;
	if (rc == 0)
		rc = launch_spawn(l, p, s, r);
	if (rc < 0) {
		proc_destroy(p);
		return err_set(e, -rc, "start");
	}
	l->p = p;
	l->fn = fn;
	l->arg = arg;
	l = NULL;
	return 0;
}
