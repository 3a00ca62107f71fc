/* SPDX-License-Identifier: Apache-2.0
 *
 * cow: layered disks: lookup, copy-up, zeros, flush, freeze, folding, damaged files.
 */
#include "lib/test.h"

#include <stdio.h>
#include <sys/stat.h>

#include "lib/cow_format.h"
#include "tests/unit/cow_files.h"

#define U     ((uint64_t)COW_UNIT)
#define BYTES (64 * U)

static struct cow *open_ok(const struct cow_fds *f)
{
	struct cow_fds d = cf_dup_all(f);
	struct cow *c = NULL;
	struct err e = {0};

	if (cow_open(&c, &d, &e) < 0) {
		printf("cow_open: %s\n", e.msg);
		cf_close_all(&d);
	}
	return c;
}

/* opening fails, and the error holds both words */
static void open_bad(const struct cow_fds *f, const char *file, const char *field)
{
	struct cow_fds d = cf_dup_all(f);
	struct cow *c = NULL;
	struct err e = {0};

	CHECK(cow_open(&c, &d, &e) < 0);
	CHECK(c == NULL);
	if (!strstr(e.msg, file) || !strstr(e.msg, field)) {
		printf("error was \"%s\", wanted \"%s\" and \"%s\"\n", e.msg, file, field);
		test_failures++;
	}
	cow_close(c);
	cf_close_all(&d);
}

static void reads_come_from_the_base(void)
{
	struct cow_fds f = cf_disk(BYTES, BYTES / 2);
	struct cow *c = open_ok(&f);
	struct cow_run run;

	REQUIRE(c);
	CHECK_INT(cow_bytes(c), BYTES);
	for (uint64_t u = 0; u < 32; u++)
		CHECK(cf_all(c, u * U, U, cf_base_byte(u)));
	CHECK(cf_all(c, BYTES / 2, BYTES / 2, 0));
	CHECK_INT(cow_map(c, 0, BYTES, &run), 0);
	CHECK_INT(run.file, 0);
	CHECK_INT(run.len, BYTES / 2);
	CHECK_INT(cow_map(c, BYTES / 2, BYTES, &run), 0);
	CHECK_INT(run.file, COW_ZEROS);
	CHECK_INT(run.len, BYTES / 2);
	CHECK_INT(cow_map(c, BYTES, 1, &run), -EINVAL);
	CHECK_INT(cow_map(c, 0, 0, &run), -EINVAL);
	CHECK_INT(cow_read(c, &run, 8, BYTES - 4), -EINVAL);
	CHECK_INT(cow_read(c, &run, 8, UINT64_MAX - 3), -EINVAL);
	CHECK_INT(cow_write(c, &run, 8, UINT64_MAX - 3), -EINVAL);
	cow_close(c);
	cf_close_all(&f);
}

static void partial_writes_copy_up(void)
{
	struct cow_fds f = cf_disk(BYTES, BYTES / 2 + 512);
	struct cow *c = open_ok(&f);
	uint64_t len;

	REQUIRE(c);
	CHECK(!cow_write_plan(c, U + 100, 10000, &len));
	CHECK_INT(len, U - 100);
	CHECK(cow_write_plan(c, U, 10000, &len));
	CHECK_INT(len, 2 * U);
	CHECK_INT(cf_fill(c, U + 100, 10000, 'X'), 0); /* end of unit 1, all of 2, start of 3 */
	CHECK(cf_all(c, U, 100, cf_base_byte(1)));
	CHECK(cf_all(c, U + 100, 10000, 'X'));
	CHECK(cf_all(c, U + 10100, 4 * U - (U + 10100), cf_base_byte(3)));
	CHECK_INT(cf_fill(c, 3 * U + 4000, 96, 'Y'), 0); /* now in place */
	CHECK(cf_all(c, 3 * U + 4000, 96, 'Y'));
	CHECK(cf_all(c, 3 * U + 3000, 1000, cf_base_byte(3)));
	/* the unit in which the base ends */
	CHECK_INT(cf_fill(c, BYTES / 2 + 100, 10, 'Z'), 0);
	CHECK(cf_all(c, BYTES / 2 + 100, 10, 'Z'));
	CHECK(cf_all(c, BYTES / 2 + 512, U - 512, 0));
	cow_close(c);
	cf_close_all(&f);
}

