/* SPDX-License-Identifier: Apache-2.0
 *
 * seal.c: see seal.h. mayfly-vmm. No hostile bytes. Two lists: the device thread's, which every later thread and child inherits, and on top of it
 * the vCPUs', which leaves them little more than KVM_RUN. Each row says what needs it.
 *
 * TRAP and not KILL: the handler of crash.c leaves the number in the last words, and rt_sigaction is not listed, so it cannot be replaced.
 */
#include "vmm/seal.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/kvm.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "lib/jail.h"
#include "lib/log.h"
#include "vmm/kvm.h"

#define NEW_ANYTHING (CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP)
#define PAGEMAP_SCAN_NR 0xc0606610u /* _IOWR('f', 16, struct pm_scan_arg), Linux 6.7 */

static const struct jail_rule device[] = {
	/* loop, control, vsock */
	JAIL_CALL(read, "eventfds, streams, snapshot files"),
	JAIL_CALL(write, "eventfds, log, snapshot files"),
	JAIL_CALL(readv, "vsock: socket to guest memory"),
	JAIL_CALL(writev, "vsock: guest memory to socket"),
	JAIL_CALL(epoll_wait, "lib/loop"),
	JAIL_CALL(epoll_pwait, "lib/loop, where the C library has only this"),
	JAIL_CALL(epoll_ctl, "lib/loop"),
	JAIL_CALL(eventfd2, "irqfds and ioeventfds of PREPARE"),
	JAIL_CALL(pipe2, "how a snapshot child says that it is done"),
	JAIL_CALL(accept4, "control and vsock listeners"),
	JAIL_CALL(recvmsg, "control messages with descriptors"),
	JAIL_CALL(sendmsg, "control answers and events"),
	JAIL_CALL(recvfrom, "vsock: peek for half-close"),
	JAIL_CALL(sendto, "vsock: MSG_NOSIGNAL"),
	JAIL_CALL(shutdown, "vsock: half-close"),
	JAIL_CALL_EQ(getsockopt, 1, SOL_SOCKET, "what kind of control socket was given"),
	JAIL_CALL_EQ(socketpair, 0, AF_UNIX, "guest-to-host streams"),
	JAIL_CALL(close, "all descriptors"),
	JAIL_CALL(close_range, "the snapshot child keeps files only"),
	JAIL_CALL_EQ(fcntl, 1, F_GETFL, "O_NONBLOCK"),
	JAIL_CALL_EQ(fcntl, 1, F_SETFL, "O_NONBLOCK"),
	JAIL_CALL_EQ(fcntl, 1, F_GETFD, "is a descriptor there"),
	JAIL_CALL_EQ(fcntl, 1, F_DUPFD_CLOEXEC, "a disk's files given twice"),
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
	JAIL_CALL(copy_file_range, "folding an old memory file into a new one"),
	JAIL_CALL(sync_file_range, "writing a memory file out early"),
	JAIL_CALL(fstat, "file sizes before mapping"),
	JAIL_CALL(newfstatat, "fstat of newer C libraries"),
	JAIL_CALL(statx, "the same"),
	JAIL_CALL(fstatfs, "what a memory file lies on"),
	JAIL_CALL(readahead, "working set of a restore"),
	JAIL_CALL(fadvise64, "the same"),
	JAIL_CALL(io_uring_enter, "block requests; the ring itself is restricted in bio.c"),
	JAIL_CALL_EQ(ioctl, 1, PAGEMAP_SCAN_NR, "what changed since the restore"),
	/* memory: never executable */
	JAIL_CALL_MASK(mmap, 2, PROT_EXEC, 0, "guest memory, extents, kvm_run, heap"),
	JAIL_CALL_MASK(mprotect, 2, PROT_EXEC, 0, "guest memory, heap"),
	JAIL_CALL(munmap, "heap, a child drops kvm_run"),
	JAIL_CALL(mremap, "large buffers grow"),
	JAIL_CALL(madvise, "huge pages, populate, thread stacks"),
	JAIL_CALL(brk, "heap"),
	/* threads, the snapshot child */
	{.nr = SCMP_SYS(clone3), .need = "its flags cannot be seen: the C library then takes clone", .refuse = ENOSYS},
	JAIL_CALL_MASK(clone, 0, NEW_ANYTHING, 0, "vCPU threads, fork of the snapshot writer"),
	JAIL_CALL_EQ(rt_sigaction, 0, 33, "the C library's own signal, at the first thread; no other handler can be set"),
	JAIL_CALL_EQ(seccomp, 0, 1, "a vCPU thread puts its own list on top: only ever less"),
	JAIL_CALL_EQ(seccomp, 0, 2, "libseccomp asks which actions there are"),
	JAIL_CALL_EQ(prctl, 0, 15, "PR_SET_NAME of a vCPU's thread"),
	JAIL_CALL_EQ(prctl, 0, 38, "PR_SET_NO_NEW_PRIVS, once more by libseccomp"),
	JAIL_CALL(set_robust_list, "thread start"),
	JAIL_CALL(rseq, "thread start"),
	JAIL_CALL(futex, "locks"),
	JAIL_CALL(tgkill, "kick a vCPU out of KVM_RUN, abort"),
	JAIL_CALL(gettid, "abort"),
	JAIL_CALL(getpid, "abort"),
	JAIL_CALL(rt_sigprocmask, "thread start"),
	JAIL_CALL(rt_sigreturn, "kicks, crash report"),
	JAIL_CALL(restart_syscall, "after a stop"),
	JAIL_CALL(sched_yield, "C library locks"),
	JAIL_CALL(pipe2, "the snapshot child says how it went"),
	JAIL_CALL(wait4, "the snapshot child's end"),
	JAIL_CALL(waitid, "the snapshot child's end"),
	JAIL_CALL(pidfd_open, "the snapshot child's end as an event"),
	JAIL_CALL(clock_gettime, "where the vDSO cannot"),
	JAIL_CALL(clock_nanosleep, "C library"),
	JAIL_CALL(getrandom, "rng device, vmgenid"),
	JAIL_CALL(getrusage, "VMM_STATS"),
	JAIL_CALL(exit, "threads"),
	JAIL_CALL(exit_group, "the end"),
};

