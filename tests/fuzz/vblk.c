/* SPDX-License-Identifier: Apache-2.0
 *
 * vblk: a hostile driver of the block device. The input is a list of 12-byte requests {flags, type,
 * sector16, nranges, len16, place16, raw[3]}: headers and ranges are built from it, and some are
 * raw descriptors; the queue is kicked when flags say so, the device reset or made quiet now and
 * then. Every good chain must come back.
 */
#include <string.h>

#include "lib/log.h"
#include "tests/unit/cow_files.h"
#include "tests/unit/lib/fake_guest.h"
#include "vmm/vblk.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

#define BYTES (64 * (uint64_t)COW_UNIT)
#define ALL   (VIRTIO_F_EVENT_IDX | VIRTIO_F_INDIRECT_DESC | 1ull << VIRTIO_BLK_F_FLUSH)

static void drain(struct fake_guest *g, struct bio *bio)
{
	fg_run(g);
	while (bio_inflight(bio)) {
		loop_turn(g->loop, 1000);
		fg_run(g);
	}
}

static void quiet(void *arg)
{
	*(bool *)arg = true;
}

static void request(struct fake_guest *g, const uint8_t *p, uint64_t mem)
{
	struct virtio_blk_head h = {.type_le = p[1], .sector_le = p[2] | (uint64_t)p[3] << 8};
	unsigned int nr = p[4] % 6;
	uint32_t len = p[5] | (uint32_t)p[6] << 8;
	uint64_t at = mem + 4096 + ((p[7] | (uint64_t)p[8] << 8) & 0x7fff);
	struct fg_range rg[8] = {{mem + p[9], sizeof(h)}};
	unsigned int out = 1;

	if (p[0] & 8)
		h.sector_le |= (uint64_t)p[10] << 56;
	memcpy(fg_ptr(g, mem + p[9]), &h, sizeof(h));
	if (p[0] & 16)
		rg[0].len = p[10];
	for (unsigned int i = 0; i < nr; i++)
		rg[1 + i] =
			(struct fg_range){at + i * 512, (len / nr + 1) & (p[0] & 32 ? ~0u : ~511u)};
	if (p[1] == VIRTIO_BLK_T_OUT || p[1] >= VIRTIO_BLK_T_DISCARD)
		out += nr;
	rg[1 + nr] = (struct fg_range){at + 8192, 1};
	g->q[0].indirect = p[0] & 4;
	if (!rg[0].len || g->q[0].nfree < 8)
		return;
	for (unsigned int i = 0; i < nr; i++)
		if (!rg[1 + i].len)
			return;
	fg_add(g, 0, rg, out, rg + out, 2 + nr - out);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	struct vblk_conf conf = {.serial = "fuzz", .slot = SLOT_DISK0};
	struct cow_fds f = cf_disk(BYTES, BYTES / 2), d = f;
	struct fake_guest g;
	struct vblk *b;
	uint64_t mem;

	log_level = -1;
	fg_init(&g);
	if (cow_open(&conf.cow, &d, NULL) < 0 ||
		bio_create(&conf.bio, g.loop, VBLK_BIO_DEPTH, BIO_NO_URING, NULL) < 0 ||
		vblk_create(&b, &conf, &g.env, NULL) < 0)
		abort();
	fg_probe(&g, vblk_dev(b), ALL, 64);
	mem = fg_alloc(&g, KIB(128));
	for (size_t i = 0; i + 12 <= n && i < 12 * 100; i += 12) {
		bool is_quiet = false;

		request(&g, p + i, mem);
		if (p[i] & 1)
			fg_kick(&g, 0);
		if (p[i + 11] ==
			255) { /* the place of a descriptor in flight, while it is in flight */
			fg_desc(&g, 0, p[i + 5] % 64, p[i + 6] * 4096ull, p[i + 7] * 100u,
				p[i + 8] & 7, p[i + 9] % 64);
			fg_offer(&g, 0, p[i + 5] % 64);
		} else if (p[i + 11] == 254) {
			fg_write(&g, 0x70, 0);
			drain(&g, conf.bio);
			if (!fg_probe(&g, vblk_dev(b), ALL, 64))
				abort();
		} else if (p[i + 11] == 253) {
			if (virtio_quiesce(vblk_dev(b), quiet, &is_quiet) == -EINPROGRESS)
				while (!is_quiet)
					loop_turn(g.loop, 1000);
			ASSERT(bio_inflight(conf.bio) == 0);
			virtio_resume(vblk_dev(b), false);
		} else if (p[i + 11] & 1) {
			loop_turn(g.loop, 0);
		}
	}
	fg_kick(&g, 0);
	drain(&g, conf.bio);
	if (g.needs_resets == 0 && !(vblk_dev(b)->status & VIRTIO_S_NEEDS_RESET))
		ASSERT(vblk_dev(b)->queue[0].inflight == 0);
	vblk_destroy(b);
	bio_destroy(conf.bio);
	fg_fini(&g);
	return 0;
}
