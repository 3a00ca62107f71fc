/* SPDX-License-Identifier: Apache-2.0
 *
 * vmm_snap: the snapshot files round trip; every damaged field and every cut is refused; the plan
 * of memory covers what it must.
 */
#include "lib/test.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "lib/snap.h"
#include "vmm/mem.h"
#include "vmm/memplan.h"

#define MEM MIB(256)

static void write_sample(struct snap_writer *w)
{
	struct snap_extent x[3] = {{.gpa = 0, .len = 8192, .off = 0, .file = 0},
		{.gpa = MIB(1), .len = 4096, .off = 0, .file = 1},
		{.gpa = MIB(2), .len = MIB(1), .off = 8192, .file = 0}};
	struct err e;
	size_t at;

	snap_write_begin(w);
	w->head.mem_bytes = MEM;
	w->head.vcpus = 2;
	w->head.nfiles = 2;
	w->head.file[0].data_bytes = MIB(2);
	w->head.file[1].data_bytes = 4096;
	at = snap_sec_begin(w, SNAP_S_VCPU, 1);
	buf_put(&w->out, "hello", 5);
	snap_sec_end(w, at);
	at = snap_sec_begin(w, SNAP_S_EXTENTS, 0);
	buf_put(&w->out, x, sizeof(x));
	snap_sec_end(w, at);
	CHECK_INT(snap_write_finish(w, &e), 0);
}

static void state_round_trip(void)
{
	struct snap *s = calloc(1, sizeof(*s));
	struct snap_writer w;
	struct err e;
	struct cur c;

	write_sample(&w);
	CHECK_INT(snap_parse(s, w.out.p, w.out.len, &e), 0);
	CHECK_INT(s->nextents, 3);
	CHECK_INT(s->ext[2].gpa, MIB(2));
	c = snap_section(s, SNAP_S_VCPU, 1);
	CHECK_INT(cur_left(&c), 5);
	CHECK(!snap_has(s, SNAP_S_VCPU, 0));
	snap_write_fini(&w);
	free(s);
}

static void every_flipped_bit_and_every_cut_is_refused(void)
{
	struct snap *s = calloc(1, sizeof(*s));
	struct snap_writer w;
	struct err e;
	uint8_t *p;

	write_sample(&w);
	p = malloc(w.out.len);
	for (size_t i = 0; i < w.out.len; i++) {
		memcpy(p, w.out.p, w.out.len);
		p[i] ^= (uint8_t)(1u << (i % 8));
		/* the only bytes that mean nothing are the padding behind a section */
		if (snap_parse(s, p, w.out.len, &e) == 0)
			CHECK(i >= sizeof(struct snap_head) + 16 + 5 &&
				i < sizeof(struct snap_head) + 16 + 8);
	}
	for (size_t n = 0; n < w.out.len; n++)
		CHECK(snap_parse(s, w.out.p, n, &e) < 0);
	snap_write_fini(&w);
	free(p);
	free(s);
}

/* A well-made file with wrong contents: sums right, fields not. */
static void wrong_fields_are_named(void)
{
	static const struct {
		size_t at;
		uint64_t v;
		unsigned int n;
		const char *says;
	} bad[] = {
		{offsetof(struct snap_head, version), 2, 4, "version"},
		{offsetof(struct snap_head, mem_bytes), MIB(256) + 1, 8, "mem_bytes"},
		{offsetof(struct snap_head, mem_bytes), GIB(64), 8, "mem_bytes"},
		{offsetof(struct snap_head, vcpus), 17, 4, "vcpus"},
		{offsetof(struct snap_head, vcpus), 0, 4, "vcpus"},
		{offsetof(struct snap_head, nfiles), 5, 4, "nfiles"},
		{offsetof(struct snap_head, nfiles), 0, 4, "nfiles"},
		{offsetof(struct snap_head, nfiles), 1, 4, "extent"},
		{offsetof(struct snap_head, nsecs), 65, 4, "nsecs"},
		{offsetof(struct snap_head, nsecs), 3, 4, "section"},
		{offsetof(struct snap_head, nsecs), 1, 4, "behind"},
		{offsetof(struct snap_head, mem_bytes), MIB(2), 8, "extent"},
		{offsetof(struct snap_head, file[1].data_bytes), 0, 8, "extent"},
		{offsetof(struct snap_head, file[0].data_bytes), 4097, 8, "data_bytes"},
	};
	struct snap *s = calloc(1, sizeof(*s));

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct snap_writer w;
		struct snap_head h;
		struct err e = {0};

		write_sample(&w);
		memcpy(w.out.p + bad[i].at, &bad[i].v, bad[i].n);
		memcpy(&h, w.out.p, sizeof(h));
		h.crc = snap_crc(0, &h, offsetof(struct snap_head, crc));
		memcpy(w.out.p, &h, sizeof(h));
		CHECK(snap_parse(s, w.out.p, w.out.len, &e) < 0);
		if (!strstr(e.msg, bad[i].says))
			CHECK_STR(e.msg, bad[i].says);
		snap_write_fini(&w);
	}
	free(s);
}

