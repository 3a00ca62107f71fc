/* SPDX-License-Identifier: Apache-2.0
 *
 * vmm_vfs: the virtio-fs device between a hostile driver and a hostile file server. Commands: requests of any length, bytes from the
 * server (mostly headers with likely slots), reads by the server, servers that die and come, resets, stops. At the end a stop must come to
 * its end, and no request may be left in flight.
 */
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>

#include "lib/log.h"
#include "tests/unit/lib/fake_guest.h"
#include "vmm/vfs.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static struct fake_guest G;
static struct virtio_dev *dev;
static int peer;
static uint64_t out_gpa, in_gpa;

static void server_new(void)
{
	int pair[2];

	ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
	if (vfs_attach(dev, pair[1]) < 0) {
		close(pair[0]);
		return;
	}
	close_fd(&peer);
	peer = pair[0];
}

static void collect(void)
{
	uint16_t head;
	uint32_t len;

	for (unsigned int q = 0; q < 2; q++)
		while (fg_used(&G, q, &head, &len))
			ASSERT(len <= 65536);
}

static void request(struct cur *c)
{
	uint8_t what = cur_u8(c);
	uint32_t len = what & 1 ? 40u + cur_u8(c) : cur_u16(c),
		 room = what & 2 ? 16u + cur_u8(c) : cur_u16(c);
	struct fg_range out[2] = {{out_gpa, len / 2}, {out_gpa + len / 2, len - len / 2}},
			in = {in_gpa, room};

	if (G.q[what >> 7].nfree < 4 || len < 2)
		return;
	cur_copy(c, fg_ptr(&G, out_gpa), MIN(40u, cur_left(c)));
	fg_add(&G, what >> 7, out, 2, &in, room ? 1 : 0);
	fg_kick(&G, what >> 7);
}

static void server_says(struct cur *c)
{
	uint8_t what = cur_u8(c), body[300] = {0};
	struct fs_reply_hdr h = {
		.slot = what & 0x3f, .len = what & 0x40 ? 16u + cur_u8(c) : cur_u16(c)};

	if (peer < 0)
		return;
	(void)!send(peer, &h, what & 0x80 ? sizeof(h) : cur_u8(c) % sizeof(h), MSG_NOSIGNAL);
	(void)!send(peer, body, MIN(h.len, sizeof(body)), MSG_NOSIGNAL);
	fg_run(&G);
}

static void server_reads(struct cur *c)
{
	static uint8_t sink[65536];

	if (peer >= 0)
		(void)!read(peer, sink, 1 + (size_t)cur_u16(c));
	fg_run(&G);
}

static void on_stopped(void *arg)
{
	*(bool *)arg = true;
}

static void stop(void)
{
	bool stopped = false;

	if (virtio_quiesce(dev, on_stopped, &stopped) == 0)
		stopped = true;
	for (int i = 0; i < 200 && !stopped; i++)
		loop_turn(G.loop, 1);
	ASSERT(stopped);
	for (unsigned int q = 0; q < 2; q++)
		ASSERT(dev->queue[q].inflight == 0 || dev->status & VIRTIO_S_NEEDS_RESET);
	virtio_resume(dev, false);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	struct vfs_config cfg = {.stop_ms = 1};
	struct cur c = cur_of(p, n);
	unsigned int resets = 0, stops = 0;
	struct err e = {0};

	log_level = -1;
	signal(SIGPIPE, SIG_IGN);
	peer = -1;
	fg_init(&G);
	dev = vfs_create(&G.env, &cfg, &e);
	ASSERT(dev && fg_probe(&G, dev, VIRTIO_F_EVENT_IDX | VIRTIO_F_INDIRECT_DESC, 128));
	out_gpa = fg_alloc(&G, 65536);
	in_gpa = fg_alloc(&G, 65536);
	for (int i = 0; i < 100 && cur_left(&c); i++) {
		switch (cur_u8(&c) % 10) {
		case 0:
		case 1:
		case 2:
			request(&c);
			break;
		case 3:
		case 4:
		case 5:
			server_says(&c);
			break;
		case 6:
			server_reads(&c);
			break;
		case 7:
			if (peer >= 0 && cur_u8(&c) & 1)
				close_fd(&peer);
			fg_run(&G);
			server_new();
			break;
		case 8:
			if (resets++ < 4)
				fg_probe(&G, dev, VIRTIO_F_EVENT_IDX | VIRTIO_F_INDIRECT_DESC, 128);
			break;
		default:
			if (stops++ < 4)
				stop();
			break;
		}
		collect();
	}
	stop();
	close_fd(&peer);
	fg_run(&G);
	vfs_destroy(dev);
	fg_fini(&G);
	return 0;
}
