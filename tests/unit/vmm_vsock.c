/* SPDX-License-Identifier: Apache-2.0
 *
 * vmm_vsock: streams both ways, credit, half-close, resets, fairness, restore; and what a hostile
 * guest may send.
 */
#include "lib/test.h"

#include <fcntl.h>
#include <sys/socket.h>

#include "tests/unit/lib/fake_vsock.h"

static struct fake_vsock F;
static uint8_t big[VSOCK_PKT_MAX];

static void client_reaches_a_guest_port(void)
{
	struct vsock_hdr h, req;
	char b[64];
	int fd;

	REQUIRE(fv_up(&F, 0));
	fd = fv_open(&F, 1024, &req);
	CHECK_INT(req.op, OP_REQUEST);
	CHECK_INT(req.dst_port, 1024);
	CHECK_INT(req.src_cid, 2);
	CHECK_INT(req.dst_cid, 3);
	CHECK_INT(req.buf_alloc, VSOCK_BUF_BYTES);
	CHECK(write(fd, "ping", 4) == 4);
	fg_run(&F.g);
	REQUIRE(fv_recv(&F, &h));
	CHECK_INT(h.op, OP_RW);
	CHECK_INT(h.len, 4);
	CHECK(!memcmp(F.payload, "ping", 4));
	fv_send(&F, OP_RW, 1024, req.src_port, "pong!", 5, 0, 4);
	CHECK_INT(read(fd, b, sizeof(b)), 5);
	CHECK(!memcmp(b, "pong!", 5));
	/* the guest closes: the client sees the end, the guest its reset */
	fv_send(&F, OP_SHUTDOWN, 1024, req.src_port, NULL, 0, SHUT_F_BOTH, 4);
	CHECK_INT(read(fd, b, sizeof(b)), 0);
	REQUIRE(fv_recv(&F, &h));
	CHECK_INT(h.op, OP_RST);
	CHECK(!fv_recv(&F, &h));
	CHECK_INT(((struct vsock *)F.d)->nused, 0);
	close(fd);
	fv_down(&F);
}

static void refusal_is_told(void)
{
	struct vsock_hdr h;
	struct vsock_open o = {0};
	int fd;

	REQUIRE(fv_up(&F, 0));
	fd = fv_client(&F, 7);
	REQUIRE(fv_recv(&F, &h));
	fv_send(&F, OP_RST, 7, h.src_port, NULL, 0, 0, 0);
	CHECK_INT(read(fd, &o, sizeof(o)), sizeof(o));
	CHECK_INT(o.status, ECONNREFUSED);
	CHECK_INT(o.port, 7);
	CHECK_INT(read(fd, &o, sizeof(o)), 0);
	close(fd);
	/* a client that gives up is taken back from the guest */
	fd = fv_client(&F, 8);
	REQUIRE(fv_recv(&F, &h));
	close(fd);
	fg_run(&F.g);
	REQUIRE(fv_recv(&F, &h));
	CHECK_INT(h.op, OP_RST);
	/* one that speaks nonsense */
	fd = fv_client(&F, 9);
	REQUIRE(fv_recv(&F, &h));
	fv_send(&F, OP_RST, 9, h.src_port, NULL, 0, 0, 0);
	close(fd);
	CHECK_INT(((struct vsock *)F.d)->nused, 0);
	fv_down(&F);
}

/* It said its port and left before the device looked: the guest is not asked, and the slot is free again. */
static void a_client_that_left_unheard_keeps_nothing(void)
{
	struct vsock *v;
	struct vsock_hdr h;
	int fd;

	REQUIRE(fv_up(&F, 2));
	v = (struct vsock *)F.d;
	for (int i = 0; i < 5; i++) {
		fd = fv_client_unheard(&F, 1024);
		CHECK(fd >= 0);
		close(fd);
	}
	for (int i = 0; i < 5; i++)
		fg_run(&F.g);
	CHECK(!fv_recv(&F, &h));
	CHECK_INT(v->nused, 0);
	/* both slots serve */
	fd = fv_open(&F, 1024, &h);
	CHECK_INT(h.op, OP_REQUEST);
	close(fd);
	fv_down(&F);
}

