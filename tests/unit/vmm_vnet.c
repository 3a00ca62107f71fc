/* SPDX-License-Identifier: Apache-2.0
 *
 * vmm_vnet: the network device, with a scripted driver on one side and a socket pair as mayfly-net on the other.
 */
#include "lib/test.h"

#include <fcntl.h>
#include <sys/socket.h>

#include "tests/unit/lib/fake_guest.h"
#include "vmm/vnet.h"

#define F_MRG_RXBUF  (1ull << 15)
#define F_GUEST_CSUM (1ull << 1)
#define ALL          (VIRTIO_F_EVENT_IDX | VIRTIO_F_INDIRECT_DESC | F_MRG_RXBUF | F_GUEST_CSUM)

static struct {
	struct fake_guest g;
	struct virtio_dev *d;
	int peer; /* mayfly-net's end */
	unsigned int wanted;
	uint64_t frame, buffers;
	uint8_t p[NET_PACKET_MAX + 1];
} F;

static void on_wanted(void *ctx)
{
	F.wanted++;
}

static bool up(uint64_t features, uint16_t size)
{
	struct vnet_config c = {.wanted = on_wanted};
	struct err e;

	memset(&F, 0, sizeof(F));
	F.peer = -1;
	fg_init(&F.g);
	F.d = vnet_create(&F.g.env, &c, &e);
	if (!F.d || !fg_probe(&F.g, F.d, features, size))
		return false;
	F.frame = fg_alloc(&F.g, 65536 + 64);
	F.buffers = fg_alloc(&F.g, 1 << 20);
	return true;
}

static void down(void)
{
	vnet_destroy(F.d);
	close_fd(&F.peer);
	fg_fini(&F.g);
}

static int link_up(const struct vnet_limits *l)
{
	int sv[2], size = 1 << 20;

	CHECK_INT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sv), 0);
	setsockopt(sv[1], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	close_fd(&F.peer);
	F.peer = sv[1];
	return vnet_link(F.d, sv[0], l);
}

/* A frame of n bytes with a header before it, `first` the first byte of its address. */
static void send_frame(uint8_t first, size_t n, bool kick)
{
	uint8_t *p = fg_ptr(&F.g, F.frame);
	struct fg_range r[2] = {{F.frame, NET_VHDR_BYTES}, {F.frame + NET_VHDR_BYTES, (uint32_t)n}};

	memset(p, 0, NET_VHDR_BYTES);
	p[NET_VHDR_BYTES] = first;
	for (size_t i = 1; i < n; i++)
		p[NET_VHDR_BYTES + i] = (uint8_t)(i * 13);
	if (first == 0xff)
		memset(p + NET_VHDR_BYTES, 0xff, 6);
	fg_add(&F.g, 1, r, 2, NULL, 0);
	if (kick)
		fg_kick(&F.g, 1);
}

static unsigned int used(unsigned int q)
{
	unsigned int n = 0;
	uint16_t h;
	uint32_t len;

	while (fg_used(&F.g, q, &h, &len))
		n++;
	return n;
}

static void add_buffers(unsigned int n, uint32_t size)
{
	for (unsigned int i = 0; i < n; i++) {
		struct fg_range r = {F.buffers + i * (uint64_t)size, size};

		fg_add(&F.g, 0, NULL, 0, &r, 1);
	}
	fg_kick(&F.g, 0);
}

