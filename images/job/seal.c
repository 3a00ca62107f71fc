/* SPDX-License-Identifier: Apache-2.0
 *
 * seal.c: the jail of mayfly-image: two lists of system calls, one for every job, one more for pulls. The mount namespace and Landlock
 * allow a job the files in its staging folder, and a pull those in `shown`, too. Seccomp ends it at any other system call.
 */
#include "images/job/seal.h"

#include <fcntl.h>
#include <seccomp.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>

/* why a row stays that no test calls (tests/unit/seal.c compares) */
#define DYING      "only on the way to an abort: tests/platform/sealed.c takes it"
#define OTHER_LIBC "glibc before 2.33 and from 2.39 on, musl: their fstat is this call"
#define NO_VDSO    "hosts whose clock source the vDSO cannot read (hpet, acpi_pm), which then calls"
#define NEWER_CURL "versions of libcurl that wake themselves another way than by a socket pair"

static const struct jail_rule every_job[] = {
	JAIL_CALL(read, "stagefile.c, import.c"),
	JAIL_CALL(write, "stagefile.c: write_full"),
	JAIL_CALL(pread64, "stream.c: on_read"),
	JAIL_CALL(pwrite64, "blocks.c: drain; libext2fs"),
	JAIL_CALL(lseek, "rootfs.c: import_open_tar; libext2fs"),
	JAIL_CALL(openat, "job.c: do_build; stagefile.c"),
	JAIL_CALL(close, "everywhere"),
	JAIL_CALL(fcntl, "ext4.c: dup; libext2fs"),
	JAIL_CALL(fstat, "stagefile.c: fd_slurp", .unseen = OTHER_LIBC),
	JAIL_CALL(newfstatat, "glibc's fstat; import.c"),
	JAIL_CALL(faccessat2, "rootfs.c: import_guess"),
	JAIL_CALL(ftruncate, "ext4.c: ext4_write"),
	JAIL_CALL(fallocate, "blocks.c: blocks_flush; libext2fs"),
	JAIL_CALL(sync_file_range, "blocks.c: drain"),
	JAIL_CALL(fsync, "ext4.c, build.c"),
	JAIL_CALL(renameat, "stagefile.c: stagefile_end"),
	JAIL_CALL(unlinkat, "stagefile.c: stagefile_abort"),
	JAIL_CALL(getdents64, "rootfs.c: import_rootfs_dir"),
	JAIL_CALL(fchdir, "rootfs.c: import_rootfs_dir"),
	JAIL_CALL(fstatfs, "libarchive's reader of folders"),
	JAIL_CALL(readlinkat, "libarchive's reader of folders"),
	JAIL_CALL(flistxattr, "libarchive's reader of folders"),
	JAIL_CALL(llistxattr, "libarchive's reader of folders"),
	JAIL_CALL(fgetxattr, "libarchive's reader of folders"),
	JAIL_CALL(lgetxattr, "libarchive's reader of folders"),
	JAIL_CALL(getxattr, "libarchive's reader of folders"),
	JAIL_CALL(umask, "libarchive's reader of folders"),
	JAIL_CALL_MASK(ioctl, 1, 0xffffffff, 0x80086601,
		"libarchive's reader of folders: FS_IOC_GETFLAGS"),
	JAIL_CALL_MASK(
		ioctl, 1, 0xffffffff, 0x127c, "libext2fs: BLKDISCARDZEROES, refused by a file"),
	JAIL_CALL(sendmsg, "channel.c: job_send"),
	JAIL_CALL(recvmsg, "job.c: job_recv"),
	JAIL_CALL_MASK(mmap, 2, PROT_EXEC, 0, "malloc, thread stacks"),
	JAIL_CALL_MASK(mprotect, 2, PROT_EXEC, 0, "malloc, thread stacks"),
	JAIL_CALL(munmap, "malloc"),
	JAIL_CALL(mremap, "malloc"),
	JAIL_CALL(madvise, "malloc, thread stacks"),
	JAIL_CALL(brk, "malloc"),
	{.nr = SCMP_SYS(clone3),
		.need = "its flags cannot be seen: the C library then takes clone",
		.refuse = ENOSYS},
	JAIL_CALL_MASK(clone, 0, 0x00010000, 0x00010000, "pthread_create: CLONE_THREAD only"),
	JAIL_CALL(futex, "stream.c: condition variables"),
	JAIL_CALL(set_robust_list, "pthread_create"),
	JAIL_CALL(rseq, "pthread_create"),
	JAIL_CALL(rt_sigprocmask, "pthread_create, libcurl"),
	JAIL_CALL(rt_sigaction, "libcurl, abort"),
	JAIL_CALL(getrandom, "stagefile.c: names; libcrypto"),
	JAIL_CALL(clock_gettime, "hosts without vdso time", .unseen = NO_VDSO),
	JAIL_CALL(gettimeofday, "hosts without vdso time", .unseen = NO_VDSO),
	JAIL_CALL(getpid, "libcrypto, abort"),
	JAIL_CALL(gettid, "abort", .unseen = DYING),
	JAIL_CALL(tgkill, "ASSERT: abort", .unseen = DYING),
	JAIL_CALL_EQ(prctl, 0, PR_GET_DUMPABLE, "libext2fs: may it believe its environment"),
	JAIL_CALL(getuid, "libext2fs"),
	JAIL_CALL(geteuid, "libext2fs"),
	JAIL_CALL(getgid, "libext2fs"),
	JAIL_CALL(getegid, "libext2fs"),
	JAIL_CALL(sysinfo, "qsort of many"),
	JAIL_CALL(restart_syscall, "poll, after a stop"),
	JAIL_CALL(exit, "threads"),
	JAIL_CALL(exit_group, "main.c"),
};

