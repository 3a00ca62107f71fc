/* SPDX-License-Identifier: Apache-2.0
 *
 * seal.c: see seal.h. mayfly-vmm. No hostile bytes. Three lists: the device thread's, which every
 * later thread and child inherits; and two that are set on top of it: the vCPUs', with little more
 * than KVM_RUN, and the snapshot writer's, with files only. Each row says what needs it.
 *
 * TRAP and not KILL: the handler of crash.c leaves the number in the last words. The handler cannot be replaced: rt_sigaction is
 * allowed for signal 33 only.
 */
#include "vmm/seal.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/kvm.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "lib/log.h"
#include "lib/proto_vmm.h"
#include "vmm/kvm.h"

#define VMM_NOFILE 1600u /* 512 streams with both ends, disks, eventfds */
#define NEW_ANYTHING                                                                               \
	(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | \
		CLONE_NEWCGROUP)
#define PAGEMAP_SCAN_NR 0xc0606610u /* _IOWR('f', 16, struct pm_scan_arg), Linux 6.7 */

/* Reasons for rows that no test calls (tests/unit/seal.c compares) */
#define DYING                                                                                      \
	"only on the way to an abort, whose report must get out: tests/platform/sealed.c takes "   \
	"it on each kind of thread"
#define NEWER_LIBC "glibc before 2.33 and from 2.39 on, musl: their fstat is this call"
#define NO_VDSO    "hosts whose clock source the vDSO cannot read (hpet, acpi_pm), which then calls"
#define THREAD_ENDS                                                                                \
	"vCPUs end before their process only if a VM's preparation fails (vcpus_destroy): "        \
	"tests/platform/sealed.c has one that ends"
#define GROWS                                                                                      \
	"lib/buf.c, pagemap.c: a list that grows beyond 128 KiB, where the C library maps it by "  \
	"itself"

