/* SPDX-License-Identifier: Apache-2.0
 *
 * images_layer.c: hostile layer bytes (plain, gzip, zstd; several layers, cut at a marker), applied to a tree and written
 * as a disk.
 */
#include "images/build/ext4.h"
#include "images/build/layer.h"

#include <locale.h>
#include <string.h>
#include <sys/mman.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static int apply(struct layers *l, const uint8_t *p, size_t n, uint32_t no)
{
	int fd = memfd_create("layer", MFD_CLOEXEC);
	struct err e = {0};
	struct stream *s;
	int r = -EIO;

	ASSERT(fd >= 0 && write_full(fd, p, n) == 0);
	s = stream_open(fd, n, &l->lim, &e);
	if (s)
		r = layer_apply(l, s, no, &e);
	ASSERT(r == 0 || e.code);
	stream_close(s);
	close(fd);
	return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	static const char cut[] = "--layer--";
	int disk = memfd_create("disk", MFD_CLOEXEC), r = 0;
	struct tree t;
	struct layers l = {.tree = &t, .lim = IMAGE_LIMITS_DEFAULT};
	struct digest id = {{1}};
	struct ext4_info info;
	struct err e = {0};

	setlocale(LC_CTYPE, "C.UTF-8");
	l.lim.max_bytes = MIB(4);
	l.lim.max_tar_bytes = MIB(1); /* what is beyond costs time and shows nothing else */
	l.lim.max_entries = 500;
	ASSERT(disk >= 0 && tree_init(&t) == 0);
	l.blocks = blocks_create(disk, EXT4_DATA_FIRST, MIB(16));
	t.freed = blocks_free;
	t.freed_arg = l.blocks;
	for (uint32_t no = 1; r == 0 && no < 8; no++) {
		const uint8_t *end = memmem(p, n, cut, sizeof(cut) - 1);
		size_t k = end ? (size_t)(end - p) : n;

		r = apply(&l, p, k, no);
		if (!end)
			break;
		n -= k + sizeof(cut) - 1;
		p = end + sizeof(cut) - 1;
	}
	if (r == 0) {
		r = ext4_write(&t, l.blocks, disk, MIB(1), &id, &info, &e);
		ASSERT(r == 0 || e.code);
	}
	tree_fini(&t);
	blocks_destroy(l.blocks);
	close(disk);
	return 0;
}
