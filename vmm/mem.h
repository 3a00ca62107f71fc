/* SPDX-License-Identifier: Apache-2.0
 *
 * mem.h: guest memory. mayfly-vmm, all threads. A guest address is never dereferenced: mem_ptr
 * checks the whole range first. What is read through such a pointer can change under us: each
 * shared field is read once into a local (as vmm/virtq.c does), the local is validated.
 */
#pragma once

#include "lib/base.h"
#include "lib/err.h"
#include "vmm/memtable.h"

typedef struct {
	uint64_t v;
} gpa_t;
#define GPA(x) ((gpa_t){(x)})

#define MEM_HOLE_START GIB(3) /* devices, APICs; RAM goes on at 4 GiB */
#define MEM_HOLE_END   GIB(4)

/* A range that a restore copied (populate.h). By the table it is mapped from a file, but it is
 * anonymous memory. */
struct mem_copied {
	uint64_t gpa, len;
};

struct mem {
	uint8_t *base; /* host address of guest-physical 0; the hole is reserved but never mapped */
	uint64_t ram_bytes;     /* what the guest has, hole not counted */
	uint64_t low_bytes;     /* below the hole */
	uint64_t span_bytes;    /* address range reserved, hole included */
	struct mem_table table; /* what each range is mapped from; used by the device thread only */
	struct mem_copied *copied; /* ascending */
	unsigned int ncopied;
};

/* The range [gpa, gpa+len) as a host pointer, or NULL if any byte of it is not RAM. len 0 is NULL.
 */
void *mem_ptr(const struct mem *m, gpa_t gpa, uint64_t len);
/* Copies; false if not all of it is RAM. */
bool mem_write(const struct mem *m, gpa_t gpa, const void *from, uint64_t len);

/* Reserves the address range without access. Huge pages are off for it, whatever the host's setting
 * is: a restored guest touches scattered pages, and each would cost 2 MiB. Plain malloc'd fakes in
 * unit tests fill the struct themselves. */
int mem_reserve(struct mem *m, uint64_t ram_bytes, struct err *e);
/* Boot: anonymous memory everywhere, in huge pages where the host has them. */
int mem_make_anon(struct mem *m, struct err *e);
/* Restore: everything accessible and empty, then the extents of a snapshot mapped privately over it.
 * fd[i] is memory file i. */
int mem_map_files(
	struct mem *m, const struct snap_extent *x, unsigned int n, const int *fd, struct err *e);
/* Drops a range for good: it reads as zeros from now on and holds no host memory. Whole pages,
 * all of them RAM. Later snapshots leave the range out. No device calls this yet: the balloon
 * calls mem_give_back(). */
int mem_discard(struct mem *m, gpa_t gpa, uint64_t len, struct err *e);
/* Drops what the guest wrote into a range. Whole pages, all of them RAM. They hold no private
 * memory afterwards and read as the table says: as zeros, or as the bytes of the file that they
 * are mapped from. So the table does not change, and a snapshot is right. Pages that a restore
 * copied stay: without them a page would read as zeros, while a difference would take it from
 * the file. */
void mem_give_back(const struct mem *m, gpa_t gpa, uint64_t len);
void mem_fini(struct mem *m);

/* Can the kernel map 2 MiB of this extent with one page-table entry? Guest address and file offset
 * must agree modulo 2 MiB, and a whole aligned 2 MiB must be in the extent. */
bool mem_extent_is_huge(const struct snap_extent *x);
