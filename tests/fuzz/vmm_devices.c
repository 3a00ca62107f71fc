/* SPDX-License-Identifier: Apache-2.0
 *
 * vmm_devices: a driver that does anything to the entropy device, the console, or vsock. Byte 0
 * picks the device and whether its driver has started properly; then commands: register reads and
 * writes, bytes written anywhere in guest memory (the rings stand at its beginning), chains, kicks,
 * a move into a fresh device, input and turns of the loop.
 */
#include <string.h>

#include "lib/log.h"
#include "tests/unit/lib/fake_guest.h"
#include "vmm/console.h"
#include "vmm/rng.h"
#include "vmm/vsock.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void on_out(void *ctx, const void *p, size_t n)
{
}

static void on_conn(void *ctx, uint32_t hport, uint32_t gport, int fd)
{
	close(fd);
}

static struct virtio_dev *make(struct fake_guest *g, unsigned int kind)
{
	struct console_config cc = {.out = on_out};
	struct vsock_config vc = {.listen_fd = -1, .max_streams = 8, .guest_conn = on_conn};

	if (kind == 0)
		return rng_create(&g->env, NULL);
	return kind == 1 ? console_create(&g->env, &cc, NULL) : vsock_create(&g->env, &vc, NULL);
}

static void destroy(struct virtio_dev *d, unsigned int kind)
{
	if (kind == 0)
		rng_destroy(d);
	else if (kind == 1)
		console_destroy(d);
	else
		vsock_destroy(d);
}

static void move(struct fake_guest *g, unsigned int kind)
{
	struct virtio_dev *to = make(g, kind), *old = g->dev;

	if (fg_move(g, to) < 0) {
		/* what was saved from a running device must load */
		ASSERT(!"state of our own is refused");
	}
	destroy(old, kind);
	virtio_resume(to, true);
}

static void chain(struct fake_guest *g, struct cur *c, unsigned int kind)
{
	unsigned int q = cur_u8(c) % g->dev->ops->nqueues, n = cur_u8(c) % 4 + 1,
		     nout = cur_u8(c) % (n + 1);
	struct fg_range r[4];

	if (!g->q[q].size || g->q[q].nfree < n || g->brk > FG_RAM / 2)
		return;
	g->q[q].indirect = cur_u8(c) & 1;
	for (unsigned int i = 0; i < n; i++)
		r[i] = (struct fg_range){cur_u16(c) * 16u, cur_u16(c)};
	fg_add(g, q, r, nout, r + nout, n - nout);
}

static void command(struct fake_guest *g, struct cur *c, unsigned int kind)
{
	uint8_t op = cur_u8(c), b[64];
	uint32_t off, len;

	switch (op % 8) {
	case 0:
		off = cur_u16(c) % 0x200;
		virtio_mmio_write(g->dev, off & ~3u, &(uint32_t){cur_u32(c)}, 4);
		break;
	case 1:
		off = cur_u16(c) % 0x1000;
		len = 1u << (op >> 3) % 4;
		virtio_mmio_read(g->dev, off, b, len);
		break;
	case 2:
		off = cur_u16(c) * 4u;
		len = cur_u8(c) % 64;
		if (cur_copy(c, b, len) && len)
			mem_write(&g->mem, GPA(off), b, len);
		break;
	case 3:
		chain(g, c, kind);
		break;
	case 4:
		fg_kick(g, op >> 4);
		break;
	case 5:
		move(g, kind);
		break;
	case 6:
		if (kind == 1)
			console_input(g->dev, b, op >> 3);
		break;
	default:
		off = cur_u16(c) % 0x200;
		len = 1u << (op >> 3) % 4;
		virtio_mmio_write(g->dev, off, &(uint64_t){cur_u64(c)}, len);
		break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	struct cur c = cur_of(p, n);
	uint8_t first = cur_u8(&c);
	unsigned int kind = first % 3;
	struct fake_guest g;

	log_level = -1;
	if (c.bad)
		return 0;
	fg_init(&g);
	g.dev = make(&g, kind);
	ASSERT(g.dev);
	if (first & 0x80)
		ASSERT(fg_probe(&g, g.dev,
			first & 0x40 ? VIRTIO_F_EVENT_IDX | VIRTIO_F_INDIRECT_DESC : 0, 16));
	for (int i = 0; i < 200 && cur_left(&c); i++)
		command(&g, &c, kind);
	fg_run(&g);
	destroy(g.dev, kind);
	fg_fini(&g);
	return 0;
}
