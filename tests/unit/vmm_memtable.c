/* SPDX-License-Identifier: Apache-2.0
 *
 * vmm_memtable: the table of guest memory, compared with a model that has one entry a page; discarded memory is
 * zero and private to nobody.
 */
#include "lib/test.h"

#include <fcntl.h>
#include <sys/mman.h>

#include "vmm/mem.h"

#define PAGES 2048u

struct model {
	enum mem_kind kind;
	uint32_t file;
	uint64_t off;
};

static void check_against(const struct mem_table *t, const struct model *m)
{
	uint64_t at = 0;

	for (unsigned int i = 0; i < t->n; i++) {
		const struct mem_range *r = &t->r[i];

		CHECK_INT(r->gpa, at);
		CHECK(r->len > 0);
		at += r->len;
		for (uint64_t o = 0; o < r->len; o += 4096) {
			const struct model *x = &m[(r->gpa + o) / 4096];

			CHECK_INT(r->kind, x->kind);
			if (memtable_in_file(r))
				CHECK(r->file == x->file && r->off + o == x->off);
		}
		CHECK(memtable_find(t, r->gpa) == r);
		CHECK(memtable_find(t, r->gpa + r->len - 1) == r);
	}
	CHECK_INT(at, PAGES * 4096ull);
	CHECK(!memtable_find(t, at));
}

static void random_changes_match_a_model(void)
{
	struct model *m = calloc(PAGES, sizeof(*m));
	struct mem_table t = {0};
	uint32_t seed = 7;

	CHECK_INT(memtable_init(&t, PAGES * 4096ull), 0);
	CHECK_INT(t.n, 1);
	for (unsigned int round = 0; round < 2000; round++) {
		struct mem_range r;
		uint64_t first, n;

		seed = seed * 1103515245 + 12345;
		first = (seed >> 8) % PAGES;
		n = 1 + (seed >> 20) % MIN(PAGES - first, 64);
		r = (struct mem_range){.gpa = first * 4096,
			.len = n * 4096,
			.kind = (enum mem_kind)((seed >> 16) % 4)};
		if (memtable_in_file(&r)) {
			r.file = r.kind == MEM_FILE ? 0 : 1;
			r.off = r.gpa;
		}
		CHECK_INT(memtable_set(&t, &r), 0);
		for (uint64_t i = first; i < first + n; i++)
			m[i] = (struct model){r.kind, r.file, memtable_in_file(&r) ? i * 4096 : 0};
		if (round % 50 == 0)
			check_against(&t, m);
	}
	check_against(&t, m);
	memtable_fini(&t);
	free(m);
}

static void extents_become_ranges_around_the_hole(void)
{
	static const struct snap_extent x[] = {{.gpa = 4096, .len = 8192, .off = 0, .file = 0},
		{.gpa = 12288, .len = 4096, .off = 8192, .file = 0},
		{.gpa = MEM_HOLE_END + 4096, .len = 4096, .off = 0, .file = 1}};
	struct mem_table t = {0};

	CHECK_INT(memtable_load(&t, GIB(4), x, 3), 0);
	CHECK_INT(t.n, 6);
	CHECK_INT(t.r[1].len, 12288);
	CHECK_INT(t.r[1].kind, MEM_FILE);
	CHECK_INT(t.r[2].gpa + t.r[2].len, MEM_HOLE_START);
	CHECK_INT(t.r[3].gpa, MEM_HOLE_END);
	CHECK_INT(t.r[4].kind, MEM_DIFFERENCE);
	CHECK_INT(t.r[5].gpa + t.r[5].len, GIB(5));
	CHECK(!memtable_find(&t, MEM_HOLE_START));
	memtable_fini(&t);
}

