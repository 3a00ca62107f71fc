/* SPDX-License-Identifier: Apache-2.0
 *
 * mem.c: guest memory. mayfly-vmm, all threads. Every address and length comes from the guest.
 */
#include "vmm/mem.h"

#include <string.h>
#include <sys/mman.h>

#define MEM_ALIGN MIB(2) /* so that huge pages can back it */

void *mem_ptr(const struct mem *m, gpa_t gpa, uint64_t len)
{
	uint64_t a = gpa.v, high = m->ram_bytes - m->low_bytes;

	if (len == 0)
		return NULL;
	if (a < m->low_bytes && len <= m->low_bytes - a)
		return m->base + a;
	if (a >= MEM_HOLE_END && a - MEM_HOLE_END < high && len <= high - (a - MEM_HOLE_END))
		return m->base + a;
	return NULL;
}

bool mem_write(const struct mem *m, gpa_t gpa, const void *from, uint64_t len)
{
	void *p = mem_ptr(m, gpa, len);

	if (!p)
		return false;
	memcpy(p, from, len);
	return true;
}

int mem_reserve(struct mem *m, uint64_t ram_bytes, struct err *e)
{
	uint64_t low = MIN(ram_bytes, MEM_HOLE_START);
	uint64_t span = ram_bytes > low ? MEM_HOLE_END + (ram_bytes - low) : low;
	uint8_t *p = mmap(NULL, span + MEM_ALIGN, PROT_NONE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uint8_t *at;

	if (p == MAP_FAILED)
		return err_set(e, errno, "reserve %llu MiB of address space",
			(unsigned long long)(span >> 20));
	at = (uint8_t *)ALIGN_UP((uintptr_t)p, MEM_ALIGN);
	if (at > p)
		munmap(p, (size_t)(at - p));
	munmap(at + span, (size_t)(p + MEM_ALIGN - at));
	madvise(at, span, MADV_NOHUGEPAGE);
	*m = (struct mem){.base = at, .ram_bytes = ram_bytes, .low_bytes = low, .span_bytes = span};
	return 0;
}

static int mem_make_accessible(struct mem *m, struct err *e)
{
	uint64_t high = m->ram_bytes - m->low_bytes;

	if (mprotect(m->base, m->low_bytes, PROT_READ | PROT_WRITE) < 0 ||
		(high && mprotect(m->base + MEM_HOLE_END, high, PROT_READ | PROT_WRITE) < 0))
		return err_set(e, errno, "make %llu MiB of guest memory usable",
			(unsigned long long)(m->ram_bytes >> 20));
	return 0;
}

int mem_make_anon(struct mem *m, struct err *e)
{
	int rc = mem_make_accessible(m, e);

	if (rc == 0 && memtable_init(&m->table, m->ram_bytes) < 0)
		rc = err_set(e, ENOMEM, "table of guest memory");
	/* the guest's first touch of every page costs a fault: huge pages make 512 of them one */
	if (rc == 0)
		madvise(m->base, m->span_bytes, MADV_HUGEPAGE);
	return rc;
}

bool mem_extent_is_huge(const struct snap_extent *x)
{
	return x->gpa % MIB(2) == (SNAP_HEAD_PAGE + x->off) % MIB(2) &&
	       ALIGN_UP(x->gpa, MIB(2)) + MIB(2) <= x->gpa + x->len;
}

static int map_extent(struct mem *m, const struct snap_extent *x, int fd, struct err *e)
{
	void *at = mem_ptr(m, GPA(x->gpa), x->len);

	ASSERT(at && x->gpa % PAGE_BYTES == 0 && x->off % PAGE_BYTES == 0);
	/* MAP_NORESERVE on every replacement: without it an ENOMEM can leave the range unmapped */
	if (mmap(at, x->len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, fd,
		    (off_t)(SNAP_HEAD_PAGE + x->off)) == MAP_FAILED)
		return err_set(e, errno, "map %llu KiB of a memory file at %#llx",
			(unsigned long long)x->len >> 10, (unsigned long long)x->gpa);
	/* pages that come from the disk are then read 2 MiB at a time, into one folio */
	if (mem_extent_is_huge(x))
		madvise(at, x->len, MADV_HUGEPAGE);
	return 0;
}

int mem_map_files(
	struct mem *m, const struct snap_extent *x, unsigned int n, const int *fd, struct err *e)
{
	int rc = mem_make_accessible(m, e);

	for (unsigned int i = 0; rc == 0 && i < n; i++)
		rc = map_extent(m, &x[i], fd[x[i].file], e);
	if (rc == 0 && memtable_load(&m->table, m->ram_bytes, x, n) < 0)
		rc = err_set(e, ENOMEM, "table of guest memory");
	return rc;
}

int mem_discard(struct mem *m, gpa_t gpa, uint64_t len, struct err *e)
{
	struct mem_range r = {.gpa = gpa.v, .len = len, .kind = MEM_DISCARDED};
	void *at = mem_ptr(m, gpa, len);
	int rc;

	ASSERT(at && (gpa.v | len) % PAGE_BYTES == 0);
	rc = memtable_set(&m->table, &r);
	if (rc < 0)
		return err_set(e, -rc, "table of guest memory");
	/* MADV_DONTNEED on a file mapping would bring the file's bytes back */
	if (mmap(at, len, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED)
		return err_set(e, errno, "discard %llu KiB at %#llx", (unsigned long long)len >> 10,
			(unsigned long long)gpa.v);
	madvise(at, len, MADV_NOHUGEPAGE);
	return 0;
}

void mem_give_back(const struct mem *m, gpa_t gpa, uint64_t len)
{
	uint64_t at = gpa.v, end = at + len;
	unsigned int lo = 0, hi = m->ncopied;

	ASSERT(mem_ptr(m, gpa, len) && (gpa.v | len) % PAGE_BYTES == 0);
	/* the first copied piece that ends behind `at` */
	while (lo < hi) {
		unsigned int mid = lo + (hi - lo) / 2;

		if (m->copied[mid].gpa + m->copied[mid].len <= at)
			lo = mid + 1;
		else
			hi = mid;
	}
	for (; at < end; lo++) {
		bool last = lo == m->ncopied || m->copied[lo].gpa >= end;
		uint64_t to = last ? end : m->copied[lo].gpa;

		if (to > at)
			madvise(m->base + at, to - at, MADV_DONTNEED);
		at = last ? end : m->copied[lo].gpa + m->copied[lo].len;
	}
}

void mem_fini(struct mem *m)
{
	free(m->copied);
	if (m->base)
		munmap(m->base, m->span_bytes);
	memtable_fini(&m->table);
	*m = (struct mem){0};
}
