/* SPDX-License-Identifier: Apache-2.0
 *
 * seal.c: the jail of mayfly-fs: its stages, and the system calls that serving volumes needs. The file system calls work on
 * descriptors beneath the volumes: the mount namespace and Landlock hide everything else.
 */
#include "fs/seal.h"

#include <fcntl.h>
#include <seccomp.h>
#include <linux/capability.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* why a row stays that no test calls (tests/unit/seal.c compares) */
#define DYING   "only on the way to an abort"
#define NO_VDSO "hosts whose clock source the vDSO cannot read (hpet, acpi_pm), which then calls"

#define SET_ID (S_ISUID | S_ISGID)

static const struct jail_rule rules[] = {
	JAIL_CALL(read, "server.c: requests"),
	JAIL_CALL(sendmsg, "server.c: replies"),
	JAIL_CALL(shutdown, "server.c: the workers end together"),
	/* no set-id bit of a new file: openat2 and fchmodat2 would be ways around that, and are not in the list */
	JAIL_CALL_MASK(
		openat, 3, SET_ID, 0, "nodes.c: node_open, open_beneath; ops_name.c: create"),
	JAIL_CALL(close, "everywhere"),
	JAIL_CALL(statx, "nodes.c: stat_beneath"),
	JAIL_CALL(fstatfs, "ops_attr.c: statfs"),
	JAIL_CALL(pread64, "ops_file.c: read"),
	JAIL_CALL(pwritev2, "ops_file.c: write"),
	JAIL_CALL(getdents64, "ops_dir.c: list_folder"),
	JAIL_CALL(lseek, "ops_dir.c: list_folder; ops_file.c: holes"),
	JAIL_CALL(ftruncate, "ops_attr.c: set_size"),
	JAIL_CALL(fallocate, "ops_file.c: op_fallocate"),
	JAIL_CALL(copy_file_range, "ops_file.c"),
	JAIL_CALL(fsync, "ops_file.c: op_fsync"),
	JAIL_CALL(fdatasync, "ops_file.c: op_fsync"),
	JAIL_CALL(syncfs, "ops_file.c: op_syncfs",
		.unseen = "asked for by virtio-fs, not by this host's FUSE client"),
	JAIL_CALL_MASK(mkdirat, 2, SET_ID, 0, "ops_name.c"),
	JAIL_CALL_MASK(mknodat, 2, S_IFMT | SET_ID, S_IFREG, "ops_name.c: make_node"),
	JAIL_CALL_MASK(mknodat, 2, S_IFMT | SET_ID, S_IFIFO, "ops_name.c: make_node"),
	JAIL_CALL_MASK(mknodat, 2, S_IFMT | SET_ID, S_IFSOCK, "ops_name.c: make_node"),
	JAIL_CALL(symlinkat, "ops_name.c"),
	JAIL_CALL(linkat, "ops_name.c"),
	JAIL_CALL(unlinkat, "ops_name.c"),
	JAIL_CALL(renameat2, "ops_name.c"),
	JAIL_CALL(readlinkat, "ops_name.c"),
	JAIL_CALL(fchownat, "ops_name.c: own_fd; ops_attr.c: set_owner"),
	JAIL_CALL_MASK(chmod, 1, SET_ID, 0, "ops_attr.c: set_mode"),
	JAIL_CALL(utimensat, "ops_attr.c: set_times"),
	JAIL_CALL(setxattr, "ops_attr.c"),
	JAIL_CALL(getxattr, "ops_attr.c"),
	JAIL_CALL(listxattr, "ops_attr.c"),
	JAIL_CALL(removexattr, "ops_attr.c"),
	JAIL_CALL(fstat, "nodes.c: nodes_open", .unseen = "glibc before 2.33 and from 2.39 on"),
	JAIL_CALL(newfstatat, "nodes.c: nodes_open"),
	JAIL_CALL(prlimit64, "main.c: cache_size"),
	JAIL_CALL_MASK(mmap, 2, PROT_EXEC, 0, "malloc, thread stacks, the table"),
	JAIL_CALL_MASK(mprotect, 2, PROT_EXEC, 0, "malloc, thread stacks"),
	JAIL_CALL(munmap, "malloc"),
	JAIL_CALL(madvise, "thread stacks"),
	JAIL_CALL(brk, "malloc", .unseen = "a heap that grows beyond its size at the seal"),
	{.nr = SCMP_SYS(clone3),
		.need = "its flags cannot be seen: the C library then takes clone",
		.refuse = ENOSYS},
	JAIL_CALL_MASK(clone, 0, 0x00010000, 0x00010000, "pthread_create: CLONE_THREAD only"),
	JAIL_CALL(futex, "nodes.c: mutexes"),
	JAIL_CALL(set_robust_list, "pthread_create"),
	JAIL_CALL(rseq, "pthread_create"),
	JAIL_CALL(rt_sigprocmask, "pthread_create"),
	JAIL_CALL(rt_sigaction, "pthread_create: the first thread"),
	JAIL_CALL(clock_gettime, "hosts without vdso time", .unseen = NO_VDSO),
	JAIL_CALL(write, "log.c: its one line; ASSERT"),
	JAIL_CALL(getpid, "abort", .unseen = DYING),
	JAIL_CALL(gettid, "abort", .unseen = DYING),
	JAIL_CALL(tgkill, "ASSERT: abort", .unseen = DYING),
	JAIL_CALL(restart_syscall, "after a stop",
		.unseen = "a process that is stopped and continued"),
	JAIL_CALL(exit, "threads"),
	JAIL_CALL(exit_group, "main.c"),
};
static_assert(ARRAY_LEN(rules) <= FS_RULES_MAX, "the list fits");

