/* SPDX-License-Identifier: Apache-2.0
 *
 * vmm_populate: the plan of a working set, compared with a model that has one entry a page, and a real one: what
 * is copied is private and has the file's bytes, everything else stays the file's.
 */
#include "lib/test.h"

#include <fcntl.h>
#include <sys/mman.h>

#include "vmm/populate.h"

#define PAGES 4096u
#define RAM   (PAGES * 4096ull)

static uint32_t seed = 3;

static uint32_t rnd(uint32_t below)
{
	seed = seed * 1103515245 + 12345;
	return (seed >> 8) % below;
}

/* Three pieces of file, holes between them. */
static const struct snap_extent extents[] = {
	{.gpa = 10 * 4096, .len = 500 * 4096, .off = 0, .file = 0},
	{.gpa = 600 * 4096, .len = 1400 * 4096, .off = 500 * 4096, .file = 0},
	{.gpa = 2000 * 4096, .len = 1500 * 4096, .off = 0, .file = 1},
};

static uint32_t make_set(struct snap_ws_range *ws, uint32_t cap, uint32_t largest_gap)
{
	uint32_t n = 0, at = 0;

	while (n < cap) {
		uint32_t len = 1 + rnd(6);

		at += rnd(largest_gap);
		if (at + len > PAGES)
			break;
		ws[n++] =
			(struct snap_ws_range){.page = at, .npages = len & 0xff, .written = rnd(2)};
		at += len;
	}
	return n;
}

struct page {
	bool read, written, copied, in_area, along, write;
};

static void mark_plan(struct page *m, const struct populate_plan *p, const struct mem_table *t)
{
	for (unsigned int i = 0; i < p->ncopy; i++)
		for (uint64_t o = 0; o < p->copy[i].len; o += 4096) {
			const struct populate_copy *c = &p->copy[i];
			const struct mem_range *r = memtable_find(t, c->gpa + o);

			CHECK(!m[(c->gpa + o) / 4096].copied);
			m[(c->gpa + o) / 4096].copied = true;
			if (memtable_in_file(r))
				CHECK(c->file == r->file &&
					c->off + o == r->off + (c->gpa + o - r->gpa));
			else
				CHECK(c->file == POPULATE_NO_FILE);
		}
	for (unsigned int i = 0; i < p->narea; i++)
		for (uint64_t o = 0; o < p->area[i].len; o += 4096)
			m[(p->area[i].gpa + o) / 4096].in_area = true;
	for (size_t i = 0; i < p->along.n; i++)
		for (uint64_t o = 0; o < p->along.r[i].len; o += 4096)
			m[(p->along.r[i].gpa + o) / 4096].along = true;
	for (size_t i = 0; i < p->write.n; i++)
		for (uint64_t o = 0; o < p->write.r[i].len; o += 4096)
			m[(p->write.r[i].gpa + o) / 4096].write = true;
}

static void plans_match_a_model(void)
{
	struct snap_ws_range *ws = malloc(2000 * sizeof(*ws));
	struct page *m = malloc(PAGES * sizeof(*m));
	struct mem_table t = {0};

	CHECK_INT(memtable_load(&t, RAM, extents, ARRAY_LEN(extents)), 0);
	for (unsigned int round = 0; round < 200; round++) {
		uint32_t n = make_set(ws, 2000, round % 40 + 2);
		uint64_t room = round % 3 ? MIB(16) : KIB(4) * rnd(200), used = 0;
		struct populate_plan p;

		CHECK_INT(populate_plan_make(&p, &t, ws, n, room), 0);
		memset(m, 0, PAGES * sizeof(*m));
		for (uint32_t i = 0; i < n; i++)
			for (uint32_t k = 0; k < ws[i].npages; k++)
				*(ws[i].written ? &m[ws[i].page + k].written
						: &m[ws[i].page + k].read) = true;
		mark_plan(m, &p, &t);
		for (unsigned int i = 0; i < PAGES; i++) {
			bool file = memtable_in_file(memtable_find(&t, i * 4096ull));

			used += m[i].copied ? 4096 : 0;
			CHECK_INT(m[i].written, (m[i].copied && !m[i].along) || m[i].write);
			CHECK(!(m[i].copied && m[i].write));
			CHECK(!m[i].along || (m[i].copied && file));
			if (m[i].written || (m[i].read && file))
				CHECK(m[i].in_area);
		}
		CHECK(used <= room);
		for (unsigned int i = 0; i < p.ncopy; i++)
			CHECK(p.copy[i].written >= POPULATE_COPY_MIN);
		populate_plan_fini(&p);
	}
	memtable_fini(&t);
	free(m);
	free(ws);
}