static const struct jail_rule pulls[] = {
	JAIL_CALL_EQ(socket, 0, AF_INET, "web.c: on_socket; resolver"),
	JAIL_CALL_EQ(socket, 0, AF_INET6, "web.c: on_socket; resolver"),
	JAIL_CALL_EQ(socket, 0, AF_UNIX, "glibc looks for nscd: not there in the jail"),
	JAIL_CALL_EQ(socket, 0, AF_NETLINK, "resolver: sorts several addresses"),
	JAIL_CALL_EQ(socketpair, 0, AF_UNIX, "libcurl's resolver thread"),
	JAIL_CALL(connect, "libcurl"),
	JAIL_CALL(bind, "the same"),
	JAIL_CALL(getsockname, "libcurl"),
	JAIL_CALL(getpeername, "libcurl"),
	JAIL_CALL(getsockopt, "libcurl"),
	JAIL_CALL(setsockopt, "libcurl"),
	JAIL_CALL(sendto, "libcurl, resolver"),
	JAIL_CALL(recvfrom, "libcurl, resolver"),
	JAIL_CALL(sendmmsg, "resolver"),
	JAIL_CALL(uname, "resolver: its own domain"),
	JAIL_CALL(poll, "libcurl"),
	JAIL_CALL(pipe2, "libcurl", .unseen = NEWER_CURL),
	JAIL_CALL(eventfd2, "libcurl", .unseen = NEWER_CURL),
	JAIL_CALL(rt_sigreturn, "libcurl",
		.unseen = "versions of libcurl that cancel the resolver's thread, by a signal "
			  "(8.16)"),
	JAIL_CALL_MASK(ioctl, 1, 0xffffffff, 0x541b, "resolver: FIONREAD"),
};

static_assert(ARRAY_LEN(every_job) + ARRAY_LEN(pulls) <= JOB_RULES_MAX, "every list fits");

size_t job_rules(bool net, struct jail_rule to[static JOB_RULES_MAX])
{
	size_t n = ARRAY_LEN(every_job);

	memcpy(to, every_job, sizeof(every_job));
	if (net) {
		memcpy(to + n, pulls, sizeof(pulls));
		n += ARRAY_LEN(pulls);
	}
	return n;
}

static int allow_calls(bool net, struct err *e)
{
	struct jail_rule all[JOB_RULES_MAX];

	return jail_seccomp(all, job_rules(net, all), JAIL_KILL, e);
}

int job_sandbox(unsigned long uid, bool net, struct err *e)
{
	static const char *const shown[] = {
		"/etc/resolv.conf",
		"/etc/hosts",
		"/etc/nsswitch.conf",
		"/etc/gai.conf",
		"/etc/ssl",
		"/usr/share/ca-certificates",
		NULL,
	};
	static const struct jail_folder stage = {.fd = 4, .path = "/stage"};
	struct jail_conf c = {
		.uid = (uid_t)uid,
		.nfds = 5,
		.keep_net = net,
		.folders = &stage,
		.nfolders = 1,
		.ro_paths = net ? shown : NULL,
		.nofile = 256,
		.allow_weaker = true,
	};
	uint32_t missing = 0;
	int proc = -1, r = 0;

	if (uid)
		r = jail_enter(&c, &proc, &missing, e);
	else if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		r = err_set(e, errno, "no new privileges");
	return r < 0 ? r : allow_calls(net, e);
}
