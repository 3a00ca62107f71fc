/* SPDX-License-Identifier: Apache-2.0
 *
 * jail: goes through lib/jail.c as mayfly-vmm and mayfly-image do, and then tries from inside what
 * must be impossible; each row names the stage that refuses it, and the error that stage gives.
 * Needs root (77 = skipped); touches nothing of the host but a folder of its own in /tmp.
 */
#include "lib/test.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sched.h>
#include <seccomp.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "lib/jail.h"
#include "tests/platform/inside.h"

#define JAIL_UID 312345
#define FD_STAGE 3
#define FD_FILE  4 /* a file that belongs to the jail's user, open for reading only */
#define FD_LEAK  9

static struct {
	int proc_fd;
	pid_t starter;
	char abstract[40];
} G;

/* each returns 0 if it was possible, or the errno */
static int try_host_path(void)
{
	return open("/etc/passwd", O_RDONLY) < 0 ? errno : 0;
}
static int try_dotdot(void)
{
	return openat(FD_STAGE, "../../../../etc/passwd", O_RDONLY) < 0 ? errno : 0;
}
static int try_write_root(void)
{
	return open("/x", O_CREAT | O_WRONLY, 0600) < 0 ? errno : 0;
}
static int try_stage(void)
{
	return openat(FD_STAGE, "made-inside", O_CREAT | O_WRONLY, 0600) < 0 ? errno : 0;
}
static int try_stage_path(void)
{
	return open("/stage/made-by-path", O_CREAT | O_WRONLY, 0600) < 0 ? errno : 0;
}
static int try_device(void)
{
	return mknodat(FD_STAGE, "dev", S_IFCHR | 0600, 0x103) < 0 ? errno : 0;
}
static int try_exec(void)
{
	char *const argv[] = {NULL};

	execve("/bin/true", argv, argv);
	return errno;
}
static int try_leaked_fd(void)
{
	return fcntl(FD_LEAK, F_GETFD) < 0 ? errno : 0;
}
static int try_reopen_writable(void)
{
	return openat(G.proc_fd, "self/fd/4", O_RDWR) < 0 ? errno : 0;
}
static int try_own_pagemap(void)
{
	return openat(G.proc_fd, "self/pagemap", O_RDONLY) < 0 ? errno : 0;
}
static int try_proc_of_host(void)
{
	return openat(G.proc_fd, "sys/kernel/hostname", O_RDONLY) < 0 ? errno : 0;
}
static int try_proc_dotdot(void)
{
	return openat(G.proc_fd, "../etc/passwd", O_RDONLY) < 0 ? errno : 0;
}
static int try_kill_starter(void)
{
	return kill(G.starter, SIGCONT) < 0 ? errno : 0;
}
static int try_ptrace_starter(void)
{
	return ptrace(PTRACE_ATTACH, G.starter, NULL, NULL) < 0 ? errno : 0;
}
static int try_mount(void)
{
	return mount("t", "/stage", "tmpfs", 0, NULL) < 0 ? errno : 0;
}
static int try_root_back(void)
{
	return setresuid(0, 0, 0) < 0 ? errno : 0;
}
static int try_chroot(void)
{
	return chroot("/stage") < 0 ? errno : 0;
}
static int try_tcp(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET,
		.sin_port = htons(22),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int s = socket(AF_INET, SOCK_STREAM, 0);

	return connect(s, (struct sockaddr *)&a, sizeof(a)) < 0 ? errno : 0;
}
static int try_tcp_bind(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(4000)};
	int s = socket(AF_INET, SOCK_STREAM, 0);

	return bind(s, (struct sockaddr *)&a, sizeof(a)) < 0 ? errno : 0;
}
static int try_abstract_socket(void)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int s = socket(AF_UNIX, SOCK_STREAM, 0);

	memcpy(a.sun_path + 1, G.abstract, strlen(G.abstract));
	return connect(s, (struct sockaddr *)&a,
		       (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
				   strlen(G.abstract))) < 0
		       ? errno
		       : 0;
}
static int try_setuid_file(void)
{
	int fd = openat(FD_STAGE, "suid", O_CREAT | O_RDWR, 0700);
	struct stat st;

	/* may be made, but no_new_privs and nosuid make it worthless: check both hold */
	(void)fchmod(fd, 04755);
	(void)fstat(fd, &st);
	return prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 && st.st_uid == JAIL_UID ? EPERM : 0;
}
static int try_core(void)
{
	struct rlimit r = {2, 2};

	return setrlimit(RLIMIT_CORE, &r) < 0 ? errno : 0;
}
static int try_capability(void)
{
	return prctl(PR_CAPBSET_READ, 21 /* SYS_ADMIN */, 0, 0, 0) == 0 ? EPERM : 0;
}

