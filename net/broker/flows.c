/* SPDX-License-Identifier: Apache-2.0
 *
 * flows.c: sockets by policy. A flow is made, connected and kept here; mayfly-net has a duplicate that it can read, write and shut down.
 * Hostile: the request. shutdown() acts on the socket, not on the descriptor: after it the duplicate in mayfly-net neither sends nor receives
 * (tests/unit/net_broker.c sees that for TCP and UDP).
 */
#include "net/broker/broker.h"

#include <linux/tcp.h>
#include <stdio.h>
#include <string.h>

#define GENERATION_SHIFT 16
#define STATE_CLOSED     7 /* of tcp_info */
#define DRAIN_TURNS      64

static uint32_t flow_index(uint32_t id)
{
	return (id & ((1u << GENERATION_SHIFT) - 1)) - 1;
}

/* A free entry; NULL: the table is at its limit, or no memory. */
static struct net_flow_entry *flow_slot(struct net_sandbox *s)
{
	uint32_t more = MIN(s->nflow ? s->nflow * 2 : 16, (uint32_t)s->limit[NET_L_FLOWS]);
	struct net_flow_entry *bigger;

	for (uint32_t i = 0; s->open < s->nflow && i < s->nflow; i++)
		if (!s->flow[i].id)
			return &s->flow[i];
	if (more <= s->nflow)
		return NULL;
	bigger = realloc(s->flow, more * sizeof(*bigger));
	if (!bigger)
		return NULL;
	memset(bigger + s->nflow, 0, (more - s->nflow) * sizeof(*bigger));
	s->flow = bigger;
	s->nflow = more;
	return &s->flow[s->open];
}

static struct net_flow_entry *flow_find(struct net_sandbox *s, uint32_t id)
{
	uint32_t i = flow_index(id);

	return id && i < s->nflow && s->flow[i].id == id && !s->flow[i].closing_ns ? &s->flow[i]
										   : NULL;
}

static void tcp_bytes(int fd, uint64_t *out, uint64_t *in)
{
	struct tcp_info t = {0};
	socklen_t n = sizeof(t);

	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &t, &n) < 0)
		return;
	*out += t.tcpi_bytes_acked - (t.tcpi_bytes_acked > 0); /* the SYN is one of them */
	*in += t.tcpi_bytes_received;
}

static void flow_count(struct net_sandbox *s, const struct net_flow_entry *f)
{
	if (f->kind == NET_FLOW_TCP)
		tcp_bytes(f->fd, &s->count[NET_C_BYTES_OUT], &s->count[NET_C_BYTES_IN]);
}

/* Closes the flow and frees its entry. Its bytes have been counted. */
static void flow_drop(struct net_sandbox *s, struct net_flow_entry *f)
{
	close_fd(&f->fd);
	free(f->name);
	s->committed -= f->committed;
	s->broker->committed -= f->committed;
	*f = (struct net_flow_entry){.fd = -1};
	s->open--;
	s->broker->fds--;
}

static void flow_end(struct net_sandbox *s, struct net_flow_entry *f)
{
	flow_count(s, f);
	flow_drop(s, f);
}

/* After shutdown() bytes that were received before stay in the socket, where mayfly-net's duplicate could read them. They are discarded,
 * because their memory is not counted any more. */
static void flow_stop(const struct net_flow_entry *f)
{
	shutdown(f->fd, SHUT_RDWR);
	for (int i = 0; f->kind == NET_FLOW_TCP && i < DRAIN_TURNS; i++)
		if (recv(f->fd, NULL, MIB(64), MSG_TRUNC | MSG_DONTWAIT) <= 0)
			break;
}

static void flow_shut(struct net_sandbox *s, struct net_flow_entry *f)
{
	flow_stop(f);
	flow_end(s, f);
}

/* After shutdown(): are there bytes that the peer has not acknowledged? The FIN alone is one unacknowledged segment. *acked: bytes acknowledged. */
static bool tcp_unsent(int fd, uint64_t *acked)
{
	struct tcp_info t = {0};
	socklen_t n = sizeof(t);

	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &t, &n) < 0)
		return false;
	*acked = t.tcpi_bytes_acked;
	return t.tcpi_state != STATE_CLOSED && (t.tcpi_notsent_bytes || t.tcpi_unacked > 1);
}

