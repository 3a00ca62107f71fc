/* SPDX-License-Identifier: Apache-2.0
 *
 * vmm_vnet: a driver that does anything to the network device, and a mayfly-net that sends anything. Byte 0 says whether the driver has
 * started properly; then commands: register accesses, bytes written anywhere in guest memory, chains, kicks, packets from the other side,
 * a new link, none, a move into a fresh device.
 */
#include <string.h>
#include <sys/socket.h>

#include "lib/log.h"
#include "tests/unit/lib/fake_guest.h"
#include "vmm/vnet.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static struct fake_guest g;
static int peer;
static uint8_t packet[NET_PACKET_MAX + 100];

static void on_wanted(void *ctx)
{
}

static struct virtio_dev *make(void)
{
	struct vnet_config c = {.wanted = on_wanted};

	return vnet_create(&g.env, &c, NULL);
}

static void link_new(uint8_t how)
{
	struct vnet_limits l = {
		.bytes_per_s = how & 2 ? 1000000 : 0, .packets_per_s = how & 4 ? 1000 : 0};
	int sv[2];

	close_fd(&peer);
	if (how & 1 ||
		socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sv) < 0) {
		vnet_link(g.dev, -1, NULL);
		return;
	}
	peer = sv[1];
	vnet_link(g.dev, sv[0], &l);
}

static void move(void)
{
	struct virtio_dev *to = make(), *old = g.dev;

	if (fg_move(&g, to) < 0)
		ASSERT(!"state of our own is refused");
	vnet_destroy(old);
	virtio_resume(to, true);
}

static void chain(struct cur *c)
{
	unsigned int q = cur_u8(c) % 2, n = cur_u8(c) % 4 + 1, nout = cur_u8(c) % (n + 1);
	struct fg_range r[4];

	if (!g.q[q].size || g.q[q].nfree < n || g.brk > FG_RAM / 2)
		return;
	g.q[q].indirect = cur_u8(c) & 1;
	for (unsigned int i = 0; i < n; i++)
		r[i] = (struct fg_range){cur_u16(c) * 16u, cur_u16(c)};
	fg_add(&g, q, r, nout, r + nout, n - nout);
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
		off = cur_u16(c) % 0x1000;
		virtio_mmio_read(g.dev, off, b, 1u << (op >> 3) % 4);
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
		fg_kick(&g, op >> 7);
		break;
	case 5:
		move();
		break;
	case 6:
		len = cur_u16(c) + cur_u8(c);
		if (peer >= 0 && len && len <= sizeof(packet))
			(void)!send(peer, packet, len, MSG_DONTWAIT | MSG_NOSIGNAL);
		loop_turn(g.loop, 0);
		while (peer >= 0 && recv(peer, packet, sizeof(packet), MSG_DONTWAIT) > 0)
			;
		break;
	default:
		link_new(op >> 3);
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
	peer = -1;
	fg_init(&g);
	g.dev = make();
	ASSERT(g.dev);
	if (first & 0x80)
		ASSERT(fg_probe(&g, g.dev,
			(first & 0x40 ? VIRTIO_F_EVENT_IDX | VIRTIO_F_INDIRECT_DESC : 0) |
				(first & 0x20 ? 1ull << 15 : 0),
			16));
	for (int i = 0; i < 200 && cur_left(&c); i++)
		command(&c);
	fg_run(&g);
	vnet_destroy(g.dev);
	close_fd(&peer);
	fg_fini(&g);
	return 0;
}
