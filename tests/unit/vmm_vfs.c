/* SPDX-License-Identifier: Apache-2.0
 *
 * vmm_vfs: the virtio-fs device: a scripted driver on one side, a scripted or the real file server on the other.
 */
#include "lib/test.h"

#include "fs/server.h"
#include "tests/unit/lib/fake_guest.h"
#include "vmm/vfs.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define ALL     (VIRTIO_F_EVENT_IDX | VIRTIO_F_INDIRECT_DESC)
#define REQUEST 1u

static struct fake_guest g;
static struct virtio_dev *d;
static unsigned int n_lost;
static int server; /* the other end of the socket */

static void on_lost(void *ctx, const char *why)
{
	(void)ctx;
	(void)why;
	n_lost++;
}

static int attach(void)
{
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		return -1;
	server = pair[0];
	return vfs_attach(d, pair[1]);
}

static bool begin(void)
{
	struct vfs_config c = {.lost = on_lost, .stop_ms = 20};
	struct err e = {0};

	signal(SIGPIPE, SIG_IGN);
	n_lost = 0;
	server = -1;
	fg_init(&g);
	d = vfs_create(&g.env, &c, &e);
	return d && fg_probe(&g, d, ALL, 256);
}

static void end(void)
{
	close_fd(&server);
	vfs_destroy(d);
	fg_fini(&g);
}

/* A request of `len` bytes and room for a reply of `room`: where the reply will be. */
static uint64_t ask(uint32_t op, uint64_t unique, uint32_t len, uint32_t room, uint16_t *head)
{
	uint64_t out = fg_alloc(&g, len), in = fg_alloc(&g, room ? room : 1);
	struct fuse_in_header h = {.len = len, .opcode = op, .unique = unique, .nodeid = 1};
	struct fg_range ro = {out, len}, ri = {in, room};

	memcpy(fg_ptr(&g, out), &h, MIN(sizeof(h), (size_t)len));
	*head = fg_add(&g, REQUEST, &ro, 1, &ri, room ? 1 : 0);
	fg_kick(&g, REQUEST);
	return in;
}

static bool receive(struct fs_request_hdr *h, void *msg, size_t cap)
{
	return read_full(server, h, sizeof(*h)) == 0 && h->len <= cap &&
	       read_full(server, msg, h->len) == 0;
}

static void reply(uint32_t slot, const void *p, uint32_t len)
{
	struct fs_reply_hdr r = {.slot = slot, .len = len};

	CHECK_INT(write_full(server, &r, sizeof(r)), 0);
	CHECK_INT(write_full(server, p, len), 0);
	fg_run(&g);
}

static const struct fuse_out_header *header_at(uint64_t gpa)
{
	return fg_ptr(&g, gpa);
}

static void a_request_and_its_reply(void)
{
	struct fuse_out_header o = {.len = 20, .unique = 7};
	uint8_t msg[100], answer[20] = {0};
	struct fs_request_hdr h;
	uint16_t head, got;
	uint32_t len;
	uint64_t in;

	REQUIRE(begin() && attach() == 0);
	in = ask(FUSE_GETATTR, 7, 56, 120, &head);
	REQUIRE(receive(&h, msg, sizeof(msg)));
	CHECK_INT(h.len, 56);
	CHECK_INT(h.reply_max, 120);
	CHECK(((struct fuse_in_header *)(void *)msg)->unique == 7);
	CHECK(!fg_used(&g, REQUEST, &got, &len));
	memcpy(answer, &o, sizeof(o));
	memcpy(answer + 16, "abcd", 4);
	reply(h.slot, answer, 20);
	REQUIRE(fg_used(&g, REQUEST, &got, &len));
	CHECK(got == head && len == 20 && memcmp(fg_ptr(&g, in + 16), "abcd", 4) == 0);
	/* a FORGET has no room for a reply, and gets none */
	ask(FUSE_FORGET, 8, 48, 0, &head);
	REQUIRE(receive(&h, msg, sizeof(msg)));
	reply(h.slot, NULL, 0);
	REQUIRE(fg_used(&g, REQUEST, &got, &len));
	CHECK(got == head && len == 0 && n_lost == 0);
	end();
}