static void half_close_is_kept(void)
{
	struct vsock_hdr h, req;
	char b[64];
	int fd;

	REQUIRE(fv_up(&F, 0));
	fd = fv_open(&F, 1024, &req);
	CHECK(write(fd, "all of it", 9) == 9);
	shutdown(fd, SHUT_WR);
	fg_run(&F.g);
	REQUIRE(fv_recv(&F, &h));
	CHECK_INT(h.op, OP_RW);
	CHECK_INT(h.len, 9);
	REQUIRE(fv_recv(&F, &h));
	CHECK_INT(h.op, OP_SHUTDOWN);
	CHECK_INT(h.flags, SHUT_F_SEND);
	/* the other direction goes on */
	fv_send(&F, OP_RW, 1024, req.src_port, "answer", 6, 0, 9);
	CHECK_INT(read(fd, b, sizeof(b)), 6);
	CHECK(read(fd, b, sizeof(b)) < 0 && errno == EAGAIN);
	fv_send(&F, OP_SHUTDOWN, 1024, req.src_port, NULL, 0, SHUT_F_SEND, 9);
	CHECK_INT(read(fd, b, sizeof(b)), 0);
	REQUIRE(fv_recv(&F, &h));
	CHECK_INT(h.op, OP_SHUTDOWN);
	CHECK_INT(h.flags, SHUT_F_BOTH);
	fv_send(&F, OP_RST, 1024, req.src_port, NULL, 0, 0, 9);
	CHECK_INT(((struct vsock *)F.d)->nused, 0);
	close(fd);
	fv_down(&F);
}

static void credit_is_kept_towards_the_guest(void)
{
	struct vsock_hdr h, req;
	size_t got = 0;
	int fd;

	REQUIRE(fv_up(&F, 0));
	fd = fv_open(&F, 1024, &req); /* the guest gives 65536 */
	for (size_t i = 0; i < sizeof(big); i++)
		big[i] = (uint8_t)(i * 7 + (i >> 8));
	CHECK_INT(write(fd, big, 65536), 65536);
	CHECK_INT(write(fd, big, 1000), 1000);
	fg_run(&F.g);
	while (fv_recv(&F, &h)) {
		CHECK_INT(h.op, OP_RW);
		CHECK(!memcmp(F.payload, big + got, h.len));
		got += h.len;
		fg_kick(&F.g, VQ_RX);
	}
	CHECK_INT(got, 65536);
	fv_send(&F, OP_CREDIT_UPDATE, 1024, req.src_port, NULL, 0, 0, 100);
	REQUIRE(fv_recv(&F, &h));
	CHECK_INT(h.len, 100);
	CHECK(!memcmp(F.payload, big, 100));
	CHECK(!fv_recv(&F, &h));
	fv_send(&F, OP_CREDIT_UPDATE, 1024, req.src_port, NULL, 0, 0, 65636);
	REQUIRE(fv_recv(&F, &h));
	CHECK_INT(h.len, 900);
	close(fd);
	fv_down(&F);
}

