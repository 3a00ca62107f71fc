/* SPDX-License-Identifier: Apache-2.0
 *
 * net_broker: the broker in this process, with this test as daemon, as mayfly-net (also one that was taken over) and as resolver. The
 * servers are on the loopback, which policies open here.
 */
#include "lib/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "lib/fdpass.h"
#include "lib/netrule.h"
#include "net/broker/broker.h"

struct world {
	struct loop *loop;
	struct broker *b;
	int control, chan; /* our ends */
	int dns;           /* a resolver */
	uint32_t id;
	unsigned int denied; /* events */
	uint8_t p[70000];
	size_t n;
	int fd;
};

static void turns(struct world *w, unsigned int n)
{
	for (unsigned int i = 0; i < n; i++)
		loop_turn(w->loop, 0);
}

static void put_hdr(struct buf *b, struct world *w, uint16_t type)
{
	struct net_hdr h = {.magic = NET_MAGIC, .type = type, .id = ++w->id};

	buf_put(b, &h, sizeof(h));
}

/* Waits for a message on one of our ends: its status, -ETIME if none comes. The payload is in w->p from 16 on. */
static int answer(struct world *w, int sock, struct cur *c)
{
	struct net_hdr h;

	for (int i = 0; i < 400; i++) {
		size_t nfds = 1;
		ssize_t n = fdpass_recv(sock, w->p, sizeof(w->p), &w->fd, &nfds);

		if (n > 0) {
			w->fd = nfds ? w->fd : -1;
			w->n = (size_t)n;
			*c = cur_of(w->p, w->n);
			CHECK(cur_copy(c, &h, sizeof(h)));
			if (h.id == 0 && sock == w->control) { /* an event */
				w->denied += h.type == NET_EV_DENIED;
				continue;
			}
			CHECK(h.type & NET_REPLY);
			CHECK_INT(h.nfds, nfds);
			return h.status;
		}
		if (n == 0)
			return -EPIPE;
		loop_turn(w->loop, 5);
	}
	return -ETIME;
}

static int request(struct world *w, struct buf *b, int fd, struct cur *c)
{
	CHECK_INT(fdpass_send(w->control, b->p, b->len, &fd, fd >= 0), 0);
	return answer(w, w->control, c);
}

struct text_rule {
	const char *target;
	bool allow;
	uint16_t port;
};

static int set_policy(
	struct world *w, uint32_t id, bool given, bool allow, const struct text_rule *t, uint32_t n)
{
	struct cur c;
	struct buf b;
	int rc;

	buf_init(&b, NET_MSG_MAX);
	put_hdr(&b, w, NET_POLICY);
	buf_u32(&b, id);
	buf_u8(&b, NET_PART_FIRST);
	buf_u8(&b, given);
	buf_u8(&b, allow);
	buf_u32(&b, n);
	for (uint32_t i = 0; i < n; i++)
		net_rule_put(&b, t[i].allow, t[i].target, &t[i].port, t[i].port ? 1 : 0);
	rc = request(w, &b, -1, &c);
	buf_fini(&b);
	return rc;
}

static int channel(struct world *w, uint32_t id, uint64_t flows, uint64_t rate)
{
	int sv[2];
	struct cur c;
	struct buf b;
	int rc;

	CHECK_INT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sv), 0);
	buf_init(&b, 256);
	put_hdr(&b, w, NET_CHANNEL);
	buf_u32(&b, id);
	buf_u32(&b, 2);
	buf_u64(&b, flows);
	buf_u64(&b, rate);
	rc = request(w, &b, sv[1], &c);
	buf_fini(&b);
	close(sv[1]);
	close_fd(&w->chan);
	w->chan = sv[0];
	return rc;
}

static bool up_with(struct world *w, bool resolver)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t n = sizeof(a);
	struct net_addr lo = net_addr4(INADDR_LOOPBACK);
	struct err e = {0};
	struct cur c;
	struct buf b;
	int sv[2];

	*w = (struct world){.chan = -1, .loop = loop_create()};
	if (!w->loop ||
		socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sv) < 0)
		return false;
	w->control = sv[0];
	w->b = broker_create(w->loop, sv[1], 1000, &e);
	if (!resolver) {
		w->dns = -1;
		return w->b;
	}
	w->dns = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
	if (!w->b || bind(w->dns, (struct sockaddr *)&a, sizeof(a)) < 0 ||
		getsockname(w->dns, (struct sockaddr *)&a, &n) < 0)
		return false;
	buf_init(&b, 256);
	put_hdr(&b, w, NET_RESOLVERS);
	buf_u32(&b, 1);
	buf_put(&b, lo.b, 16);
	buf_u16(&b, ntohs(a.sin_port));
	CHECK_INT(request(w, &b, -1, &c), 0);
	buf_fini(&b);
	return true;
}

static bool up(struct world *w)
{
	return up_with(w, true);
}

static void down(struct world *w)
{
	int control = w->b->control;

	broker_destroy(w->b);
	loop_destroy(w->loop);
	close(control);
	close(w->control);
	close_fd(&w->dns);
	close_fd(&w->chan);
}

/* What mayfly-net asks: a flow. Its status; the descriptor in w->fd. */
static int open_flow(
	struct world *w, enum net_flow kind, const char *addr, uint16_t port, uint32_t *flow)
{
	struct net_addr a;
	struct cur c;
	struct buf b;
	int rc;

