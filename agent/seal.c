/* SPDX-License-Identifier: Apache-2.0
 *
 * seal.c: capabilities, seccomp and Landlock. Any process of the guest, before it executes the image's programs. Nothing here allocates.
 *
 * The filter is a list of what is refused, not of what is allowed: a session runs any program there
 * is. Namespaces, missing capabilities and read-only mounts refuse the same things. The filter is
 * there because one of these may have a hole.
 */
#include "agent/seal.h"

#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#ifndef AF_VSOCK
#define AF_VSOCK 40
#endif
/* CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET; NEWTIME is in the signal's bits and clone does not take it */
#define NEW_NAMESPACES 0x7e020000u
#define X32_BIT        0x40000000u

#define RET(v)        BPF_STMT(BPF_RET | BPF_K, (v))
#define REFUSE        RET(SECCOMP_RET_ERRNO | EPERM)
#define LOAD(field)   BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define IF(nr, insns) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (nr), 0, (insns))
#define REFUSED(nr)   IF(nr, 1), REFUSE
/* also the character device 0:0, which needs no capability and is an overlay's whiteout */
#define NO_DEVICES(nr, mode)                                                                       \
	IF(nr, 6), LOAD(mode), BPF_STMT(BPF_ALU | BPF_AND | BPF_K, S_IFMT),                        \
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, S_IFCHR, 1, 0),                                \
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, S_IFBLK, 0, 1), REFUSE, RET(SECCOMP_RET_ALLOW)

#if defined(__x86_64__)
static struct sock_filter filter[] = {
	LOAD(arch),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
	RET(SECCOMP_RET_KILL_PROCESS),
	LOAD(nr),
	BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, X32_BIT, 0, 1),
	RET(SECCOMP_RET_ERRNO | ENOSYS),
	/* libc falls back to clone, whose flags can be looked at */
	IF(SYS_clone3, 1),
	RET(SECCOMP_RET_ERRNO | ENOSYS),
	IF(SYS_clone, 4),
	LOAD(args[0]),
	BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, NEW_NAMESPACES, 0, 1),
	REFUSE,
	RET(SECCOMP_RET_ALLOW),
	/* a stream to the host, or to the agent's own port */
	IF(SYS_socket, 4),
	LOAD(args[0]),
	IF(AF_VSOCK, 1),
	REFUSE,
	RET(SECCOMP_RET_ALLOW),
	NO_DEVICES(SYS_mknod, args[1]),
	NO_DEVICES(SYS_mknodat, args[2]),
	/* namespaces and mounts */
	REFUSED(SYS_unshare),
	REFUSED(SYS_setns),
	REFUSED(SYS_mount),
	REFUSED(SYS_umount2),
	REFUSED(SYS_pivot_root),
	REFUSED(SYS_chroot),
	REFUSED(428 /* open_tree */),
	REFUSED(429 /* move_mount */),
	REFUSED(430 /* fsopen */),
	REFUSED(431 /* fsconfig */),
	REFUSED(432 /* fsmount */),
	REFUSED(433 /* fspick */),
	REFUSED(442 /* mount_setattr */),
	REFUSED(467 /* open_tree_attr */),
	REFUSED(SYS_open_by_handle_at),
	/* the kernel's machinery */
	REFUSED(SYS_bpf),
	REFUSED(SYS_perf_event_open),
	REFUSED(SYS_userfaultfd),
	REFUSED(SYS_io_uring_setup),
	REFUSED(SYS_io_uring_enter),
	REFUSED(SYS_io_uring_register),
	REFUSED(SYS_kexec_load),
	REFUSED(SYS_kexec_file_load),
	REFUSED(SYS_init_module),
	REFUSED(SYS_finit_module),
	REFUSED(SYS_delete_module),
	REFUSED(SYS_add_key),
	REFUSED(SYS_request_key),
	REFUSED(SYS_keyctl),
	REFUSED(SYS_fanotify_init),
	REFUSED(SYS_quotactl),
	REFUSED(SYS_swapon),
	REFUSED(SYS_swapoff),
	REFUSED(SYS_reboot),
	REFUSED(SYS_acct),
	REFUSED(SYS_syslog),
	REFUSED(SYS_iopl),
	REFUSED(SYS_ioperm),
	REFUSED(SYS_settimeofday),
	REFUSED(SYS_clock_settime),
	REFUSED(SYS_adjtimex),
	REFUSED(SYS_clock_adjtime),
	REFUSED(SYS_sethostname),
	REFUSED(SYS_setdomainname),
	RET(SECCOMP_RET_ALLOW),
};
static const struct sock_fprog program = {.len = ARRAY_LEN(filter), .filter = filter};

const struct sock_fprog *seal_filter(void)
{
	return &program;
}
#else
const struct sock_fprog *seal_filter(void)
{
	return NULL;
}
#endif

/* <linux/landlock.h> of older distributions lacks the last field */
struct scope_attr {
	uint64_t handled_fs, handled_net, scoped;
};
enum { SCOPE_ABSTRACT_UNIX = 1, SCOPE_SIGNAL = 2 };
#define NR_LANDLOCK_CREATE   444
#define NR_LANDLOCK_RESTRICT 446

int seal_scope(void)
{
	struct scope_attr attr = {.scoped = SCOPE_ABSTRACT_UNIX | SCOPE_SIGNAL};
	long fd = syscall(NR_LANDLOCK_CREATE, &attr, sizeof(attr), 0);

	/* E2BIG and ENOMSG: a kernel that knows fewer fields */
	return fd < 0 ? (errno == E2BIG || errno == ENOMSG ? -ENOSYS : -errno) : (int)fd;
}

static int drop_bounding(void)
{
	for (unsigned long cap = 0; cap < 64; cap++)
		if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0 && errno != EINVAL)
			return -errno;
	return 0;
}

static int drop_capabilities(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct none[2] = {0};

	return syscall(SYS_capset, &head, none) < 0 ? -errno : 0;
}

int seal_apart(void)
{
	int scope = seal_scope(), rc = 0;

	/* kernels without scopes: seal_session() does without them, too */
	if (scope < 0)
		return 0;
	if (syscall(NR_LANDLOCK_RESTRICT, scope, 0) < 0)
		rc = -errno;
	close(scope);
	return rc;
}

int seal_session(uint32_t uid, uint32_t gid, const uint32_t *groups, size_t ngroups)
{
	const struct sock_fprog *f = seal_filter();
	int scope = seal_scope(), rc;

	if (!f)
		return -ENOSYS;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return -errno;
	if (scope >= 0 && syscall(NR_LANDLOCK_RESTRICT, scope, 0) < 0)
		return -errno;
	if (scope >= 0)
		close(scope);
	/* the raw calls: libc's would look for threads */
	if (syscall(SYS_setgroups, ngroups, groups) < 0 ||
		syscall(SYS_setresgid, gid, gid, gid) < 0)
		return -errno;
	/* the bounding set first, while CAP_SETPCAP is there: no execve of root brings one back */
	rc = drop_bounding();
	if (rc == 0 && syscall(SYS_setresuid, uid, uid, uid) < 0)
		rc = -errno;
	if (rc == 0)
		rc = drop_capabilities();
	if (rc < 0)
		return rc;
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, f, 0, 0) < 0 ? -errno : 0;
}