size_t fs_rules(struct jail_rule to[static FS_RULES_MAX])
{
	memcpy(to, rules, sizeof(rules));
	return ARRAY_LEN(rules);
}

/* Files of a claim keep the guest's owners, so the process has to be user 0 over a range of ids. There it may change owners and bypass
 * permission checks: the guest's kernel has made them. */
#define FS_CAPS (1u << CAP_CHOWN | 1u << CAP_DAC_OVERRIDE | 1u << CAP_FOWNER)

/* As many as the host allows to this process, up to FS_NOFILE. */
static unsigned int most_descriptors(void)
{
	struct rlimit r;

	if (getrlimit(RLIMIT_NOFILE, &r) < 0)
		return 0;
	return (unsigned int)MIN(r.rlim_max, (rlim_t)FS_NOFILE);
}

static int enter_jail(const struct fs_jail *j, int *proc, struct err *e)
{
	struct jail_folder folders[FS_VOLUMES_MAX];
	char paths[FS_VOLUMES_MAX][32];
	struct jail_conf c = {
		.uid = (uid_t)j->uid,
		.nids = FS_IDS,
		.keep_caps = FS_CAPS,
		.nfds = (unsigned int)j->first + j->n,
		.want_proc = true,
		.folders = folders,
		.nfolders = j->n,
		.nofile = most_descriptors(),
		.allow_weaker = true,
	};
	uint32_t missing = 0;

	for (unsigned int i = 0; i < j->n; i++) {
		snprintf(paths[i], sizeof(paths[i]), "/volume%u", i);
		folders[i] = (struct jail_folder){.fd = j->first + (int)i,
			.path = paths[i],
			.read_only = j->read_only[i],
			.handle_only = true};
	}
	return jail_enter(&c, proc, &missing, e);
}

int fs_seal(const struct fs_jail *j, struct err *e)
{
	int proc = -1, fds;

	if (j->uid && enter_jail(j, &proc, e) < 0)
		return -e->code;
	fds = openat(j->uid ? proc : AT_FDCWD, j->uid ? "self/fd" : "/proc/self/fd",
		O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fds < 0 || fchdir(fds) < 0)
		return err_set(e, errno, "making /proc/self/fd the working folder");
	close(fds);
	if (proc >= 0)
		close(proc);
	umask(0); /* the guest's kernel has applied the umask already */
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return err_set(e, errno, "no new privileges");
	return jail_seccomp(rules, ARRAY_LEN(rules), JAIL_KILL, e);
}