static int make_mem(uint64_t pages, struct snap_file *f)
{
	int fd = memfd_create("mem", MFD_CLOEXEC);
	struct snap_mem_writer w;
	uint8_t page[4096];
	struct err e;

	CHECK_INT(snap_mem_begin(&w, fd, &e), 0);
	CHECK_INT(snap_mem_reserve(&w, 0, pages * 4096, &e), 0);
	for (uint64_t i = 0; i < pages; i++) {
		memset(page, (int)i + 1, sizeof(page));
		CHECK_INT(snap_mem_put(&w, page, sizeof(page), &e), 0);
	}
	CHECK_INT(snap_mem_finish(&w, &e), 0);
	memcpy(f->id, w.head.id, 16);
	f->data_bytes = pages * 4096;
	snap_mem_fini(&w);
	return fd;
}

static void memory_files_are_verified(void)
{
	struct snap_file f, other;
	struct snap_mem_head h;
	int fd = make_mem(100, &f), fd2 = make_mem(3, &other);
	struct err e;
	uint8_t b;

	CHECK_INT(snap_mem_verify(fd, &f, &e), 0);
	CHECK_INT(snap_mem_verify(fd2, &other, &e), 0);
	CHECK(snap_mem_check(fd2, &f, &h, &e) < 0); /* swapped */
	/* one bit of data, of the sums, of the head */
	static const uint64_t at[] = {4096 + 70 * 4096 + 5, 4096 + 100 * 4096 + 1, 17, 40};

	for (size_t i = 0; i < ARRAY_LEN(at); i++) {
		CHECK(pread(fd, &b, 1, (off_t)at[i]) == 1);
		b ^= 4;
		CHECK(pwrite(fd, &b, 1, (off_t)at[i]) == 1);
		CHECK(snap_mem_verify(fd, &f, &e) < 0);
		b ^= 4;
		CHECK(pwrite(fd, &b, 1, (off_t)at[i]) == 1);
	}
	CHECK_INT(snap_mem_verify(fd, &f, &e), 0);
	CHECK(ftruncate(fd, 4096 + 100 * 4096) == 0);
	CHECK(snap_mem_check(fd, &f, &h, &e) < 0);
	CHECK(strstr(e.msg, "truncated") != NULL);
	CHECK(ftruncate(fd, 0) == 0);
	CHECK(snap_mem_check(fd, &f, &h, &e) < 0);
	close(fd);
	close(fd2);
}

/* Only what is asked for is read: damage elsewhere is not seen, damage there is. */
static void some_chunks_are_verified(void)
{
	static uint8_t map[SNAP_MAX_FILES][SNAP_CHUNK_MAP];
	static struct snap s = {.nextents = 2};
	struct snap_file f;
	int fd = make_mem(300, &f); /* five chunks, the last one short */
	struct err e;

	/* pages 100..199 of the guest are pages 0..99 of file 1; pages 500..699 its pages 100..299
	 */
	s.ext[0] = (struct snap_extent){.gpa = 100 * 4096, .len = 100 * 4096, .off = 0, .file = 1};
	s.ext[1] = (struct snap_extent){
		.gpa = 500 * 4096, .len = 200 * 4096, .off = 100 * 4096, .file = 1};
	snap_mark_chunks(&s, 0, 100 * 4096, map);          /* before it */
	snap_mark_chunks(&s, 200 * 4096, 300 * 4096, map); /* in the gap */
	snap_mark_chunks(&s, 700 * 4096, 4096, map);       /* behind it */
	CHECK_INT(map[1][0], 0);
	snap_mark_chunks(&s, 163 * 4096, 2 * 4096, map); /* over the border of chunks 0 and 1 */
	CHECK_INT(map[1][0], 3);
	snap_mark_chunks(&s, 0, 1000 * 4096, map);
	CHECK_INT(map[1][0], 31);
	CHECK_INT(map[0][0], 0);
	CHECK_INT(snap_mem_verify_some(fd, &f, map[1], &e), 0);
	CHECK(pwrite(fd, "x", 1, 4096 + 130 * 4096) == 1); /* in chunk 2 */
	CHECK(snap_mem_verify_some(fd, &f, map[1], &e) < 0);
	CHECK(strstr(e.msg, "chunk 2") != NULL);
	map[1][0] = 31 - 4;
	CHECK_INT(snap_mem_verify_some(fd, &f, map[1], &e), 0);
	close(fd);
}