static void zeros_hide_the_base(void)
{
	struct cow_fds f = cf_disk(BYTES, BYTES);
	struct cow *c = open_ok(&f);
	struct cow_stats s;

	REQUIRE(c);
	CHECK_INT(cf_fill(c, 2 * U, U, 'X'), 0);
	CHECK_INT(cow_mark_zero(c, U - 1, 3 * U), U); /* units 1 and 2 whole, 0 and 3 untouched */
	CHECK(cf_all(c, 0, U, 'a'));
	CHECK(cf_all(c, U, 2 * U, 0));
	CHECK(cf_all(c, 3 * U, U, cf_base_byte(3)));
	CHECK_INT(cf_fill(c, U + 5, 5, 'Y'), 0); /* copy-up of zeros, over stale bytes */
	CHECK(cf_all(c, U, 5, 0));
	CHECK(cf_all(c, U + 5, 5, 'Y'));
	CHECK(cf_all(c, U + 10, U - 10, 0));
	CHECK_INT(cow_zero(c, 5 * U + 10, 3 * U), 0);
	CHECK(cf_all(c, 5 * U, 10, cf_base_byte(5)));
	CHECK(cf_all(c, 5 * U + 10, 3 * U, 0));
	CHECK(cf_all(c, 8 * U + 10, U - 10, cf_base_byte(8)));
	CHECK_INT(cow_zero(c, 10 * U + 10, 20), 0);
	CHECK(cf_all(c, 10 * U, 10, cf_base_byte(10)));
	CHECK(cf_all(c, 10 * U + 10, 20, 0));
	cow_stats(c, &s);
	CHECK_INT(s.units_data, 4); /* 1, 5, 8, 10 */
	CHECK_INT(s.units_zero, 3); /* 2, 6, 7 */
	CHECK_INT(cow_flush(c, NULL), 0);
	cow_close(c);
	c = open_ok(&f);
	REQUIRE(c);
	CHECK(cf_all(c, 2 * U, U, 0));
	CHECK(cf_all(c, U + 5, 5, 'Y'));
	cow_close(c);
	cf_close_all(&f);
}

static void only_what_was_flushed_is_there_again(void)
{
	struct cow_fds f = cf_disk(BYTES, BYTES);
	struct cow *c = open_ok(&f);

	REQUIRE(c);
	CHECK_INT(cf_fill(c, 0, U, 'X'), 0);
	CHECK_INT(cow_flush(c, NULL), 0);
	CHECK_INT(cf_fill(c, U, U, 'Y'), 0);
	cow_close(c);
	c = open_ok(&f);
	REQUIRE(c);
	CHECK(cf_all(c, 0, U, 'X'));
	CHECK(cf_all(c, U, U, 'b'));
	/* the stale bytes of unit 1 must not show through a partial write */
	CHECK_INT(cf_fill(c, U, 1, 'Z'), 0);
	CHECK(cf_all(c, U + 1, U - 1, 'b'));
	cow_close(c);
	cf_close_all(&f);
}