static void slow_peer_stops_only_itself(void)
{
	struct vsock_hdr h, slow, quick;
	uint32_t sent = 0, seen = 0;
	static uint8_t b[VSOCK_PKT_MAX];
	int sfd, qfd;

	REQUIRE(fv_up(&F, 0));
	sfd = fv_open(&F, 1, &slow);
	qfd = fv_open(&F, 2, &quick);
	for (size_t i = 0; i < sizeof(big); i++)
		big[i] = (uint8_t)(i * 13 + (i >> 8));
	/* as much as the device took over (its fwd_cnt) plus the credit */
	for (uint32_t fwd = 0; sent + 65536 - fwd <= VSOCK_BUF_BYTES; sent += 65536) {
		fv_send(&F, OP_RW, 1, slow.src_port, big, 65536, 0, 0);
		while (fv_recv(&F, &h))
			fwd = h.fwd_cnt;
	}
	CHECK(sent >= VSOCK_BUF_BYTES);
	fv_send(&F, OP_CREDIT_REQUEST, 1, slow.src_port, NULL, 0, 0, 0);
	REQUIRE(fv_recv(&F, &h));
	CHECK_INT(h.op, OP_CREDIT_UPDATE);
	CHECK(h.fwd_cnt < sent);
	fv_send(&F, OP_RW, 2, quick.src_port, "quick", 5, 0, 0);
	CHECK_INT(read(qfd, b, sizeof(b)), 5);
	/* now it reads: nothing was lost, and credit comes back */
	while (seen < sent) {
		ssize_t n = read(sfd, b, sizeof(b));

		if (n < 0) {
			fg_run(&F.g);
			n = read(sfd, b, sizeof(b));
		}
		REQUIRE(n > 0);
		for (ssize_t i = 0; i < n; i++)
			if (b[i] != big[(seen + (uint32_t)i) % 65536]) {
				CHECK(!"byte is wrong");
				break;
			}
		seen += (uint32_t)n;
	}
	while (fv_recv(&F, &h))
		CHECK_INT(h.op, OP_CREDIT_UPDATE);
	CHECK(sent - h.fwd_cnt <= VSOCK_BUF_BYTES / 2);
	close(sfd);
	close(qfd);
	fv_down(&F);
}

static void too_much_is_a_reset(void)
{
	struct vsock_hdr h, req;
	int fd, op = 0;

	REQUIRE(fv_up(&F, 0));
	fd = fv_open(&F, 1, &req);
	for (int i = 0; i < 20 && op != OP_RST; i++) {
		fv_send(&F, OP_RW, 1, req.src_port, big, 65536, 0, 0);
		while (fv_recv(&F, &h))
			op = h.op;
	}
	CHECK_INT(op, OP_RST);
	CHECK_INT(((struct vsock *)F.d)->n.credit_violations, 1);
	CHECK_INT(F.g.needs_resets, 0);
	close(fd);
	fv_down(&F);
}

static void streams_take_turns(void)
{
	struct vsock_hdr h, req[8];
	unsigned int first[8] = {0};
	int fd[8];

	REQUIRE(fv_up(&F, 0));
	for (uint32_t i = 0; i < 8; i++) {
		fd[i] = fv_open(&F, 100 + i, &req[i]);
		CHECK_INT(req[i].op, OP_REQUEST);
	}
	for (int i = 0; i < 8; i++)
		CHECK_INT(write(fd[i], big, 65536), 65536);
	fg_run(&F.g);
	/* all 64 buffers are full now: every stream has had its part of them */
	for (unsigned int n = 0; n < FV_NBUFS && fv_recv(&F, &h); n++)
		first[h.dst_port - 100]++;
	for (int i = 0; i < 8; i++)
		CHECK(first[i] >= 4);
	for (int i = 0; i < 8; i++)
		close(fd[i]);
	fv_down(&F);
}