static const struct {
	const char *what, *refused_by;
	int (*fn)(void);
	int want[3];
} rows[] = {
	{"open a path of the host", "4 root", try_host_path, {ENOENT, EACCES}},
	{"leave the staging folder by ..", "4 root", try_dotdot, {ENOENT, EACCES}},
	{"write to the root", "4 root", try_write_root, {EROFS, EACCES}},
	{"make a file in the staging folder", "allowed", try_stage, {0}},
	{"make it by its path", "allowed", try_stage_path, {0}},
	{"make a device", "6 user", try_device, {EPERM}},
	{"run a program of the host", "4 root", try_exec, {ENOENT, EACCES}},
	{"use a descriptor that leaked", "1 descriptors", try_leaked_fd, {EBADF}},
	{"open a read-only file again for writing", "7 Landlock", try_reopen_writable, {EACCES}},
	{"read its own pagemap", "allowed", try_own_pagemap, {0}},
	{"read the host's settings in /proc", "4 root", try_proc_of_host, {ENOENT}},
	{"leave /proc by ..", "4 root", try_proc_dotdot, {ENOENT, EACCES}},
	{"signal the process that started it", "3 namespaces", try_kill_starter, {ESRCH, EPERM}},
	{"ptrace it", "3 namespaces", try_ptrace_starter, {ESRCH, EPERM}},
	{"mount", "6 user", try_mount, {EPERM}},
	{"become root again", "6 user", try_root_back, {EPERM}},
	{"chroot", "6 user", try_chroot, {EPERM}},
	{"connect to a TCP port", "3 namespaces, 7 Landlock", try_tcp, {EACCES, ENETUNREACH}},
	{"listen on a TCP port", "7 Landlock", try_tcp_bind, {EACCES}},
	{"connect to an abstract socket of the host", "3 namespaces", try_abstract_socket,
		{ECONNREFUSED, EPERM}},
	{"profit from a set-uid file", "6 user", try_setuid_file, {EPERM}},
	{"allow itself a core file", "5 limits", try_core, {EPERM}},
	{"hold a capability in the bounding set", "6 user", try_capability, {EPERM}},
};

static int inside(void *arg)
{
	static const char *const none[] = {NULL};
	static const struct jail_folder stage = {.fd = FD_STAGE, .path = "/stage"};
	struct jail_conf c = {.uid = JAIL_UID,
		.nfds = 5,
		.want_proc = true,
		.folders = &stage,
		.nfolders = 1,
		.ro_paths = none,
		.nofile = 64};
	struct err e;
	uint32_t missing;
	int bad = 0;

	if (jail_enter(&c, &G.proc_fd, &missing, &e) < 0) {
		printf("%s\n", e.msg);
		return 1;
	}
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		int got = rows[i].fn();
		bool ok = got == rows[i].want[0] ||
			  (got && (got == rows[i].want[1] || got == rows[i].want[2]));

		printf("%s %-45s %-28s %s\n", ok ? "ok  " : "FAIL", rows[i].what,
			rows[i].refused_by, got ? strerror(got) : "possible");
		bad += !ok;
	}
	return bad;
}