static void nothing_is_asked_before_a_frame(void)
{
	REQUIRE(up(ALL, 64));
	CHECK_INT(F.wanted, 0);
	/* groups start nothing; they are given back */
	send_frame(0x33, 60, true);
	send_frame(0x01, 60, true);
	CHECK_INT(used(1), 2);
	CHECK_INT(F.wanted, 0);
	/* the first real frame waits, and asks once */
	send_frame(0x02, 60, true);
	send_frame(0xff, 60, true);
	CHECK_INT(F.wanted, 1);
	CHECK_INT(used(1), 0);
	CHECK_INT(link_up(NULL), 0);
	fg_run(&F.g);
	CHECK_INT(used(1), 2);
	CHECK_INT(recv(F.peer, F.p, sizeof(F.p), 0), NET_VHDR_BYTES + 60);
	CHECK_INT(recv(F.peer, F.p, sizeof(F.p), 0), NET_VHDR_BYTES + 60);
	CHECK(recv(F.peer, F.p, sizeof(F.p), 0) < 0);
	/* a broadcast alone asks, too (ARP) */
	close_fd(&F.peer);
	fg_run(&F.g);
	CHECK_INT(F.g.needs_resets, 0);
	down();
}

static void frames_go_as_they_are(void)
{
	static const size_t sizes[] = {14, 15, 60, 1500, 4096, 9000, 65520 + 14};

	REQUIRE(up(ALL, 64));
	CHECK_INT(link_up(NULL), 0);
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		send_frame(2, sizes[i], true);
		CHECK_INT(recv(F.peer, F.p, sizeof(F.p), 0), NET_VHDR_BYTES + sizes[i]);
		CHECK(!memcmp(F.p, fg_ptr(&F.g, F.frame), NET_VHDR_BYTES + sizes[i]));
	}
	CHECK_INT(used(1), ARRAY_LEN(sizes));
	/* too short, too long, with a buffer to write to: given back, not sent */
	send_frame(2, 13, true);
	send_frame(2, 65520 + 15, true);
	{
		struct fg_range r[2] = {{F.frame, 100}, {F.frame + 200, 100}};

		fg_add(&F.g, 1, r, 1, r + 1, 1);
		fg_kick(&F.g, 1);
	}
	CHECK_INT(used(1), 3);
	CHECK(recv(F.peer, F.p, sizeof(F.p), 0) < 0);
	CHECK_INT(F.g.needs_resets, 0);
	down();
}

static void packets_are_merged_from_buffers(void)
{
	static uint8_t got[NET_PACKET_MAX];
	uint32_t len;
	uint16_t h;
	size_t at = 0;

	REQUIRE(up(ALL, 64));
	CHECK_INT(link_up(NULL), 0);
	for (size_t i = 0; i < sizeof(F.p); i++)
		F.p[i] = (uint8_t)(i * 7 + 1);
	/* no buffer: it waits; then too few; then enough */
	CHECK_INT(send(F.peer, F.p, 5000, 0), 5000);
	fg_run(&F.g);
	add_buffers(2, 2048);
	CHECK_INT(used(0), 0);
	{
		struct fg_range r = {F.buffers + 2 * 2048, 2048};

		fg_add(&F.g, 0, NULL, 0, &r, 1);
		fg_kick(&F.g, 0);
	}
	for (int i = 0; i < 3; i++) {
		REQUIRE(fg_used(&F.g, 0, &h, &len));
		memcpy(got + at, fg_ptr(&F.g, F.buffers + (uint64_t)i * 2048), len);
		at += len;
	}
	CHECK_INT(at, 5000);
	CHECK(!memcmp(got + NET_VHDR_BYTES, F.p + NET_VHDR_BYTES, 5000 - NET_VHDR_BYTES));
	/* the header is the device's, whatever the other side wrote */
	CHECK(got[0] == 2 && got[1] == 0 && got[10] == 3 && got[11] == 0);
	/* the largest packet in 33 buffers; and small ones, one buffer each */
	add_buffers(33, 2048);
	CHECK_INT(send(F.peer, F.p, NET_PACKET_MAX, 0), NET_PACKET_MAX);
	fg_run(&F.g);
	CHECK_INT(used(0), 33);
	add_buffers(10, 2048);
	for (int i = 0; i < 10; i++)
		CHECK_INT(send(F.peer, F.p, 100, 0), 100);
	fg_run(&F.g);
	CHECK_INT(used(0), 10);
	/* nonsense of a taken-over mayfly-net is dropped */
	add_buffers(4, 2048);
	CHECK_INT(send(F.peer, F.p, 25, 0), 25);
	CHECK_INT(send(F.peer, F.p, NET_PACKET_MAX + 1, 0), NET_PACKET_MAX + 1);
	fg_run(&F.g);
	CHECK_INT(used(0), 0);
	CHECK_INT(send(F.peer, F.p, 100, 0), 100);
	fg_run(&F.g);
	CHECK_INT(used(0), 1);
	CHECK_INT(F.g.needs_resets, 0);
	down();
}

