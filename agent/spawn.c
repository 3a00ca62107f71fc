/* SPDX-License-Identifier: Apache-2.0
 *
 * spawn.c: the child between clone3 and execve.
 *
 * It runs in the agent's memory (CLONE_VM) beside the agent, on a stack of its own, with the
 * agent's thread pointer. So it may neither allocate nor touch errno nor call into libc: raw system
 * calls only. In exchange there is no copy of page tables as in a fork, and no faults after it: in
 * a freshly restored guest these are most of a command's cost. A working directory on a file system
 * that hangs stalls only this child. Under sanitizers, and on other processors than x86-64, the
 * child is an ordinary fork.
 */
#include "agent/spawn.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define NR_LANDLOCK_RESTRICT 446 /* by number: older headers lack it */

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SHARED_MEMORY 1
#else
#define SHARED_MEMORY 0
#endif

#if SHARED_MEMORY
static long raw(long n, long a, long b, long c, long d)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = 0; /* some calls want their unused arguments to be 0 */
	long ret;

	__asm__ volatile("syscall"
			 : "=a"(ret)
			 : "0"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
			 : "rcx", "r11", "memory");
	return ret;
}
#else
static long raw(long n, long a, long b, long c, long d)
{
	long ret = syscall(n, a, b, c, d, 0);

	return ret < 0 ? -errno : ret;
}
#endif
#define P(p) ((long)(uintptr_t)(p))

_noreturn_ static void child_fail(const struct spawn *s, long rc, enum agent_step step)
{
	struct spawn_fail f = {.code = (int32_t)-rc, .step = step};

	raw(SYS_write, s->err_fd, P(&f), sizeof(f), 0);
	for (;;)
		raw(SYS_exit_group, 127, 0, 0, 0);
}

/* The agent ignores no signal (agent_init sees to it); it only blocks them, and execve takes
 * handlers away. */
static void child_signals(void)
{
	uint64_t none = 0;

	raw(SYS_rt_sigprocmask, SIG_SETMASK, P(&none), 0, 8);
}

static void child_limits(const struct spawn *s)
{
	for (size_t i = 0; i < s->nlimits; i++) {
		long rc = raw(
			SYS_prlimit64, 0, (long)s->limits[i].resource, P(s->limits[i].value), 0);

		if (rc < 0)
			child_fail(s, rc, AGENT_STEP_START);
	}
}

static void child_fds(const struct spawn *s)
{
	long rc = 0;

	for (int i = 0; i < 3 && rc >= 0; i++)
		rc = raw(SYS_dup3, s->fd[i], i, 0, 0);
	for (size_t i = 0; i < ARRAY_LEN(s->keep_fd) && rc >= 0; i++)
		if (s->keep_fd[i] >= 0)
			rc = raw(SYS_dup3, s->keep_fd[i], s->keep_as[i], 0, 0);
	if (rc < 0)
		child_fail(s, rc, AGENT_STEP_START);
	if (s->tty)
		raw(SYS_ioctl, 0, TIOCSCTTY, 0, 0);
}

static void child_oom(void)
{
	long fd = raw(SYS_openat, AT_FDCWD, P("/proc/self/oom_score_adj"), O_WRONLY, 0);

	if (fd < 0)
		return;
	raw(SYS_write, fd, P("0"), 1, 0);
	raw(SYS_close, fd, 0, 0, 0);
}

static void child_caps(const struct spawn *s)
{
	for (unsigned cap = 0; cap < 64; cap++) {
		long rc;

		if (!(s->drop_caps & (1ull << cap)))
			continue;
		rc = raw(SYS_prctl, PR_CAPBSET_DROP, cap, 0, 0);
		/* EINVAL: this kernel does not know so high a capability */
		if (rc < 0 && rc != -EINVAL)
			child_fail(s, rc, AGENT_STEP_USER);
	}
}

static void child_ids(const struct spawn *s)
{
	long rc;

	if (!s->set_ids)
		return;
	rc = raw(SYS_setgroups, (long)s->ngroups, P(s->groups), 0, 0);
	if (rc >= 0)
		rc = raw(SYS_setresgid, s->gid, s->gid, s->gid, 0);
	if (rc >= 0)
		rc = raw(SYS_setresuid, s->uid, s->uid, s->uid, 0);
	if (rc < 0)
		child_fail(s, rc, AGENT_STEP_USER);
}