	CHECK(net_addr_parse(addr, &a));
	buf_init(&b, 256);
	put_hdr(&b, w, NET_OPEN);
	buf_u8(&b, (uint8_t)kind);
	buf_put(&b, a.b, 16);
	buf_u16(&b, port);
	CHECK_INT(fdpass_send(w->chan, b.p, b.len, NULL, 0), 0);
	buf_fini(&b);
	w->fd = -1;
	rc = answer(w, w->chan, &c);
	if (rc == 0 && flow)
		*flow = cur_u32(&c);
	return rc;
}

static int listener(int type, uint16_t *port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t n = sizeof(a);
	int fd = socket(AF_INET, type | SOCK_NONBLOCK, 0);

	if (bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 ||
		getsockname(fd, (struct sockaddr *)&a, &n) < 0)
		return -1;
	if (type == SOCK_STREAM && listen(fd, 10) < 0)
		return -1;
	*port = ntohs(a.sin_port);
	return fd;
}

static uint64_t counter(struct world *w, uint32_t id, enum net_counter which, const char *place)
{
	uint64_t v = 0, found = 0;
	struct cur c;
	struct buf b;
	uint32_t n;

	buf_init(&b, 64);
	put_hdr(&b, w, NET_COUNTERS);
	buf_u32(&b, id);
	CHECK_INT(request(w, &b, -1, &c), 0);
	buf_fini(&b);
	CHECK_INT(cur_u32(&c), NET_C_COUNT);
	for (unsigned int i = 0; i < NET_C_COUNT; i++) {
		uint64_t x = cur_u64(&c);

		v = i == which ? x : v;
	}
	n = cur_u32(&c);
	for (uint32_t i = 0; i < n; i++) {
		char text[NET_NAME_MAX], why[32];
		uint64_t times;

		cur_str(&c, text, sizeof(text));
		cur_str(&c, why, sizeof(why));
		times = cur_u64(&c);
		if (place && !strcmp(text, place))
			found = times;
	}
	CHECK(cur_done(&c));
	return place ? found : v;
}

static const struct text_rule lo_open[] = {{"127.0.0.1", true, 0}};

static void flows_are_connected_by_policy(void)
{
	struct world w;
	uint32_t flow;
	uint16_t port;
	char word[8] = "";
	int srv, peer;

	REQUIRE(up(&w));
	srv = listener(SOCK_STREAM, &port);
	CHECK_INT(channel(&w, 7, 0, 0), -ENOENT); /* no policy yet */
	CHECK_INT(set_policy(&w, 7, false, false, NULL, 0), 0);
	CHECK_INT(channel(&w, 7, 0, 0), 0);
	/* without a policy the loopback is closed, in every form */
	CHECK_INT(open_flow(&w, NET_FLOW_TCP, "127.0.0.1", port, NULL), -EACCES);
	CHECK_INT(open_flow(&w, NET_FLOW_TCP, "::ffff:127.0.0.1", port, NULL), -EACCES);
	CHECK_INT(open_flow(&w, NET_FLOW_TCP, "::1", port, NULL), -EACCES);
	CHECK_INT(open_flow(&w, NET_FLOW_UDP, "169.254.169.254", 80, NULL), -EACCES);
	CHECK_INT(w.fd, -1);
	CHECK_INT(counter(&w, 7, NET_C_DENIED, NULL), 4);
	CHECK_INT(counter(&w, 7, 0, "udp 169.254.169.254:80"), 1);
	CHECK_INT(accept(srv, NULL, NULL), -1);
	CHECK_INT(set_policy(&w, 7, true, false, lo_open, 1), 0);
	CHECK_INT(open_flow(&w, NET_FLOW_TCP, "127.0.0.1", port, &flow), 0);
	REQUIRE(w.fd >= 0);
	peer = accept(srv, NULL, NULL);
	CHECK(peer >= 0);
	CHECK_INT(write(w.fd, "hello", 5), 5);
	CHECK_INT(read(peer, word, sizeof(word)), 5);
	CHECK_INT(counter(&w, 7, NET_C_OPEN, NULL), 1);
	CHECK_INT(counter(&w, 7, NET_C_BYTES_OUT, NULL), 5);
	close(w.fd);
	close(peer);
	close(srv);
	down(&w);
}

/* The change of a policy ends what it no longer allows, and nothing else. */
static void a_change_shuts_what_is_not_allowed(void)
{
	static const struct text_rule both[] = {{"127.0.0.1", true, 0}, {"127.0.0.2", true, 0}};
	struct world w;
	uint16_t port, uport;
	int srv, usrv, one, udp;
	char c;

	REQUIRE(up(&w));
	srv = listener(SOCK_STREAM, &port);
	usrv = listener(SOCK_DGRAM, &uport);
	CHECK_INT(set_policy(&w, 1, true, false, both, 2), 0);
	CHECK_INT(channel(&w, 1, 0, 0), 0);
	CHECK_INT(open_flow(&w, NET_FLOW_TCP, "127.0.0.1", port, NULL), 0);
	one = w.fd;
	CHECK_INT(open_flow(&w, NET_FLOW_UDP, "127.0.0.1", uport, NULL), 0);
	udp = w.fd;
	CHECK_INT(send(udp, "x", 1, 0), 1);
	CHECK_INT(read(usrv, &c, 1), 1);
	CHECK_INT(set_policy(&w, 1, true, false, both, 1), 0);
	CHECK_INT(counter(&w, 1, NET_C_SHUT, NULL), 0);
	CHECK_INT(send(one, "x", 1, MSG_NOSIGNAL), 1);
	CHECK_INT(set_policy(&w, 1, true, false, both + 1, 1), 0);
	CHECK_INT(counter(&w, 1, NET_C_SHUT, NULL), 2);
	/* our duplicates are of no use any more, whatever we do with them */
	CHECK(send(one, "x", 1, MSG_NOSIGNAL) < 0);
	CHECK_INT(errno, EPIPE);
	CHECK(send(udp, "x", 1, MSG_NOSIGNAL) < 0);
	CHECK_INT(errno, EPIPE);
	CHECK(read(usrv, &c, 1) < 0);
	close(one);
	close(udp);
	close(srv);
	close(usrv);
	down(&w);
}

