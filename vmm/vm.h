/* SPDX-License-Identifier: Apache-2.0
 *
 * vm.h: one virtual machine: what the control protocol and the command line drive. mayfly-vmm, the
 * device thread, unless said otherwise. Life: blank (no KVM objects) -> prepared (KVM objects and
 * devices exist, vCPUs are parked; a blank monitor waits like this) -> running <-> paused -> ended.
 * The process ends with its VM, except after vm_broken().
 */
#pragma once

#include <stdatomic.h>

#include "lib/cow.h"
#include "lib/err.h"
#include "lib/loop.h"
#include "lib/proto_vmm.h"
#include "vmm/arch.h"
#include "vmm/board.h"
#include "vmm/kvm.h"
#include "vmm/kvmstat.h"
#include "vmm/mem.h"
#include "vmm/vcpu.h"

#define VM_MEM_MIN  MIB(128)
#define VM_MEM_MAX  GIB(16)
#define VM_TEXT_MAX 400u
#define VM_TAIL_MAX 3072u /* last console bytes kept */

struct vm_hooks { /* towards the control socket or the terminal */
	void *ctx;
	void (*event)(void *ctx, enum vmm_type ev, const void *payload, size_t n, int fd);
	void (*over)(void *ctx); /* the VM has ended and its last event was sent: leave the loop */
};

struct vm_size {
	uint64_t mem_bytes;
	uint32_t vcpus;
	char tmpl[32];
	bool serial;
};

struct snapshot_job; /* vmm/snapshot.h */

/* What happens to a VM; vm.c has the table of states and events. */
enum vm_event {
	VM_E_PREPARED, /* KVM objects and devices exist */
	VM_E_RUN,      /* booted, restored, or a live snapshot has its copy: the guest runs */
	VM_E_HOLD,     /* restored, or the snapshot no longer needs the VM: it is paused */
	VM_E_PAUSE,    /* a request to pause */
	VM_E_SNAPSHOT, /* a request to stop for a snapshot */
	VM_E_QUIET,    /* vCPUs are parked, no request is in flight */
	VM_E_LATE,     /* the stop took longer than its limit */
	VM_E_CONTINUE, /* a request to run */
	VM_E_END,      /* the VM ends */
	VM_E_COUNT
};

/* How a stop ended: 0, or -ECANCELED, -ETIMEDOUT (the VM runs in both cases), -ESRCH (it has ended). Called once. */
typedef void (*vm_stopped_fn)(void *arg, int status);

struct vm {
	struct kvm kvm;
	struct kvmstat kvmstat;
	struct mem mem;
	struct arch_cpu *cpu;
	struct vcpus vcpus;
	struct board board;
	struct loop *loop;
	struct vm_hooks hooks;
	enum vmm_state state; /* written by vm_step() in vm.c only */
	struct {              /* the caller that waits for a stop: at most one */
		vm_stopped_fn fn;
		void *arg;
		bool draining;     /* the vCPUs are parked, the devices finish their requests */
		uint64_t limit_ns; /* VMM_STOP_LIMIT_S; tests set less */
		struct timer *limit;
		struct watch *parked;
	} stop;
	struct vm_size size;
	int kvm_fd_given, vsock_fd_given, proc_fd, lastwords_fd, serial_fd,
		console_fd; /* -1: none */
	/* The table of nodes of the last file server: kept open, so that it outlives that
	 * process. Never read. */
	int fs_table_fd;
	bool board_up;
	struct bio *bio; /* made before the seal, shared by all disks */
	struct vblk *disk[VMM_MAX_DISKS];
	unsigned int ndisks;

	/* the end: claimed by the first thread that has a reason, carried out by the device thread
	 */
	_Atomic int end_claimed, end_ready;
	enum vmm_exit end_why;
	char end_text[VM_TEXT_MAX];
	_Atomic bool panicked;
	int end_fd; /* eventfd: end_ready or panicked was set */
	struct watch *end_watch;
	struct timer *panic_timer;
	bool end_begun;
	unsigned int end_turns;
	struct timer *end_limit; /* how long the end waits for the vCPUs to park */
	bool end_waits;          /* the end waits for the writer of a snapshot */
	bool sealed;             /* every thread gets its seccomp list */