/* true: the flow has ended. */
static bool closing_look(struct net_sandbox *s, struct net_flow_entry *f, uint64_t now)
{
	struct sockaddr none = {.sa_family = AF_UNSPEC};
	uint64_t acked;

	if (!tcp_unsent(f->fd, &acked)) {
		flow_end(s, f);
		return true;
	}
	if (acked != f->acked) {
		f->acked = acked;
		f->closing_ns = now;
	}
	if (now - f->closing_ns < s->broker->closing_max_ns)
		return false;
	/* Disconnecting empties the socket, for its duplicates, too, and clears the kernel's counts: so count first. */
	flow_count(s, f);
	(void)!connect(f->fd, &none, sizeof(none));
	flow_drop(s, f);
	return true;
}

/* One timer for all sandboxes: a flow that is added later does not delay the next look. */
static void closing_soon(struct broker *b)
{
	if (b->closing_due)
		return;
	b->closing_due = true;
	timer_after(b->closing_timer, CLOSING_LOOK_NS);
}

void flows_closing(void *broker)
{
	struct broker *b = broker;
	uint64_t now = mono_ns();

	b->closing_due = false;
	for (struct net_sandbox *s = b->sandbox; s; s = s->next)
		for (uint32_t i = 0; i < s->nflow; i++)
			if (s->flow[i].closing_ns && !closing_look(s, &s->flow[i], now))
				closing_soon(b);
}

void flows_end(struct net_sandbox *s)
{
	for (uint32_t i = 0; i < s->nflow; i++)
		if (s->flow[i].id)
			flow_shut(s, &s->flow[i]);
}

static const struct {
	int type, proto4, proto6;
	enum net_counter counter;
} kinds[NET_FLOW_KINDS] = {
	[NET_FLOW_TCP] = {SOCK_STREAM, IPPROTO_TCP, IPPROTO_TCP, NET_C_TCP_OPENED},
	[NET_FLOW_UDP] = {SOCK_DGRAM, IPPROTO_UDP, IPPROTO_UDP, NET_C_UDP_OPENED},
	[NET_FLOW_ICMP] = {SOCK_DGRAM, IPPROTO_ICMP, IPPROTO_ICMPV6, NET_C_ICMP_OPENED},
};

/* Buffers of sockets are charged to this process, whoever fills them: a guest that reads nothing, together with a server that sends, fills
 * all that its flows may hold. So each flow counts with the most that its buffers may take, and the more is given away the less a new flow
 * gets. `bytes` is for SO_SNDBUF and SO_RCVBUF, of which the kernel makes twice as much; 0: the kernel's own sizes, which grow for TCP. */
static const struct buffers {
	uint32_t bytes, committed;
	uint32_t of_sandbox; /* given to a sandbox that has fewer open flows than this */
	uint32_t part;       /* given while all take at most this many 16ths of committed_max */
} tcp_buffers[] = {{0, MIB(10), 8, 4}, {212992, KIB(832), 64, 8}, {32768, KIB(128), FLOWS_MAX, 14},
	{8192, KIB(32), FLOWS_MAX, 16}},
  datagram_buffers[] = {
	  {0, KIB(416), 64, 8}, {32768, KIB(128), FLOWS_MAX, 14}, {8192, KIB(32), FLOWS_MAX, 16}};

/* NULL: no memory is left for this sandbox. */
static const struct buffers *flow_buffers(const struct net_sandbox *s, enum net_flow kind)
{
	const struct buffers *t = kind == NET_FLOW_TCP ? tcp_buffers : datagram_buffers;
	size_t n = kind == NET_FLOW_TCP ? ARRAY_LEN(tcp_buffers) : ARRAY_LEN(datagram_buffers);
	const struct broker *b = s->broker;
	uint64_t share = b->committed_max / MAX(b->nsandboxes, 1u);

	for (size_t i = 0; i < n; i++) {
		uint64_t after = b->committed + t[i].committed;

		if (s->open >= t[i].of_sandbox || after > b->committed_max / 16 * t[i].part)
			continue;
		/* when most is given away, a sandbox gets no more than its share */
		if (after > b->committed_max / 4 * 3 && s->committed + t[i].committed > share)
			continue;
		return &t[i];
	}
	return NULL;
}

