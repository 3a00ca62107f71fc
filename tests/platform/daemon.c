/* SPDX-License-Identifier: Apache-2.0
 *
 * daemon: what mayflyd cannot do once it serves. The real mayfly-priv starts this program in
 * mayflyd's place, which takes the last two steps as mayflyd does (api/core/seal.c), tries what must be
 * impossible, and says what became of it by its exit code, which the helper hands on: 0, or 2.
 * Needs root (77 = skipped). The neighbour to attack is another process of this test, of another
 * user.
 */
#include "lib/test.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/fsverity.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "api/core/seal.h"
#include "lib/proto_priv.h"
#include "tests/platform/inside.h"

#define NEIGHBOUR 64323
#define MAYFLYD   64322
#define NOT_HELD  EHWPOISON /* no call gives it */

static pid_t neighbour, helper;
static const char *dir;
static int listener, serving, accepted; /* TCP sockets that it had before it was sealed */
static bool tcp_rules;

static long opened(int fd)
{
	if (fd >= 0)
		close(fd);
	return fd;
}
static long mapped(void *p)
{
	return p == MAP_FAILED ? -1 : 0;
}
/* A TCP socket that exists is no connection any more. *a: a port of this host that takes one. */
static bool loosened(int fd, struct sockaddr_in *a)
{
	socklen_t n = sizeof(*a);

	if (getsockname(serving, (struct sockaddr *)a, &n) < 0)
		return false;
	shutdown(fd, SHUT_RDWR);
	return connect(fd, &(struct sockaddr){.sa_family = AF_UNSPEC}, sizeof(struct sockaddr)) ==
	       0;
}
/* It becomes a connection to that port. */
static long turned(int fd)
{
	struct sockaddr_in a;

	if (!tcp_rules) {
		errno = EACCES; /* this kernel cannot say so: docs/security.md */
		return -1;
	}
	return loosened(fd, &a) ? connect(fd, (struct sockaddr *)&a, sizeof(a)) : -1;
}
/* The same by a first packet that carries data, which Landlock does not see. */
static long sent_to(int fd)
{
	struct sockaddr_in a;

	return loosened(fd, &a) ? sendto(fd, "x", 1, MSG_FASTOPEN | MSG_NOSIGNAL,
					  (struct sockaddr *)&a, sizeof(a))
				: -1;
}
static long message_to(int fd)
{
	struct sockaddr_in a;
	struct iovec v = {.iov_base = (char[]){"x"}, .iov_len = 1};
	struct msghdr m = {
		.msg_name = &a, .msg_namelen = sizeof(a), .msg_iov = &v, .msg_iovlen = 1};

	return loosened(fd, &a) ? sendmsg(fd, &m, MSG_FASTOPEN | MSG_NOSIGNAL) : -1;
}
static char *of_process(pid_t p, const char *what)
{
	static char path[100];

	snprintf(path, sizeof(path), "/proc/%d/%s", p, what);
	return path;
}
static char *ours(const char *what)
{
	static char path[200];

	snprintf(path, sizeof(path), "%s/%s", dir, what);
	return path;
}

#define TRY(name, expr)                                                                            \
	static long name(void)                                                                     \
	{                                                                                          \
		return (expr);                                                                     \
	}
static char *const none[] = {NULL};

/* Stores do that: a file that is whole goes from one folder to another. */
static long moved(void)
{
	char from[200], to[200];
	long rc;

	snprintf(from, sizeof(from), "%s/run/file", dir);
	snprintf(to, sizeof(to), "%s/run/folder", dir);
	if (mkdir(to, 0700) < 0)
		return -1;
	snprintf(to, sizeof(to), "%s/run/folder/file", dir);
	rc = renameat(AT_FDCWD, from, AT_FDCWD, to);
	if (rc == 0)
		rc = renameat(AT_FDCWD, to, AT_FDCWD, from);
	rmdir(ours("run/folder"));
	return rc;
}