	/* the memory files of the restore, for differences; NULL: booted */
	struct restored_mem *restored; /* vmm/restore.h */
	struct populate *populate;     /* a blank monitor's ready pages for a restore; else NULL */
	struct snapshot_job *job;      /* one at a time */
	bool resume_restored; /* restored without VMM_F_RUN: the first continue ends the restore */

	int room_fd; /* eventfd: the guest took its input (vmm/terminal.h); -1: none */
	/* vmm/fault.h: the failure that a test injects; 0: none */
	int fault_step, fault_action;

	char tail[VM_TAIL_MAX]; /* ring of the last console bytes */
	size_t tail_at;
	uint64_t born_ns, run_ns;
};

/* Makes what must exist before the seal: eventfd, timers, the block I/O ring, the kick handler.
 * Does not touch KVM. The loop is the device thread's. */
int vm_init(struct vm *vm, struct loop *l, const struct vm_hooks *h, struct err *e);
void vm_fini(struct vm *vm);

/* Makes the reservation, the VM, its slots, interrupt controllers, vCPUs and their threads, and the
 * devices that every VM has. Refuses impossible sizes. */
int vm_prepare(struct vm *vm, const struct vm_size *s, struct err *e);

/* For a blank monitor that waits: connects all device slots and makes pages ready, so that a
 * restore need not (vmm/populate.h). */
void vm_wait_for_restore(struct vm *vm);

struct vm_disk {
	uint32_t flags; /* VMM_DISK_* */
	char serial[21];
	struct cow_fds fds;
};

/* Puts the disks into their slots. The VM must be prepared. *taken: how many of the disks were taken,
 * from the first on; on success all. Their descriptors belong to the VM, or are closed already. The
 * descriptors of the others stay the caller's. */
int vm_add_disks(
	struct vm *vm, struct vm_disk *d, unsigned int n, unsigned int *taken, struct err *e);
/* Loads the kernel and starts the guest. The VM must be prepared. The descriptors stay the
 * caller's. */
int vm_boot(struct vm *vm, int kernel_fd, int initrd_fd, const char *cmdline, struct err *e);

/* Begins to stop vCPUs and devices, within VMM_STOP_LIMIT_S. 0: `fn` will be called; for a snapshot
 * of a paused VM it is called before this returns. Less than 0: not possible in this state. */
int vm_pause(struct vm *vm, vm_stopped_fn fn, void *arg, struct err *e);
/* Could vm_stop_for_snapshot() be called now? */
int vm_may_snapshot(const struct vm *vm, struct err *e);
int vm_stop_for_snapshot(struct vm *vm, vm_stopped_fn fn, void *arg, struct err *e);
/* The snapshot no longer needs the VM to be stopped. run: the VM runs again; otherwise it is
 * paused. */
void vm_snapshot_taken(struct vm *vm, bool run);
/* Ends a pause, or cancels one that is not complete yet. */
int vm_continue(struct vm *vm, struct err *e);
/* Memory, processors and devices were loaded; the guest runs, or is paused. */
void vm_restored(struct vm *vm, bool run);
/* Memory, processors and devices were loaded only in part: the VM has ended. This does not end the
 * process: the daemon does, or main() in developer mode. */
void vm_broken(struct vm *vm);
/* Calls fn with the vCPUs parked; they run again afterwards if the VM runs. -ETIMEDOUT: they
 * did not park in time. */
int vm_with_parked(struct vm *vm, int (*fn)(struct vm *vm, void *arg), void *arg);

/* Ends the VM. Any thread may call it; the first reason counts. */
void vm_end(struct vm *vm, enum vmm_exit why, const char *text);
/* The snapshot job is done: continues an end that waited for it. */
void vm_job_over(struct vm *vm);
const char *vm_exit_name(enum vmm_exit why);
void vm_console_bytes(struct vm *vm, const void *p, size_t n);
/* The last console lines, oldest first, unprintable bytes replaced. */
size_t vm_console_tail(const struct vm *vm, char *to, size_t cap);

typedef void (*vm_stat_fn)(void *arg, const char *name, uint64_t value);
void vm_stats(struct vm *vm, vm_stat_fn fn, void *arg);
