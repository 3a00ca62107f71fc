/* SPDX-License-Identifier: Apache-2.0
 *
 * machine_chan.c: the appliance's frames over a socket pair: order, pieces, floods, nonsense.
 */
#include <poll.h>
#include <sys/socket.h>

#include "lib/machine_chan.h"
#include "lib/test.h"

struct pair {
	int fd[2];
	struct machine_chan a, b;
};

static void pair_init(struct pair *p)
{
	ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, p->fd) == 0);
	chan_init(&p->a, p->fd[0]);
	chan_init(&p->b, p->fd[1]);
}

static void pair_fini(struct pair *p)
{
	chan_fini(&p->a);
	chan_fini(&p->b);
	close(p->fd[0]);
	close(p->fd[1]);
}

static void t_order(void)
{
	enum machine_frame type;
	struct pair p;
	struct cur c;

	pair_init(&p);
	CHECK_INT(chan_send(&p.a, MACHINE_STDIN, "one", 3), 0);
	CHECK_INT(chan_send(&p.a, MACHINE_STDIN, NULL, 0), 0);
	CHECK_INT(chan_events(&p.a), POLLIN | POLLOUT);
	CHECK_INT(chan_flush(&p.a), 0);
	CHECK_INT(chan_events(&p.a), POLLIN);
	CHECK_INT(chan_next(&p.b, &type, &c), 0);
	CHECK_INT(chan_fill(&p.b), 0);
	CHECK_INT(chan_next(&p.b, &type, &c), 1);
	CHECK_INT(type, MACHINE_STDIN);
	CHECK_INT(cur_left(&c), 3);
	CHECK_INT(chan_next(&p.b, &type, &c), 1);
	CHECK_INT(cur_left(&c), 0);
	CHECK_INT(chan_next(&p.b, &type, &c), 0);
	pair_fini(&p);
}

/* more than a socket holds, both ways at once: nothing is lost, nothing blocks */
static void t_flood(void)
{
	static uint8_t block[MACHINE_FRAME_MAX];
	size_t sent = 0, got = 0;
	enum machine_frame type;
	struct pair p;
	struct cur c;

	pair_init(&p);
	while (got < 200) {
		if (sent < 200 && !chan_is_full(&p.a)) {
			block[0] = (uint8_t)sent++;
			CHECK_INT(chan_send(&p.a, MACHINE_STDOUT, block, sizeof(block)), 0);
		}
		REQUIRE(chan_flush(&p.a) == 0 && chan_fill(&p.b) == 0);
		while (chan_next(&p.b, &type, &c) > 0) {
			CHECK_INT(cur_left(&c), sizeof(block));
			CHECK_INT(cur_u8(&c), got & 0xff);
			got++;
		}
	}
	CHECK_INT(sent, 200);
	pair_fini(&p);
}

static void t_full(void)
{
	static uint8_t block[MACHINE_FRAME_MAX];
	struct pair p;

	pair_init(&p);
	while (!chan_is_full(&p.a))
		REQUIRE(chan_send(&p.a, MACHINE_STDOUT, block, sizeof(block)) == 0);
	for (int i = 0; i < 4; i++)
		chan_send(&p.a, MACHINE_STDOUT, block, sizeof(block));
	CHECK_INT(chan_send(&p.a, MACHINE_STDOUT, block, sizeof(block)), -ENOBUFS);
	CHECK_INT(chan_send(&p.a, MACHINE_STDOUT, block, sizeof(block) + 1), -ENOBUFS);
	pair_fini(&p);
}

static void t_nonsense(void)
{
	static const struct {
		uint8_t h[8];
		int want;
	} cases[] = {
		{{0, 0, 0, 0, 1, 0, 0, 0}, -EPROTO},                   /* no such type */
		{{MACHINE_FRAME_COUNT, 0, 0, 0, 1, 0, 0, 0}, -EPROTO}, /* the same */
		{{MACHINE_STDIN, 1, 0, 0, 1, 0, 0, 0}, -EPROTO}, /* what must be zero is not */
		{{MACHINE_STDIN, 0, 0, 0, 1, 0, 1, 0}, -EPROTO}, /* one byte too long */
		{{MACHINE_STDIN, 0, 0, 0, 0, 0, 1, 0}, 0}, /* the longest: waits for the rest */
		{{MACHINE_STDIN, 0, 0, 0, 0, 0, 0, 0}, 1},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		enum machine_frame type;
		struct pair p;
		struct cur c;

		pair_init(&p);
		REQUIRE(write_full(p.fd[0], cases[i].h, 8) == 0);
		CHECK_INT(chan_fill(&p.b), 0);
		CHECK_INT(chan_next(&p.b, &type, &c), cases[i].want);
		pair_fini(&p);
	}
}

static void t_end(void)
{
	struct pair p;

	pair_init(&p);
	shutdown(p.fd[0], SHUT_WR);
	CHECK_INT(chan_fill(&p.b), 0);
	CHECK(p.b.eof);
	CHECK_INT(chan_events(&p.b), 0);
	pair_fini(&p);
}

static const struct test tests[] = {{"order", t_order}, {"flood", t_flood}, {"full", t_full},
	{"nonsense", t_nonsense}, {"end", t_end}};
TEST_MAIN(tests)