static void guest_reaches_allowed_ports_only(void)
{
	struct vsock_hdr h;
	uint32_t ports[] = {5000};
	char b[8];

	REQUIRE(fv_up(&F, 8));
	fv_send(&F, OP_REQUEST, 70000, 5000, NULL, 0, 0, 0);
	REQUIRE(fv_recv(&F, &h));
	CHECK_INT(h.op, OP_RST);
	fv_send(&F, OP_REQUEST, 70000, VSOCK_PORT_READY, NULL, 0, 0, 0);
	REQUIRE(fv_recv(&F, &h));
	CHECK_INT(h.op, OP_RESPONSE);
	CHECK_INT(vsock_allow(F.d, ports, 1), 0);
	fv_send(&F, OP_REQUEST, 70001, 5000, NULL, 0, 0, 0);
	REQUIRE(fv_recv(&F, &h));
	CHECK_INT(h.op, OP_RESPONSE);
	CHECK_INT(h.src_port, 5000);
	CHECK_INT(h.dst_port, 70001);
	REQUIRE(F.nconns == 2);
	CHECK_INT(F.conns[1].hport, 5000);
	CHECK_INT(F.conns[1].gport, 70001);
	fv_send(&F, OP_RW, 70001, 5000, "hi", 2, 0, 0);
	CHECK_INT(read(F.conns[1].fd, b, sizeof(b)), 2);
	CHECK_INT(write(F.conns[1].fd, "you", 3), 3);
	fg_run(&F.g);
	REQUIRE(fv_recv(&F, &h));
	CHECK_INT(h.len, 3);
	/* a quarter of the slots is the guest's; the same port twice is a mistake */
	fv_send(&F, OP_REQUEST, 70002, 5000, NULL, 0, 0, 0);
	REQUIRE(fv_recv(&F, &h));
	CHECK_INT(h.op, OP_RST);
	fv_send(&F, OP_REQUEST, 70001, 5000, NULL, 0, 0, 0);
	REQUIRE(fv_recv(&F, &h));
	CHECK_INT(h.op, OP_RST);
	/* the host hangs up */
	close_fd(&F.conns[0].fd);
	fg_run(&F.g);
	REQUIRE(fv_recv(&F, &h));
	CHECK_INT(h.op, OP_SHUTDOWN);
	CHECK_INT(h.flags, SHUT_F_BOTH);
	fv_down(&F);
}

static void a_guest_that_knocks_for_ever_is_held_back(void)
{
	struct vsock *v;
	struct vsock_hdr h;
	unsigned int taken = 0;

	REQUIRE(fv_up(&F, 0));
	v = (struct vsock *)F.d;
	for (uint32_t i = 0; i < 100; i++) {
		fv_send(&F, OP_REQUEST, 70000 + i, VSOCK_PORT_READY, NULL, 0, 0, 0);
		REQUIRE(fv_recv(&F, &h));
		taken += h.op == OP_RESPONSE;
		fv_send(&F, OP_RST, 70000 + i, VSOCK_PORT_READY, NULL, 0, 0, 0);
		while (fv_recv(&F, &h))
			;
	}
	CHECK(taken >= VSOCK_GUEST_BURST && taken < VSOCK_GUEST_BURST + 20);
	CHECK_INT(v->n.guest_refused, 100 - taken);
	CHECK_INT(v->nguest, 0);
	fv_down(&F);
}

static void nonsense_is_refused(void)
{
	struct vsock_hdr h = {
		.src_cid = 3, .dst_cid = 2, .src_port = 1, .dst_port = 2, .type = 1, .op = OP_RW};
	struct vsock *v;
	struct fg_range out;
	uint64_t bad;

	REQUIRE(fv_up(&F, 0));
	v = (struct vsock *)F.d;
	out = (struct fg_range){F.tx, sizeof(h)};
	/* no such stream */
	for (uint16_t op = 0; op < 10; op++) {
		if (op == OP_RST || op == OP_REQUEST)
			continue;
		fv_send(&F, op, 9, 9, "x", 1, 0, 0);
		REQUIRE(fv_recv(&F, &h));
		CHECK_INT(h.op, OP_RST);
	}
	fv_send(&F, OP_RST, 9, 9, NULL, 0, 0, 0);
	CHECK(!fv_recv(&F, &h));
	/* length beyond the chain; a foreign sender; a header cut short */
	bad = v->n.bad_packets;
	for (int i = 0; i < 3; i++) {
		h = (struct vsock_hdr){.src_cid = i == 1 ? 4 : 3,
			.dst_cid = 2,
			.type = 1,
			.op = OP_RW,
			.len = i == 0 ? 1 : 0};
		memcpy(fg_ptr(&F.g, F.tx), &h, sizeof(h));
		out.len = i == 2 ? 43 : 44;
		fg_add(&F.g, VQ_TX, &out, 1, NULL, 0);
		fg_kick(&F.g, VQ_TX);
	}
	CHECK_INT(v->n.bad_packets - bad, 3);
	CHECK(!fv_recv(&F, &h));
	/* a type that we do not have */
	h = (struct vsock_hdr){.src_cid = 3,
		.dst_cid = 2,
		.type = 2,
		.op = OP_REQUEST,
		.dst_port = VSOCK_PORT_READY};
	memcpy(fg_ptr(&F.g, F.tx), &h, sizeof(h));
	out.len = 44;
	fg_add(&F.g, VQ_TX, &out, 1, NULL, 0);
	fg_kick(&F.g, VQ_TX);
	REQUIRE(fv_recv(&F, &h));
	CHECK_INT(h.op, OP_RST);
	CHECK_INT(F.g.needs_resets, 0);
	fv_down(&F);
}