TRY(do_ptrace, ptrace(PTRACE_ATTACH, neighbour, NULL, NULL))
TRY(do_kill, kill(neighbour, SIGKILL))
TRY(do_tgkill, syscall(SYS_tgkill, neighbour, neighbour, SIGKILL))
TRY(do_read_memory, syscall(SYS_process_vm_readv, neighbour, NULL, 0, NULL, 0, 0))
TRY(do_pidfd, syscall(SYS_pidfd_open, neighbour, 0))
TRY(do_pidfd_getfd, syscall(SYS_pidfd_getfd, PRIV_FD, 0, 0))
TRY(do_proc_mem, opened(open(of_process(neighbour, "mem"), O_RDWR)))
TRY(do_proc_root, opened(open(of_process(neighbour, "root/etc/passwd"), O_RDONLY)))
TRY(do_helper_root, opened(open(of_process(helper, "root/etc/shadow"), O_RDONLY)))
TRY(do_passwd, opened(open("/etc/passwd", O_RDONLY)))
TRY(do_shadow, opened(open("/etc/shadow", O_RDONLY)))
TRY(do_kvm, opened(open("/dev/kvm", O_RDWR)))
TRY(do_dotdot, opened(open(ours("../../../../../../etc/passwd"), O_RDONLY)))
TRY(do_write_root, opened(open("/file", O_CREAT | O_WRONLY, 0600)))
TRY(do_write_library, opened(open("/usr/lib/of-a-client", O_CREAT | O_WRONLY, 0600)))
TRY(do_write_program, opened(open(ours("bin/mayflyd"), O_WRONLY)))
TRY(do_write_settings, opened(open("/proc/sys/kernel/core_pattern", O_WRONLY)))
TRY(do_write_group, opened(open("/sys/fs/cgroup/cgroup.procs", O_WRONLY)))
TRY(do_own_folder, opened(open(ours("run/file"), O_CREAT | O_WRONLY, 0600)))
TRY(do_move, moved())
TRY(do_device, syscall(SYS_mknod, ours("run/dev"), S_IFCHR | 0600, 0x103))
TRY(do_exec, execve("/proc/self/exe", none, none))
TRY(do_execveat, syscall(SYS_execveat, AT_FDCWD, "/proc/self/exe", none, none, 0))
TRY(do_fork, syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL))
TRY(do_clone_user, syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, NULL, NULL, NULL, NULL))
TRY(do_clone3, syscall(SYS_clone3, NULL, 0))
TRY(do_unshare, unshare(CLONE_NEWUSER))
TRY(do_setns, setns(PRIV_FD, 0))
TRY(do_mount, mount("t", "/", "tmpfs", 0, NULL))
TRY(do_chroot, chroot("/proc"))
TRY(do_root, syscall(SYS_setuid, 0))
/* 1: it is there */
TRY(do_bounding, prctl(PR_CAPBSET_READ, CAP_SYS_ADMIN) == 1 ? 0 : -1)
TRY(do_code, mapped(mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)))
TRY(do_mprotect_code, syscall(SYS_mprotect, NULL, 0, PROT_EXEC))
TRY(do_inet, opened(socket(AF_INET, SOCK_STREAM, 0)))
TRY(do_packet, opened(socket(AF_PACKET, SOCK_RAW, 0)))
TRY(do_netlink, opened(socket(AF_NETLINK, SOCK_RAW, 0)))
/* the gateway's listener: shut down, it could be connected to somewhere else */
TRY(do_reach_out, turned(listener))
TRY(do_accepted, turned(accepted))
TRY(do_sendto_out, sent_to(listener))
TRY(do_sendmsg_out, message_to(accepted))
TRY(do_serve, opened(accept4(serving, NULL, NULL, SOCK_CLOEXEC)))
TRY(do_tty, ioctl(2, TIOCSTI, "x"))
/* verify.c's two, which it may: this file system has no such thing */
TRY(do_verity, ioctl(STDIN_FILENO, FS_IOC_ENABLE_VERITY, NULL))
TRY(do_last, setpriority(PRIO_PROCESS, 0, 19))
TRY(do_slow, setpriority(PRIO_PROCESS, (id_t)neighbour, 19))
TRY(do_first, setpriority(PRIO_PROCESS, 0, -20))
TRY(do_ring, syscall(SYS_io_uring_setup, 4, NULL))
TRY(do_bpf, syscall(SYS_bpf, 0, NULL, 0))
TRY(do_keyctl, syscall(SYS_keyctl, 0, 0, 0, 0, 0))
TRY(do_perf, syscall(SYS_perf_event_open, NULL, 0, -1, -1, 0))
TRY(do_userfaultfd, syscall(SYS_userfaultfd, 0))
TRY(do_module, syscall(SYS_init_module, NULL, 0, ""))