static int make_file(uint64_t bytes, uint8_t salt)
{
	int fd = memfd_create("mem", MFD_CLOEXEC);

	for (uint64_t o = 0; o < bytes + SNAP_HEAD_PAGE; o += 4096) {
		uint8_t page[4096];

		memset(page, (int)(o / 4096 * 7 + salt) & 0xff, sizeof(page));
		CHECK_INT(pwrite_full(fd, page, sizeof(page), o), 0);
	}
	return fd;
}

static void check_pages(const struct mem *m, const struct populate_plan *p)
{
	static struct page model[PAGES];
	int proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
	struct pm_list priv;
	struct err e;

	memset(model, 0, sizeof(model));
	mark_plan(model, p, &m->table);
	CHECK_INT(pagemap_list(proc, m, true, false, &priv, &e), 0);
	for (size_t i = 0; i < priv.n; i++)
		for (uint64_t o = 0; o < priv.r[i].len; o += 4096)
			model[(priv.r[i].gpa + o) / 4096].read = true; /* here: private */
	for (unsigned int i = 0; i < PAGES; i++) {
		const struct mem_range *r = memtable_find(&m->table, i * 4096ull);
		uint64_t o = SNAP_HEAD_PAGE + r->off + (i * 4096ull - r->gpa);
		uint8_t want = (uint8_t)(o / 4096 * 7 + r->file);

		CHECK_INT(model[i].read, model[i].copied || model[i].write);
		CHECK_INT(m->base[i * 4096ull + 5], memtable_in_file(r) ? want : 0);
	}
	pm_list_fini(&priv);
	close(proc);
}

static void a_working_set_is_put_in_place(bool with_reserve, uint64_t room)
{
	int fd[2] = {make_file(1900 * 4096, 0), make_file(1500 * 4096, 1)};
	struct populate *s = with_reserve ? populate_create() : NULL;
	struct snap_ws_range *ws = malloc(2000 * sizeof(*ws));
	uint32_t n = make_set(ws, 2000, 12);
	struct populate_plan p;
	struct mem m;
	struct err e;

	CHECK_INT(mem_reserve(&m, RAM, &e), 0);
	CHECK_INT(mem_map_files(&m, extents, ARRAY_LEN(extents), fd, &e), 0);
	CHECK_INT(populate_room(s), with_reserve ? POPULATE_RESERVE : 0);
	CHECK_INT(populate_plan_make(&p, &m.table, ws, n, MIN(room, populate_room(s))), 0);
	CHECK(with_reserve || p.ncopy == 0);
	CHECK_INT(populate_start(s, &m, &p, fd, &e), 0);
	populate_wait(s);
	check_pages(&m, &p);
	populate_wait(s);
	populate_destroy(s);
	populate_plan_fini(&p);
	mem_fini(&m);
	close(fd[0]);
	close(fd[1]);
	free(ws);
}

static void with_and_without_a_reserve(void)
{
	a_working_set_is_put_in_place(true, UINT64_MAX);
	a_working_set_is_put_in_place(true, KIB(100));
	a_working_set_is_put_in_place(false, 0);
	populate_destroy(populate_create()); /* never used */
	populate_destroy(NULL);
}

static void a_file_that_is_too_short_is_an_error(void)
{
	int fd[2] = {make_file(4096, 0), make_file(4096, 1)};
	struct snap_ws_range ws = {.page = 700, .npages = 3, .written = 1};
	struct populate *s = populate_create();
	struct populate_plan p;
	struct err e = {0};
	struct mem m;

	CHECK_INT(mem_reserve(&m, RAM, &e), 0);
	CHECK_INT(mem_map_files(&m, extents, ARRAY_LEN(extents), fd, &e), 0);
	CHECK_INT(populate_plan_make(&p, &m.table, &ws, 1, populate_room(s)), 0);
	CHECK(populate_start(s, &m, &p, fd, &e) < 0);
	CHECK(strstr(e.msg, "memory file 0") != NULL);
	populate_destroy(s);
	populate_plan_fini(&p);
	mem_fini(&m);
	close(fd[0]);
	close(fd[1]);
}

static const struct test tests[] = {
	{"plans_match_a_model", plans_match_a_model},
	{"with_and_without_a_reserve", with_and_without_a_reserve},
	{"a_file_that_is_too_short_is_an_error", a_file_that_is_too_short_is_an_error},
};
TEST_MAIN(tests)