static void resets_wait_for_buffers(void)
{
	struct vsock_hdr h;
	unsigned int resets = 0;

	REQUIRE(fv_up(&F, 0));
	/* more packets for nobody than there are buffers and room for resets: they wait in the
	 * guest's queue */
	for (unsigned int i = 0; i < FV_NBUFS + VSOCK_RSTS + 20; i++) {
		struct vsock_hdr out = {.src_cid = 3,
			.dst_cid = 2,
			.src_port = i,
			.dst_port = 1,
			.type = 1,
			.op = OP_RW};
		struct fg_range r = {F.tx, sizeof(out)};
		uint16_t head;
		uint32_t len;

		memcpy(fg_ptr(&F.g, F.tx), &out, sizeof(out));
		fg_add(&F.g, VQ_TX, &r, 1, NULL, 0);
		fg_kick(&F.g, VQ_TX);
		fg_used(&F.g, VQ_TX, &head, &len);
	}
	CHECK(((struct vsock *)F.d)->tx_stalled);
	while (fv_recv(&F, &h)) {
		resets++;
		CHECK_INT(h.op, OP_RST);
		fg_kick(&F.g, VQ_RX);
	}
	CHECK_INT(resets, FV_NBUFS + VSOCK_RSTS + 20);
	CHECK(!((struct vsock *)F.d)->tx_stalled);
	fv_down(&F);
}

static void slots_run_out_and_come_back(void)
{
	struct vsock_hdr h, req[4];
	int fd[4], late;

	REQUIRE(fv_up(&F, 4));
	for (uint32_t i = 0; i < 4; i++)
		fd[i] = fv_open(&F, 50 + i, &req[i]);
	late = fv_client(&F, 99);
	CHECK(!fv_recv(&F, &h));
	fv_send(&F, OP_RST, 50, req[0].src_port, NULL, 0, 0, 0);
	REQUIRE(fv_recv(&F, &h));
	CHECK_INT(h.op, OP_REQUEST);
	CHECK_INT(h.dst_port, 99);
	for (int i = 0; i < 4; i++)
		close(fd[i]);
	close(late);
	fv_down(&F);
}

static void give_back_event(struct fake_vsock *f)
{
	struct fg_range r = {f->ev, 4};
	uint16_t head;
	uint32_t len;

	CHECK(fg_used(&f->g, VQ_EVENT, &head, &len));
	CHECK_INT(len, 4);
	fg_add(&f->g, VQ_EVENT, NULL, 0, &r, 1);
	fg_kick(&f->g, VQ_EVENT);
}

static struct virtio_dev *restore(struct fake_vsock *f)
{
	struct vsock_config cfg = {
		.listen_fd = fcntl(((struct vsock *)f->d)->cfg.listen_fd, F_DUPFD_CLOEXEC, 3),
		.ctx = f};
	struct virtio_dev *to;
	struct err e;

