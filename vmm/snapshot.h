/* SPDX-License-Identifier: Apache-2.0
 *
 * snapshot.h: writes a VM to files. Live: the VM runs on meanwhile. Otherwise it is stopped; when
 * all is durable it ends (VMM_F_EXIT) or stays paused. A forked child writes in all cases.
 * mayfly-vmm, the device thread.
 */
#pragma once

#include "vmm/vm.h"

struct snapshot_disk {
	int index_fd, data_fd, bitmap_fd;
};

struct snapshot_done {
	void *ctx;
	int status; /* 0 or -errno, then err says more */
	struct err err;
	uint64_t stopped_ns; /* a live snapshot stopped the vCPUs for this long */
	uint64_t pages;      /* of memory that were written; 0 in replied() */
	uint64_t bytes;
	uint32_t kept_mem; /* bit i: the snapshot refers to memory file i of this VM's restore */
	unsigned int ndisks;
	int dropped[VMM_MAX_DISKS]; /* the frozen layer that the disk no longer uses, -1: none */
};

struct snapshot_req {
	uint32_t flags; /* VMM_F_LIVE, VMM_F_DIFF, VMM_F_EXIT, VMM_F_RAM, VMM_F_CARRY */
	int state_fd, mem_fd;
	unsigned int ndisks;
	struct snapshot_disk disk[VMM_MAX_DISKS];
	void *ctx, *arg;
	/* The guest's state is captured: a live VM runs again, another one stays stopped. Or status
	 * is less than 0: the snapshot failed, and the VM is as before or has ended. */
	void (*replied)(void *arg, const struct snapshot_done *d);
	/* the files are durable, or the snapshot failed: always called once, last */
	void (*durable)(void *arg, const struct snapshot_done *d);
};

/* 0: the snapshot has begun and owns the descriptors. replied(), then durable() are called, maybe
 * before this returns. -errno: nothing happened. */
int snapshot_start(struct vm *vm, const struct snapshot_req *req, struct err *e);