static void large_ones_in_pieces(void)
{
	static uint8_t msg[FS_MESSAGE_MAX];
	struct fuse_out_header o = {.len = MIB(1), .unique = 1};
	struct fs_request_hdr h;
	uint16_t head, got;
	uint32_t len;
	uint64_t in;
	size_t at = 0;

	REQUIRE(begin() && attach() == 0);
	REQUIRE(fd_set_nonblock(server, true) == 0);
	in = ask(FUSE_WRITE, 1, MIB(1), MIB(1), &head);
	/* the socket holds less than that: the device goes on whenever there is room */
	while (at < sizeof(h) + MIB(1)) {
		ssize_t n = at < sizeof(h) ? read(server, (uint8_t *)&h + at, sizeof(h) - at)
					   : read(server, msg + at - sizeof(h), 50000);

		if (n > 0)
			at += (size_t)n;
		else
			fg_run(&g);
	}
	CHECK_INT(h.len, MIB(1));
	memset(msg, 'x', MIB(1));
	memcpy(msg, &o, sizeof(o));
	CHECK_INT(write_full(server, &(struct fs_reply_hdr){.slot = h.slot, .len = MIB(1)},
			  sizeof(struct fs_reply_hdr)),
		0);
	for (at = 0; at < MIB(1);) {
		ssize_t n = write(server, msg + at, MIN(MIB(1) - at, 70001));

		if (n > 0)
			at += (size_t)n;
		fg_run(&g);
	}
	REQUIRE(fg_used(&g, REQUEST, &got, &len));
	CHECK(got == head && len == MIB(1) && *(char *)fg_ptr(&g, in + MIB(1) - 1) == 'x');
	end();
}

static void replies_that_are_not_believed(void)
{
	static const struct {
		struct fs_reply_hdr h;
	} bad[] = {{{.slot = 1, .len = 16}}, {{.slot = FS_QUEUE, .len = 16}},
		{{.slot = UINT32_MAX, .len = 16}}, {{.slot = 0, .len = 15}},
		{{.slot = 0, .len = 121}}, {{.slot = 0, .len = UINT32_MAX}}};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct fs_request_hdr h;
		uint8_t msg[100];
		uint16_t head, got;
		uint32_t len;
		uint64_t in;

		REQUIRE(begin() && attach() == 0);
		in = ask(FUSE_GETATTR, 9, 56, 120, &head);
		REQUIRE(receive(&h, msg, sizeof(msg)));
		CHECK_INT(write_full(server, &bad[i].h, sizeof(bad[i].h)), 0);
		fg_run(&g);
		CHECK_INT(n_lost, 1);
		REQUIRE(fg_used(&g, REQUEST, &got, &len));
		CHECK(got == head && len == 16 && header_at(in)->error == -EIO &&
			header_at(in)->unique == 9);
		end();
	}
}

static void a_reply_twice(void)
{
	struct fuse_out_header o = {.len = 16, .unique = 7};
	struct fs_request_hdr h;
	uint8_t msg[100];
	uint16_t head, got;
	uint32_t len;

	REQUIRE(begin() && attach() == 0);
	ask(FUSE_GETATTR, 7, 56, 120, &head);
	REQUIRE(receive(&h, msg, sizeof(msg)));
	reply(h.slot, &o, 16);
	reply(h.slot, &o, 16);
	CHECK_INT(n_lost, 1);
	REQUIRE(fg_used(&g, REQUEST, &got, &len));
	CHECK(!fg_used(&g, REQUEST, &got, &len));
	end();
}

/* What the old server had fails; what it never got waits for the next one. */
static void a_server_that_dies(void)
{
	struct fuse_out_header o = {.len = 16, .unique = 2};
	struct fs_request_hdr h;
	uint8_t msg[100];
	uint16_t head[2], got;
	uint32_t len;
	uint64_t in[2];

	REQUIRE(begin());
	in[0] = ask(FUSE_GETATTR, 1, 56, 120, &head[0]);
	CHECK(!fg_used(&g, REQUEST, &got, &len));
	REQUIRE(attach() == 0);
	REQUIRE(receive(&h, msg, sizeof(msg)));
	CHECK(vfs_attach(d, dup(server)) == -EBUSY);
	close(server);
	fg_run(&g);
	CHECK_INT(n_lost, 1);
	REQUIRE(fg_used(&g, REQUEST, &got, &len));
	CHECK(got == head[0] && header_at(in[0])->error == -EIO);
	in[1] = ask(FUSE_GETATTR, 2, 56, 120, &head[1]);
	REQUIRE(attach() == 0);
	REQUIRE(receive(&h, msg, sizeof(msg)));
	reply(h.slot, &o, 16);
	REQUIRE(fg_used(&g, REQUEST, &got, &len));
	CHECK(got == head[1] && header_at(in[1])->error == 0);
	end();
}

