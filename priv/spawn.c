/* SPDX-License-Identifier: Apache-2.0
 *
 * spawn.c: clone, descriptors, exec. mayfly-priv, root; the child goes through lib/jail.c as the first thing in its main. The child side calls
 * only async-signal-safe functions. What came from the daemon: which row of the table, a slot, descriptors.
 */
#include "priv/spawn.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/mount.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "lib/jail.h"
#include "lib/log.h"
#include "lib/procfs.h"

static const struct kind kinds[PRIV_K_COUNT] = {
	[PRIV_K_MONITOR] = {.program = "mayfly-vmm",
		.min_fds = 4,
		.max_fds = 8,
		.pids_max = 64,
		.oom_score_adj = "600"},
	[PRIV_K_NETWORK] = {.program = "mayfly-net",
		.min_fds = 2,
		.max_fds = 8,
		.pids_max = 8,
		.memory_max = MIB(256),
		.oom_score_adj = "500"},
	[PRIV_K_IMAGE_BUILD] = {.program = "mayfly-image",
		.min_fds = 2,
		.max_fds = 8,
		.stage_fd = 4,
		.pids_max = 32,
		.memory_max = GIB(2),
		.oom_score_adj = "400"},
	[PRIV_K_IMAGE_PULL] = {.program = "mayfly-image",
		.extra = "--jail-net",
		.min_fds = 2,
		.max_fds = 8,
		.stage_fd = 4,
		.pids_max = 32,
		.memory_max = GIB(2),
		.oom_score_adj = "400"},
	[PRIV_K_BROKER] = {.program = "mayfly-broker",
		.min_fds = 1,
		.max_fds = 8,
		.pids_max = 16,
		/* the buffers of all sandboxes' sockets are charged to it */
		.memory_max = GIB(2),
		.oom_score_adj = "500"},
	[PRIV_K_FILES] = {.program = "mayfly-fs",
		.min_fds = 3,
		.max_fds = PRIV_SPAWN_FDS,
		.pids_max = 16,
		.memory_max = MIB(256),
		.oom_score_adj = "500"},
};

const struct kind *kind_of(uint32_t kind)
{
	return kind < PRIV_K_COUNT && kinds[kind].program ? &kinds[kind] : NULL;
}

/* fds become 3, 4, ...: they are copied above that first, so that none is overwritten before it is moved */
static bool place_fds(const int *fds, size_t n)
{
	int high[PRIV_SPAWN_FDS];

	for (size_t i = 0; i < n; i++) {
		high[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 64);
		if (high[i] < 0)
			return false;
	}
	for (size_t i = 0; i < n; i++)
		if (dup2(high[i], 3 + (int)i) < 0)
			return false;
	return syscall(SYS_close_range, 3 + n, ~0u, CLOSE_RANGE_CLOEXEC) == 0;
}

static void default_signals(void)
{
	sigset_t none;

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_DFL);
}

_noreturn_ static void exec_at(int bin_fd, const char *program, char *const *argv)
{
	static char path_env[] = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";
	char *env[] = {path_env, NULL};

	syscall(SYS_execveat, bin_fd, program, argv, env, 0);
	_exit(127);
}

static pid_t clone_child(uint64_t flags, int cgroup, int *pidfd)
{
	struct clone_args a = {.flags = flags | CLONE_PIDFD,
		.pidfd = (uint64_t)(uintptr_t)pidfd,
		.exit_signal = SIGCHLD};

	if (cgroup >= 0) {
		a.flags |= CLONE_INTO_CGROUP;
		a.cgroup = (uint64_t)cgroup;
	}
	return (pid_t)syscall(SYS_clone3, &a, sizeof(a));
}

/* Replaces the daemon's folder at fd by a detached copy of its mount. open_tree() can make it only inside of the
 * mount namespace to which the folder belongs: the daemon's. */
static bool take_stage(int daemon_pidfd, int fd)
{
	_cleanup_close_ int home = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC), tree = -1;

	if (home < 0 || setns(daemon_pidfd, CLONE_NEWNS) < 0)
		return false;
	tree = (int)syscall(
		SYS_open_tree, fd, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
	return setns(home, CLONE_NEWNS) == 0 && tree >= 0 && dup2(tree, fd) == fd;
}

/* mayfly-fs: each volume's rules, in the order of their descriptors. */
static int volume_args(const struct priv_msg *req, size_t nvolumes,
	char rules[PRIV_VOLUMES][PRIV_RULES_MAX], char **argv)
{
	int n = 0;

	if (req->what)
		argv[n++] = (char *)(uintptr_t) "--purge";
	for (size_t i = 0; i < nvolumes; i++) {
		priv_volume_rules(req, i, rules[i]);
		argv[n++] = (char *)(uintptr_t) "--volume";
		argv[n++] = rules[i];
	}
	return n;
}

#ifndef PR_SCHED_CORE /* Linux 5.14 */
#define PR_SCHED_CORE        62
#define PR_SCHED_CORE_CREATE 1
#endif

/* No other process runs on the second thread of a core while this one runs there. Its children inherit that. The call fails on a host without
 * such threads, where nothing is shared, and on a kernel without core scheduling, where threads stay shared. */
static void own_cores(void)
{
	prctl(PR_SCHED_CORE, PR_SCHED_CORE_CREATE, 0, 1 /* PIDTYPE_TGID */, 0);
}

/* A jailed process logs into a pipe of its own. It can neither cut the shared log nor forge lines of others there, and it waits for nobody:
 * the writing end does not block. */
static int log_pipe(int *reading, int *writing)
{
	int p[2];

	if (pipe2(p, O_CLOEXEC | O_NONBLOCK) < 0)
		return -errno;
	*reading = p[0];
	*writing = p[1];
	return 0;
}