static void a_table_has_a_largest_size(void)
{
	struct mem_table t = {0};
	int rc = memtable_init(&t, MIB(512));
	unsigned int i = 0;

	for (; rc == 0 && i < MEM_TABLE_MAX; i++) {
		struct mem_range r = {.gpa = i * 8192ull, .len = 4096, .kind = MEM_DISCARDED};

		rc = memtable_set(&t, &r);
	}
	CHECK_INT(rc, -E2BIG);
	CHECK(t.n <= MEM_TABLE_MAX && t.n > MEM_TABLE_MAX - 4);
	memtable_fini(&t);
}

static void discarded_memory_is_zero(void)
{
	int fd = memfd_create("mem", MFD_CLOEXEC);
	struct snap_extent x = {.gpa = 0, .len = MIB(2), .off = 0, .file = 0};
	uint8_t *page = malloc(MIB(2) + SNAP_HEAD_PAGE);
	struct mem m;
	struct err e;

	memset(page, 9, MIB(2) + SNAP_HEAD_PAGE);
	CHECK_INT(pwrite_full(fd, page, MIB(2) + SNAP_HEAD_PAGE, 0), 0);
	CHECK_INT(mem_reserve(&m, MIB(8), &e), 0);
	CHECK_INT(mem_map_files(&m, &x, 1, &fd, &e), 0);
	CHECK_INT(m.base[8192], 9);
	m.base[8192] = 1;
	CHECK_INT(mem_discard(&m, GPA(8192), 4096, &e), 0);
	CHECK_INT(m.base[8191], 9);
	CHECK_INT(m.base[8192], 0);
	CHECK_INT(m.base[12288], 9);
	CHECK_INT(m.table.n, 4);
	CHECK_INT(memtable_find(&m.table, 8192)->kind, MEM_DISCARDED);
	CHECK_INT(memtable_find(&m.table, 12288)->off, 12288);
	mem_fini(&m);
	close(fd);
	free(page);
}

/* Memory that was given back reads as the table says, and private pages are gone. What a restore copied stays. */
static void given_back_memory_is_as_the_table_says(void)
{
	int fd = memfd_create("mem", MFD_CLOEXEC);
	struct snap_extent x = {.gpa = 0, .len = MIB(1), .off = 0, .file = 0};
	uint8_t *file = malloc(MIB(1) + SNAP_HEAD_PAGE);
	struct mem m;
	struct err e;

	memset(file, 9, MIB(1) + SNAP_HEAD_PAGE);
	CHECK_INT(pwrite_full(fd, file, MIB(1) + SNAP_HEAD_PAGE, 0), 0);
	CHECK_INT(mem_reserve(&m, MIB(2), &e), 0);
	CHECK_INT(mem_map_files(&m, &x, 1, &fd, &e), 0);
	m.copied = malloc(2 * sizeof(*m.copied));
	m.copied[0] = (struct mem_copied){8192, 8192};
	m.copied[1] = (struct mem_copied){65536, 4096};
	m.ncopied = 2;
	for (unsigned int round = 0; round < 2; round++) {
		uint64_t from = round ? 12288 : 0, to = round ? 65536 : MIB(2);

		memset(m.base, 1, MIB(2));
		mem_give_back(&m, GPA(from), to - from);
		for (uint64_t at = 0; at < MIB(2); at += 4096) {
			bool stays =
				at < from || at >= to || (at >= 8192 && at < 16384) || at == 65536;

			CHECK_INT(m.base[at], stays ? 1 : at < MIB(1) ? 9 : 0);
		}
	}
	/* inside a copied piece */
	memset(m.base, 1, MIB(2));
	mem_give_back(&m, GPA(8192), 4096);
	CHECK_INT(m.base[8192], 1);
	mem_fini(&m);
	close(fd);
	free(file);
}

static const struct test tests[] = {
	{"random_changes_match_a_model", random_changes_match_a_model},
	{"extents_become_ranges_around_the_hole", extents_become_ranges_around_the_hole},
	{"a_table_has_a_largest_size", a_table_has_a_largest_size},
	{"discarded_memory_is_zero", discarded_memory_is_zero},
	{"given_back_memory_is_as_the_table_says", given_back_memory_is_as_the_table_says},
};
TEST_MAIN(tests)