/* Only the request that was half in the socket fails; those behind it wait for the next server. */
static void a_server_that_dies_in_the_middle(void)
{
	struct fs_request_hdr h;
	uint8_t msg[100];
	uint16_t head[4], got;
	uint32_t len;
	uint64_t in;

	REQUIRE(begin() && attach() == 0);
	in = ask(FUSE_WRITE, 1, 700000, 120, &head[0]);
	for (unsigned int i = 1; i < 4; i++)
		ask(FUSE_GETATTR, i + 1, 56, 120, &head[i]);
	close(server);
	fg_run(&g);
	CHECK_INT(n_lost, 1);
	REQUIRE(fg_used(&g, REQUEST, &got, &len));
	CHECK(got == head[0] && header_at(in)->error == -EIO);
	REQUIRE(!fg_used(&g, REQUEST, &got, &len));
	REQUIRE(attach() == 0);
	for (unsigned int i = 1; i < 4; i++)
		CHECK(receive(&h, msg, sizeof(msg)) &&
			((struct fuse_in_header *)(void *)msg)->unique == i + 1);
	end();
}

static void more_requests_than_slots(void)
{
	struct fuse_out_header o = {.len = 16};
	struct fs_request_hdr h;
	uint8_t msg[100];
	uint16_t head, got;
	uint32_t len;
	unsigned int answered = 0;

	REQUIRE(begin());
	g.q[REQUEST].indirect = true;
	for (unsigned int i = 0; i < FS_QUEUE + 50; i++)
		ask(FUSE_GETATTR, i + 1, 56, 32, &head);
	REQUIRE(attach() == 0);
	for (unsigned int i = 0; i < FS_QUEUE + 50; i++) {
		REQUIRE(receive(&h, msg, sizeof(msg)));
		CHECK(h.slot < FS_QUEUE);
		o.unique = i + 1;
		reply(h.slot, &o, 16);
	}
	while (fg_used(&g, REQUEST, &got, &len))
		answered++;
	CHECK_INT(answered, FS_QUEUE + 50);
	end();
}

static void messages_that_are_none(void)
{
	uint16_t head, got;
	uint32_t len;
	uint64_t in;

	REQUIRE(begin() && attach() == 0);
	in = ask(FUSE_GETATTR, 5, 39, 64, &head);
	REQUIRE(fg_used(&g, REQUEST, &got, &len));
	CHECK(got == head && len == 16 && header_at(in)->error == -EIO);
	ask(FUSE_GETATTR, 5, 39, 8, &head);
	REQUIRE(fg_used(&g, REQUEST, &got, &len));
	CHECK(got == head && len == 0 && n_lost == 0);
	end();
}

static bool stopped;

static void on_stopped(void *arg)
{
	(void)arg;
	stopped = true;
}

static void a_stop_waits_for_replies(void)
{
	struct fuse_out_header o = {.len = 16, .unique = 7};
	struct fs_request_hdr h;
	uint8_t msg[100];
	uint16_t head, got;
	uint32_t len;

	REQUIRE(begin() && attach() == 0);
	stopped = false;
	ask(FUSE_GETATTR, 7, 56, 120, &head);
	REQUIRE(receive(&h, msg, sizeof(msg)));
	CHECK_INT(virtio_quiesce(d, on_stopped, NULL), -EINPROGRESS);
	CHECK(!stopped);
	reply(h.slot, &o, 16);
	CHECK(stopped);
	virtio_resume(d, false);
	REQUIRE(fg_used(&g, REQUEST, &got, &len));
	CHECK_INT(len, 16);
	end();
}