static void marks_during_a_flush_wait_for_the_next(void)
{
	struct cow_fds f = cf_disk(BYTES, BYTES);
	struct cow *c = open_ok(&f);
	struct cow_step s;
	bool marked = false;

	REQUIRE(c);
	CHECK_INT(cf_fill(c, 0, U, 'X'), 0);
	cow_flush_begin(c);
	for (;;) {
		cow_flush_next(c, &s);
		if (s.op == COW_STEP_END)
			break;
		if (s.op == COW_STEP_WRITE) {
			CHECK(marked);
			CHECK_INT(((const uint8_t *)s.p)[0], COW_DATA);
			CHECK_INT(pwrite_full(s.fd, s.p, s.len, s.off), 0);
		} else if (!marked) {
			CHECK_INT(cf_fill(c, U, U, 'Y'), 0);
			marked = true;
		}
		cow_flush_did(c, 0);
	}
	CHECK_INT(cow_flush_end(c), 0);
	cow_flush_begin(c);
	cow_flush_next(c, &s);
	CHECK_INT(s.op, COW_STEP_SYNC);
	cow_flush_did(c, 0);
	cow_flush_next(c, &s);
	CHECK_INT(s.op, COW_STEP_WRITE);
	CHECK_INT(((const uint8_t *)s.p)[0], COW_DATA | COW_DATA << 2);
	cow_flush_did(c, -ENOSPC); /* full: the page is tried again by the next flush */
	cow_flush_next(c, &s);
	CHECK_INT(s.op, COW_STEP_END);
	CHECK_INT(cow_flush_end(c), -ENOSPC);
	CHECK_INT(cow_flush(c, NULL), 0);
	cow_flush_begin(c); /* and now there is nothing to do */
	cow_flush_next(c, &s);
	CHECK_INT(s.op, COW_STEP_END);
	CHECK_INT(cow_flush_end(c), 0);
	CHECK_INT(cf_fill(c, 0, 10, 'Z'), 0);
	cow_flush_begin(c); /* in place: data only, no bitmap */
	cow_flush_next(c, &s);
	CHECK_INT(s.op, COW_STEP_SYNC);
	cow_flush_did(c, -EIO);
	cow_flush_next(c, &s);
	CHECK_INT(cow_flush_end(c), -EIO);
	CHECK_INT(cow_flush(c, NULL), -EIO); /* lost data stays lost */
	cow_close(c);
	cf_close_all(&f);
}

/* freezes and keeps the descriptors of the new set in *f */
static int freeze(struct cow *c, struct cow_fds *f, int *dropped)
{
	int ix = cf_file(), data = cf_file(), map = cf_file(), r;
	struct err e = {0};

	r = cow_freeze(c, cf_dup(ix), cf_dup(data), cf_dup(map), dropped, &e);
	if (r < 0) {
		printf("cow_freeze: %s\n", e.msg);
		return r;
	}
	if (*dropped >= 0) {
		close(f->frozen[*dropped]);
		memmove(&f->frozen[*dropped], &f->frozen[*dropped + 1],
			(f->nfrozen - 1 - (unsigned int)*dropped) * sizeof(int));
		f->nfrozen--;
	}
	f->frozen[f->nfrozen++] = f->data;
	if (f->index >= 0)
		close(f->index);
	close(f->bitmap);
	f->index = ix;
	f->data = data;
	f->bitmap = map;
	return 0;
}

static int reopen(int fd, int how)
{
	char path[40];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, how | O_CLOEXEC);
}

/* A file of its own: a memory file's first descriptor is no writer to the kernel. */
static int tmp_file(void)
{
	char path[] = "/tmp/cow.XXXXXX";
	int fd = mkostemp(path, O_CLOEXEC);

	unlink(path);
	return fd;
}

static bool has_writer(int fd)
{
	_cleanup_close_ int ro = reopen(fd, O_RDONLY);
	bool none = fcntl(ro, F_SETLEASE, F_RDLCK) == 0;

	if (none)
		fcntl(ro, F_SETLEASE, F_UNLCK);
	return !none;
}

