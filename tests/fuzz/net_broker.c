/* SPDX-License-Identifier: Apache-2.0
 *
 * net_broker.c: what a taken-over mayfly-net may send the broker: messages of any bytes, each with two bytes of length before it. The
 * policy allows a name and no address, and there is no resolver: whatever comes, no socket is made.
 */
#include "lib/test.h"

#include <sys/socket.h>

#include "lib/log.h"
#include "lib/netrule.h"
#include "net/broker/broker.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static struct {
	struct loop *loop;
	struct broker *b;
	struct net_sandbox *s;
	int chan, control[2];
} f;

static void start(void)
{
	struct err e;
	int sv[2];
	struct buf b;
	struct cur c;

	f.loop = loop_create();
	ASSERT(f.loop && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, f.control) == 0);
	f.b = broker_create(f.loop, f.control[0], 100, &e);
	ASSERT(f.b);
	f.s = net_sandbox_add(f.b, 1);
	ASSERT(f.s && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, sv) == 0);
	buf_init(&b, 256);
	buf_u8(&b, 1);
	buf_u8(&b, 0);
	buf_u32(&b, 1);
	net_rule_put(&b, true, "*.example", NULL, 0);
	c = cur_of(b.p, b.len);
	ASSERT(policy_get(&c, &f.s->policy, &e) == 0);
	buf_fini(&b);
	ASSERT(net_sandbox_channel(f.s, sv[1]) == 0);
	f.s->talk.rate = UINT64_MAX; /* heard at once, however much it says */
	f.chan = sv[0];
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	uint8_t in[4096];

	if (!f.b)
		start();
	log_level = -1;
	while (n >= 2) {
		size_t len = MIN((size_t)(p[0] << 8 | p[1]), n - 2);

		if (len) /* a message without a byte reads as the end of the channel */
			(void)!send(f.chan, p + 2, len, MSG_NOSIGNAL);
		p += 2 + len;
		n -= 2 + len;
		loop_turn(f.loop, 0);
		while (recv(f.chan, in, sizeof(in), 0) > 0)
			;
	}
	ASSERT(f.s->chan >= 0 && f.b->fds == 1 && f.s->open == 0 && f.s->learned.n == 0);
	return 0;
}