/* What is asked of KVM, and by which step. */
static const struct {
	unsigned long nr;
	const char *need;
} kvm_calls[] = {
	{KVM_GET_API_VERSION, "open"}, {KVM_CHECK_EXTENSION, "open"}, {KVM_GET_VCPU_MMAP_SIZE, "open"}, {KVM_CREATE_VM, "prepare"},
	{KVM_GET_SUPPORTED_CPUID, "prepare"}, {KVM_GET_MSR_INDEX_LIST, "prepare"}, {KVM_SET_TSS_ADDR, "prepare"},
	{KVM_SET_IDENTITY_MAP_ADDR, "prepare"}, {KVM_CREATE_IRQCHIP, "prepare"}, {KVM_SET_USER_MEMORY_REGION, "prepare"},
	{KVM_CREATE_VCPU, "prepare"}, {KVM_SET_CPUID2, "prepare"}, {KVM_IRQFD, "prepare"}, {KVM_IOEVENTFD, "prepare, queues"},
	{KVM_GET_TSC_KHZ, "prepare"}, {KVM_SET_TSC_KHZ, "restore"}, {KVM_RUN, "vCPUs"}, {KVM_PRE_FAULT_MEMORY, "restore"},
	{KVM_GET_REGS, "state"}, {KVM_SET_REGS, "state"}, {KVM_GET_SREGS, "state"}, {KVM_SET_SREGS, "state"}, {KVM_GET_MSRS, "state"},
	{KVM_SET_MSRS, "state"}, {KVM_GET_XSAVE, "state"}, {KVM_GET_XSAVE2, "state"}, {KVM_SET_XSAVE, "state"}, {KVM_GET_XCRS, "state"},
	{KVM_SET_XCRS, "state"}, {KVM_GET_DEBUGREGS, "state"}, {KVM_SET_DEBUGREGS, "state"}, {KVM_GET_LAPIC, "state"}, {KVM_SET_LAPIC, "state"},
	{KVM_GET_MP_STATE, "state"}, {KVM_SET_MP_STATE, "state"}, {KVM_GET_VCPU_EVENTS, "state"}, {KVM_SET_VCPU_EVENTS, "state"},
	{KVM_GET_IRQCHIP, "state"}, {KVM_SET_IRQCHIP, "state"}, {KVM_GET_CLOCK, "state"}, {KVM_SET_CLOCK, "state"}, {KVM_KVMCLOCK_CTRL, "state"},
	{KVM_NMI, "debug"},
};

static const struct jail_rule vcpu[] = {
	JAIL_CALL_EQ(ioctl, 1, KVM_RUN, "the thread's purpose"),
	JAIL_CALL_EQ(ioctl, 1, KVM_GET_REGS, "why the kernel gave up, for the last words"),
	JAIL_CALL_EQ(ioctl, 1, KVM_GET_SREGS, "the same"),
	JAIL_CALL_EQ(prctl, 0, 15, "PR_SET_NAME"),
	JAIL_CALL(write, "irqfds, waking the device thread, log"),
	JAIL_CALL(futex, "device locks, the gate"),
	JAIL_CALL(rt_sigreturn, "kicks, crash report"),
	JAIL_CALL(rt_sigprocmask, "C library"),
	JAIL_CALL(restart_syscall, "after a stop"),
	JAIL_CALL(sched_yield, "C library locks"),
	JAIL_CALL(clock_gettime, "where the vDSO cannot"),
	JAIL_CALL(pwrite64, "last words"),
	JAIL_CALL(rseq, "thread end"),
	JAIL_CALL(madvise, "thread end: its stack"),
	JAIL_CALL(munmap, "thread end"),
	JAIL_CALL(tgkill, "abort"),
	JAIL_CALL(gettid, "abort"),
	JAIL_CALL(getpid, "abort"),
	JAIL_CALL(exit, "thread end"),
	JAIL_CALL(exit_group, "crash report"),
};

