/* SPDX-License-Identifier: Apache-2.0
 *
 * ask.c: what mayfly-net asks of the broker. The broker is trusted: without it there is nothing to do, and the process ends.
 */
#include "net/stack/stack.h"

#include <poll.h>
#include <string.h>

#include "lib/buf.h"
#include "lib/fdpass.h"
#include "lib/log.h"

#define ASK_TIMEOUT_MS 2000

static void ask_lost(struct stack *s)
{
	s->stop = true;
}

static uint32_t ask_id(struct stack *s)
{
	s->next_id = s->next_id == UINT32_MAX ? 1 : s->next_id + 1;
	return s->next_id;
}

static void ask_start(struct buf *b, size_t max, uint16_t type, uint32_t id)
{
	struct net_hdr h = {.magic = NET_MAGIC, .type = type, .id = id};

	buf_init(b, max);
	buf_put(b, &h, sizeof(h));
}

/* By write(), because seal.c allows no call that carries an address. If the channel is full it waits: the broker takes a bounded number of
 * messages a turn. */
static int ask_send(struct stack *s, struct buf *b)
{
	struct pollfd p = {.fd = s->broker, .events = POLLOUT};
	int rc = b->bad ? -ENOMEM : -EAGAIN;

	for (int i = 0; rc == -EAGAIN && i < 3; i++) {
		rc = write(s->broker, b->p, b->len) < 0 ? -errno : 0;
		if (rc == -EAGAIN && poll(&p, 1, ASK_TIMEOUT_MS) <= 0)
			break;
	}
	if (rc == -EPIPE || rc == -ECONNRESET)
		ask_lost(s);
	buf_fini(b);
	return rc;
}

/* Receives one message: 0 with *h, what follows it in *c (bytes in s->msg), and *fd or -1. -EAGAIN: there is none. -EPIPE: the broker has ended.
 * -EBADMSG. Answers to DNS questions are passed on. */
static int ask_receive(struct stack *s, struct net_hdr *h, struct cur *c, int *fd)
{
	size_t nfds = 1;
	ssize_t n = fdpass_recv(s->broker, s->msg, sizeof(s->msg), fd, &nfds);

	if (n <= 0 || !nfds)
		*fd = -1;
	if (n == -EAGAIN)
		return -EAGAIN;
	if (n <= 0) {
		ask_lost(s);
		return -EPIPE;
	}
	*c = cur_of(s->msg, (size_t)n);
	if (!cur_copy(c, h, sizeof(*h)) || h->magic != NET_MAGIC) {
		close_fd(fd);
		return -EBADMSG;
	}
	if (h->type == (NET_DNS | NET_REPLY))
		dns_answered(s, h->id, c->p, cur_left(c));
	return 0;
}

/* An answer to NET_OPEN that nobody waits for any more: the broker keeps the flow until NET_CLOSE. */
static void ask_late(struct stack *s, const struct net_hdr *h, struct cur *c, int *fd)
{
	uint32_t flow;

	if (h->type == (NET_OPEN | NET_REPLY) && h->status == 0) {
		flow = cur_u32(c);
		if (cur_done(c))
			ask_close(s, flow, 0, 0);
	}
	close_fd(fd);
}

/* Waits for the answer with this id. Other messages that come meanwhile are handled here; no handler waits for an answer, so calls do not nest. */
static int ask_wait(struct stack *s, uint32_t id, struct net_hdr *h, struct cur *c, int *fd)
{
	struct pollfd p = {.fd = s->broker, .events = POLLIN};

	for (;;) {
		int rc = ask_receive(s, h, c, fd);

		if (rc == 0 && h->id == id && h->type == (NET_OPEN | NET_REPLY))
			return h->status;
		if (rc == 0)
			ask_late(s, h, c, fd);
		if (rc == -EPIPE)
			return rc;
		if (rc == -EAGAIN && poll(&p, 1, ASK_TIMEOUT_MS) <= 0)
			return -ETIMEDOUT;
	}
}

int ask_open(struct stack *s, enum net_flow kind, const struct net_addr *a, uint16_t port,
	uint32_t *flow, int *fd)
{
	uint32_t id = ask_id(s);
	struct net_hdr h;
	struct cur c;
	struct buf b;
	int rc;

	ask_start(&b, 256, NET_OPEN, id);
	buf_u8(&b, (uint8_t)kind);
	buf_put(&b, a->b, sizeof(a->b));
	buf_u16(&b, port);
	rc = ask_send(s, &b);
	if (rc == 0)
		rc = ask_wait(s, id, &h, &c, fd);
	if (rc == 0) {
		*flow = cur_u32(&c);
		rc = cur_done(&c) && *fd >= 0 ? 0 : -EBADMSG;
	}
	if (rc < 0)
		s->stat[ST_REFUSED]++;
	return rc;
}

void ask_close(struct stack *s, uint32_t flow, uint64_t out, uint64_t in)
{
	struct buf b;

	ask_start(&b, 256, NET_CLOSE, ask_id(s));
	buf_u32(&b, flow);
	buf_u64(&b, out);
	buf_u64(&b, in);
	if (ask_send(s, &b) < 0)
		log_limited(LOG_WARN, "the broker could not be told that a flow has ended");
}

int ask_dns(struct stack *s, uint32_t id, bool tcp, const void *p, size_t n)
{
	struct buf b;

	ask_start(&b, NET_MSG_MAX + 64, NET_DNS, id);
	buf_u8(&b, tcp);
	buf_put(&b, p, n);
	return ask_send(s, &b);
}

void ask_ready(struct stack *s)
{
	struct net_hdr h;
	struct cur c;
	int fd = -1;

	for (int i = 0; i < 16 && ask_receive(s, &h, &c, &fd) == 0; i++)
		ask_late(s, &h, &c, &fd);
}
