/* SPDX-License-Identifier: Apache-2.0
 *
 * cow: damaged layer and index files. A good disk with one frozen layer is made; the input is a
 * list of edits to its files (4 bytes each: file, place, place, value; place 0xffff cuts the file),
 * header checksums are made right again so that the fields behind them are reached; then the disk
 * is opened, used, checked, repaired and its index rebuilt. First byte: bit 0 keeps the checksums
 * as they are.
 */
#include <endian.h>
#include <string.h>

#include "lib/cow_format.h"
#include "lib/cow_tools.h"
#include "tests/unit/cow_files.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

#define U     ((uint64_t)COW_UNIT)
#define BYTES (16 * U)

enum { F_BASE, F_FROZEN, F_FBITMAP, F_INDEX, F_DATA, F_BITMAP, F_COUNT };

static int make(int *to)
{
	struct cow_fds f = cf_disk(BYTES, BYTES), d = cf_dup_all(&f);
	int dropped;
	struct cow *c;

	to[F_BASE] = f.base;
	to[F_FROZEN] = f.data;
	to[F_FBITMAP] = f.bitmap;
	to[F_INDEX] = cf_file();
	to[F_DATA] = cf_file();
	to[F_BITMAP] = cf_file();
	if (cow_open(&c, &d, NULL) < 0)
		return -1;
	cf_fill(c, U, 2 * U, 'X');
	cow_zero(c, 5 * U, U);
	if (cow_freeze(c, cf_dup(to[F_INDEX]), cf_dup(to[F_DATA]), cf_dup(to[F_BITMAP]), &dropped,
		    NULL) < 0)
		return -1;
	cf_fill(c, 2 * U, U + 100, 'Y');
	cow_flush(c, NULL);
	cow_close(c);
	return 0;
}

/* The good disk is made once. An input works on copies of its files, and only what was written
 * since is copied again: that is most of what a run would cost. */
static int good[F_COUNT], fd[F_COUNT], rebuilt;
static bool dirty[F_COUNT];

static int copy_part(void *arg, uint64_t off, uint64_t len)
{
	const int *f = arg; /* from, to */
	uint8_t b[COW_UNIT];

	for (uint64_t n; len > 0; off += n, len -= n) {
		n = MIN(len, sizeof(b));
		ASSERT(pread_full(f[0], b, n, off) == 0 && pwrite_full(f[1], b, n, off) == 0);
	}
	return 0;
}

static void start_over(void)
{
	if (!rebuilt) {
		ASSERT(make(good) == 0);
		rebuilt = cf_file();
		for (int i = 0; i < F_COUNT; i++) {
			fd[i] = cf_file();
			dirty[i] = true;
		}
	}
	for (int i = 0; i < F_COUNT; i++) {
		off_t n = lseek(good[i], 0, SEEK_END);

		if (!dirty[i])
			continue;
		ASSERT(ftruncate(fd[i], 0) == 0 && ftruncate(fd[i], n) == 0);
		ASSERT(cow_each_data(
			       good[i], 0, (uint64_t)n, copy_part, (int[2]){good[i], fd[i]}) == 0);
		dirty[i] = i == F_DATA || i == F_BITMAP; /* what is used is written */
	}
}

static void crc_fix(int file, uint64_t off, size_t at)
{
	uint8_t h[sizeof(struct cow_index_hdr)];
	uint32_t crc;

	if (pread_full(file, h, at, off) < 0)
		return;
	crc = htole32(cow_crc32(h, at));
	pwrite_full(file, &crc, sizeof(crc), off + at);
}

static void say(void *arg, const char *text)
{
}

static void use(int index)
{
	struct cow_fds f = {.base = fd[F_BASE],
		.nfrozen = 1,
		.frozen = {fd[F_FROZEN]},
		.index = index,
		.data = fd[F_DATA],
		.bitmap = fd[F_BITMAP]};
	struct cow_fds d = cf_dup_all(&f);
	struct err e;
	struct cow *c = NULL;
	uint8_t unit[COW_UNIT];

	if (cow_open(&c, &d, &e) < 0) {
		ASSERT(e.code > 0 && e.msg[0]);
		cf_close_all(&d);
		return;
	}
	for (uint64_t off = 0; off < cow_bytes(c) && off < 64 * U; off += U)
		(void)cow_read(c, unit, U, off);
	(void)cow_write(c, "hello", 5, 3 * U + 7);
	(void)cow_zero(c, U / 2, 3 * U);
	(void)cow_flush(c, NULL);
	cow_close(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	bool raw = n && p[0] & 1;

	if (n < 1 || n > 1 + 4 * 64)
		return 0;
	start_over();
	for (size_t i = 1; i + 4 <= n; i += 4) {
		int which = p[i] % F_COUNT, f = fd[which];
		uint64_t at = p[i + 1] | (uint64_t)p[i + 2] << 8;
		uint64_t hdr = which == F_FROZEN || which == F_DATA ? BYTES : 0;

		dirty[which] = true;
		if (at == 0xffff)
			(void)!ftruncate(f, p[i + 3] * 700);
		else
			pwrite_full(f, p + i + 3, 1, at >= 0x8000 ? at - 0x8000 : hdr + at);
	}
	if (!raw) {
		crc_fix(fd[F_FROZEN], BYTES, offsetof(struct cow_layer_hdr, crc_le));
		crc_fix(fd[F_DATA], BYTES, offsetof(struct cow_layer_hdr, crc_le));
		crc_fix(fd[F_FBITMAP], 0, offsetof(struct cow_layer_hdr, crc_le));
		crc_fix(fd[F_BITMAP], 0, offsetof(struct cow_layer_hdr, crc_le));
		crc_fix(fd[F_INDEX], 0, offsetof(struct cow_index_hdr, crc_le));
	}
	use(fd[F_INDEX]);
	(void)cow_layer_check(fd[F_DATA], fd[F_BITMAP], false, say, NULL, NULL);
	(void)cow_layer_check(fd[F_DATA], fd[F_BITMAP], true, say, NULL, NULL);
	ASSERT(ftruncate(rebuilt, 0) == 0);
	(void)cow_index_build(rebuilt, 1, &fd[F_FROZEN], &fd[F_FBITMAP], NULL);
	use(rebuilt);
	return 0;
}
