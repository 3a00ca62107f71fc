/* SPDX-License-Identifier: Apache-2.0
 *
 * populate.h: makes the working set present before a restored guest runs. mayfly-vmm.
 *
 * Pages that earlier restores wrote are copied into ready pages, which are then moved into place: a
 * blank monitor holds them (the reserve), so that a restore neither allocates nor faults for them.
 * What is only read is mapped from the page cache, by a second thread where the monitor has one.
 */
#pragma once

#include "lib/err.h"
#include "lib/snap.h"
#include "vmm/kvm.h"
#include "vmm/mem.h"
#include "vmm/pagemap.h"

/* A copy costs two system calls and splits a mapping, about as much as six page faults. So that
 * there are fewer copies, a copy includes up to POPULATE_GAP_PAGES unwritten pages between two
 * written ones. Groups of fewer than POPULATE_COPY_MIN written pages are faulted in instead. On one
 * host (6 us a copy, 1.05 us a fault), and for a recorded set of 446 written pages in 169 ranges,
 * this costs about half as much as 446 faults. To copy every written page costs two thirds as
 * much. */
#define POPULATE_GAP_PAGES 8u
#define POPULATE_COPY_MIN  3u
/* The kernel maps up to this many pages of a file around a fault (its default, 64 KiB). */
#define POPULATE_AROUND_PAGES 16u

#define POPULATE_NO_FILE UINT32_MAX

struct populate_copy {
	uint64_t gpa, len, off;
	uint32_t file;    /* POPULATE_NO_FILE: zeros */
	uint64_t written; /* pages of it that were written */
};

struct populate_area {
	uint64_t gpa, len;
	bool in_file;
};

/* Pure arithmetic on tables, unit-tested without a VM. */
struct populate_plan {
	struct populate_copy *copy; /* ascending */
	struct populate_area *area; /* ascending: the working set, also what is copied; without
				       anonymous memory that was only read */
	unsigned int ncopy, narea;
	struct pm_list write; /* what was written and is not copied */
	struct pm_list along; /* pages that are copied but were not written */
};
/* reserve_bytes: most bytes to copy. 0 or -ENOMEM. */
int populate_plan_make(struct populate_plan *p, const struct mem_table *t,
	const struct snap_ws_range *ws, uint32_t n, uint64_t reserve_bytes);
void populate_plan_fini(struct populate_plan *p);

/* The reserve of a blank monitor and its thread. NULL: there is no reserve. A restore then
 * copies nothing: populate_start() faults in the written pages and maps the others, all on the
 * device thread. */
struct populate;
#define POPULATE_RESERVE MIB(4)
struct populate *populate_create(void);
/* Frees what was not used; waits for the thread. NULL is fine. */
void populate_destroy(struct populate *s);
/* Bytes that can be copied: 0 for NULL. */
uint64_t populate_room(const struct populate *s);

/* Copies, then maps the rest: in the thread of s, or before it returns if there is none. fd[i] is
 * memory file i. After an error guest memory is incomplete: the VM must not run. The caller keeps
 * the plan until populate_wait() has returned. */
int populate_start(struct populate *s, struct mem *m, const struct populate_plan *p, const int *fd,
	struct err *e);
/* Waits until everything is mapped. */
void populate_wait(struct populate *s);
/* Enters the same pages in the guest's nested page tables, if the host has
 * KVM_PRE_FAULT_MEMORY. The vCPU must not run. */
void populate_nested(struct kvm *k, int vcpu_fd, const struct populate_plan *p);