/* After a freeze the disk has no writable descriptor and no mapping of one, of anything that others may stand on. */
static void write_access_is_given_up(void)
{
	struct cow_fds f = COW_FDS_NONE;
	int ix = tmp_file(), data = tmp_file(), map = tmp_file(), dropped, frozen, bitmap;
	int ro[2], other;
	struct cow_step s;
	struct err e = {0};
	struct cow *c;

	f.base = cf_base(BYTES, 16);
	f.data = tmp_file();
	f.bitmap = tmp_file();
	REQUIRE(cow_layer_create(f.data, f.bitmap, BYTES, NULL) == 0);
	/* O_PATH is no writer: the test's own eyes on files whose descriptors the disk takes */
	frozen = reopen(f.data, O_PATH);
	bitmap = reopen(f.bitmap, O_PATH);
	REQUIRE(cow_open(&c, &f, &e) == 0);
	CHECK_INT(cf_fill(c, 0, 2 * U, 'X'), 0);
	CHECK(!cow_freeze_is_pending(c));
	other = reopen(ix, O_PATH);
	REQUIRE(cow_freeze(c, ix, data, map, &dropped, &e) == 0);
	CHECK(cow_freeze_is_pending(c));
	ro[0] = reopen(frozen, O_RDONLY);
	ro[1] = reopen(other, O_RDONLY);
	CHECK_INT(cow_frozen_read_only(c, ro, 1, ro[1], &e), -EBUSY);
	/* the writer is done while a flush is in the middle of the same work: that step is the flush's last one there */
	cow_flush_begin(c);
	cow_flush_next(c, &s);
	CHECK_INT(s.op, COW_STEP_SYNC);
	cow_freeze_settled(c);
	CHECK(cow_freeze_is_pending(c));
	CHECK_INT(cow_frozen_read_only(c, ro, 1, ro[1], &e), -EBUSY);
	cow_flush_did(c, 0);
	CHECK(!cow_freeze_is_pending(c));
	cow_flush_next(c, &s);
	CHECK(s.op == COW_STEP_SYNC && s.fd == data);
	while (s.op != COW_STEP_END) {
		cow_flush_did(c, 0);
		cow_flush_next(c, &s);
	}
	CHECK_INT(cow_flush_end(c), 0);
	CHECK(!has_writer(bitmap) && has_writer(frozen) && has_writer(other));
	/* other files, too few, one that can write */
	CHECK_INT(cow_frozen_read_only(c, ro, 0, -1, &e), -EINVAL);
	CHECK_INT(cow_frozen_read_only(c, &ro[1], 1, ro[1], &e), -EINVAL);
	CHECK_INT(cow_frozen_read_only(c, ro, 1, ro[0], &e), -EINVAL);
	CHECK_INT(cow_frozen_read_only(c, &f.data, 1, ro[1], &e), -EINVAL);
	CHECK_INT(cow_frozen_read_only(c, ro, 1, ro[1], &e), 0);
	CHECK(!has_writer(frozen) && !has_writer(other) && has_writer(data));
	CHECK(cf_all(c, 0, 2 * U, 'X'));
	CHECK_INT(cf_fill(c, U, U, 'Y'), 0);
	CHECK(cf_all(c, U, U, 'Y'));
	CHECK_INT(cow_flush(c, NULL), 0);
	cow_close(c);
	close(frozen);
	close(bitmap);
	close(other);
}