static void working_sets(void)
{
	struct snap_ws_range r[3] = {{0, 5, 0}, {5, 1, 1}, {100, 7, 0}},
			     *got = malloc(SNAP_MAX_WS * sizeof(*got));
	int fd = memfd_create("ws", MFD_CLOEXEC);
	uint8_t id[16] = {1}, other[16] = {2}, b;
	struct err e;
	uint32_t n = 0;

	CHECK_INT(snap_ws_write(fd, id, r, 3, &e), 0);
	CHECK_INT(snap_ws_read(fd, id, MEM, got, &n, &e), 0);
	CHECK_INT(n, 3);
	CHECK(!memcmp(r, got, sizeof(r)));
	CHECK_INT(snap_ws_read(fd, other, MEM, got, &n, &e), -ESTALE);
	CHECK_INT(snap_ws_read(fd, id, 106 * 4096, got, &n, &e), -EBADMSG);
	for (off_t at = 0; at < (off_t)(sizeof(struct snap_ws_head) + sizeof(r)); at++) {
		CHECK(pread(fd, &b, 1, at) == 1);
		b ^= 1;
		CHECK(pwrite(fd, &b, 1, at) == 1);
		CHECK(snap_ws_read(fd, id, MEM, got, &n, &e) < 0);
		b ^= 1;
		CHECK(pwrite(fd, &b, 1, at) == 1);
	}
	free(got);
	close(fd);
}

static void crc_is_castagnoli(void)
{
	uint8_t b[1000];
	uint32_t whole;

	CHECK_INT(snap_crc(0, "123456789", 9), 0xe3069283u);
	for (size_t i = 0; i < sizeof(b); i++)
		b[i] = (uint8_t)(i * 7);
	whole = snap_crc(0, b, sizeof(b));
	CHECK_INT(snap_crc(snap_crc(0, b, 333), b + 333, sizeof(b) - 333), whole);
}

/* ---- plans: a model of one byte a page says where each page must come from */

#define PAGES 4096u

static void check_plan(const struct memplan *p, const struct pm_list *w,
	const struct snap_extent *base, unsigned int nbase, unsigned int nfiles)
{
	uint8_t from[PAGES] = {0}, must[PAGES] = {0};
	uint32_t map[4], k = 0;
	uint64_t at = 0;

	for (unsigned int f = 0; f < nfiles; f++)
		map[f] = p->kept & (1u << f) ? k++ : UINT32_MAX;
	CHECK_INT(p->new_file, k);
	CHECK(p->nfiles <= SNAP_MAX_FILES);
	for (unsigned int i = 0; i < p->n; i++) {
		CHECK(p->ext[i].gpa >= at);
		at = p->ext[i].gpa + p->ext[i].len;
		for (uint64_t g = p->ext[i].gpa; g < at; g += 4096)
			from[g / 4096] =
				p->ext[i].file == p->new_file ? 200 : (uint8_t)(1 + p->ext[i].file);
	}
	for (size_t i = 0; i < w->n; i++)
		for (uint64_t g = w->r[i].gpa; g < w->r[i].gpa + w->r[i].len; g += 4096)
			must[g / 4096] = 200;
	for (unsigned int i = 0; i < PAGES; i++)
		if (must[i])
			CHECK_INT(from[i], 200);
	for (unsigned int x = 0; x < nbase; x++)
		for (uint64_t o = 0; o < base[x].len; o += 4096) {
			uint64_t page = (base[x].gpa + o) / 4096;

			if (from[page] == 200)
				continue; /* carried along */
			CHECK(map[base[x].file] != UINT32_MAX &&
				from[page] == 1 + map[base[x].file]);
		}
}

/* In the new file the pieces follow `order` without overlapping, and large ones can be mapped by
 * 2 MiB. */