static const struct jail_rule device[] = {
	/* loop, control, vsock */
	JAIL_CALL(read, "eventfds, streams, snapshot files"),
	JAIL_CALL(write, "eventfds, log, snapshot files"),
	JAIL_CALL(readv, "vsock: socket to guest memory"),
	JAIL_CALL(epoll_wait, "lib/loop"),
	JAIL_CALL(epoll_ctl, "lib/loop"),
	JAIL_CALL(eventfd2, "irqfds and ioeventfds of PREPARE"),
	JAIL_CALL(pipe2, "how a snapshot child says that it is done"),
	JAIL_CALL(accept4, "control and vsock listeners"),
	JAIL_CALL(recvmsg, "control messages with descriptors"),
	JAIL_CALL(sendmsg, "control answers and events"),
	JAIL_CALL(sendto, "vsock: MSG_NOSIGNAL"),
	JAIL_CALL(shutdown, "vsock: half-close"),
	JAIL_CALL_EQ(getsockopt, 1, SOL_SOCKET, "what kind of control socket was given"),
	JAIL_CALL_EQ(socketpair, 0, AF_UNIX, "guest-to-host streams"),
	JAIL_CALL(close, "all descriptors"),
	JAIL_CALL(close_range, "the snapshot child keeps files only"),
	JAIL_CALL(dup3, "a frozen layer's descriptor is replaced by a read-only one"),
	JAIL_CALL_EQ(fcntl, 1, F_GETFL, "O_NONBLOCK"),
	JAIL_CALL_EQ(fcntl, 1, F_SETFL, "O_NONBLOCK"),
	/* disks, snapshot and restore */
	JAIL_CALL(pread64, "layer and snapshot headers"),
	JAIL_CALL(pwrite64, "bitmaps, snapshot files, last words"),
	JAIL_CALL(preadv, "block fallback without io_uring"),
	JAIL_CALL(pwritev, "block fallback, memory files"),
	JAIL_CALL(fsync, "durable before it is said"),
	JAIL_CALL(fdatasync, "durable before it is said"),
	JAIL_CALL(fallocate, "discard; memory files are preallocated"),
	JAIL_CALL(ftruncate, "new layers and snapshot files"),
	JAIL_CALL(lseek, "holes of memory files"),
	JAIL_CALL(fstat, "file sizes before mapping", .unseen = NEWER_LIBC),
	JAIL_CALL(newfstatat, "fstat of newer C libraries"),
	JAIL_CALL(io_uring_enter, "block requests; the ring itself is restricted in bio.c"),
	JAIL_CALL_EQ(ioctl, 1, PAGEMAP_SCAN_NR, "what changed since the restore"),
	/* memory: never executable */
	JAIL_CALL_MASK(mmap, 2, PROT_EXEC, 0, "guest memory, extents, kvm_run, heap"),
	JAIL_CALL_MASK(mprotect, 2, PROT_EXEC, 0, "guest memory, heap"),
	JAIL_CALL(munmap, "heap, a child drops kvm_run"),
	JAIL_CALL(mremap, "populate.c moves ready pages into the guest; large buffers grow"),
	JAIL_CALL(madvise, "huge pages, populate, thread stacks"),
	JAIL_CALL(brk, "heap"),
	/* threads, the snapshot child */
	{.nr = SCMP_SYS(clone3),
		.need = "its flags cannot be seen: the C library then takes clone",
		.refuse = ENOSYS},
	JAIL_CALL_MASK(clone, 0, NEW_ANYTHING, 0, "vCPU threads, fork of the snapshot writer"),
	JAIL_CALL_EQ(rt_sigaction, 0, 33,
		"the C library's own signal, at the first thread; no other handler can be set"),
	JAIL_CALL_EQ(prlimit64, 1, RLIMIT_FSIZE, "how long a file may become: only ever less"),
	JAIL_CALL_EQ(seccomp, 0, 1, "a vCPU thread puts its own list on top: only ever less"),
	JAIL_CALL_EQ(prctl, 0, 15, "PR_SET_NAME of a vCPU's thread"),
	JAIL_CALL_EQ(prctl, 0, 38, "PR_SET_NO_NEW_PRIVS, once more by libseccomp"),
	JAIL_CALL(set_robust_list, "thread start"),
	JAIL_CALL(rseq, "thread start"),
	JAIL_CALL(futex, "locks"),
	JAIL_CALL(tgkill, "kick a vCPU out of KVM_RUN, abort"),
	JAIL_CALL(gettid, "abort", .unseen = DYING),
	JAIL_CALL(getpid, "abort"),
	JAIL_CALL(rt_sigprocmask, "thread start"),
	JAIL_CALL(rt_sigreturn, "kicks, crash report"),
	JAIL_CALL(sched_yield, "crash.c: a second thread that dies waits for the first",
		.unseen = DYING),
	JAIL_CALL(wait4, "the snapshot child's end"),
	JAIL_CALL(clock_gettime, "where the vDSO cannot", .unseen = NO_VDSO),
	JAIL_CALL(getrandom, "rng device, vmgenid"),
	JAIL_CALL(getrusage, "VMM_STATS"),
	JAIL_CALL(exit, "populate.c: its thread ends when the working set is there"),
	JAIL_CALL(exit_group, "the end"),
};

#define ROW(ioctl_nr, why, ...)                                                                    \
	{                                                                                          \
		.nr = (ioctl_nr), .need = (why), __VA_ARGS__                                       \
	}

