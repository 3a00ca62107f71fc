/* SPDX-License-Identifier: Apache-2.0
 *
 * monitors.h: one mayfly-vmm process seen from the daemon, and the pool of blank ones. mayflyd's loop. A VM has a slot (its jail, user and
 * run folder), a control connection, and after boot or restore its agent says that it is ready. Everything that a VM sends is hostile.
 */
#pragma once

#include "lib/buf.h"
#include "lib/err.h"
#include "lib/loop.h"
#include "lib/proto_vmm.h"

struct daemon;
struct vm;

struct size_class {
	uint32_t mem_mib, vcpus;
};
/* Rounds the request up to a class that blank monitors and templates are made for. */
struct size_class size_class_of(uint64_t memory_bytes, uint32_t vcpus);

enum vm_phase { VM_STARTING, VM_BLANK, VM_LOADING, VM_UP, VM_ENDING };

struct vm_ops {
	void (*blank)(void *arg); /* prepared: boot or restore may come */
	/* answer to vm_boot or vm_restore */
	void (*loaded)(void *arg, int err, const char *text, struct cur *body);
	/* the agent listens; prepared: it waits for AGENT_THAW */
	void (*ready)(void *arg, bool prepared);
	/* the guest has sent a frame, and has no network process; may be NULL */
	void (*net_wanted)(void *arg);
	/* the network denied a place for the first time; may be NULL */
	void (*net_denied)(void *arg, const char *place, const char *why);
	/* files_lost: its file server is gone. files_table: that server's table of nodes; fd is the callee's. Both may be NULL. */
	void (*files_lost)(void *arg, const char *why);
	void (*files_table)(void *arg, int fd);
	/* VMM_EV_DISK_FULL: writes wait for room on this host; 0: none does any more. May be NULL */
	void (*disk_full)(void *arg, uint32_t waiting);
	/* VMM_EV_SNAPSHOT */
	void (*snapshot)(void *arg, int status, uint32_t kept, const char *text);
	/* The process is gone, its files may go. The last call; the vm is freed afterwards. */
	void (*ended)(void *arg, uint32_t reason, const char *text);
};

#define DISK_FROZEN_MAX 8
struct vm_disk_fds {
	int base, nfrozen, frozen[DISK_FROZEN_MAX], index, data, bitmap;
};

struct vm {
	struct daemon *d;
	struct vm *prev, *next;
	struct size_class cls;
	enum vm_phase phase;
	uint32_t slot, reason;
	int pid, lastwords_fd, ctl_listen, vsock_listen, ready_fd;
	uint64_t start_time, spawned_ns, net_wanted_ns;
	uint64_t given_back; /* bytes, as its monitor said last */
	bool spawned, freeing, adopted;
	bool has_files; /* of an adopted VM: the helper knows a file server in its group, in files_slot */
	uint32_t files_slot;
	char dir[108], ctl_path[120], vsock_path[120], text[400];
	struct vmmctl *ctl;
	struct watch *ready_watch;
	const struct vm_ops *ops;
	void *arg;
};

struct vms;
struct vms *vms_create(struct daemon *d, struct err *e);
void vms_destroy(struct vms *v);
struct priv_msg;
void vms_process_exited(void *vms, const struct priv_msg *ev); /* privctl_exit_fn */
/* The VM of this slot, or NULL. */
struct vm *vms_find(struct vms *v, uint32_t slot);
/* A slot for a process that is no monitor. It is given back by itself when such a process has ended (vms_process_exited), by vms_slot_give()
 * when none was started. */
bool vms_slot_take(struct vms *v, uint32_t *slot);
void vms_slot_give(struct vms *v, uint32_t slot);
/* A process of the last daemon goes on in this slot: vms_sweep() leaves it. */
void vms_slot_claim(struct vms *v, uint32_t slot);
unsigned int vms_blank_count(const struct vms *v);
unsigned int vms_count(const struct vms *v);

/* A blank of this class from the pool (phase VM_BLANK) or one that is being made (VM_STARTING;
 * ops->blank follows). NULL: *e. */
struct vm *vm_acquire(
	struct vms *v, struct size_class c, const struct vm_ops *ops, void *arg, struct err *e);
/* Takes over a VM of the last daemon. -errno: it is not there any more; vms_sweep() frees its slot. */
int vm_adopt(struct vms *v, uint32_t slot, int pid, uint64_t start_time, struct size_class c,
	const struct vm_ops *ops, void *arg, struct vm **out);
/* Kills the processes in slots that nobody adopted, and frees the slots. Not complete: slots of
 * monitors stay in use, because one may belong to a sandbox whose record could not be read. */
void vms_sweep(struct vms *v, bool complete);
/* Makes blanks of this class until the pool is full, soon. */
void vms_refill(struct vms *v, struct size_class c);

int vm_boot(struct vm *vm, const char *cmdline, const struct vm_disk_fds *disk);
struct vm_restore_fds {
	int state, nmem, mem[VMM_MAX_MEM], workset; /* workset -1: none */
};
int vm_restore(struct vm *vm, const struct vm_restore_fds *f, const struct vm_disk_fds *disk,
	uint32_t flags);
/* Limits the CPU to what this sandbox asked for, which may be less than its class. The host's memory limit stays the size of the
 * machine: the guest fills it with its page cache, so a smaller limit would kill it. The agent limits the processes. */
void vm_limits(struct vm *vm, uint32_t cpu_millis);
void vm_kill(struct vm *vm); /* ended() follows */
/* The same, for a reason that ended() tells if the monitor has no other. */
void vm_fail(struct vm *vm, const char *why);
/* Kills the VM, without calls to ops, and frees it when its process is gone. */
void vm_abandon(struct vm *vm);