static void what_must_be_impossible_is(void)
{
	char dir[] = "/tmp/jail.XXXXXX", base[] = "/tmp/jail-base.XXXXXX", path[64];
	int fd, file;

	REQUIRE(mkdtemp(dir));
	chmod(dir, 0777);
	file = mkstemp(base);
	REQUIRE(file >= 0 && fchown(file, JAIL_UID, JAIL_UID) == 0);
	close(file);
	file = open(base, O_RDONLY);
	fd = open(dir, O_RDONLY | O_DIRECTORY);
	/* the highest first: none may fall on another's number before that was moved */
	file = fcntl(file, F_DUPFD, 20);
	fd = fcntl(fd, F_DUPFD, 20);
	dup2(fd, FD_STAGE);
	dup2(file, FD_FILE);
	dup2(file, FD_LEAK);
	G.starter = getpid();
	snprintf(G.abstract, sizeof(G.abstract), "mayfly-jail-test-%d", getpid());
	int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_un a = {.sun_family = AF_UNIX};

	memcpy(a.sun_path + 1, G.abstract, strlen(G.abstract));
	CHECK_INT(bind(s, (struct sockaddr *)&a,
			  (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
				      strlen(G.abstract))),
		0);
	CHECK_INT(listen(s, 1), 0);
	CHECK_INT(in_new_pid_namespace(inside, NULL), 0);
	close(s);
	CHECK_INT(unlink(base), 0);
	for (int i = 3; i < 30; i++)
		close(i);
	static const char *const made[] = {"made-inside", "made-by-path", "suid"};

	for (size_t i = 0; i < ARRAY_LEN(made); i++) {
		snprintf(path, sizeof(path), "%s/%s", dir, made[i]);
		CHECK_INT(unlink(path), 0);
	}
	CHECK_INT(rmdir(dir), 0);
}

/* seccomp: the list lets pass what it names, with the argument it names, and kills for anything
 * else */
static int filtered(int what)
{
	static const struct jail_rule r[] = {
		JAIL_CALL(exit_group, "the end"),
		JAIL_CALL_EQ(dup, 0, 1, "only standard output"),
		JAIL_CALL_MASK(mprotect, 2, 4 /* PROT_EXEC */, 0, "never executable"),
	};
	struct err e;

	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (jail_seccomp(r, ARRAY_LEN(r), JAIL_KILL, &e) < 0)
		_exit(50);
	if (what == 0)
		syscall(SYS_dup, 1);
	if (what == 1)
		syscall(SYS_dup, 0);
	if (what == 2)
		syscall(SYS_unshare, CLONE_NEWUSER);
	if (what == 3)
		syscall(SYS_mprotect, &e, 0, 4 /* PROT_EXEC */);
	if (what == 4)
		syscall(SYS_mprotect, NULL, 0, 1 /* PROT_READ */);
	syscall(SYS_exit_group, 0);
	return 0;
}

static void seccomp_kills_for_anything_else(void)
{
	static const int dies[] = {0, 1, 1, 1, 0};

	for (int what = 0; what < (int)ARRAY_LEN(dies); what++) {
		pid_t p = fork();
		int st;

		if (p == 0)
			_exit(filtered(what));
		waitpid(p, &st, 0);
		CHECK_INT(WIFSIGNALED(st) && WTERMSIG(st) == SIGSYS, dies[what]);
		CHECK_INT(WIFEXITED(st) ? WEXITSTATUS(st) : 0, 0);
	}
}

static const struct test tests[] = {
	{"what_must_be_impossible_is", what_must_be_impossible_is},
	{"seccomp_kills_for_anything_else", seccomp_kills_for_anything_else},
};

int main(int argc, char **argv)
{
	if (!inside_can())
		return 77;
	return test_main(argc, argv, tests, ARRAY_LEN(tests));
}
