/* SPDX-License-Identifier: Apache-2.0
 *
 * memtable.h: what each range of guest memory is mapped from, as a table. mayfly-vmm, the device
 * thread. Restore fills it, snapshot planning reads it, mem_discard() changes it. Pure arithmetic:
 * unit-tested without a VM.
 *
 * The table covers all RAM of the guest, ascending, without gaps except the hole below 4 GiB.
 * Ranges that continue each other are one range.
 */
#pragma once

#include "lib/snap.h"

enum mem_kind {
	MEM_ANONYMOUS,  /* nothing: zeros until the guest writes */
	MEM_FILE,       /* the oldest memory file, shared by many sandboxes */
	MEM_DIFFERENCE, /* a later memory file */
	MEM_DISCARDED,  /* dropped by mem_discard(): zeros until the guest writes */
};

struct mem_range {
	uint64_t gpa, len;
	uint64_t off; /* of file data; MEM_FILE and MEM_DIFFERENCE only */
	uint32_t file;
	enum mem_kind kind;
};

struct mem_table {
	struct mem_range *r;
	unsigned int n, cap;
};

#define MEM_TABLE_MAX 8192u

/* Makes a table in which all memory is anonymous. 0 or -errno. */
int memtable_init(struct mem_table *t, uint64_t ram_bytes);
/* Fills the table from a snapshot's extents; memory between them is anonymous. 0 or -errno. */
int memtable_load(
	struct mem_table *t, uint64_t ram_bytes, const struct snap_extent *x, unsigned int n);
/* Replaces what the table says about a range, which is RAM. -E2BIG: the table would need more than
 * MEM_TABLE_MAX ranges and was not changed. */
int memtable_set(struct mem_table *t, const struct mem_range *r);
/* The range that holds gpa, or NULL. */
const struct mem_range *memtable_find(const struct mem_table *t, uint64_t gpa);
static inline bool memtable_in_file(const struct mem_range *r)
{
	return r->kind == MEM_FILE || r->kind == MEM_DIFFERENCE;
}
void memtable_fini(struct mem_table *t);