/* The ioctls of KVM, and the step that needs each. */
static const struct {
	unsigned long nr;
	const char *need, *unseen;
} kvm_calls[] = {
	ROW(KVM_GET_API_VERSION, "open"),
	ROW(KVM_CHECK_EXTENSION, "open"),
	ROW(KVM_GET_VCPU_MMAP_SIZE, "open"),
	ROW(KVM_CREATE_VM, "prepare"),
	ROW(KVM_GET_SUPPORTED_CPUID, "prepare"),
	ROW(KVM_SET_TSS_ADDR, "prepare"),
	ROW(KVM_SET_IDENTITY_MAP_ADDR, "prepare"),
	ROW(KVM_CREATE_IRQCHIP, "prepare"),
	ROW(KVM_SET_USER_MEMORY_REGION, "prepare"),
	ROW(KVM_CREATE_VCPU, "prepare"),
	ROW(KVM_SET_CPUID2, "prepare"),
	ROW(KVM_IRQFD, "prepare"),
	ROW(KVM_IOEVENTFD, "prepare, queues"),
	ROW(KVM_GET_TSC_KHZ, "prepare"),
	ROW(KVM_SET_TSC_KHZ, "restore", .unseen = "a snapshot of a host with another clock rate"),
	ROW(KVM_GET_STATS_FD, "prepare: counters of exits, read by VMM_STATS"),
	ROW(KVM_RUN, "vCPUs"),
	ROW(KVM_PRE_FAULT_MEMORY, "restore"),
	ROW(KVM_GET_REGS, "state"),
	ROW(KVM_SET_REGS, "state"),
	ROW(KVM_GET_SREGS, "state"),
	ROW(KVM_SET_SREGS, "state"),
	ROW(KVM_GET_MSRS, "state"),
	ROW(KVM_SET_MSRS, "state"),
	ROW(KVM_GET_XSAVE, "state"),
	ROW(KVM_GET_XSAVE2, "state",
		.unseen = "processors whose state is larger than a page (AMX)"),
	ROW(KVM_SET_XSAVE, "state"),
	ROW(KVM_GET_XCRS, "state"),
	ROW(KVM_SET_XCRS, "state"),
	ROW(KVM_GET_DEBUGREGS, "state"),
	ROW(KVM_SET_DEBUGREGS, "state"),
	ROW(KVM_GET_LAPIC, "state"),
	ROW(KVM_SET_LAPIC, "state"),
	ROW(KVM_GET_MP_STATE, "state"),
	ROW(KVM_SET_MP_STATE, "state"),
	ROW(KVM_GET_VCPU_EVENTS, "state"),
	ROW(KVM_SET_VCPU_EVENTS, "state"),
	ROW(KVM_GET_IRQCHIP, "state"),
	ROW(KVM_SET_IRQCHIP, "state"),
	ROW(KVM_GET_CLOCK, "state"),
	ROW(KVM_SET_CLOCK, "state"),
	ROW(KVM_KVMCLOCK_CTRL, "state"),
	ROW(KVM_NMI, "debug"),
};

static const struct jail_rule vcpu[] = {
	JAIL_CALL_EQ(ioctl, 1, KVM_RUN, "the thread's purpose"),
	JAIL_CALL_EQ(ioctl, 1, KVM_GET_REGS, "why the kernel gave up, for the last words"),
	JAIL_CALL(write, "irqfds, waking the device thread, log"),
	JAIL_CALL(futex, "device locks, the gate"),
	JAIL_CALL(rt_sigreturn, "kicks, crash report"),
	JAIL_CALL(sched_yield, "crash.c: a second thread that dies waits for the first",
		.unseen = DYING),
	JAIL_CALL(clock_gettime, "where the vDSO cannot", .unseen = NO_VDSO),
	JAIL_CALL(pwrite64, "last words", .unseen = DYING),
	JAIL_CALL(madvise, "thread end: its stack", .unseen = THREAD_ENDS),
	JAIL_CALL(rt_sigprocmask, "abort, thread end", .unseen = DYING),
	JAIL_CALL(tgkill, "abort", .unseen = DYING),
	JAIL_CALL(gettid, "abort", .unseen = DYING),
	JAIL_CALL(getpid, "abort", .unseen = DYING),
	JAIL_CALL(exit, "thread end", .unseen = THREAD_ENDS),
	JAIL_CALL(exit_group, "crash report", .unseen = DYING),
};