int spawn_jailed(struct slots *t, int bin_fd, const struct priv_msg *req, struct place at,
	const int *fds, size_t nfds, struct spawned *out)
{
	const struct kind *k = kind_of(req->kind);
	struct priv_limits lim = req->limits;
	uint32_t slot = req->slot;
	_cleanup_close_ int cg = -1, mine = -1, its = -1;
	char uid[16], rules[PRIV_VOLUMES][PRIV_RULES_MAX], *argv[6 + 2 * PRIV_SPAWN_FDS];
	int pid, n = 0, rc;

	lim.pids_max = lim.pids_max ? lim.pids_max : k->pids_max;
	lim.memory_max = lim.memory_max ? lim.memory_max : k->memory_max;
	cg = leaf_make(&t->leases, at, slot, &lim);
	/* a host without cgroups is one thing; a lease whose cgroup was removed is another: nothing starts there without limits */
	if (cg == -ENOENT && at.lease < t->leases.n && t->leases.l[at.lease].cgroup_fd >= 0)
		return -ENODEV;
	if (cg < 0 && cg != -ENOENT)
		return cg;
	snprintf(uid, sizeof(uid), "%u", slot_uid(t, req->kind, slot));
	argv[n++] = (char *)(uintptr_t)k->program;
	argv[n++] = (char *)(uintptr_t) "--jail";
	argv[n++] = uid;
	if (k->extra)
		argv[n++] = (char *)(uintptr_t)k->extra;
	if (req->kind == PRIV_K_FILES)
		n += volume_args(req, nfds - 2, rules, argv + n);
	argv[n] = NULL;
	rc = log_pipe(&mine, &its);
	if (rc < 0)
		return rc;
	pid = clone_child(CLONE_NEWPID, cg, &out->pidfd);
	if (pid < 0)
		return -errno;
	out->log_fd = pid > 0 ? take_fd(&mine) : 0;
	if (pid > 0)
		return pid;
	default_signals();
	if (t->core_scheduling)
		own_cores();
	/* there may be no reader of its log, for a moment or for ever */
	signal(SIGPIPE, SIG_IGN);
	if (dup2(its, 0) < 0 || dup2(its, 1) < 0 || dup2(its, 2) < 0)
		_exit(126);
	file_put(AT_FDCWD, "/proc/self/oom_score_adj", k->oom_score_adj);
	bin_fd = fcntl(bin_fd, F_DUPFD_CLOEXEC, 128);
	if (bin_fd < 0 || !place_fds(fds, nfds) ||
		(k->stage_fd && !take_stage(t->daemon_pidfd, (int)k->stage_fd)))
		_exit(126);
	exec_at(bin_fd, k->program, argv);
}

static void drop_to(uint32_t uid)
{
	/* no core dump, not even into a pipe (lib/jail.c) */
	struct rlimit core = {1, 1};

	fd_limit_raise(1ul << 18);
	setrlimit(RLIMIT_CORE, &core);
	for (int cap = 0; cap < 64; cap++)
		prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
	if (setgroups(0, NULL) < 0 || setresgid(uid, uid, uid) < 0 ||
		setresuid(uid, uid, uid) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		_exit(126);
	/* after the change of user, which clears it: a helper that dies takes the daemon along, and
	 * both come back together */
	prctl(PR_SET_PDEATHSIG, SIGTERM);
}

/* All that the daemon ever sees of the host: libraries, its programs, its folders, and the kernel's files that it reads. */
static int daemon_root(const struct daemon_conf *c, struct err *e)
{
	struct jail_show show[JAIL_SHOW_MAX] = {{"/usr", JAIL_SHOW_RUN}, {"/lib", JAIL_SHOW_RUN},
		{"/lib64", JAIL_SHOW_RUN}, {"/etc/ld.so.cache", JAIL_SHOW_READ},
		{"/etc/localtime", JAIL_SHOW_READ}, {"/etc/mayfly", JAIL_SHOW_READ},
		{"/proc", JAIL_SHOW_READ}, {"/sys/devices/system/cpu", JAIL_SHOW_READ},
		{"/sys/fs/cgroup", JAIL_SHOW_READ}, {"/dev/null", JAIL_SHOW_WRITE},
		{"/dev/urandom", JAIL_SHOW_READ}, {c->bin_dir, JAIL_SHOW_RUN},
		{c->run_dir, JAIL_SHOW_WRITE}, {c->state_dir, JAIL_SHOW_WRITE}};
	size_t n = 14;

	for (size_t i = 0; i < ARRAY_LEN(c->show) && c->show[i]; i++)
		show[n++] = (struct jail_show){c->show[i], JAIL_SHOW_READ};
	for (char **a = c->argv; *a && n < ARRAY_LEN(show); a++)
		if (!strcmp(*a, "--config") && a[1] && a[1][0] == '/')
			show[n++] = (struct jail_show){a[1], JAIL_SHOW_READ};
	return jail_root(show, n, e);
}

int spawn_daemon(const struct daemon_conf *c, int sock, int *pidfd)
{
	int pid = clone_child(0, -1, pidfd), bin;
	struct err e;

	if (pid < 0)
		return -errno;
	if (pid > 0)
		return pid;
	default_signals();
	file_put(AT_FDCWD, "/proc/self/oom_score_adj", "-500");
	if (!place_fds(&sock, 1))
		_exit(126);
	if (daemon_root(c, &e) < 0) {
		log_error("mayflyd's root: %s", e.msg);
		_exit(126);
	}
	bin = open(c->bin_dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	drop_to(c->uid);
	exec_at(bin, "mayflyd", c->argv);
}