static void check_places(const struct memplan *p)
{
	uint64_t at = 0, pages = 0;
	unsigned int n = 0;

	for (unsigned int i = 0; i < p->n; i++)
		n += p->ext[i].file == p->new_file;
	CHECK_INT(p->nnew, n);
	for (unsigned int i = 0; i < p->nnew; i++) {
		const struct snap_extent *x = &p->ext[p->order[i]];

		CHECK_INT(x->file, p->new_file);
		CHECK(x->off >= at);
		at = x->off + x->len;
		pages += x->len / 4096;
		if (ALIGN_UP(x->gpa, MIB(2)) + MIB(2) <= x->gpa + x->len)
			CHECK(mem_extent_is_huge(x));
	}
	CHECK_INT(p->bytes, at);
	CHECK_INT(p->pages, pages);
}

static void large_pieces_lie_at_two_mebibytes(void)
{
	static const struct {
		uint64_t gpa, len;
	} in[] = {{0, KIB(200)}, {MIB(1), MIB(1)}, {MIB(4), MIB(3)}, {MIB(8) + KIB(512), MIB(5)},
		{MIB(15), KIB(900)}, {MIB(20), MIB(2)}};
	struct memplan *p = calloc(1, sizeof(*p));
	struct pm_list w = {0};
	struct err e;

	for (size_t i = 0; i < ARRAY_LEN(in); i++)
		CHECK_INT(pm_list_add(&w, in[i].gpa, in[i].len, true), 0);
	CHECK_INT(memplan_make(p, &w, NULL, 0, 0, 0, &e), 0);
	CHECK_INT(p->n, ARRAY_LEN(in));
	check_places(p);
	/* the small ones stand in the gaps: what is lost is less than 2 MiB a large one */
	CHECK(p->bytes < p->pages * 4096 + 3 * MIB(2));
	CHECK_INT(p->ext[0].off, 0);
	pm_list_fini(&w);
	free(p);
}

static void holes_of_a_memory_file_are_zeros(void)
{
	int fd = memfd_create("mem", MFD_CLOEXEC);
	struct snap_mem_writer w;
	struct snap_file f = {.data_bytes = MIB(5)};
	uint8_t *p = malloc(MIB(3)), page[4096], zeros[4096] = {0};
	struct stat st;
	struct err e;

	memset(p, 7, MIB(3));
	CHECK_INT(snap_mem_begin(&w, fd, &e), 0);
	CHECK_INT(snap_mem_put(&w, p, KIB(4), &e), 0);
	CHECK(!snap_mem_is_huge_place(&w));
	snap_mem_skip(&w, MIB(2) - KIB(8));
	CHECK(snap_mem_is_huge_place(&w));
	CHECK_INT(snap_mem_put_huge(&w, p, &e), 0);
	CHECK_INT(snap_mem_put(&w, p, MIB(1) + KIB(4), &e), 0);
	CHECK_INT(snap_mem_finish(&w, &e), 0);
	memcpy(f.id, w.head.id, sizeof(f.id));
	snap_mem_fini(&w);
	CHECK_INT(snap_mem_verify(fd, &f, &e), 0);
	CHECK(fstat(fd, &st) == 0 && st.st_blocks * 512ull < MIB(4));
	CHECK_INT(pread_full(fd, page, sizeof(page), SNAP_HEAD_PAGE + MIB(1)), 0);
	CHECK(!memcmp(page, zeros, sizeof(page)));
	/* what somebody writes into a hole is damage */
	CHECK(pwrite(fd, "x", 1, SNAP_HEAD_PAGE + (off_t)MIB(1)) == 1);
	CHECK(snap_mem_verify(fd, &f, &e) < 0);
	close(fd);
	free(p);
}

static void plans_cover_everything(void)
{
	uint32_t seed = 1;

	for (unsigned int round = 0; round < 300; round++) {
		struct snap_extent base[SNAP_MAX_EXTENTS];
		unsigned int nbase = 0, nfiles = round % 5;
		struct memplan *p = calloc(1, sizeof(*p));
		struct pm_list w = {0};
		struct err e = {0};
		uint64_t at = 0;

		while (nfiles && nbase < 200) {
			seed = seed * 1103515245 + 12345;
			at += (seed >> 16) % 8;
			if (at + 20 >= PAGES)
				break;
			base[nbase] = (struct snap_extent){.gpa = at * 4096,
				.len = 4096 * (1 + (seed >> 8) % 15),
				.off = at * 4096,
				.file = (seed >> 20) % nfiles};
			at += base[nbase++].len / 4096;
		}
		for (at = 0; at + 40 < PAGES;) {
			seed = seed * 1103515245 + 12345;
			at += (seed >> 16) % (round % 3 ? 400 : 5);
			if (at + 40 >= PAGES)
				break;
			CHECK_INT(
				pm_list_add(&w, at * 4096, 4096 * (1 + (seed >> 8) % 30), true), 0);
			at += (seed >> 8) % 30 + 2;
		}
		uint32_t drop = round % 2 ? seed >> 24 & 15 : 0;

		CHECK_INT(memplan_make(p, &w, base, nbase, nfiles, drop, &e), 0);
		CHECK_INT(p->kept & drop, 0);
		CHECK(p->n <= SNAP_MAX_EXTENTS);
		check_plan(p, &w, base, nbase, nfiles);
		check_places(p);
		pm_list_fini(&w);
		free(p);
	}
}