static void the_operator_and_the_end(void)
{
	struct world w;
	struct cur c;
	struct buf b;
	uint16_t port;
	int srv;

	REQUIRE(up(&w));
	srv = listener(SOCK_STREAM, &port);
	CHECK_INT(set_policy(&w, 1, true, false, lo_open, 1), 0);
	CHECK_INT(channel(&w, 1, 0, 0), 0);
	CHECK_INT(open_flow(&w, NET_FLOW_TCP, "127.0.0.1", port, NULL), 0);
	/* the operator's deny list is above the client's rules */
	buf_init(&b, 512);
	put_hdr(&b, &w, NET_OPERATOR);
	buf_u8(&b, NET_PART_FIRST);
	buf_u32(&b, 1);
	net_rule_put(&b, false, "127.0.0.0/8", NULL, 0);
	buf_u32(&b, 0);
	{
		int tcp = w.fd;

		CHECK_INT(request(&w, &b, -1, &c), 0);
		CHECK(send(tcp, "x", 1, MSG_NOSIGNAL) < 0);
		close(tcp);
	}
	buf_fini(&b);
	CHECK_INT(open_flow(&w, NET_FLOW_TCP, "127.0.0.1", port, NULL), -EACCES);
	buf_init(&b, 64);
	put_hdr(&b, &w, NET_REMOVE);
	buf_u32(&b, 1);
	CHECK_INT(request(&w, &b, -1, &c), 0);
	CHECK_INT(read(w.chan, &port, 1), 0);
	CHECK_INT(request(&w, &b, -1, &c), -ENOENT);
	buf_fini(&b);
	close(srv);
	down(&w);
}

static void limits_hold(void)
{
	struct world w;
	uint16_t port;
	uint32_t flow = 0;
	struct buf b;
	int fds[8], srv;

	REQUIRE(up(&w));
	srv = listener(SOCK_DGRAM, &port);
	CHECK_INT(set_policy(&w, 1, true, false, lo_open, 1), 0);
	CHECK_INT(channel(&w, 1, 4, 8), 0);
	for (int i = 0; i < 4; i++) {
		CHECK_INT(open_flow(&w, NET_FLOW_UDP, "127.0.0.1", port, &flow), 0);
		fds[i] = w.fd;
	}
	CHECK_INT(open_flow(&w, NET_FLOW_UDP, "127.0.0.1", port, NULL), -EAGAIN);
	/* one is given back: there is room for one; its number is not good twice */
	for (int i = 0; i < 2; i++) {
		buf_init(&b, 64);
		put_hdr(&b, &w, NET_CLOSE);
		buf_u32(&b, flow);
		buf_u64(&b, 10);
		buf_u64(&b, 20);
		CHECK_INT(fdpass_send(w.chan, b.p, b.len, NULL, 0), 0);
		buf_fini(&b);
		turns(&w, 3);
	}
	CHECK_INT(counter(&w, 1, NET_C_BYTES_IN, NULL), 20);
	CHECK_INT(counter(&w, 1, NET_C_REFUSED, NULL), 1);
	/* who keeps the descriptor of a flow that it gave back has a socket that sends nothing */
	CHECK(send(fds[3], "x", 1, MSG_NOSIGNAL) < 0 && errno == EPIPE);
	CHECK_INT(open_flow(&w, NET_FLOW_UDP, "127.0.0.1", port, &flow), 0);
	close(w.fd);
	/* eight a second */
	for (int i = 0, ok = 0; i < 20; i++) {
		CHECK(open_flow(&w, NET_FLOW_UDP, "127.0.0.1", port, &flow) == -EAGAIN || ++ok < 8);
		close_fd(&w.fd);
	}
	for (int i = 0; i < 4; i++)
		close(fds[i]);
	/* mayfly-net goes: nothing of it stays */
	close_fd(&w.chan);
	turns(&w, 3);
	CHECK_INT(w.b->fds, 0);
	close(srv);
	down(&w);
}

/* A taken-over mayfly-net sends anything: refused, counted, and the broker serves on. */
static void nonsense_is_counted(void)
{
	static const char junk[] =
		"MFN1 and then some bytes that are none of ours..................";
	struct net_hdr h = {.magic = NET_MAGIC};
	struct world w;
	uint16_t port;
	int srv;

	REQUIRE(up(&w));
	srv = listener(SOCK_DGRAM, &port);
	CHECK_INT(set_policy(&w, 1, true, false, lo_open, 1), 0);
	CHECK_INT(channel(&w, 1, 0, 0), 0);
	for (size_t n = 1; n < sizeof(junk); n++)
		CHECK_INT(fdpass_send(w.chan, junk, n, NULL, 0), 0);
	/* the daemon's requests, as mayfly-net: a policy of its own above all */
	for (uint16_t t = 0; t < 40; t++) {
		uint8_t m[64] = {0};

		h.type = t;
		memcpy(m, &h, sizeof(h));
		m[16] = 1;
		if (t != NET_OPEN && t != NET_DNS)
			CHECK_INT(fdpass_send(w.chan, m, sizeof(m), NULL, 0), 0);
	}
	/* descriptors where none belong */
	CHECK_INT(fdpass_send(w.chan, &h, sizeof(h), &srv, 1), 0);
	turns(&w, 20);
	CHECK(counter(&w, 1, NET_C_REFUSED, NULL) > 100);
	CHECK_INT(open_flow(&w, (enum net_flow)7, "127.0.0.1", port, NULL), -EINVAL);
	CHECK_INT(open_flow(&w, NET_FLOW_TCP, "127.0.0.1", 0, NULL), -EINVAL);
	CHECK_INT(open_flow(&w, NET_FLOW_UDP, "127.0.0.1", port, NULL), 0);
	close(w.fd);
	close(srv);
	down(&w);
}

