/* SPDX-License-Identifier: Apache-2.0
 *
 * cow_tools: measure, flatten, check and repair, an index rebuilt from bitmaps.
 */
#include "lib/test.h"

#include <sys/stat.h>

#include "lib/cow_format.h"
#include "lib/cow_tools.h"
#include "tests/unit/cow_files.h"

#define U     ((uint64_t)COW_UNIT)
#define BYTES (64 * U)

static char said[2000];

static void say(void *arg, const char *text)
{
	size_t n = strlen(said);

	snprintf(said + n, sizeof(said) - n, "%s\n", text);
}

static int check(int data, int map, bool repair)
{
	said[0] = 0;
	return cow_layer_check(data, map, repair, say, NULL, NULL);
}

static struct cow *reopen(const struct cow_fds *f)
{
	struct cow_fds d = cf_dup_all(f);
	struct cow *c = NULL;
	struct err e = {0};

	if (cow_open(&c, &d, &e) < 0)
		printf("%s\n", e.msg);
	return c;
}

/* two frozen layers and a private one; all durable. bitmaps: of the frozen ones */
static struct cow_fds three_layers(int *bitmaps)
{
	struct cow_fds f = cf_disk(BYTES, BYTES);

	for (int k = 0; k < 2; k++) {
		struct cow *c = reopen(&f);
		int ix = cf_file(), data = cf_file(), map = cf_file(), dropped;

		cf_fill(c, (uint64_t)k * U, 3 * U, (uint8_t)('X' + k));
		cow_zero(c, (uint64_t)(10 + k) * U, U);
		CHECK_INT(cow_freeze(c, cf_dup(ix), cf_dup(data), cf_dup(map), &dropped, NULL), 0);
		CHECK_INT(cow_flush(c, NULL), 0);
		cow_close(c);
		bitmaps[k] = f.bitmap;
		f.frozen[f.nfrozen++] = f.data;
		close_fd(&f.index);
		f.index = ix;
		f.data = data;
		f.bitmap = map;
	}
	return f;
}

static void measures_and_flattens(void)
{
	int bitmaps[2], out = cf_file();
	struct cow_fds f = three_layers(bitmaps);
	struct cow *c = reopen(&f);
	struct cow_usage u;
	struct stat st;
	uint8_t a[COW_UNIT], b[COW_UNIT];

	REQUIRE(c);
	CHECK_INT(cf_fill(c, 20 * U, U, 'P'), 0);
	CHECK_INT(cf_fill(c, 3 * U, U, 0), 0); /* zeros, written */
	CHECK_INT(cow_flush(c, NULL), 0);
	CHECK_INT(cow_measure(&f, &u, NULL), 0);
	CHECK_INT(u.units_data, 2);
	CHECK_INT(u.live_units[0], 1); /* unit 0: 1 and 2 are hidden by the second layer */
	CHECK_INT(u.live_units[1], 2); /* 3 is hidden by the private one */
	CHECK(u.private_bytes >= 3 * U && u.private_bytes < 10 * U);
	CHECK_INT(cow_flatten(c, out, NULL, NULL, NULL), 0);
	for (uint64_t i = 0; i < 64; i++) {
		CHECK_INT(cow_read(c, a, U, i * U), 0);
		CHECK_INT(pread_full(out, b, U, i * U), 0);
		CHECK(memcmp(a, b, U) == 0);
	}
	CHECK_INT(fstat(out, &st), 0);
	CHECK_INT(st.st_size, BYTES);
	CHECK(st.st_blocks * 512 <= (long long)(BYTES - 12 * U)); /* holes and zeros stay holes */
	CHECK_INT(cow_flatten(c, out, NULL, NULL, NULL), -EEXIST);
	cow_close(c);
	cf_close_all(&f);
	close(out);
}

static void an_index_comes_back_from_bitmaps(void)
{
	int bitmaps[2], ix = cf_file();
	struct cow_fds f = three_layers(bitmaps);
	uint8_t a[COW_HDR_BYTES + 4096], b[COW_HDR_BYTES + 4096];
	struct err e = {0};

	CHECK_INT(cow_index_build(ix, 2, f.frozen, bitmaps, &e), 0);
	CHECK_INT(pread_full(f.index, a, sizeof(a), 0), 0);
	CHECK_INT(pread_full(ix, b, sizeof(b), 0), 0);
	CHECK(memcmp(a, b, sizeof(a)) == 0);
	CHECK_INT(cow_index_build(ix, 2, f.frozen, bitmaps, &e), -EEXIST);
	CHECK_INT(ftruncate(ix, 0), 0);
	bitmaps[0] = bitmaps[1];
	CHECK_INT(cow_index_build(ix, 2, f.frozen, bitmaps, &e), -EINVAL);
	CHECK(strstr(e.msg, "id") != NULL);
	cf_close_all(&f);
	close(ix);
}

static void damage_is_found_and_mended(void)
{
	struct cow_fds f = cf_disk(BYTES, BYTES);
	struct cow *c = reopen(&f);
	uint8_t v;

	REQUIRE(c);
	CHECK_INT(cf_fill(c, 0, 4 * U, 'X'), 0);
	CHECK_INT(cow_flush(c, NULL), 0);
	cow_close(c);
	CHECK_INT(check(f.data, f.bitmap, false), 0);
	CHECK_STR(said, "");
	v = 0;
	pwrite_full(f.data, &v, 1, BYTES); /* the data file's magic */
	v = 0x55 | 3 << 4;
	pwrite_full(f.bitmap, &v, 1, COW_HDR_BYTES); /* unit 2 in state 3 */
	v = 1;
	pwrite_full(f.bitmap, &v, 1, COW_HDR_BYTES + 100); /* unit 400 */
	CHECK_INT(check(f.data, f.bitmap, false), 3);
	CHECK(strstr(said, "data file: magic") && strstr(said, "state 3") &&
		strstr(said, "beyond"));
	CHECK_INT(check(f.data, f.bitmap, true), 0);
	CHECK_INT(check(f.data, f.bitmap, false), 0);
	c = reopen(&f);
	REQUIRE(c);
	CHECK(cf_all(c, 0, 2 * U, 'X'));
	CHECK(cf_all(c, 2 * U, U, cf_base_byte(2)));
	CHECK(cf_all(c, 3 * U, U, 'X'));
	cow_close(c);
	v = 0;
	pwrite_full(f.bitmap, &v, 1, 0);
	CHECK_INT(check(f.data, f.bitmap, false), 1);
	CHECK_INT(check(f.data, f.bitmap, true), 0);
	CHECK_INT(ftruncate(f.data, BYTES - 100), 0);
	CHECK_INT(check(f.data, f.bitmap, false), 2);
	CHECK(strstr(said, "its end is lost") != NULL);
	CHECK_INT(check(f.data, f.bitmap, true), 0);
	c = reopen(&f);
	REQUIRE(c);
	cow_close(c);
	CHECK_INT(ftruncate(f.data, 0), 0);
	CHECK_INT(ftruncate(f.bitmap, 0), 0);
	CHECK(check(f.data, f.bitmap, true) > 0); /* nothing left to mend it from */
	cf_close_all(&f);
}

static const struct test tests[] = {
	{"measures_and_flattens", measures_and_flattens},
	{"an_index_comes_back_from_bitmaps", an_index_comes_back_from_bitmaps},
	{"damage_is_found_and_mended", damage_is_found_and_mended},
};
TEST_MAIN(tests)