/* A connected or connecting socket, or -errno. */
static int flow_connect(
	enum net_flow kind, const struct buffers *buffers, const struct net_addr *a, uint16_t port)
{
	struct sockaddr_storage ss;
	socklen_t n = net_addr_sockaddr(a, kind == NET_FLOW_ICMP ? 0 : port, &ss);
	bool four = net_addr_is4(a);
	_cleanup_close_ int fd =
		socket(four ? AF_INET : AF_INET6, kinds[kind].type | SOCK_NONBLOCK | SOCK_CLOEXEC,
			four ? kinds[kind].proto4 : kinds[kind].proto6);
	int one = 1;

	if (fd < 0)
		return -errno;
	if (kind == NET_FLOW_TCP) {
		/* what mayfly-net would set itself if it were allowed to: the guest's TCP decides when to send */
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &one, sizeof(one));
	}
	if (buffers->bytes) { /* before connect: TCP chooses its window's scale then */
		int bytes = (int)buffers->bytes;

		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
		setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
	}
	if (connect(fd, (const struct sockaddr *)&ss, n) < 0 && errno != EINPROGRESS)
		return -errno;
	return take_fd(&fd);
}

static void note_denied(struct net_sandbox *s, enum net_flow kind, const struct net_addr *a,
	uint16_t port, enum net_verdict v)
{
	static const char *const word[] = {"tcp", "udp", "icmp"};
	char text[NET_ADDR_TEXT], place[NET_NAME_MAX];

	snprintf(place, sizeof(place), net_addr_is4(a) ? "%s %s:%u" : "%s [%s]:%u", word[kind],
		net_addr_text(a, text), port);
	net_sandbox_denied(s, place, v);
	s->count[NET_C_DENIED]++;
}

/* May the sandbox have one more flow, by its own limit and by the descriptors of all? When most of those are in use, a sandbox gets no more than
 * its share. */
static bool flow_fits(struct net_sandbox *s)
{
	const struct broker *b = s->broker;

	if (s->open >= s->limit[NET_L_FLOWS] || !broker_has_fd(b, false))
		return false;
	return b->fds < b->fds_max / 4 * 3 || s->open < b->fds_max / MAX(b->nsandboxes, 1u);
}

bool broker_has_fd(const struct broker *b, bool channel)
{
	return b->fds < (channel ? b->fds_max : b->fds_max - b->fds_max / 16);
}

static int flow_make(struct net_sandbox *s, enum net_flow kind, const struct net_addr *a,
	uint16_t port, uint32_t *id, int *out)
{
	const struct buffers *buffers;
	struct net_flow_entry *f;
	const char *name;
	enum net_verdict v = policy_address(&s->policy, &s->broker->world, &s->learned, a,
		kind == NET_FLOW_TCP, port, mono_ns(), &name);
	_cleanup_close_ int fd = -1;

	if (v != NET_V_ALLOW) {
		note_denied(s, kind, a, port, v);
		return -EACCES;
	}
	buffers = flow_buffers(s, kind);
	if (!buffers || !flow_fits(s) || !net_bucket_take(&s->opens, mono_ns())) {
		s->count[NET_C_LIMITED]++;
		return -EAGAIN;
	}
	f = flow_slot(s);
	if (!f)
		return -ENOMEM;
	fd = flow_connect(kind, buffers, a, port);
	if (fd < 0)
		return fd;
	s->generation = (s->generation + 1) & 0xffff;
	*id = (uint32_t)(f - s->flow + 1) | s->generation << GENERATION_SHIFT;
	*f = (struct net_flow_entry){.id = *id,
		.kind = kind,
		.fd = take_fd(&fd),
		.addr = *a,
		.port = port,
		.committed = buffers->committed,
		.name = name ? strdup(name) : NULL};
	s->open++;
	s->broker->fds++;
	s->committed += buffers->committed;
	s->broker->committed += buffers->committed;
	s->count[kinds[kind].counter]++;
	*out = f->fd;
	return 0;
}