static void give_back(struct world *w, uint32_t flow)
{
	struct buf b;

	buf_init(&b, 64);
	put_hdr(&b, w, NET_CLOSE);
	buf_u32(&b, flow);
	buf_u64(&b, 0);
	buf_u64(&b, 0);
	CHECK_INT(fdpass_send(w->chan, b.p, b.len, NULL, 0), 0);
	buf_fini(&b);
	turns(w, 3);
}

/* A flow to `srv`, and the server's end of it. */
static int open_both(struct world *w, int srv, uint16_t port, uint32_t *flow, int *peer)
{
	CHECK_INT(open_flow(w, NET_FLOW_TCP, "127.0.0.1", port, flow), 0);
	*peer = -1;
	for (int i = 0; i < 4000 && *peer < 0; i++) {
		*peer = accept4(srv, NULL, NULL, SOCK_NONBLOCK);
		loop_turn(w->loop, 5);
	}
	return take_fd(&w->fd);
}

/* Until there is room no more; how much. */
static size_t fill(int fd)
{
	static const char zeros[65536];
	size_t all = 0;
	ssize_t n;

	while ((n = send(fd, zeros, sizeof(zeros), MSG_NOSIGNAL | MSG_DONTWAIT)) > 0)
		all += (size_t)n;
	return all;
}

/* A taken-over mayfly-net gives flows back and keeps their descriptors: what was received is gone at once, and what is to be sent counts
 * until it has been sent, or until nobody has taken any of it for long. */
static void what_is_given_back_holds_no_memory(void)
{
	uint32_t flow = 0, held[9]; /* SK_MEMINFO_* */
	socklen_t n = sizeof(held);
	struct world w;
	uint16_t port;
	int srv, fd, peer;
	char byte;

	REQUIRE(up(&w));
	srv = listener(SOCK_STREAM, &port);
	CHECK_INT(set_policy(&w, 1, true, false, lo_open, 1), 0);
	CHECK_INT(channel(&w, 1, 0, 0), 0);
	fd = open_both(&w, srv, port, &flow, &peer);
	CHECK(fill(peer) > 65536);
	give_back(&w, flow);
	CHECK(w.b->committed == 0 && w.b->sandbox->open == 0);
	CHECK(recv(fd, &byte, 1, MSG_DONTWAIT) <= 0);
	CHECK_INT(getsockopt(fd, SOL_SOCKET, SO_MEMINFO, held, &n), 0);
	CHECK_INT(held[0], 0);
	close(fd);
	close(peer);
	/* a server that reads later has everything; its number is not good twice */
	fd = open_both(&w, srv, port, &flow, &peer);
	{
		size_t sent = fill(fd), got = 0;
		static char in[65536];
		ssize_t k;

		give_back(&w, flow);
		CHECK(w.b->committed > 0 && w.b->sandbox->open == 1);
		give_back(&w, flow);
		CHECK_INT(counter(&w, 1, NET_C_REFUSED, NULL), 1);
		for (int i = 0; i < 4000 && got < sent; i++) {
			while ((k = recv(peer, in, sizeof(in), 0)) > 0)
				got += (size_t)k;
			loop_turn(w.loop, 5);
		}
		CHECK_INT(got, sent);
		for (int i = 0; i < 4000 && w.b->committed; i++)
			loop_turn(w.loop, 20);
		CHECK(w.b->committed == 0 && w.b->sandbox->open == 0);
	}
	close(fd);
	close(peer);
	/* and one that never does is not waited for */
	fd = open_both(&w, srv, port, &flow, &peer);
	w.b->closing_max_ns = 0;
	CHECK(fill(fd) > 65536);
	give_back(&w, flow);
	CHECK(w.b->committed > 0);
	for (int i = 0; i < 4000 && w.b->committed; i++)
		loop_turn(w.loop, 20);
	CHECK_INT(w.b->sandbox->open, 0);
	n = sizeof(held);
	CHECK_INT(getsockopt(fd, SOL_SOCKET, SO_MEMINFO, held, &n), 0);
	CHECK_INT(held[2], 0);
	close(fd);
	close(peer);
	close(srv);
	down(&w);
}

/* The older policy may be the wider one: nothing is open until one is there that can be read. */
static void a_policy_that_cannot_be_read_opens_nothing(void)
{
	struct world w;
	struct cur c;
	struct buf b;
	uint16_t port;
	int srv, fd;

	REQUIRE(up(&w));
	srv = listener(SOCK_DGRAM, &port);
	CHECK_INT(set_policy(&w, 1, true, false, lo_open, 1), 0);
	CHECK_INT(channel(&w, 1, 0, 0), 0);
	CHECK_INT(open_flow(&w, NET_FLOW_UDP, "127.0.0.1", port, NULL), 0);
	fd = take_fd(&w.fd);
	buf_init(&b, 64);
	put_hdr(&b, &w, NET_POLICY);
	buf_u32(&b, 1);
	buf_u8(&b, NET_PART_FIRST);
	buf_u8(&b, 1);
	CHECK_INT(request(&w, &b, -1, &c), -EBADMSG);
	buf_fini(&b);
	CHECK(send(fd, "x", 1, MSG_NOSIGNAL) < 0 && errno == EPIPE);
	CHECK(recv(w.chan, &c, sizeof(c), 0) == 0);
	CHECK_INT(channel(&w, 1, 0, 0), -EINVAL);
	CHECK_INT(set_policy(&w, 1, true, false, lo_open, 1), 0);
	CHECK_INT(channel(&w, 1, 0, 0), 0);
	CHECK_INT(open_flow(&w, NET_FLOW_UDP, "127.0.0.1", port, NULL), 0);
	close(w.fd);
	close(fd);
	close(srv);
	down(&w);
}

