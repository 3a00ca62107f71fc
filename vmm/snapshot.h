/* SPDX-License-Identifier: Apache-2.0
 *
 * snapshot.h: writes a VM to files: live (the VM goes on meanwhile), or for good (the VM stands, and ends when all is
 * durable). A forked child writes in both cases. mayfly-vmm, the device thread.
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
	uint64_t stopped_ns; /* vCPUs stood for this long (live) */
	uint64_t pages;      /* of memory that will be / were written */
	uint64_t bytes;
	uint32_t kept_mem; /* bit i: memory file i of this VM's restore is still stood on */
	unsigned int ndisks;
	int dropped[VMM_MAX_DISKS]; /* frozen layer that went out of the disk's stack, -1: none */
};

struct snapshot_req {
	uint32_t flags; /* VMM_F_LIVE, VMM_F_DIFF, VMM_F_EXIT, VMM_F_RAM, VMM_F_CARRY */
	int state_fd, mem_fd;
	unsigned int ndisks;
	struct snapshot_disk disk[VMM_MAX_DISKS];
	void *ctx, *arg;
	/* the source runs again, or has stopped for good */
	void (*replied)(void *arg, const struct snapshot_done *d);
	/* files are durable, or it failed: always called once, last */
	void (*durable)(void *arg, const struct snapshot_done *d);
};

/* 0: under way, the descriptors are the job's; replied, then durable will be called from the loop.
 * -errno: nothing happened. */
int snapshot_start(struct vm *vm, const struct snapshot_req *req, struct err *e);