/* Counted over marks, discards, a reopened file and a freeze. */
static void a_limit_counts_private_units(void)
{
	struct cow_fds f = COW_FDS_NONE;
	struct err e = {0};
	struct cow_stats s;
	struct cow *c;
	int dropped;

	f.base = cf_base(BYTES, 16);
	f.data = tmp_file();
	f.bitmap = tmp_file();
	REQUIRE(cow_layer_create(f.data, f.bitmap, BYTES, NULL) == 0);
	REQUIRE(cow_open(&c, &f, &e) == 0);
	cow_limit(c, 3 * U);
	CHECK_INT(cf_fill(c, 0, 3 * U, 'A'), 0);
	CHECK_INT(cf_fill(c, U, U, 'B'), 0);
	CHECK_INT(cf_fill(c, 3 * U, 1, 'C'), -EDQUOT);
	CHECK_INT(cow_zero(c, 2 * U, U), 0);
	CHECK_INT(cf_fill(c, 5 * U + 7, 9, 'C'), 0);
	CHECK_INT(cf_fill(c, 2 * U, U, 'C'), -EDQUOT);
	REQUIRE(cow_flush(c, &e) == 0);
	cow_stats(c, &s);
	CHECK_INT(s.units_data, 3);
	/* another monitor, on the same files */
	f.base = reopen(f.base, O_RDONLY);
	f.data = reopen(f.data, O_RDWR);
	f.bitmap = reopen(f.bitmap, O_RDWR);
	cow_close(c);
	REQUIRE(cow_open(&c, &f, &e) == 0);
	cow_limit(c, 4 * U);
	CHECK(cow_has_room(c, 0, 2 * U));
	CHECK(cow_has_room(c, 0, 3 * U));
	CHECK(!cow_has_room(c, 0, 4 * U));
	CHECK(cow_has_room(c, 0, 0));
	REQUIRE(cow_freeze(c, tmp_file(), tmp_file(), tmp_file(), &dropped, &e) == 0);
	CHECK_INT(cf_fill(c, 0, 4 * U, 'D'), 0);
	CHECK_INT(cf_fill(c, 4 * U, U, 'D'), -EDQUOT);
	cow_limit(c, 0);
	CHECK_INT(cf_fill(c, 0, BYTES, 'E'), 0);
	cow_close(c);
}

static void clones_of_a_frozen_layer_part(void)
{
	struct cow_fds f = cf_disk(BYTES, BYTES), g;
	struct cow *c = open_ok(&f), *d;
	int dropped;

	REQUIRE(c);
	CHECK_INT(cf_fill(c, 0, 2 * U, 'X'), 0);
	CHECK_INT(cow_zero(c, 2 * U, U), 0);
	REQUIRE(freeze(c, &f, &dropped) == 0);
	CHECK_INT(dropped, -1);
	CHECK(cf_all(c, 0, 2 * U, 'X'));
	CHECK_INT(cf_fill(c, U, U, 'Y'), 0);
	open_bad(&f, "index", "magic"); /* not durable yet: no header */
	CHECK_INT(cow_flush(c, NULL), 0);
	g = f;
	g.data = cf_file();
	g.bitmap = cf_file();
	CHECK_INT(cow_layer_create(g.data, g.bitmap, BYTES, NULL), 0);
	d = open_ok(&g);
	REQUIRE(d);
	CHECK(cf_all(d, 0, 2 * U, 'X'));
	CHECK(cf_all(d, 2 * U, U, 0));
	CHECK(cf_all(d, 3 * U, U, cf_base_byte(3)));
	CHECK_INT(cf_fill(d, 2 * U, 10, 'Z'), 0);
	CHECK(cf_all(d, 2 * U + 10, U - 10, 0));
	CHECK(cf_all(c, 2 * U, U, 0));
	CHECK(cf_all(c, U, U, 'Y'));
	CHECK(cf_all(d, U, U, 'X'));
	cow_close(c);
	cow_close(d);
	g.data = g.bitmap = -1; /* read-only view of the frozen state */
	d = open_ok(&g);
	REQUIRE(d);
	CHECK(cow_is_read_only(d));
	CHECK(cf_all(d, 0, 2 * U, 'X'));
	CHECK_INT(cow_write(d, "x", 1, 0), -EROFS);
	CHECK_INT(cow_flush(d, NULL), -EROFS);
	cow_close(d);
	cf_close_all(&f);
}