/* What is denied costs time, too. Who says more than its limits explain waits, and nothing of it is lost. */
static void who_says_too_much_waits(void)
{
	struct net_hdr h = {.magic = NET_MAGIC, .type = NET_SWEEP};
	struct world w;

	REQUIRE(up(&w));
	CHECK_INT(set_policy(&w, 1, true, false, NULL, 0), 0);
	CHECK_INT(channel(&w, 1, 0, 0), 0);
	w.b->sandbox->talk.rate = 1;
	for (int i = 0; i < 100; i++)
		CHECK_INT(fdpass_send(w.chan, &h, sizeof(h), NULL, 0), 0);
	turns(&w, 50);
	CHECK(counter(&w, 1, NET_C_REFUSED, NULL) < 100);
	w.b->sandbox->talk.rate = UINT64_MAX;
	for (int i = 0; i < 4000 && w.b->sandbox->count[NET_C_REFUSED] < 100; i++)
		loop_turn(w.loop, 5);
	CHECK_INT(counter(&w, 1, NET_C_REFUSED, NULL), 100);
	down(&w);
}

/* ---- DNS ---- */

static size_t ask(uint8_t *p, const char *name, uint16_t id)
{
	uint8_t head[12] = {(uint8_t)(id >> 8), (uint8_t)id, 1, 0, 0, 1};
	size_t at = 12;

	memcpy(p, head, 12);
	while (*name) {
		size_t n = strcspn(name, ".");

		p[at++] = (uint8_t)n;
		memcpy(p + at, name, n);
		at += n;
		name += n + (name[n] == '.');
	}
	memcpy(p + at, "\0\0\1\0\1", 5);
	return at + 5;
}

static void query(struct world *w, const char *name)
{
	uint8_t p[300];
	struct buf b;

	buf_init(&b, 1024);
	put_hdr(&b, w, NET_DNS);
	buf_u8(&b, 0);
	buf_put(&b, p, ask(p, name, 0x4242));
	CHECK_INT(fdpass_send(w->chan, b.p, b.len, NULL, 0), 0);
	buf_fini(&b);
}

/* The resolver answers the next question it gets with an address; flip: of the id, for a liar. */
static bool resolver_says(struct world *w, const char *addr, uint16_t flip)
{
	struct sockaddr_in from;
	socklen_t len = sizeof(from);
	struct net_addr a;
	uint8_t p[1024];
	ssize_t n = -1;

	for (int i = 0; i < 200 && n < 0; i++) {
		loop_turn(w->loop, 5);
		n = recvfrom(w->dns, p, 512, flip ? MSG_PEEK : 0, (struct sockaddr *)&from, &len);
	}
	if (n < 0)
		return false;
	n -= 11; /* without EDNS */
	p[0] ^= (uint8_t)(flip >> 8);
	p[2] = 0x81;
	p[3] = 0x80;
	p[7] = 1;
	p[11] = 0;
	CHECK(net_addr_parse(addr, &a));
	memcpy(p + n, "\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4", 12);
	memcpy(p + n + 12, a.b + 12, 4);
	return sendto(w->dns, p, (size_t)n + 16, 0, (struct sockaddr *)&from, len) > 0;
}

/* The answer that the guest gets: its rcode, and how many records; -1: none came. */
static int reply_code(struct world *w, unsigned int *records)
{
	struct cur c;

	if (answer(w, w->chan, &c) != 0)
		return -1;
	CHECK(w->n >= 28 && w->p[16] == 0x42 && w->p[17] == 0x42);
	*records = w->p[16 + 7];
	return w->p[16 + 3] & 15;
}

static void names_are_learned_by_the_broker_only(void)
{
	static const struct text_rule rules[] = {
		{"allowed.example", true, 0}, {"127.0.0.1", true, 9}};
	struct world w;
	unsigned int n;

	REQUIRE(up(&w));
	CHECK_INT(set_policy(&w, 1, true, false, rules, 2), 0);
	CHECK_INT(channel(&w, 1, 0, 0), 0);
	CHECK_INT(open_flow(&w, NET_FLOW_UDP, "5.5.5.5", 9, NULL), -EACCES);
	/* a denied name is not even asked */
	query(&w, "denied.example");
	CHECK_INT(reply_code(&w, &n), DNS_NXDOMAIN);
	CHECK_INT(counter(&w, 1, 0, "denied.example"), 1);
	CHECK(recv(w.dns, &n, sizeof(n), 0) < 0);
	/* a liar with another id is not heard, the resolver is */
	query(&w, "allowed.example");
	CHECK(resolver_says(&w, "6.6.6.6", 0x100));
	turns(&w, 5);
	CHECK_INT(w.b->sandbox->learned.n, 0);
	CHECK(resolver_says(&w, "5.5.5.5", 0));
	CHECK_INT(reply_code(&w, &n), DNS_NOERROR);
	CHECK_INT(n, 1);
	CHECK_INT(w.b->sandbox->learned.n, 1);
	CHECK_INT(open_flow(&w, NET_FLOW_UDP, "6.6.6.6", 9, NULL), -EACCES);
	/* connecting a datagram socket sends nothing; a host without a route may refuse it */
	n = (unsigned int)-open_flow(&w, NET_FLOW_UDP, "5.5.5.5", 9, NULL);
	CHECK(n == 0 || n == ENETUNREACH);
	close_fd(&w.fd);
	/* rebinding: a private address for a public name is neither learned nor said, but one that a rule opens */
	query(&w, "allowed.example");
	CHECK(resolver_says(&w, "10.1.2.3", 0));
	CHECK_INT(reply_code(&w, &n), DNS_NXDOMAIN);
	CHECK_INT(counter(&w, 1, NET_C_REBINDING, NULL), 1);
	CHECK_INT(w.b->sandbox->learned.n, 1);
	query(&w, "allowed.example");
	CHECK(resolver_says(&w, "127.0.0.1", 0));
	CHECK_INT(reply_code(&w, &n), DNS_NOERROR);
	down(&w);
}