static const struct {
	const char *what;
	long (*fn)(void);
	/* before the list of system calls is in place, and after; 0: it may; -1: not tried */
	int before[2], sealed[2];
} rows[] = {
#define LIST_ONLY                                                                                  \
	{                                                                                          \
		-1                                                                                 \
	}
	{"ptrace a neighbour", do_ptrace, {EPERM}, {ENOSYS}},
	{"kill a neighbour", do_kill, {EPERM}, {ENOSYS}},
	{"signal a neighbour's thread", do_tgkill, {EPERM}, {EPERM}},
	{"read a neighbour's memory", do_read_memory, LIST_ONLY, {ENOSYS}},
	{"hold a neighbour by pidfd", do_pidfd, LIST_ONLY, {ENOSYS}},
	{"take a descriptor", do_pidfd_getfd, LIST_ONLY, {ENOSYS}},
	{"open a neighbour's memory", do_proc_mem, {EACCES}, {EACCES}},
	{"go through a neighbour's root", do_proc_root, {EACCES, EPERM}, {EACCES, EPERM}},
	{"go through the helper's root", do_helper_root, {EACCES, EPERM}, {EACCES, EPERM}},
	{"open /etc/passwd", do_passwd, {ENOENT}, {ENOENT}},
	{"open /etc/shadow", do_shadow, {ENOENT}, {ENOENT}},
	{"open /dev/kvm", do_kvm, {ENOENT}, {ENOENT}},
	{"leave its folder by ..", do_dotdot, {ENOENT}, {ENOENT}},
	{"write to the root", do_write_root, {EROFS, EACCES}, {EROFS, EACCES}},
	{"write beside the libraries", do_write_library, {EROFS, EACCES}, {EROFS, EACCES}},
	{"write a program of ours", do_write_program, {EROFS, EACCES}, {EROFS, EACCES}},
	{"change the host's settings", do_write_settings, {EROFS, EACCES}, {EROFS, EACCES}},
	{"change a group", do_write_group, {EACCES, ENOENT}, {EACCES, ENOENT}},
	{"write in its own folder", do_own_folder, {0}, {0}},
	{"move a file between its folders", do_move, {0}, {0}},
	{"make a device there", do_device, {EPERM, EACCES}, {ENOSYS}},
	{"run a program", do_exec, LIST_ONLY, {ENOSYS}},
	{"run one by descriptor", do_execveat, LIST_ONLY, {ENOSYS}},
	{"fork", do_fork, LIST_ONLY, {ENOSYS}},
	{"make a user namespace by clone", do_clone_user, LIST_ONLY, {ENOSYS}},
	{"clone3, whose flags cannot be seen", do_clone3, LIST_ONLY, {ENOSYS}},
	{"make a user namespace", do_unshare, LIST_ONLY, {ENOSYS}},
	{"enter a namespace", do_setns, LIST_ONLY, {ENOSYS}},
	{"mount", do_mount, {EPERM}, {ENOSYS}},
	{"chroot", do_chroot, {EPERM}, {ENOSYS}},
	{"become root", do_root, {EPERM}, {ENOSYS}},
	{"hold a capability in the bounding set", do_bounding, {NOT_HELD}, {ENOSYS}},
	{"map memory as code", do_code, LIST_ONLY, {ENOSYS}},
	{"make memory code", do_mprotect_code, LIST_ONLY, {ENOSYS}},
	{"make an internet socket", do_inet, LIST_ONLY, {ENOSYS}},
	{"make a packet socket", do_packet, {EPERM}, {ENOSYS}},
	{"serve its listener", do_serve, LIST_ONLY, {0}},
	{"reach out by its listener", do_reach_out, LIST_ONLY, {EACCES}},
	{"reach out by an accepted connection", do_accepted, LIST_ONLY, {EACCES}},
	{"reach out by the first packet of sendto", do_sendto_out, LIST_ONLY, {ENOSYS}},
	{"reach out by the first packet of sendmsg", do_sendmsg_out, LIST_ONLY, {ENOSYS}},
	{"make a netlink socket", do_netlink, LIST_ONLY, {ENOSYS}},
	{"type on a terminal", do_tty, LIST_ONLY, {ENOSYS}},
	{"let the kernel watch a file", do_verity, LIST_ONLY, {ENOTTY, EOPNOTSUPP}},
	{"be served last", do_last, LIST_ONLY, {0}},
	{"be served first", do_first, {EACCES}, {ENOSYS}},
	{"slow a neighbour down", do_slow, {EPERM}, {EPERM}},
	{"make an io_uring", do_ring, LIST_ONLY, {ENOSYS}},
	{"load BPF", do_bpf, LIST_ONLY, {ENOSYS}},
	{"reach the kernel's keys", do_keyctl, LIST_ONLY, {ENOSYS}},
	{"watch by performance counters", do_perf, LIST_ONLY, {ENOSYS}},
	{"make a userfaultfd", do_userfaultfd, LIST_ONLY, {ENOSYS}},
	{"load a kernel module", do_module, LIST_ONLY, {ENOSYS}},
};