	to = vsock_create(&f->g.env, &cfg, &e);
	if (to && fg_move(&f->g, to) == 0) {
		vsock_destroy(f->d);
		f->d = to;
		return to;
	}
	vsock_destroy(to);
	return NULL;
}

static void restore_resets_and_waits(void)
{
	struct vsock_hdr h, req;
	char b[4];
	int fd, early;

	REQUIRE(fv_up(&F, 0));
	fd = fv_open(&F, 1024, &req);
	REQUIRE(restore(&F));
	CHECK_INT(read(fd, b, 1), 0);
	virtio_resume(F.d, true);
	fg_run(&F.g);
	/* who comes before the guest has taken note waits */
	early = fv_client(&F, 1024);
	CHECK(!fv_recv(&F, &h));
	/* the guest's old packets are for nobody */
	fv_send(&F, OP_RW, 1024, req.src_port, "x", 1, 0, 0);
	REQUIRE(fv_recv(&F, &h));
	CHECK_INT(h.op, OP_RST);
	CHECK(!fv_recv(&F, &h));
	give_back_event(&F);
	REQUIRE(fv_recv(&F, &h));
	CHECK_INT(h.op, OP_REQUEST);
	CHECK(h.src_port != req.src_port);
	close(fd);
	close(early);
	/* saved and restored again before the second event is given back: both must be */
	REQUIRE(restore(&F));
	virtio_resume(F.d, true);
	REQUIRE(restore(&F));
	virtio_resume(F.d, true);
	early = fv_client(&F, 7);
	CHECK(!fv_recv(&F, &h));
	give_back_event(&F);
	CHECK(!fv_recv(&F, &h));
	give_back_event(&F);
	REQUIRE(fv_recv(&F, &h));
	CHECK_INT(h.dst_port, 7);
	close(early);
	fv_down(&F);
}

static void driver_reset_ends_streams(void)
{
	struct vsock_hdr req, h;
	char b[4];
	int fd, waits;

	REQUIRE(fv_up(&F, 0));
	fd = fv_open(&F, 1024, &req);
	fg_write(&F.g, 0x70, 0);
	fg_run(&F.g);
	CHECK_INT(read(fd, b, 1), 0);
	waits = fv_client(&F, 5);
	CHECK(fg_probe(&F.g, F.d, VIRTIO_F_EVENT_IDX, 64));
	fv_fill(&F);
	REQUIRE(fv_recv(&F, &h));
	CHECK_INT(h.dst_port, 5);
	close(fd);
	close(waits);
	fv_down(&F);
}

static const struct test tests[] = {
	{"client_reaches_a_guest_port", client_reaches_a_guest_port},
	{"refusal_is_told", refusal_is_told},
	{"a_client_that_left_unheard_keeps_nothing", a_client_that_left_unheard_keeps_nothing},
	{"half_close_is_kept", half_close_is_kept},
	{"credit_is_kept_towards_the_guest", credit_is_kept_towards_the_guest},
	{"slow_peer_stops_only_itself", slow_peer_stops_only_itself},
	{"too_much_is_a_reset", too_much_is_a_reset},
	{"streams_take_turns", streams_take_turns},
	{"guest_reaches_allowed_ports_only", guest_reaches_allowed_ports_only},
	{"a_guest_that_knocks_for_ever_is_held_back", a_guest_that_knocks_for_ever_is_held_back},
	{"nonsense_is_refused", nonsense_is_refused},
	{"resets_wait_for_buffers", resets_wait_for_buffers},
	{"slots_run_out_and_come_back", slots_run_out_and_come_back},
	{"restore_resets_and_waits", restore_resets_and_waits},
	{"driver_reset_ends_streams", driver_reset_ends_streams},
};
TEST_MAIN(tests)