/* The daemon hears of the first places only; sums of all sandboxes outlive them. */
static void what_is_denied_is_told_and_summed(void)
{
	struct world w;
	char addr[20];

	REQUIRE(up(&w));
	for (uint32_t id = 1; id < 3; id++) {
		CHECK_INT(set_policy(&w, id, true, false, NULL, 0), 0);
		CHECK_INT(channel(&w, id, 0, 0), 0);
		for (int i = 0; i < 60; i++) {
			snprintf(addr, sizeof(addr), "5.5.5.%d", i % 20);
			CHECK_INT(open_flow(&w, NET_FLOW_UDP, addr, 9, NULL), -EACCES);
		}
		CHECK_INT(counter(&w, id, NET_C_DENIED, NULL), 60);
		CHECK_INT(w.denied, NET_DENIED_TOLD * id);
	}
	net_sandbox_remove(net_sandbox_find(w.b, 1));
	CHECK_INT(counter(&w, NET_ALL, NET_C_DENIED, NULL), 120);
	CHECK_INT(counter(&w, NET_ALL, NET_C_OPEN, NULL), 0);
	down(&w);
}

static void a_silent_resolver_is_an_error_at_last(void)
{
	struct world w;
	unsigned int n;
	uint64_t start = mono_ns();
	int rc = -1;

	REQUIRE(up(&w));
	CHECK_INT(set_policy(&w, 1, false, false, NULL, 0), 0);
	CHECK_INT(channel(&w, 1, 0, 0), 0);
	query(&w, "silent.example");
	for (int i = 0; i < 6 && rc < 0; i++)
		rc = reply_code(&w, &n);
	CHECK_INT(rc, DNS_SERVFAIL);
	CHECK(mono_ns() - start < QUERY_DEADLINE_NS + 20000000000ull);
	CHECK_INT(counter(&w, 1, NET_C_QUERIES_FAILED, NULL), 1);
	/* queries under way end with their sandbox */
	query(&w, "silent.example");
	turns(&w, 5);
	CHECK(w.b->query);
	close_fd(&w.chan);
	turns(&w, 5);
	CHECK(!w.b->query);
	down(&w);
}

static int simple(struct world *w, uint16_t type, uint32_t value, int fd, struct cur *c)
{
	struct buf b;
	int rc;

	buf_init(&b, 64);
	put_hdr(&b, w, type);
	buf_u32(&b, value);
	if (type == NET_SWEEP)
		b.len -= 4;
	rc = request(w, &b, fd, c);
	buf_fini(&b);
	return rc;
}

static void write_file(const char *path, const char *text)
{
	_cleanup_close_ int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	CHECK_INT(write(fd, text, strlen(text)), (ssize_t)strlen(text));
}

/* An event of the broker's is there. */
static bool event_comes(struct world *w, uint16_t type)
{
	struct net_hdr h;

	for (int i = 0; i < 200; i++) {
		if (recv(w->control, &h, sizeof(h), MSG_DONTWAIT) == sizeof(h) && h.type == type)
			return h.id == 0;
		loop_turn(w->loop, 5);
	}
	return false;
}

static void a_replaced_resolv_conf_is_asked_for(void)
{
	char dir[] = "/tmp/net_broker.XXXXXX", a[64], b[64];
	struct world w;
	unsigned int n;
	struct cur c;
	int fd;

	REQUIRE(up_with(&w, false) && mkdtemp(dir));
	snprintf(a, sizeof(a), "%s/a", dir);
	snprintf(b, sizeof(b), "%s/b", dir);
	CHECK_INT(set_policy(&w, 1, false, false, NULL, 0), 0);
	CHECK_INT(channel(&w, 1, 0, 0), 0);
	/* before the daemon has given one: an error at once, and the question for it */
	query(&w, "first.example");
	CHECK_INT(reply_code(&w, &n), DNS_SERVFAIL);
	CHECK(event_comes(&w, NET_EV_RESOLVERS));
	write_file(a, "nameserver 127.0.0.51\n");
	fd = open(a, O_RDONLY | O_CLOEXEC);
	CHECK_INT(simple(&w, NET_RESOLVERS, 0, fd, &c), 0);
	close(fd);
	query(&w, "second.example");
	turns(&w, 3);
	CHECK(w.b->nresolvers == 1 && w.b->resolver[0].addr.b[15] == 51);
	/* a rename over it: the old resolvers stay until the new file is here */
	write_file(b, "nameserver 127.0.0.52\n");
	CHECK_INT(rename(b, a), 0);
	w.b->resolv_looked_ns = w.b->resolv_asked_ns = 0;
	query(&w, "third.example");
	CHECK(event_comes(&w, NET_EV_RESOLVERS));
	CHECK(w.b->resolver[0].addr.b[15] == 51);
	fd = open(a, O_RDONLY | O_CLOEXEC);
	CHECK_INT(simple(&w, NET_RESOLVERS, 0, fd, &c), 0);
	close(fd);
	query(&w, "fourth.example");
	turns(&w, 3);
	CHECK(w.b->nresolvers == 1 && w.b->resolver[0].addr.b[15] == 52);
	unlink(a);
	rmdir(dir);
	down(&w);
}