static int outcome(long (*fn)(void))
{
	errno = NOT_HELD;
	return fn() < 0 ? errno : 0;
}

static bool all_are_refused(bool sealed)
{
	bool all = true;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		int want = sealed ? rows[i].sealed[0] : rows[i].before[0], got;
		int or = sealed ? rows[i].sealed[1] : rows[i].before[1];
		bool ok;

		if (want < 0)
			continue;
		got = outcome(rows[i].fn);
		ok = got == want || (or &&got == or);
		printf("%s %-7s %-40s %s\n", ok ? "ok  " : "FAIL", sealed ? "sealed" : "before",
			rows[i].what, got ? strerror(got) : "possible");
		all = all && ok;
	}
	return all;
}

/* ---- in the place of mayflyd */
static int listening(struct sockaddr_in *at)
{
	socklen_t n = sizeof(*at);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	*at = (struct sockaddr_in){
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	if (bind(fd, (struct sockaddr *)at, n) < 0 || listen(fd, 8) < 0 ||
		getsockname(fd, (struct sockaddr *)at, &n) < 0)
		return -1;
	return fd;
}

static int connected(const struct sockaddr_in *to)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	return connect(fd, (const struct sockaddr *)to, sizeof(*to)) < 0 ? -1 : fd;
}

/* As a gateway has them: one listener to attack, one with a client that waits, one accepted connection. */
static bool have_listeners(void)
{
	struct sockaddr_in a, b;

	tcp_rules = jail_landlock_abi() >= 4;
	listener = listening(&a);
	serving = listening(&b);
	if (listener < 0 || serving < 0 || connected(&a) < 0 || connected(&b) < 0)
		return false;
	accepted = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	return accepted >= 0;
}

static int be_daemon(const char *folder, const char *pid)
{
	char state[80], run[80];
	struct err e = {0};
	bool ok;
	int rc;

	dir = folder;
	neighbour = atoi(pid);
	helper = getppid();
	setvbuf(stdout, NULL, _IOLBF, 0);
	snprintf(state, sizeof(state), "%s/state", dir);
	snprintf(run, sizeof(run), "%s/run", dir);
	rc = daemon_landlock(state, run, &e);
	if (rc < 0 && rc != -EOPNOTSUPP)
		printf("%s\n", e.msg);
	ok = (rc == 0 || rc == -EOPNOTSUPP) && have_listeners();
	ok = all_are_refused(false) && ok;
	if (daemon_seal(&e) < 0) {
		printf("%s\n", e.msg);
		return 2;
	}
	return all_are_refused(true) && ok ? 0 : 2;
}