static void a_stop_has_a_limit(void)
{
	struct fuse_out_header o = {.len = 16, .unique = 7};
	struct fs_request_hdr h;
	uint8_t msg[100];
	uint16_t head, got;
	uint32_t len;
	uint64_t in;

	REQUIRE(begin() && attach() == 0);
	stopped = false;
	in = ask(FUSE_FSYNC, 7, 56, 120, &head);
	REQUIRE(receive(&h, msg, sizeof(msg)));
	CHECK_INT(virtio_quiesce(d, on_stopped, NULL), -EINPROGRESS);
	for (int i = 0; i < 100 && !stopped; i++)
		loop_turn(g.loop, 10);
	CHECK(stopped);
	virtio_resume(d, false);
	REQUIRE(fg_used(&g, REQUEST, &got, &len));
	CHECK(got == head && header_at(in)->error == -EIO);
	/* the reply that comes too late is thrown away, and the connection is as it was */
	memset(fg_ptr(&g, in), 0xaa, 16);
	reply(h.slot, &o, 16);
	CHECK(*(uint8_t *)fg_ptr(&g, in) == 0xaa && n_lost == 0);
	ask(FUSE_GETATTR, 8, 56, 120, &head);
	CHECK(receive(&h, msg, sizeof(msg)));
	end();
}

static void a_reset_in_the_middle(void)
{
	struct fuse_out_header o = {.len = 16, .unique = 7};
	struct fs_request_hdr h;
	uint8_t msg[100];
	uint16_t head, got;
	uint32_t len;
	uint64_t in;

	REQUIRE(begin() && attach() == 0);
	in = ask(FUSE_GETATTR, 7, 56, 120, &head);
	REQUIRE(receive(&h, msg, sizeof(msg)));
	REQUIRE(fg_probe(&g, d, ALL, 256));
	memset(fg_ptr(&g, in), 0xaa, 16);
	reply(h.slot, &o, 16);
	CHECK(*(uint8_t *)fg_ptr(&g, in) == 0xaa && n_lost == 0);
	ask(FUSE_GETATTR, 8, 56, 120, &head);
	REQUIRE(receive(&h, msg, sizeof(msg)));
	o.unique = 8;
	reply(h.slot, &o, 16);
	REQUIRE(fg_used(&g, REQUEST, &got, &len));
	CHECK_INT(got, head);
	end();
}

static void *serve(void *arg)
{
	server_run(arg);
	return NULL;
}

/* The real server on the other side. */
static void with_the_real_server(void)
{
	char dir[] = "/tmp/mayfly-vfs-XXXXXX";
	struct volumes vols = {0};
	struct server s = {.vols = &vols};
	struct err e = {0};
	pthread_t t;
	uint16_t head, got;
	uint32_t len;
	uint64_t in;
	int pair[2];

	REQUIRE(begin() && mkdtemp(dir));
	REQUIRE(volumes_add(&vols, open(dir, O_PATH | O_DIRECTORY), false, false, &e) == 0);
	REQUIRE(nodes_open(&s.nodes, memfd_create("nodes", MFD_CLOEXEC), &vols, 64, &e) == 0);
	REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
	s.sock = pair[0];
	pthread_create(&t, NULL, serve, &s);
	REQUIRE(vfs_attach(d, pair[1]) == 0);
	in = ask(FUSE_STATFS, 3, 40, 200, &head);
	for (int i = 0; i < 500 && !fg_used(&g, REQUEST, &got, &len); i++)
		loop_turn(g.loop, 10);
	CHECK(got == head && header_at(in)->error == 0 &&
		len == sizeof(struct fuse_out_header) + sizeof(struct fuse_statfs_out));
	end();
	pthread_join(t, NULL);
	close(pair[0]);
	nodes_close(s.nodes);
	volumes_close(&vols);
	rmdir(dir);
}

static const struct test tests[] = {
	{"a_request_and_its_reply", a_request_and_its_reply},
	{"large_ones_in_pieces", large_ones_in_pieces},
	{"replies_that_are_not_believed", replies_that_are_not_believed},
	{"a_reply_twice", a_reply_twice},
	{"a_server_that_dies", a_server_that_dies},
	{"a_server_that_dies_in_the_middle", a_server_that_dies_in_the_middle},
	{"more_requests_than_slots", more_requests_than_slots},
	{"messages_that_are_none", messages_that_are_none},
	{"a_stop_waits_for_replies", a_stop_waits_for_replies},
	{"a_stop_has_a_limit", a_stop_has_a_limit},
	{"a_reset_in_the_middle", a_reset_in_the_middle},
	{"with_the_real_server", with_the_real_server},
};
TEST_MAIN(tests)