/* The daemon ends and another one comes: flows and policies are as they were; what it does not claim goes. */
static void the_next_daemon_finds_everything(void)
{
	static const struct text_rule open_lo[] = {{"127.0.0.1", true, 0}};
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	char dir[] = "/tmp/net_broker.XXXXXX", byte = 0;
	struct err e = {0};
	struct world w = {.chan = -1, .dns = -1, .loop = loop_create()};
	struct cur c;
	uint32_t flow;
	uint16_t port;
	int ear = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0), srv, fd, peer;

	REQUIRE(mkdtemp(dir));
	snprintf(at.sun_path, sizeof(at.sun_path), "%s/broker", dir);
	REQUIRE(bind(ear, (struct sockaddr *)&at, sizeof(at)) == 0 && listen(ear, 8) == 0);
	w.b = broker_create(w.loop, ear, 1000, &e);
	REQUIRE(w.b);
	w.control = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	CHECK_INT(connect(w.control, (struct sockaddr *)&at, sizeof(at)), 0);
	fcntl(w.control, F_SETFL, O_NONBLOCK);
	srv = listener(SOCK_STREAM, &port);
	CHECK_INT(set_policy(&w, 1, true, false, open_lo, 1), 0);
	CHECK_INT(set_policy(&w, 2, true, false, open_lo, 1), 0);
	CHECK_INT(channel(&w, 1, 0, 0), 0);
	CHECK_INT(open_flow(&w, NET_FLOW_TCP, "127.0.0.1", port, &flow), 0);
	fd = w.fd;
	peer = -1;
	for (int i = 0; i < 1000 && peer < 0; i++) {
		turns(&w, 1);
		peer = accept(srv, NULL, NULL);
	}
	REQUIRE(peer >= 0);
	/* half of a policy, and the daemon is killed */
	{
		struct buf b;

		buf_init(&b, 64);
		put_hdr(&b, &w, NET_POLICY);
		buf_u32(&b, 1);
		buf_u8(&b, NET_PART_FIRST | NET_PART_MORE);
		buf_u32(&b, 0x41414141);
		CHECK_INT(request(&w, &b, -1, &c), 0);
		buf_fini(&b);
	}
	close(w.control);
	turns(&w, 3);
	CHECK_INT(write(fd, "x", 1), 1);
	CHECK_INT(read(peer, &byte, 1), 1);
	/* meanwhile new flows open, too */
	CHECK_INT(open_flow(&w, NET_FLOW_TCP, "127.0.0.1", port, NULL), 0);
	close_fd(&w.fd);
	w.control = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	CHECK_INT(connect(w.control, (struct sockaddr *)&at, sizeof(at)), 0);
	fcntl(w.control, F_SETFL, O_NONBLOCK);
	CHECK_INT(simple(&w, NET_HELLO, NET_VERSION + 1, -1, &c), -EPROTO);
	CHECK_INT(simple(&w, NET_HELLO, NET_VERSION, -1, &c), 0);
	CHECK_INT(cur_u32(&c), NET_VERSION);
	/* the half of a policy does not spoil the whole one */
	CHECK_INT(set_policy(&w, 1, true, false, open_lo, 1), 0);
	CHECK_INT(simple(&w, NET_SWEEP, 0, -1, &c), 0);
	CHECK(net_sandbox_find(w.b, 1) && !net_sandbox_find(w.b, 2));
	CHECK_INT(write(fd, "y", 1), 1);
	CHECK_INT(read(peer, &byte, 1), 1);
	CHECK(byte == 'y');
	/* and the next policy holds for the connection of before */
	CHECK_INT(set_policy(&w, 1, true, false, NULL, 0), 0);
	CHECK(send(fd, "z", 1, MSG_NOSIGNAL) < 0 && errno == EPIPE);
	close(fd);
	close(peer);
	close(srv);
	broker_destroy(w.b);
	loop_destroy(w.loop);
	close(ear);
	close(w.control);
	close_fd(&w.chan);
	unlink(at.sun_path);
	rmdir(dir);
}

static int buffer_of(int fd, int which)
{
	int v = -1;
	socklen_t n = sizeof(v);

	CHECK_INT(getsockopt(fd, SOL_SOCKET, which, &v, &n), 0);
	return v;
}