/* ---- the test */
static bool copy(const char *from, const char *to)
{
	int in = open(from, O_RDONLY | O_CLOEXEC),
	    out = open(to, O_CREAT | O_WRONLY | O_CLOEXEC, 0755);
	char buf[65536];
	ssize_t n = -1;

	while (in >= 0 && out >= 0 && (n = read(in, buf, sizeof(buf))) > 0)
		if (write(out, buf, (size_t)n) != n)
			return false;
	close(in);
	close(out);
	return n == 0;
}

static pid_t run_helper(const char *self, const char *top)
{
	char priv[512], bin[80], run[80], state[80], user[16], base[16], volumes[16], pid[16],
		group[80];
	pid_t p;

	/* build/platform/daemon -> build/bin/mayfly-priv */
	snprintf(priv, sizeof(priv), "%.*s/../bin/mayfly-priv", (int)(strrchr(self, '/') - self),
		self);
	snprintf(bin, sizeof(bin), "%s/bin", top);
	snprintf(run, sizeof(run), "%s/run", top);
	snprintf(state, sizeof(state), "%s/state", top);
	snprintf(user, sizeof(user), "%d", MAYFLYD);
	snprintf(base, sizeof(base), "%u", 400000u + 5 * 4096 * ((unsigned int)getpid() % 1000));
	/* of this run's own, and apart from those of platform/priv */
	snprintf(volumes, sizeof(volumes), "%u",
		4000000000u + 2 * 65536 * ((unsigned int)getpid() % 1000));
	snprintf(pid, sizeof(pid), "%d", neighbour);
	snprintf(group, sizeof(group), "%s/no-group", top);
	p = fork();
	if (p)
		return p;
	execl(priv, "mayfly-priv", "--bin-dir", bin, "--run-dir", run, "--state-dir", state,
		"--user", user, "--uid-base", base, "--volume-uid-base", volumes, "--slots", "1",
		"--cgroup", group, "--", top, pid, NULL);
	_exit(127);
}

static void what_must_be_impossible_is_in_the_daemon(void)
{
	static const char *const left[] = {"bin/mayflyd", "bin", "run/file", "run", "state/volumes",
		"state", "run-priv/lock", "run-priv", "no-group"};
	char top[] = "/tmp/daemon-test.XXXXXX", self[400] = "", path[96];
	int st = -1;

	REQUIRE(readlink("/proc/self/exe", self, sizeof(self) - 1) > 0);
	REQUIRE(mkdtemp(top) && chmod(top, 0755) == 0);
	snprintf(path, sizeof(path), "%s/bin", top);
	REQUIRE(mkdir(path, 0755) == 0);
	snprintf(path, sizeof(path), "%s/bin/mayflyd", top);
	REQUIRE(copy(self, path));
	neighbour = new_neighbour(NEIGHBOUR);
	fflush(stdout);
	waitpid(run_helper(self, top), &st, 0);
	CHECK(WIFEXITED(st) && WEXITSTATUS(st) == 0);
	CHECK_INT(kill(neighbour, 0), 0); /* it lives */
	kill(neighbour, SIGKILL);
	for (size_t i = 0; i < ARRAY_LEN(left); i++) {
		snprintf(path, sizeof(path), "%s/%s", top, left[i]);
		CHECK_INT(remove(path), 0);
	}
	CHECK_INT(rmdir(top), 0);
}

static const struct test tests[] = {
	{"what_must_be_impossible_is_in_the_daemon", what_must_be_impossible_is_in_the_daemon},
};

int main(int argc, char **argv)
{
	if (!strcmp(argv[0], "mayflyd"))
		return argc == 3 ? be_daemon(argv[1], argv[2]) : 2;
	if (geteuid() != 0) {
		printf("needs root\n");
		return 77;
	}
	return test_main(argc, argv, tests, ARRAY_LEN(tests));
}