static void the_ninth_layer_carries_one_along(void)
{
	struct cow_fds f = cf_disk(BYTES, BYTES);
	struct cow *c = open_ok(&f);
	uint8_t want[64];
	int dropped = -1;

	REQUIRE(c);
	for (unsigned int u = 0; u < 64; u++)
		want[u] = cf_base_byte(u);
	for (unsigned int k = 0; k < 14; k++) {
		/* three units a layer; later layers hide parts of earlier ones */
		for (unsigned int i = 0; i < 3; i++) {
			unsigned int u = (k * 2 + i * 7) % 64;

			want[u] = (uint8_t)('A' + k);
			CHECK_INT(cf_fill(c, u * U, U, want[u]), 0);
		}
		if (k % 3 == 0) {
			want[(k * 5 + 1) % 64] = 0;
			CHECK_INT(cow_zero(c, ((k * 5 + 1) % 64) * U, U), 0);
		}
		REQUIRE(freeze(c, &f, &dropped) == 0);
		CHECK((dropped >= 0) == (k >= COW_MAX_FROZEN));
		CHECK_INT(f.nfrozen, MIN(k + 1, COW_MAX_FROZEN));
		CHECK_INT(cow_freeze_finish(c, NULL), 0);
		for (unsigned int u = 0; u < 64; u++)
			CHECK(cf_all(c, u * U, U, want[u]));
		cow_close(c);
		c = open_ok(&f);
		REQUIRE(c);
		for (unsigned int u = 0; u < 64; u++)
			CHECK(cf_all(c, u * U, U, want[u]));
	}
	cow_close(c);
	cf_close_all(&f);
}

static bool unit_is_odd(void *ctx, uint64_t unit)
{
	*(unsigned int *)ctx += unit % 2;
	return unit % 2;
}

/* The same in advance, one unit at a time, with writes in between; units that are busy are left to the freeze. */
static void carrying_in_advance_changes_nothing(void)
{
	struct cow_fds f = cf_disk(BYTES, BYTES);
	struct cow *c = open_ok(&f);
	unsigned int turns = 0, busy = 0;
	uint8_t want[64];
	struct err e = {0};
	int dropped = -1;

	REQUIRE(c);
	for (unsigned int u = 0; u < 64; u++)
		want[u] = cf_base_byte(u);
	for (unsigned int k = 0; k < 20; k++) {
		int more;

		for (unsigned int i = 0; i < 6; i++) {
			unsigned int u = (k * 3 + i * 5) % 64;

			want[u] = (uint8_t)('A' + k);
			CHECK_INT(cf_fill(c, u * U, U, want[u]), 0);
		}
		/* a stack with room has nothing to carry */
		for (; (more = cow_carry(c, 1, unit_is_odd, &busy, &e)) == 1; turns++) {
			unsigned int u = (k + turns * 11) % 64;

			want[u] = (uint8_t)('a' + turns % 26);
			CHECK_INT(cf_fill(c, u * U, U, want[u]), 0);
			if (turns % 3 == 0)
				CHECK_INT(cow_flush(c, NULL), 0);
		}
		CHECK_INT(more, 0);
		for (unsigned int u = 0; u < 64; u++)
			CHECK(cf_all(c, u * U, U, want[u]));
		REQUIRE(freeze(c, &f, &dropped) == 0);
		CHECK((dropped >= 0) == (k >= COW_MAX_FROZEN));
		CHECK_INT(cow_freeze_finish(c, NULL), 0);
		cow_close(c);
		c = open_ok(&f);
		REQUIRE(c);
		for (unsigned int u = 0; u < 64; u++)
			CHECK(cf_all(c, u * U, U, want[u]));
	}
	CHECK(turns > 10 && busy > 5);
	cow_close(c);
	cf_close_all(&f);
}

static void poke(int fd, uint64_t off, uint8_t v)
{
	CHECK_INT(pwrite_full(fd, &v, 1, off), 0);
}