/* While it is still root: a rule set and a filter need CAP_SYS_ADMIN or no_new_privs, which would disable sudo. The filter refuses none of
 * the calls that follow. */
static void child_floor(const struct spawn *s)
{
	long rc = 0;

	if (s->no_new_privs)
		rc = raw(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0);
	if (rc >= 0 && s->landlock_fd >= 0)
		rc = raw(NR_LANDLOCK_RESTRICT, s->landlock_fd, 0, 0, 0);
	if (rc >= 0 && s->filter)
		rc = raw(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, P(s->filter), 0);
	if (rc < 0)
		child_fail(s, rc, AGENT_STEP_START);
}

static void child_main(void *arg)
{
	struct spawn *s = arg;
	long rc, worst = -ENOENT;

	raw(SYS_setsid, 0, 0, 0, 0);
	child_signals();
	child_fds(s);
	if (s->reset_oom)
		child_oom();
	child_limits(s);
	raw(SYS_umask, 022, 0, 0, 0);
	child_floor(s);
	child_caps(s);
	child_ids(s);
	/* as that user, because its rights decide */
	rc = raw(SYS_chdir, P(s->cwd), 0, 0, 0);
	if (rc < 0)
		child_fail(s, rc, AGENT_STEP_CWD);
	for (size_t i = 0; i < s->ntries; i++) {
		char *keep = s->argv[0];

		s->argv[0] = (char *)(uintptr_t)s->tries[i].argv0;
		rc = raw(SYS_execve, P(s->tries[i].path), P(s->argv), P(s->envp), 0);
		s->argv[0] = keep;
		if (rc != -ENOENT && rc != -ENOTDIR && rc != -EACCES)
			child_fail(s, rc, AGENT_STEP_START);
		if (rc == -EACCES)
			worst = rc;
	}
	child_fail(s, worst, AGENT_STEP_START);
}

static long clone_into(struct clone_args *ca, void (*fn)(void *), void *arg)
{
	long ret;
#if SHARED_MEMORY
	register void *r_fn __asm__("r12") = (void *)(uintptr_t)fn;
	register void *r_arg __asm__("r13") = arg;

	__asm__ volatile("syscall\n\t"
			 "test %%rax, %%rax\n\t"
			 "jnz 1f\n\t"
			 "xor %%ebp, %%ebp\n\t"
			 "mov %%r13, %%rdi\n\t"
			 "call *%%r12\n\t"
			 "ud2\n"
			 "1:"
			 : "=a"(ret)
			 : "0"(SYS_clone3), "D"(ca), "S"(sizeof(*ca)), "r"(r_fn), "r"(r_arg)
			 : "rcx", "r11", "memory");
#else
	ret = syscall(SYS_clone3, ca, sizeof(*ca));
	if (ret == 0)
		fn(arg);
	if (ret < 0)
		ret = -errno;
#endif
	return ret;
}

pid_t spawn_child(struct spawn *s)
{
	struct clone_args ca = {.exit_signal = SIGCHLD, .flags = s->new_namespaces};
	long rc;

	if (SHARED_MEMORY) {
		ca.flags |= CLONE_VM;
		ca.stack = (uint64_t)(uintptr_t)s->stack;
		ca.stack_size = SPAWN_STACK;
	}
	if (s->cgroup_fd >= 0) {
		/* started in it: a later move would wait for a grace period of the kernel's */
		ca.flags |= CLONE_INTO_CGROUP;
		ca.cgroup = (uint64_t)s->cgroup_fd;
	}
	rc = clone_into(&ca, child_main, s);
	/* Try without the cgroup. Not for a session's first process: outside of its cgroup it would
	 * have no limits, and inward.c would take it for an ordinary program. */
	if (rc < 0 && s->cgroup_fd >= 0 && !s->new_namespaces && rc != -EAGAIN && rc != -ENOMEM) {
		ca.flags &= ~(uint64_t)CLONE_INTO_CGROUP;
		ca.cgroup = 0;
		rc = clone_into(&ca, child_main, s);
	}
	return (pid_t)rc;
}
