/* SPDX-License-Identifier: Apache-2.0
 *
 * mem.h: guest memory. mayfly-vmm, all threads. A guest address is never dereferenced: mem_ptr
 * checks the whole range first. What is read through such a pointer can change under us: each
 * shared field is read once into a local (mem_read), the local is validated.
 */
#pragma once

#include "lib/base.h"
#include "lib/err.h"

typedef struct {
	uint64_t v;
} gpa_t;
#define GPA(x) ((gpa_t){(x)})

#define MEM_HOLE_START GIB(3) /* devices, APICs; RAM goes on at 4 GiB */
#define MEM_HOLE_END   GIB(4)

struct mem {
	uint8_t *base; /* host address of guest-physical 0; the hole is reserved but never mapped */
	uint64_t ram_bytes;  /* what the guest has, hole not counted */
	uint64_t low_bytes;  /* below the hole */
	uint64_t span_bytes; /* address range reserved, hole included */
};

/* The range [gpa, gpa+len) as a host pointer, or NULL if any byte of it is not RAM. len 0 is NULL.
 */
void *mem_ptr(const struct mem *m, gpa_t gpa, uint64_t len);
/* Copies; false if not all of it is RAM. */
bool mem_read(const struct mem *m, gpa_t gpa, void *to, uint64_t len);
bool mem_write(const struct mem *m, gpa_t gpa, const void *from, uint64_t len);

/* Reserves the address range without access (blank), or with (boot: anonymous memory everywhere).
 * Plain malloc'd fakes in unit tests fill the struct themselves. */
int mem_reserve(struct mem *m, uint64_t ram_bytes, struct err *e);
int mem_make_anon(struct mem *m, struct err *e);
/* Restore: everything accessible and empty, then file bytes [off, off+len) privately over [gpa,
 * gpa+len). Whole pages, all of it RAM. */
int mem_make_plain(struct mem *m, struct err *e);
int mem_map_file(struct mem *m, gpa_t gpa, uint64_t len, int fd, uint64_t off, struct err *e);
void mem_fini(struct mem *m);
