/* SPDX-License-Identifier: Apache-2.0
 *
 * vmm_balloon: a driver that does anything to the memory balloon. Byte 0 says whether the driver has started properly; then commands:
 * register accesses, bytes written anywhere in guest memory, chains, page numbers, kicks, a new target, a move into a fresh device.
 */
#include <string.h>

#include "lib/log.h"
#include "tests/unit/lib/fake_guest.h"
#include "vmm/balloon.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static struct fake_guest g;
static struct mem_copied copied[2];

static void move(void)
{
	struct virtio_dev *to = balloon_create(&g.env, NULL), *old = g.dev;

	ASSERT(to);
	if (fg_move(&g, to) < 0)
		ASSERT(!"state of our own is refused");
	balloon_destroy(old);
	virtio_resume(to, true);
}

static void chain(struct cur *c)
{
	unsigned int q = cur_u8(c) % 3, n = cur_u8(c) % 8 + 1, nout = cur_u8(c) % (n + 1);
	struct fg_range r[8];

	if (!g.q[q].size || g.q[q].nfree < n || g.brk > FG_RAM / 2)
		return;
	g.q[q].indirect = cur_u8(c) & 1;
	for (unsigned int i = 0; i < n; i++)
		r[i] = (struct fg_range){cur_u16(c) * 64u, cur_u32(c) % (FG_RAM + 5000)};
	fg_add(&g, q, r, nout, r + nout, n - nout);
}

/* Page numbers that lie where the guest's memory is, mostly. */
static void page_numbers(struct cur *c)
{
	unsigned int n = cur_u8(c) + 1;
	struct fg_range r = {0, n * 4};
	uint32_t pfn[256];

	if (!g.q[0].size || !g.q[0].nfree || g.brk > FG_RAM / 2)
		return;
	for (unsigned int i = 0; i < n; i++)
		pfn[i] = cur_u16(c) % 1100;
	r.gpa = fg_alloc(&g, sizeof(pfn));
	mem_write(&g.mem, GPA(r.gpa), pfn, n * 4);
	g.q[0].indirect = false;
	fg_add(&g, 0, &r, 1, NULL, 0);
}

static void command(struct cur *c)
{
	uint8_t op = cur_u8(c), b[64];
	uint32_t off, len;

	switch (op % 8) {
	case 0:
		off = cur_u16(c) % 0x200;
		virtio_mmio_write(g.dev, off & ~3u, &(uint32_t){cur_u32(c)}, 4);
		break;
	case 1:
		off = cur_u16(c) % 0x200;
		len = 1u << (op >> 3) % 4;
		if (op >> 7)
			virtio_mmio_write(g.dev, off, &(uint64_t){cur_u64(c)}, len);
		else
			virtio_mmio_read(g.dev, off, b, len);
		break;
	case 2:
		off = cur_u16(c) * 4u;
		len = cur_u8(c) % 64;
		if (cur_copy(c, b, len) && len)
			mem_write(&g.mem, GPA(off), b, len);
		break;
	case 3:
		chain(c);
		break;
	case 4:
		fg_kick(&g, (op >> 3) % 3);
		break;
	case 5:
		move();
		break;
	case 6:
		page_numbers(c);
		break;
	default:
		balloon_set_target(g.dev, cur_u32(c) * 64ull);
		break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	struct cur c = cur_of(p, n);
	uint8_t first = cur_u8(&c);

	log_level = -1;
	if (c.bad)
		return 0;
	fg_init(&g);
	copied[0] = (struct mem_copied){MIB(1), 3 * PAGE_BYTES};
	copied[1] = (struct mem_copied){MIB(2), MIB(1)};
	g.mem.copied = copied;
	g.mem.ncopied = first % 3;
	g.dev = balloon_create(&g.env, NULL);
	ASSERT(g.dev);
	if (first & 0x80)
		ASSERT(fg_probe(&g, g.dev,
			first & 0x40 ? VIRTIO_F_EVENT_IDX | VIRTIO_F_INDIRECT_DESC | 1u << 5 : 0,
			128));
	for (int i = 0; i < 200 && cur_left(&c); i++)
		command(&c);
	fg_run(&g);
	balloon_destroy(g.dev);
	fg_fini(&g);
	return 0;
}