/* each: what is damaged, how the error names it. The damage is undone. */
static void damage_is_named(void)
{
	struct cow_fds f = cf_disk(BYTES, BYTES), g;
	struct cow *c = open_ok(&f);
	int dropped;
	struct {
		int fd;
		uint64_t off;
		uint8_t v;
		const char *file, *field;
	} t[8];

	REQUIRE(c);
	CHECK_INT(cf_fill(c, 0, U, 'X'), 0);
	REQUIRE(freeze(c, &f, &dropped) == 0);
	CHECK_INT(cf_fill(c, U, U, 'X'), 0);
	CHECK_INT(cow_flush(c, NULL), 0);
	cow_close(c);
	memcpy(t,
		((typeof(t[0])[8]){{f.bitmap, 3, 'x', "bitmap", "magic"},
			{f.bitmap, 16, 9, "bitmap", "checksum"},
			{f.bitmap, COW_HDR_BYTES, 3, "bitmap", "state 3"},
			{f.bitmap, COW_HDR_BYTES + 16, 1, "bitmap", "beyond"},
			{f.data, BYTES + 20, 1, "data file", "checksum"},
			{f.index, COW_HDR_BYTES + 5, 2, "index", "unit 5"},
			{f.index, COW_HDR_BYTES + 64, 1, "index", "beyond"},
			{f.frozen[0], BYTES, 'M', "frozen layer 0", "magic"}}),
		sizeof(t));
	for (size_t i = 0; i < ARRAY_LEN(t); i++) {
		uint8_t old;

		CHECK_INT(pread_full(t[i].fd, &old, 1, t[i].off), 0);
		poke(t[i].fd, t[i].off, t[i].v);
		open_bad(&f, t[i].file, t[i].field);
		poke(t[i].fd, t[i].off, old);
	}
	g = f;
	g.nfrozen = 0;
	open_bad(&g, "index", "without layers");
	g = f;
	g.index = -1;
	open_bad(&g, "index", "not given");
	g = f;
	g.bitmap = -1;
	open_bad(&g, "bitmap", "without");
	g = f;
	g.frozen[0] = f.data; /* a real layer, but another one */
	open_bad(&g, "frozen layer 0", "id");
	g = f;
	g.data = f.frozen[0];
	open_bad(&g, "data file", "id");
	g = f;
	g.frozen[1] = f.frozen[0];
	g.nfrozen = 2;
	open_bad(&g, "index", "layers");
	CHECK_INT(ftruncate(f.data, BYTES), 0);
	open_bad(&f, "data file", "length");
	CHECK_INT(ftruncate(f.index, COW_HDR_BYTES), 0);
	open_bad(&f, "index", "length");
	CHECK_INT(ftruncate(f.base, 100), 0);
	open_bad(&f, "base", "length");
	cf_close_all(&f);
}

static void create_refuses_what_cannot_be(void)
{
	int a = cf_file(), b = cf_file();
	struct stat st;

	CHECK_INT(cow_layer_create(a, b, 0, NULL), -EINVAL);
	CHECK_INT(cow_layer_create(a, b, 5000, NULL), -EINVAL);
	CHECK_INT(cow_layer_create(a, b, COW_MAX_BYTES + U, NULL), -EINVAL);
	CHECK_INT(cow_layer_create(a, b, COW_MAX_BYTES, NULL), 0);
	CHECK_INT(fstat(a, &st), 0);
	CHECK(st.st_blocks * 512 <= 8192);
	CHECK_INT(cow_layer_create(a, b, BYTES, NULL), -EEXIST);
	close(a);
	close(b);
}