/* A ring that can never hold a packet must not hold up the next one. */
static void what_never_fits_is_dropped(void)
{
	REQUIRE(up(ALL, 4));
	CHECK_INT(link_up(NULL), 0);
	add_buffers(4, 1024);
	CHECK_INT(send(F.peer, F.p, 9000, 0), 9000);
	CHECK_INT(send(F.peer, F.p, 100, 0), 100);
	fg_run(&F.g);
	CHECK_INT(used(0), 1);
	down();
	/* without merging, a packet goes into one buffer or nowhere */
	REQUIRE(up(VIRTIO_F_EVENT_IDX, 16));
	CHECK_INT(link_up(NULL), 0);
	add_buffers(4, 1024);
	CHECK_INT(send(F.peer, F.p, 2000, 0), 2000);
	CHECK_INT(send(F.peer, F.p, 1000, 0), 1000);
	fg_run(&F.g);
	CHECK_INT(used(0), 1);
	CHECK(((uint8_t *)fg_ptr(&F.g, F.buffers))[0] == 0); /* GUEST_CSUM was not accepted */
	down();
}

static void a_full_socket_holds_frames_back(void)
{
	unsigned int sent = 0, got = 0;

	REQUIRE(up(ALL, 64));
	CHECK_INT(link_up(NULL), 0);
	while (sent < 60 && used(1) == (sent > 0)) {
		send_frame(2, 60000, true);
		sent++;
	}
	CHECK(sent < 60); /* it was full, and the last frame is still the guest's */
	for (int i = 0; i < 100; i++) {
		while (recv(F.peer, F.p, sizeof(F.p), 0) > 0)
			got++;
		loop_turn(F.g.loop, 1);
	}
	CHECK_INT(got, sent);
	CHECK_INT(used(1), 1);
	down();
}

static void a_lost_peer_is_asked_for_again(void)
{
	REQUIRE(up(ALL, 64));
	send_frame(2, 60, true);
	CHECK_INT(F.wanted, 1);
	CHECK_INT(link_up(NULL), 0);
	fg_run(&F.g);
	CHECK_INT(used(1), 1);
	close_fd(&F.peer);
	fg_run(&F.g);
	/* not twice in a second: the frame waits and then asks */
	send_frame(2, 60, true);
	for (int i = 0; i < 150 && F.wanted < 2; i++)
		loop_turn(F.g.loop, 20);
	CHECK_INT(F.wanted, 2);
	/* the answer is: no network. What waits and what comes is dropped */
	CHECK_INT(vnet_link(F.d, -1, NULL), 0);
	send_frame(2, 60, true);
	fg_run(&F.g);
	CHECK_INT(used(1), 2);
	CHECK_INT(F.wanted, 2);
	down();
}

/* Turns of the loop within a moment that had something to do. A level that nobody lowers makes this thread spin. */
static unsigned int busy_turns(void)
{
	unsigned int n = 0;

	for (int i = 0; i < 50; i++) {
		uint64_t before = mono_ns();

		loop_turn(F.g.loop, 20);
		n += mono_ns() - before < 10000000ull;
	}
	return n;
}

