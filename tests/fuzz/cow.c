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

static int make(int *fd)
{
	struct cow_fds f = cf_disk(BYTES, BYTES), d = cf_dup_all(&f);
	int dropped;
	struct cow *c;

	fd[F_BASE] = f.base;
	fd[F_FROZEN] = f.data;
	fd[F_FBITMAP] = f.bitmap;
	fd[F_INDEX] = cf_file();
	fd[F_DATA] = cf_file();
	fd[F_BITMAP] = cf_file();
	if (cow_open(&c, &d, NULL) < 0)
		return -1;
	cf_fill(c, U, 2 * U, 'X');
	cow_zero(c, 5 * U, U);
	if (cow_freeze(c, cf_dup(fd[F_INDEX]), cf_dup(fd[F_DATA]), cf_dup(fd[F_BITMAP]), &dropped,
		    NULL) < 0)
		return -1;
	cf_fill(c, 2 * U, U + 100, 'Y');
	cow_flush(c, NULL);
	cow_close(c);
	return 0;
}

static void crc_fix(int fd, uint64_t off, size_t at)
{
	uint8_t h[sizeof(struct cow_index_hdr)];
	uint32_t crc;

	if (pread_full(fd, h, at, off) < 0)
		return;
	crc = htole32(cow_crc32(h, at));
	pwrite_full(fd, &crc, sizeof(crc), off + at);
}

static void say(void *arg, const char *text)
{
}

static void use(const int *fd)
{
	struct cow_fds f = {.base = fd[F_BASE],
		.nfrozen = 1,
		.frozen = {fd[F_FROZEN]},
		.index = fd[F_INDEX],
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
	int fd[F_COUNT], ix;
	bool raw = n && p[0] & 1;

	if (n < 1 || n > 1 + 4 * 64 || make(fd) < 0)
		return 0;
	for (size_t i = 1; i + 4 <= n; i += 4) {
		int f = fd[p[i] % F_COUNT];
		uint64_t at = p[i + 1] | (uint64_t)p[i + 2] << 8;
		uint64_t hdr = p[i] % F_COUNT == F_FROZEN || p[i] % F_COUNT == F_DATA ? BYTES : 0;

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
	use(fd);
	(void)cow_layer_check(fd[F_DATA], fd[F_BITMAP], false, say, NULL, NULL);
	(void)cow_layer_check(fd[F_DATA], fd[F_BITMAP], true, say, NULL, NULL);
	ix = cf_file();
	(void)cow_index_build(ix, 1, &fd[F_FROZEN], &fd[F_FBITMAP], NULL);
	close(fd[F_INDEX]);
	fd[F_INDEX] = ix;
	use(fd);
	for (int i = 0; i < F_COUNT; i++)
		close(fd[i]);
	return 0;
}
