/* SPDX-License-Identifier: Apache-2.0
 *
 * mem.h: guest memory. mayfly-vmm, all threads. A guest address is never dereferenced: mem_ptr
 * checks the whole range first. What is read through such a pointer can change under us: each
 * shared field is read once into a local (mem_read), the local is validated.
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

/* Memory that a restore copied: the table says that a file stands behind it, but it is anonymous. */
struct mem_copied {
	uint64_t gpa, len;
};

struct mem {
	uint8_t *base; /* host address of guest-physical 0; the hole is reserved but never mapped */
	uint64_t ram_bytes;        /* what the guest has, hole not counted */
	uint64_t low_bytes;        /* below the hole */
	uint64_t span_bytes;       /* address range reserved, hole included */
	struct mem_table table;    /* what stands behind each piece; the device thread's */
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
/* The guest gave the range back: it reads as zeros from now on and holds no host memory. Whole
 * pages, all of it RAM. Later snapshots leave it out. */
int mem_discard(struct mem *m, gpa_t gpa, uint64_t len, struct err *e);
/* The guest does not need what it wrote there: whole pages, all of it RAM. They hold no private memory afterwards, and read as the table says:
 * as zeros, or as the bytes of the file behind them. So snapshots need not know of it. What a restore copied stays: it would read as
 * zeros, and a difference would say that the file's bytes are there. */
void mem_give_back(const struct mem *m, gpa_t gpa, uint64_t len);
void mem_fini(struct mem *m);

/* Does this extent lie in its file so that the kernel can map 2 MiB of it with one entry? Guest
 * address and file offset must agree modulo 2 MiB, and a whole 2 MiB must be in it. */
bool mem_extent_is_huge(const struct snap_extent *x);