static void nobody_spins_on_a_dead_or_unready_link(void)
{
	/* packets wait for buffers that never come, and mayfly-net dies */
	REQUIRE(up(ALL, 64));
	CHECK_INT(link_up(NULL), 0);
	CHECK_INT(send(F.peer, F.p, 300, 0), 300);
	fg_run(&F.g);
	CHECK_INT(used(0), 0);
	close_fd(&F.peer);
	CHECK(busy_turns() < 10);
	/* the device asks for another one */
	send_frame(2, 60, true);
	CHECK_INT(F.wanted, 1);
	down();
	/* a driver that made only its transmit queue ready */
	REQUIRE(up(ALL, 64));
	CHECK_INT(link_up(NULL), 0);
	F.d->queue[0].ready = false;
	CHECK_INT(send(F.peer, F.p, 300, 0), 300);
	CHECK(busy_turns() < 10);
	send_frame(2, 60, true);
	CHECK_INT(recv(F.peer, F.p, sizeof(F.p), 0), NET_VHDR_BYTES + 60);
	close_fd(&F.peer);
	CHECK(busy_turns() < 10);
	down();
}

static void limits_hold(void)
{
	struct vnet_limits l = {.packets_per_s = 100};
	unsigned int got = 0;
	uint64_t start = mono_ns();

	REQUIRE(up(ALL, 64));
	CHECK_INT(link_up(&l), 0);
	for (int i = 0; i < 30; i++)
		send_frame(2, 60, false);
	fg_kick(&F.g, 1);
	for (int i = 0; i < 400 && got < 30; i++) {
		while (recv(F.peer, F.p, sizeof(F.p), 0) > 0)
			got++;
		loop_turn(F.g.loop, 2);
	}
	CHECK_INT(got, 30);
	CHECK(mono_ns() - start >
		180000000ull); /* 30 at 100 a second, ten of them saved up at most */
	down();
}

static void a_restored_machine_asks_anew(void)
{
	struct vnet_config c = {.wanted = on_wanted};
	struct virtio_dev *old, *to;
	struct err e;

	REQUIRE(up(ALL, 64));
	CHECK_INT(link_up(NULL), 0);
	add_buffers(8, 2048);
	send_frame(2, 60, true);
	CHECK_INT(used(1), 1);
	to = vnet_create(&F.g.env, &c, &e);
	old = F.d;
	REQUIRE(to && fg_move(&F.g, to) == 0);
	vnet_destroy(old);
	F.d = to;
	virtio_resume(to, true);
	fg_run(&F.g);
	CHECK_INT(F.wanted, 0);
	send_frame(2, 60, true);
	CHECK_INT(F.wanted, 1);
	CHECK_INT(link_up(NULL), 0);
	fg_run(&F.g);
	CHECK_INT(used(1), 1);
	/* buffers that were made available before still take packets */
	CHECK_INT(send(F.peer, F.p, 300, 0), 300);
	fg_run(&F.g);
	CHECK_INT(used(0), 1);
	down();
}

static void the_configuration_says_what_it_is(void)
{
	uint8_t c[12] = {0};

	REQUIRE(up(ALL, 64));
	for (uint32_t i = 0; i < 12; i++)
		virtio_mmio_read(F.d, VIRTIO_MMIO_CONFIG + i, c + i, 1);
	CHECK(!memcmp(c, NET_GUEST_MAC, 6));
	CHECK_INT(c[10] | c[11] << 8, 65520);
	down();
}

static const struct test tests[] = {
	{"nothing_is_asked_before_a_frame", nothing_is_asked_before_a_frame},
	{"frames_go_as_they_are", frames_go_as_they_are},
	{"packets_are_merged_from_buffers", packets_are_merged_from_buffers},
	{"what_never_fits_is_dropped", what_never_fits_is_dropped},
	{"a_full_socket_holds_frames_back", a_full_socket_holds_frames_back},
	{"a_lost_peer_is_asked_for_again", a_lost_peer_is_asked_for_again},
	{"nobody_spins_on_a_dead_or_unready_link", nobody_spins_on_a_dead_or_unready_link},
	{"limits_hold", limits_hold},
	{"a_restored_machine_asks_anew", a_restored_machine_asks_anew},
	{"the_configuration_says_what_it_is", the_configuration_says_what_it_is},
};
TEST_MAIN(tests)