/* The forked writer of a live snapshot: files it was given, its own memory, nothing of KVM. */
static const struct jail_rule child[] = {
	JAIL_CALL(read, "pagemap of older kernels"),
	JAIL_CALL(pread64, "the same; files it folds in"),
	JAIL_CALL(preadv, "the same"),
	JAIL_CALL(write, "memory and state files, the report to its parent"),
	JAIL_CALL(writev, "memory files"),
	JAIL_CALL(pwrite64, "memory and state files"),
	JAIL_CALL(pwritev, "memory files"),
	JAIL_CALL(lseek, "holes of files it folds in"),
	JAIL_CALL(copy_file_range, "files it folds in"),
	JAIL_CALL(sync_file_range, "writing out early"),
	JAIL_CALL(fsync, "durable before it is said"),
	JAIL_CALL(fdatasync, "the same"),
	JAIL_CALL(fallocate, "delayed allocation is slow for many files"),
	JAIL_CALL(ftruncate, "the length of a memory file"),
	JAIL_CALL(fstat, "sizes"),
	JAIL_CALL(newfstatat, "sizes"),
	JAIL_CALL_EQ(ioctl, 1, PAGEMAP_SCAN_NR, "what changed"),
	JAIL_CALL(close, "files"),
	JAIL_CALL_MASK(mmap, 2, PROT_EXEC, 0, "heap, a base to compare with"),
	JAIL_CALL_MASK(mprotect, 2, PROT_EXEC, 0, "heap"),
	JAIL_CALL(munmap, "heap"),
	JAIL_CALL(mremap, "heap"),
	JAIL_CALL(madvise, "giving copied pages back"),
	JAIL_CALL(brk, "heap"),
	JAIL_CALL(futex, "C library locks"),
	JAIL_CALL(sched_yield, "C library locks"),
	JAIL_CALL(clock_gettime, "where the vDSO cannot"),
	JAIL_CALL(getrandom, "ids of layers"),
	JAIL_CALL(rt_sigprocmask, "abort"),
	JAIL_CALL(rt_sigreturn, "crash report"),
	JAIL_CALL(getpid, "abort"),
	JAIL_CALL(gettid, "abort"),
	JAIL_CALL(tgkill, "abort"),
	JAIL_CALL(exit_group, "the end"),
};

int vmm_seal(int proc_fd, struct err *e)
{
	struct jail_rule all[ARRAY_LEN(device) + ARRAY_LEN(kvm_calls) + 1];
	size_t n = 0;

	for (; n < ARRAY_LEN(device); n++)
		all[n] = device[n];
	for (size_t i = 0; i < ARRAY_LEN(kvm_calls); i++)
		all[n++] = (struct jail_rule)JAIL_CALL_EQ(ioctl, 1, kvm_calls[i].nr, kvm_calls[i].need);
	if (proc_fd >= 0)
		all[n++] = (struct jail_rule)JAIL_CALL_EQ(openat, 0, (uint64_t)proc_fd, "a snapshot child's own pagemap");
	return jail_seccomp(all, n, JAIL_TRAP, e);
}

void vmm_seal_vcpu(void)
{
	struct err e = {0};

	if (jail_seccomp(vcpu, ARRAY_LEN(vcpu), JAIL_TRAP, &e) < 0) {
		log_error("vCPU thread: %s", e.msg);
		ASSERT(!"a vCPU thread without its list");
	}
}

void vmm_seal_child(int proc_fd)
{
	struct jail_rule all[ARRAY_LEN(child) + 1];
	struct err e = {0};
	size_t n = 0;

	for (; n < ARRAY_LEN(child); n++)
		all[n] = child[n];
	if (proc_fd >= 0)
		all[n++] = (struct jail_rule)JAIL_CALL_EQ(openat, 0, (uint64_t)proc_fd, "its own pagemap");
	if (jail_seccomp(all, n, JAIL_TRAP, &e) < 0) {
		log_error("snapshot writer: %s", e.msg);
		ASSERT(!"a snapshot writer without its list");
	}
}