void flow_open(struct net_sandbox *s, uint32_t id, struct cur *c)
{
	uint8_t kind = cur_u8(c), answer[4];
	struct net_addr a;
	uint32_t flow = 0;
	uint16_t port;
	int rc, fd = -1;

	if (!cur_copy(c, a.b, sizeof(a.b)))
		c->bad = true;
	port = cur_u16(c);
	/* no ports: a rule with ports must not match one that mayfly-net made up */
	if (kind == NET_FLOW_ICMP)
		port = 0;
	if (!cur_done(c) || kind >= NET_FLOW_KINDS || (!port && kind != NET_FLOW_ICMP)) {
		s->count[NET_C_REFUSED]++;
		net_sandbox_send(s, NET_OPEN, id, -EINVAL, NULL, 0, -1);
		return;
	}
	rc = flow_make(s, (enum net_flow)kind, &a, port, &flow, &fd);
	for (int i = 0; i < 4; i++)
		answer[i] = (uint8_t)(flow >> (8 * i));
	if (net_sandbox_send(s, NET_OPEN, id, rc, answer, rc ? 0 : sizeof(answer), fd) < 0 &&
		rc == 0)
		flow_shut(s, flow_find(s, flow));
}

void flow_close(struct net_sandbox *s, struct cur *c)
{
	uint32_t id = cur_u32(c);
	uint64_t out = cur_u64(c), in = cur_u64(c);
	struct net_flow_entry *f = flow_find(s, id);

	if (!cur_done(c) || !f) {
		s->count[NET_C_REFUSED]++;
		return;
	}
	/* What mayfly-net says about UDP is not proved: no limit may depend on it. A made-up number must not overflow the sum either. */
	if (f->kind != NET_FLOW_TCP) {
		s->count[NET_C_BYTES_OUT] += MIN(out, GIB(1024));
		s->count[NET_C_BYTES_IN] += MIN(in, GIB(1024));
	}
	/* An honest mayfly-net has closed its descriptor. A hostile one must not keep a socket that no policy reaches any more. The kernel still
	 * sends what is unsent. Until then the flow counts, because a duplicate would keep that memory. */
	flow_stop(f);
	if (f->kind == NET_FLOW_TCP && tcp_unsent(f->fd, &f->acked)) {
		f->closing_ns = mono_ns();
		closing_soon(s->broker);
		return;
	}
	flow_end(s, f);
}

/* Is an open flow still allowed? By its address, by a learned name, or by the name by which it was opened, whose entry may have expired. */
static bool flow_allowed(const struct net_sandbox *s, const struct net_flow_entry *f)
{
	const struct net_world *w = &s->broker->world;
	const char *name;
	enum net_verdict v = policy_address(&s->policy, w, &s->learned, &f->addr,
		f->kind == NET_FLOW_TCP, f->port, mono_ns(), &name);

	if (v == NET_V_DEFAULT && f->name)
		v = policy_name(&s->policy, w, f->name);
	return v == NET_V_ALLOW;
}

void flows_review(struct net_sandbox *s)
{
	for (uint32_t i = 0; i < s->nflow; i++) {
		if (!s->flow[i].id || flow_allowed(s, &s->flow[i]))
			continue;
		s->count[NET_C_SHUT]++;
		flow_shut(s, &s->flow[i]);
	}
}

void flows_bytes(const struct net_sandbox *s, uint64_t *out, uint64_t *in)
{
	for (uint32_t i = 0; i < s->nflow; i++)
		if (s->flow[i].id && s->flow[i].kind == NET_FLOW_TCP)
			tcp_bytes(s->flow[i].fd, out, in);
}