static void a_bitmap_of_several_pages_is_flushed_whole(void)
{
	uint64_t bytes = MIB(64) * 5, off[] = {0, MIB(64) * 2 + U, MIB(64) * 3, bytes - U};
	struct cow_fds f = cf_disk(bytes, bytes);
	struct cow *c = open_ok(&f);
	int dropped;

	REQUIRE(c);
	for (size_t i = 0; i < ARRAY_LEN(off); i++)
		CHECK_INT(cf_fill(c, off[i], U, (uint8_t)('A' + i)), 0);
	CHECK_INT(cow_flush(c, NULL), 0);
	cow_close(c);
	c = open_ok(&f);
	REQUIRE(c);
	for (size_t i = 0; i < ARRAY_LEN(off); i++)
		CHECK(cf_all(c, off[i], U, (uint8_t)('A' + i)));
	CHECK_INT(cf_fill(c, MIB(64) * 4, U, 'Z'), 0);
	REQUIRE(freeze(c, &f, &dropped) == 0);
	CHECK_INT(cow_flush(c, NULL), 0);
	cow_close(c);
	c = open_ok(&f);
	REQUIRE(c);
	for (size_t i = 0; i < ARRAY_LEN(off); i++)
		CHECK(cf_all(c, off[i], U, (uint8_t)('A' + i)));
	CHECK(cf_all(c, MIB(64) * 4, U, 'Z'));
	cow_close(c);
	cf_close_all(&f);
}

/* Linux tells a failed write-back once, and the pages are clean then: the next sync succeeds over
 * what is lost. */
static int failing_fd = -1;

static int fail_write(void *ctx, int fd, const void *p, size_t n, uint64_t off)
{
	return pwrite_full(fd, p, n, off);
}

static int fail_sync_once(void *ctx, int fd)
{
	if (fd != failing_fd)
		return 0;
	failing_fd = -1;
	return -EIO;
}

static int fail_punch(void *ctx, int fd, uint64_t off, uint64_t len)
{
	return 0;
}

static void a_failed_sync_is_remembered(void)
{
	static const struct cow_io io = {fail_write, fail_sync_once, fail_punch, NULL};
	static const uint8_t unit[COW_UNIT] = {7};

	/* the private layer's data, its bitmap, and, in a freeze, the index */
	for (int what = 0; what < 3; what++) {
		struct cow_fds f = cf_disk(BYTES, BYTES / 2), d = cf_dup_all(&f);
		int index = cf_file(), data = cf_file(), map = cf_file(), drop;
		struct cow *c = NULL;
		struct err e = {0};

		REQUIRE(cow_open_io(&c, &d, &io, &e) == 0);
		CHECK_INT(cow_write(c, unit, U, 2 * U), 0);
		if (what == 2) {
			CHECK_INT(cow_flush(c, &e), 0);
			REQUIRE(cow_freeze(c, index, data, map, &drop, &e) == 0);
			failing_fd = index;
			CHECK_INT(cow_freeze_finish(c, &e), -EIO);
		} else {
			failing_fd = what ? d.bitmap : d.data;
			CHECK_INT(cow_flush(c, &e), -EIO);
		}
		CHECK_INT(failing_fd, -1);
		CHECK_INT(cow_flush(c, &e), -EIO);
		cow_close(c);
		cf_close_all(&f);
	}
}

static const struct test tests[] = {
	{"a_limit_counts_private_units", a_limit_counts_private_units},
	{"a_failed_sync_is_remembered", a_failed_sync_is_remembered},
	{"a_bitmap_of_several_pages_is_flushed_whole", a_bitmap_of_several_pages_is_flushed_whole},
	{"reads_come_from_the_base", reads_come_from_the_base},
	{"partial_writes_copy_up", partial_writes_copy_up},
	{"zeros_hide_the_base", zeros_hide_the_base},
	{"only_what_was_flushed_is_there_again", only_what_was_flushed_is_there_again},
	{"marks_during_a_flush_wait_for_the_next", marks_during_a_flush_wait_for_the_next},
	{"write_access_is_given_up", write_access_is_given_up},
	{"clones_of_a_frozen_layer_part", clones_of_a_frozen_layer_part},
	{"the_ninth_layer_carries_one_along", the_ninth_layer_carries_one_along},
	{"carrying_in_advance_changes_nothing", carrying_in_advance_changes_nothing},
	{"damage_is_named", damage_is_named},
	{"create_refuses_what_cannot_be", create_refuses_what_cannot_be},
};
TEST_MAIN(tests)
