/* SPDX-License-Identifier: Apache-2.0
 *
 * seal.c: see seal.h. mayflyd, once, from its main thread, before there are others. Reads nothing
 * hostile. Landlock and the mount namespace limit what can be opened. This list
 * forbids the rest: no program is started, no memory becomes code, no namespace, mount, key, trace or
 * kernel module is made.
 *
 * A call that is not listed fails like on a kernel that lacks it: the daemon serves everybody and
 * does not end because of one.
 */
#include "api/core/seal.h"

#include <fcntl.h>
#include <linux/fsverity.h>
#include <seccomp.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>

/* why a row stays although no test makes its call (tests/unit/seal.c compares) */
#define NEWER_LIBC "glibc before 2.33 and from 2.39 on, musl: their fstat is this call"
#define NO_VDSO    "hosts whose clock source the vDSO cannot read (hpet, acpi_pm), which then calls"
#define STOPPED    "poll and clock_nanosleep, stopped and continued by the host's owner"

static const struct jail_rule rules[] = {
	/* loop, HTTP, monitors, agents, helper */
	JAIL_CALL(read, "sockets, files"),
	JAIL_CALL(write, "sockets, files, log"),
	JAIL_CALL(epoll_wait, "lib/loop"),
	JAIL_CALL(epoll_ctl, "lib/loop"),
	JAIL_CALL(accept4, "HTTP, the guests' ready connections"),
	JAIL_CALL_EQ(socket, 0, AF_UNIX, "monitors, agents"),
	JAIL_CALL_EQ(socketpair, 0, AF_UNIX, "image jobs"),
	JAIL_CALL(connect, "monitors, agents"),
	JAIL_CALL(bind, "monitors.c: listener"),
	JAIL_CALL(listen, "monitors.c: listener"),
	JAIL_CALL(recvmsg, "descriptors from helper and monitors"),
	/* MSG_FASTOPEN is refused: it connects a TCP socket, which Landlock does not check */
	JAIL_CALL_MASK(sendmsg, 2, MSG_FASTOPEN, 0, "descriptors to them"),
	JAIL_CALL(recvfrom, "HTTP, agents"),
	JAIL_CALL_MASK(sendto, 3, MSG_FASTOPEN, 0, "HTTP, agents"),
	JAIL_CALL(shutdown, "HTTP, proxied connections"),
	JAIL_CALL(setsockopt, "TCP_NODELAY, buffers"),
	JAIL_CALL(getsockname, "HTTP"),
	JAIL_CALL_EQ(getsockopt, 2, SO_PEERCRED, "HTTP: who is at the other end of a Unix socket",
		.unseen = "the traced tests ask over TCP"),
	JAIL_CALL(geteuid, "HTTP: whether that is our own user",
		.unseen = "the traced tests ask over TCP"),
	JAIL_CALL(poll, "helper_client.c waits for the helper's answer at start",
		.unseen = "a helper so busy that its socket is full"),
	JAIL_CALL(close, "all descriptors"),
	JAIL_CALL(fcntl, "O_NONBLOCK, close-on-exec, SQLite's locks"),
	JAIL_CALL(memfd_create, "monitors.c: last words"),
	/* state, images, disks, snapshots: below its own folders */
	JAIL_CALL(openat, "state, images, blobs"),
	JAIL_CALL(newfstatat, "stat and fstat of the C library"),
	JAIL_CALL(fstat, "the same, older", .unseen = NEWER_LIBC),
	JAIL_CALL(access, "SQLite: where its temporary files may be",
		.unseen = "a statement that changes or sorts more than SQLite keeps in memory"),
	JAIL_CALL(faccessat2, "stores"),
	JAIL_CALL(getdents64, "sweeping stores"),
	JAIL_CALL(mkdir, "slots, stores"),
	JAIL_CALL(mkdirat, "staging, stores"),
	JAIL_CALL(rmdir, "slots"),
	JAIL_CALL(unlink, "sockets, SQLite's journals"),
	JAIL_CALL(unlinkat, "blobs, staging"),
	JAIL_CALL(renameat, "stores: a thing has its name when it is whole"),
	JAIL_CALL(fchmod, "state files, sockets"),
	JAIL_CALL(utimensat, "when an image was last used"),
	JAIL_CALL(flock, "stores"),
	JAIL_CALL(pread64, "SQLite, snapshot heads"),
	JAIL_CALL(pwrite64, "SQLite, layers"),
	JAIL_CALL(lseek, "files_check.c, verify.c: holes of a disk's index and bitmaps"),
	JAIL_CALL(ftruncate, "new layers, SQLite"),
	JAIL_CALL(copy_file_range, "own_base.c",
		.unseen = "runtime.share_memory = false is not set in the traced tests"),
	JAIL_CALL(fsync, "durable before it is answered"),
	JAIL_CALL(fdatasync, "durable before it is answered"),
	JAIL_CALL(statfs, "room left"),
	JAIL_CALL(fstatfs, "room left"),
	JAIL_CALL(statx, "verify.c: whether the kernel watches a file"),
	JAIL_CALL_EQ(ioctl, 1, FS_IOC_ENABLE_VERITY, "verify.c: the kernel watches it from now on"),
	JAIL_CALL(sysinfo, "admission",
		.unseen = "the tests set limits.memory_mib, and sort no long lists"),
	/* memory: never executable */
	JAIL_CALL_MASK(mmap, 2, PROT_EXEC, 0, "heap, SQLite's shared memory, thread stacks"),
	JAIL_CALL_MASK(mprotect, 2, PROT_EXEC, 0, "heap, thread stacks"),
	JAIL_CALL(munmap, "heap"),
	JAIL_CALL(mremap, "lib/buf.c: what grows beyond 128 KiB"),
	JAIL_CALL(madvise, "heap, thread stacks"),
	JAIL_CALL(brk, "heap"),
	/* threads */
	/* clone3 is not listed, because seccomp cannot see its flags: the C library uses clone when
	   clone3 fails with ENOSYS */
	JAIL_CALL_MASK(clone, 0, CLONE_THREAD, CLONE_THREAD, "workers; never a process"),
	JAIL_CALL(set_robust_list, "thread start"),
	JAIL_CALL(rseq, "thread start"),
	JAIL_CALL(futex, "locks"),
	JAIL_CALL(rt_sigprocmask, "thread start"),
	JAIL_CALL(rt_sigaction, "the C library's own signal, at the first thread"),
	JAIL_CALL(tgkill, "abort; fault.c: raise"),
	JAIL_CALL(gettid, "the same; verify.c"),
	JAIL_CALL_EQ(setpriority, 2, 19, "verify.c: its thread is served last"),
	JAIL_CALL(getpid, "SQLite, abort"),
	JAIL_CALL(restart_syscall, "after a stop", .unseen = STOPPED),
	JAIL_CALL(clock_gettime, "where the vDSO cannot", .unseen = NO_VDSO),
	JAIL_CALL(gettimeofday, "the same", .unseen = NO_VDSO),
	JAIL_CALL(clock_nanosleep, "SQLite's busy handler",
		.unseen = "somebody else, the host's owner, has the state file locked"),
	JAIL_CALL(getrandom, "ids, keys"),
	JAIL_CALL(exit, "threads"),
	JAIL_CALL(exit_group, "the end"),
};
static_assert(ARRAY_LEN(rules) <= DAEMON_RULES_MAX, "the list fits");

int daemon_landlock(const char *state_dir, const char *run_dir, struct err *e)
{
	const struct jail_path paths[] = {{state_dir, true}, {run_dir, true}, {"/dev/null", true},
		{"/dev/urandom", false}, {"/proc", false}, {"/sys/devices/system/cpu", false},
		{"/sys/fs/cgroup", false}, {"/etc/localtime", false}};

	return jail_landlock(paths, ARRAY_LEN(paths), true, e);
}

size_t daemon_rules(struct jail_rule to[static DAEMON_RULES_MAX])
{
	memcpy(to, rules, sizeof(rules));
	return ARRAY_LEN(rules);
}

int daemon_seal(struct err *e)
{
	/* The daemon has TCP sockets: its listeners. seccomp cannot see whether a connect() is to a TCP address, so Landlock refuses those. */
	int rc = jail_landlock_tcp(e);

	if (rc < 0 && rc != -EOPNOTSUPP)
		return rc;
	return jail_seccomp(rules, ARRAY_LEN(rules), JAIL_REFUSE, e);
}