static void a_fifth_file_carries_the_smallest(void)
{
	struct snap_extent base[4] = {{.gpa = 0, .len = MIB(8), .file = 0},
		{.gpa = MIB(8), .len = 8192, .file = 1}, {.gpa = MIB(10), .len = 4096, .file = 2},
		{.gpa = MIB(12), .len = 16384, .file = 3}};
	struct memplan *p = calloc(1, sizeof(*p));
	struct pm_list w = {0};
	struct err e;

	pm_list_add(&w, MIB(14), 4096, true);
	CHECK_INT(memplan_make(p, &w, base, 4, 4, 0, &e), 0);
	CHECK_INT(p->kept, 1 | 2 | 8);
	CHECK_INT(p->pages, 2);
	check_places(p);
	CHECK_INT(p->nfiles, 4);
	pm_list_fini(&w);
	free(p);
}

/* A file in RAM may be the largest of all: nothing durable refers to it. */
static void a_file_that_must_not_stay_is_carried(void)
{
	struct snap_extent base[3] = {{.gpa = 0, .len = 8192, .file = 0},
		{.gpa = MIB(8), .len = MIB(2), .file = 1},
		{.gpa = MIB(12), .len = 4096, .file = 2}};
	struct memplan *p = calloc(1, sizeof(*p));
	struct pm_list w = {0};
	struct err e;

	pm_list_add(&w, MIB(14), 4096, true);
	CHECK_INT(memplan_make(p, &w, base, 3, 3, 1 << 1, &e), 0);
	CHECK_INT(p->kept, 1 | 4);
	CHECK_INT(p->pages, MIB(2) / 4096 + 1);
	check_plan(p, &w, base, 3, 3);
	CHECK_INT(memplan_make(p, &w, base, 3, 3, 15, &e), 0);
	CHECK_INT(p->kept, 0);
	CHECK_INT(p->nfiles, 1);
	pm_list_fini(&w);
	free(p);
}

/* The same bytes, and no page more than those that were put. */
static void a_memory_file_in_ram(void)
{
	int fd = memfd_create("mem", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct snap_mem_writer w;
	struct snap_file f = {.data_bytes = 8192};
	uint8_t page[4096] = {7};
	struct stat st;
	struct err e;

	CHECK_INT(snap_mem_begin(&w, fd, &e), 0);
	w.in_ram = true;
	CHECK_INT(snap_mem_reserve(&w, 0, MIB(64), &e), 0);
	CHECK_INT(snap_mem_put(&w, page, sizeof(page), &e), 0);
	CHECK_INT(snap_mem_put(&w, page, sizeof(page), &e), 0);
	CHECK_INT(snap_mem_finish(&w, &e), 0);
	memcpy(f.id, w.head.id, sizeof(f.id));
	snap_mem_fini(&w);
	CHECK(fstat(fd, &st) == 0 && st.st_blocks * 512 <= 4 * 4096);
	CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK) == 0);
	CHECK_INT(snap_mem_verify(fd, &f, &e), 0);
	close(fd);
}

static const struct test tests[] = {
	{"state_round_trip", state_round_trip},
	{"every_flipped_bit_and_every_cut_is_refused", every_flipped_bit_and_every_cut_is_refused},
	{"wrong_fields_are_named", wrong_fields_are_named},
	{"memory_files_are_verified", memory_files_are_verified},
	{"some_chunks_are_verified", some_chunks_are_verified},
	{"working_sets", working_sets},
	{"crc_is_castagnoli", crc_is_castagnoli},
	{"plans_cover_everything", plans_cover_everything},
	{"large_pieces_lie_at_two_mebibytes", large_pieces_lie_at_two_mebibytes},
	{"holes_of_a_memory_file_are_zeros", holes_of_a_memory_file_are_zeros},
	{"a_fifth_file_carries_the_smallest", a_fifth_file_carries_the_smallest},
	{"a_file_that_must_not_stay_is_carried", a_file_that_must_not_stay_is_carried},
	{"a_memory_file_in_ram", a_memory_file_in_ram},
};
TEST_MAIN(tests)