/* Buffers shrink as memory is given away; then there are no flows; what ends gives back. */
static void memory_of_buffers_is_bounded(void)
{
	static const struct text_rule open_lo[] = {{"127.0.0.1", true, 0}};
	static int fd[600];
	uint32_t flow = 0;
	int n = 0, sizes = 0, rc = 0;
	uint64_t last = UINT64_MAX, now;
	struct world w;
	uint16_t port;
	int srv = listener(SOCK_STREAM, &port);

	REQUIRE(up(&w) && listen(srv, 1000) == 0);
	w.b->committed_max = MIB(64);
	CHECK_INT(set_policy(&w, 1, true, false, open_lo, 1), 0);
	CHECK_INT(channel(&w, 1, 600, 100000), 0);
	for (; n < 600; n++) {
		now = w.b->committed;
		rc = open_flow(&w, NET_FLOW_TCP, "127.0.0.1", port, &flow);
		if (rc < 0)
			break;
		fd[n] = w.fd;
		now = w.b->committed - now;
		CHECK(now <= last && now >= (uint64_t)(n ? buffer_of(fd[n], SO_RCVBUF) : 0));
		sizes += now != last;
		last = now;
	}
	CHECK(n > 100 && n < 600);
	CHECK_INT(rc, -EAGAIN);
	CHECK(sizes >= 3 && last == KIB(32));
	CHECK_INT(counter(&w, 1, NET_C_LIMITED, NULL), 1);
	CHECK(w.b->committed <= MIB(64));
	for (int i = 0; i < n; i++)
		close(fd[i]);
	close_fd(&w.chan);
	turns(&w, 5);
	CHECK(w.b->committed == 0 && w.b->fds == 0);
	close(srv);
	down(&w);
}

/* While the host's addresses are not known, nothing public is opened; a rule for the very address does. */
static void unknown_host_addresses_close_everything(void)
{
	static const struct text_rule rules[] = {{"5.5.5.5", true, 0}};
	struct world w;
	int rc;

	REQUIRE(up(&w));
	CHECK_INT(set_policy(&w, 1, true, true, rules, 1), 0);
	CHECK_INT(channel(&w, 1, 0, 0), 0);
	w.b->world.host_unknown = true;
	CHECK_INT(open_flow(&w, NET_FLOW_UDP, "6.6.6.6", 9, NULL), -EACCES);
	rc = open_flow(&w, NET_FLOW_UDP, "5.5.5.5", 9, NULL);
	CHECK(rc == 0 || rc == -ENETUNREACH);
	close_fd(&w.fd);
	w.b->world.host_unknown = false;
	rc = open_flow(&w, NET_FLOW_UDP, "6.6.6.6", 9, NULL);
	CHECK(rc == 0 || rc == -ENETUNREACH);
	close_fd(&w.fd);
	down(&w);
}

/* Questions and channels take descriptors, too, and leave the last ones to channels. */
static void descriptors_are_counted(void)
{
	struct world w;
	unsigned int n;

	REQUIRE(up(&w));
	w.b->fds_max = 32;
	CHECK_INT(set_policy(&w, 1, false, true, NULL, 0), 0);
	CHECK_INT(set_policy(&w, 2, false, true, NULL, 0), 0);
	CHECK_INT(channel(&w, 1, 0, 0), 0);
	for (int i = 0; i < 29; i++)
		query(&w, "silent.example");
	turns(&w, 10);
	CHECK_INT(w.b->fds, 30);
	query(&w, "one.more.example");
	CHECK_INT(reply_code(&w, &n), DNS_SERVFAIL);
	CHECK_INT(counter(&w, 1, NET_C_LIMITED, NULL), 1);
	n = w.b->fds;
	{
		int mine = take_fd(&w.chan);

		CHECK_INT(channel(&w, 2, 0, 0), 0);
		CHECK_INT(w.b->fds, n + 1);
		close(mine);
	}
	turns(&w, 10);
	CHECK_INT(w.b->fds, 1);
	down(&w);
}

static void resolv_conf_is_read(void)
{
	struct net_resolver r[RESOLVERS_MAX];

	CHECK_INT(host_parse_resolvers("", r), 0);
	CHECK_INT(
		host_parse_resolvers("# x\nsearch a b\nnameserver 1.2.3.4\n  nameserver\t::1 # "
				     "y\nnameserver junk\nnameserverx 1.1.1.1\nnameserver 9.9.9.9",
			r),
		3);
	CHECK(r[1].addr.b[15] == 1 && r[2].port == 53);
	CHECK_INT(host_parse_resolvers("nameserver 1.1.1.1\nnameserver 1.1.1.2\nnameserver "
				       "1.1.1.3\nnameserver 1.1.1.4\n",
			  r),
		3);
	CHECK_INT(host_parse_resolvers("nameserver", r), 0);
	CHECK_INT(host_parse_resolvers("nameserver ", r), 0);
}

static const struct test tests[] = {
	{"flows_are_connected_by_policy", flows_are_connected_by_policy},
	{"a_change_shuts_what_is_not_allowed", a_change_shuts_what_is_not_allowed},
	{"the_operator_and_the_end", the_operator_and_the_end},
	{"limits_hold", limits_hold},
	{"nonsense_is_counted", nonsense_is_counted},
	{"what_is_given_back_holds_no_memory", what_is_given_back_holds_no_memory},
	{"a_policy_that_cannot_be_read_opens_nothing", a_policy_that_cannot_be_read_opens_nothing},
	{"who_says_too_much_waits", who_says_too_much_waits},
	{"names_are_learned_by_the_broker_only", names_are_learned_by_the_broker_only},
	{"what_is_denied_is_told_and_summed", what_is_denied_is_told_and_summed},
	{"a_silent_resolver_is_an_error_at_last", a_silent_resolver_is_an_error_at_last},
	{"resolv_conf_is_read", resolv_conf_is_read},
	{"a_replaced_resolv_conf_is_asked_for", a_replaced_resolv_conf_is_asked_for},
	{"the_next_daemon_finds_everything", the_next_daemon_finds_everything},
	{"memory_of_buffers_is_bounded", memory_of_buffers_is_bounded},
	{"unknown_host_addresses_close_everything", unknown_host_addresses_close_everything},
	{"descriptors_are_counted", descriptors_are_counted},
};
TEST_MAIN(tests)
