/* SPDX-License-Identifier: Apache-2.0
 *
 * vmm_pagemap.c: the list of private pages, as this kernel's PAGEMAP_SCAN says it and from plain
 * entries: the same, ascending, whatever the number of ranges is. (The kernel gives back 512 ranges
 * at a time, and may say that its walk has ended before it has.)
 */
#include <fcntl.h>
#include <sys/mman.h>

#include "lib/test.h"
#include "vmm/pagemap.h"

static void touched_every_other_page(unsigned int ranges)
{
	struct mem m = {.ram_bytes = (uint64_t)(2 * ranges + 3) * PAGE_BYTES};
	int proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
	struct err e;

	m.low_bytes = m.span_bytes = m.ram_bytes;
	m.base = mmap(NULL, m.ram_bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(m.base != MAP_FAILED && proc >= 0);
	madvise(m.base, m.ram_bytes, MADV_NOHUGEPAGE);
	for (unsigned int i = 0; i < ranges; i++)
		m.base[(2 * i + 1) * PAGE_BYTES] = 1;
	for (int plain = 0; plain < 2; plain++) {
		struct pm_list l;

		CHECK_INT(pagemap_list(proc, &m, true, plain, &l, &e), 0);
		CHECK_INT(l.n, ranges);
		for (unsigned int i = 0; i < l.n && i < ranges; i++)
			if (l.r[i].gpa != (uint64_t)(2 * i + 1) * PAGE_BYTES ||
				l.r[i].len != PAGE_BYTES || !l.r[i].priv) {
				CHECK_INT(l.r[i].gpa / PAGE_BYTES, 2 * i + 1);
				break;
			}
		pm_list_fini(&l);
	}
	munmap(m.base, m.ram_bytes);
	close(proc);
}

static void any_number_of_ranges(void)
{
	static const unsigned int n[] = {0, 1, 511, 512, 513, 700, 1023, 1024, 1025, 1500, 1536,
		1537, 2047, 2048, 2049, 5000};

	for (size_t i = 0; i < ARRAY_LEN(n); i++)
		touched_every_other_page(n[i]);
}

static const struct test tests[] = {
	{"any_number_of_ranges", any_number_of_ranges},
};
TEST_MAIN(tests)