/* The forked writer of a snapshot: files that it was given, its own memory, nothing of KVM. */
static const struct jail_rule writer[] = {
	JAIL_CALL(pread64, "pagemap before Linux 6.7"),
	JAIL_CALL(write, "memory and state files, the report to its parent"),
	JAIL_CALL(pwrite64, "memory and state files"),
	JAIL_CALL(fsync, "durable before it is said"),
	JAIL_CALL(fdatasync, "the same"),
	JAIL_CALL(fallocate, "delayed allocation is slow for many files"),
	JAIL_CALL(ftruncate, "the length of a memory file"),
	JAIL_CALL(fstat, "sizes", .unseen = NEWER_LIBC),
	JAIL_CALL(newfstatat, "sizes",
		.unseen = "a memory file of its parent is looked at only when a fifth would be too "
			  "many"),
	JAIL_CALL_EQ(ioctl, 1, PAGEMAP_SCAN_NR, "what changed"),
	JAIL_CALL(close, "files"),
	JAIL_CALL_MASK(mmap, 2, PROT_EXEC, 0, "heap, the buffer of a memory file"),
	JAIL_CALL(munmap, "heap"),
	JAIL_CALL(mremap, "heap", .unseen = GROWS),
	JAIL_CALL(madvise, "memory that is written is dropped"),
	JAIL_CALL(brk, "heap"),
	JAIL_CALL(clock_gettime, "where the vDSO cannot", .unseen = NO_VDSO),
	JAIL_CALL(getrandom, "the id of a memory file"),
	JAIL_CALL(rt_sigprocmask, "abort", .unseen = DYING),
	JAIL_CALL(getpid, "abort", .unseen = DYING),
	JAIL_CALL(gettid, "abort", .unseen = DYING),
	JAIL_CALL(tgkill, "abort", .unseen = DYING),
	JAIL_CALL(exit_group, "the end"),
};

static const struct {
	const struct jail_rule *rows;
	size_t n;
	const char *openat; /* what may be opened below its own /proc */
} lists[] = {
	[VMM_T_DEVICE] = {device, ARRAY_LEN(device), "a snapshot writer's own pagemap"},
	[VMM_T_VCPU] = {vcpu, ARRAY_LEN(vcpu), NULL},
	[VMM_T_WRITER] = {writer, ARRAY_LEN(writer), "its own pagemap"},
};
static_assert(ARRAY_LEN(device) + ARRAY_LEN(kvm_calls) + 1 <= VMM_RULES_MAX, "every list fits");

size_t vmm_seal_rules(enum vmm_thread t, int proc_fd, struct jail_rule to[static VMM_RULES_MAX])
{
	size_t n = 0;

	for (; n < lists[t].n; n++)
		to[n] = lists[t].rows[n];
	for (size_t i = 0; t == VMM_T_DEVICE && i < ARRAY_LEN(kvm_calls); i++)
		to[n++] = (struct jail_rule)JAIL_CALL_EQ(ioctl, 1, kvm_calls[i].nr,
			kvm_calls[i].need, .unseen = kvm_calls[i].unseen);
	if (lists[t].openat && proc_fd >= 0)
		to[n++] = (struct jail_rule)JAIL_CALL_EQ(
			openat, 0, (uint64_t)proc_fd, lists[t].openat);
	return n;
}

static int seal(enum vmm_thread t, int proc_fd, struct err *e)
{
	struct jail_rule all[VMM_RULES_MAX];

	return jail_seccomp(all, vmm_seal_rules(t, proc_fd, all), JAIL_TRAP, e);
}

int vmm_jail(uid_t uid, int *proc_fd, uint32_t *missing, struct err *e)
{
	struct jail_conf j = {.uid = uid,
		.nfds = VMM_FD_FIXED_END,
		.want_proc = true,
		.nofile = VMM_NOFILE,
		.allow_weaker = true};

	return jail_enter(&j, proc_fd, missing, e);
}

int vmm_seal(int proc_fd, struct err *e)
{
	return seal(VMM_T_DEVICE, proc_fd, e);
}

static void seal_or_abort(enum vmm_thread t, int proc_fd)
{
	struct err e = {0};

	if (seal(t, proc_fd, &e) < 0) {
		log_error("%s: %s", t == VMM_T_VCPU ? "vCPU thread" : "snapshot writer", e.msg);
		ASSERT(!"a thread without its list");
	}
}

void vmm_seal_vcpu(void)
{
	seal_or_abort(VMM_T_VCPU, -1);
}

void vmm_seal_child(int proc_fd)
{
	seal_or_abort(VMM_T_WRITER, proc_fd);
}
