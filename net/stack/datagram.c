/* SPDX-License-Identifier: Apache-2.0
 *
 * datagram.c: UDP and ICMP echo. A flow is the traffic between one port (or echo id) of the guest and one address and port. The broker makes
 * and connects its socket, so it can reach no other place. Hostile: the packets. A flow without packets for a while ends. When all flows are in
 * use, a new one replaces the one on which the guest has not sent for longest.
 */
#include "net/stack/stack.h"

#include <string.h>
#include <sys/socket.h>

#include "lib/log.h"

#define QUIET_NS       60000000000ull
#define QUIET_SHORT_NS 10000000000ull /* after one packet only (as of NTP), and for ICMP echo */
#define REFUSED_NS     1000000000ull

struct datagram {
	struct datagram *next;
	struct stack *s;
	bool echo;
	struct net_addr dst;
	uint16_t port;  /* the guest's, or the echo's id */
	uint16_t dport; /* 0 for an echo */
	int fd;
	uint32_t flow;
	struct watch *watch;
	uint64_t used_ns, out, in, packets_out;
};

static void datagram_free(struct datagram *d)
{
	struct datagram **at = &d->s->datagram;

	while (*at != d)
		at = &(*at)->next;
	*at = d->next;
	d->s->ndatagrams--;
	watch_remove(d->watch);
	close_fd(&d->fd);
	ask_close(d->s, d->flow, d->out, d->in);
	free(d);
}

void datagrams_end(struct stack *s)
{
	while (s->datagram)
		datagram_free(s->datagram);
}

void datagrams_sweep(struct stack *s, uint64_t now_ns)
{
	struct datagram *d = s->datagram, *next;

	for (; d; d = next) {
		next = d->next;
		if (now_ns - d->used_ns >
			(d->echo || d->packets_out == 1 ? QUIET_SHORT_NS : QUIET_NS))
			datagram_free(d);
	}
}

/* One packet to the guest. The kernel has put an id of its own into an echo: the guest's is put back. */
static void datagram_deliver(struct datagram *d, uint8_t *p, size_t n)
{
	struct stack *s = d->s;

	d->in += n;
	if (!d->echo) {
		link_send(s, frame_udp(s->out, &d->dst, d->dport, d->port, p, n));
		return;
	}
	if (n < 8)
		return;
	p[4] = (uint8_t)(d->port >> 8);
	p[5] = (uint8_t)d->port;
	link_send(s, frame_icmp(s->out, &d->dst, p, n));
}

/* The peer answered that nobody listens. The guest's packet is not kept, so its headers are made again for the ICMP error. */
static void datagram_refused(struct datagram *d)
{
	struct stack *s = d->s;
	uint8_t packet[NET_VHDR_BYTES + 14 + 48];
	bool four = net_addr_is4(&d->dst);
	struct frame f = {.dst = d->dst,
		.ip = packet + NET_VHDR_BYTES + 14,
		.ip_len = (four ? 20u : 40u) + 8u};
	struct net_addr guest = frame_guest(four);
	uint8_t *ip = f.ip;

	if (d->echo)
		return;
	/* frame_udp() makes a packet to the guest: exchange its addresses */
	frame_udp(packet, &d->dst, d->port, d->dport, NULL, 0);
	memcpy(ip + (four ? 12 : 8), guest.b + (four ? 12 : 0), four ? 4 : 16);
	memcpy(ip + (four ? 16 : 24), d->dst.b + (four ? 12 : 0), four ? 4 : 16);
	link_send(s, frame_unreachable(s->out, &f, false));
}

static void on_datagram(void *arg, uint32_t events)
{
	struct datagram *d = arg;
	uint8_t *p = d->s->msg;

	for (unsigned int i = 0; i < DATAGRAM_BATCH; i++) {
		ssize_t n = recv(d->fd, p, sizeof(d->s->msg), MSG_DONTWAIT);

		if (n >= 0 && !(events & EPOLLHUP)) {
			d->used_ns = mono_ns();
			datagram_deliver(d, p, (size_t)n);
			continue;
		}
		if (n < 0 && errno == ECONNREFUSED) {
			datagram_refused(d);
			continue;
		}
		/* shut down by the broker, or broken */
		if (n >= 0 || (errno != EAGAIN && errno != EINTR))
			datagram_free(d);
		return;
	}
}

static struct datagram *datagram_find(struct stack *s, const struct frame *f, bool echo)
{
	for (struct datagram **at = &s->datagram; *at; at = &(*at)->next) {
		struct datagram *d = *at;

		if (d->port != f->sport || d->echo != echo || (!echo && d->dport != f->dport) ||
			!net_addr_equal(&d->dst, &f->dst))
			continue;
		*at = d->next; /* to the front: datagram_make() replaces the last one */
		d->next = s->datagram;
		s->datagram = d;
		return d;
	}
	return NULL;
}

static bool recently_refused(const struct stack *s, const struct frame *f, bool echo)
{
	uint64_t now = mono_ns();

	for (unsigned int i = 0; i < REFUSED_KEPT; i++)
		if (s->refused[i].until_ns > now && s->refused[i].echo == echo &&
			(echo || s->refused[i].port == f->dport) &&
			net_addr_equal(&s->refused[i].dst, &f->dst))
			return true;
	return false;
}

static void note_refused(struct stack *s, const struct frame *f, bool echo)
{
	unsigned int i = s->next_refused++ % REFUSED_KEPT;

	s->refused[i].dst = f->dst;
	s->refused[i].port = f->dport;
	s->refused[i].echo = echo;
	s->refused[i].until_ns = mono_ns() + REFUSED_NS;
}

static struct datagram *datagram_make(struct stack *s, const struct frame *f, bool echo)
{
	struct datagram *d, *last = s->datagram;
	uint32_t flow;
	int fd = -1, rc;

	if (s->ndatagrams == DATAGRAMS_MAX) {
		while (last->next)
			last = last->next;
		datagram_free(last);
	}
	rc = ask_open(
		s, echo ? NET_FLOW_ICMP : NET_FLOW_UDP, &f->dst, echo ? 0 : f->dport, &flow, &fd);
	if (rc < 0)
		return NULL;
	d = calloc(1, sizeof(*d));
	if (d)
		*d = (struct datagram){.s = s,
			.echo = echo,
			.dst = f->dst,
			.port = f->sport,
			.dport = echo ? 0 : f->dport,
			.fd = fd,
			.flow = flow};
	if (d)
		d->watch = loop_watch(s->loop, fd, EPOLLIN, on_datagram, d);
	if (!d || !d->watch) {
		free(d);
		close(fd);
		ask_close(s, flow, 0, 0);
		return NULL;
	}
	d->next = s->datagram;
	s->datagram = d;
	s->ndatagrams++;
	return d;
}

/* The gateway answers an echo itself. */
static bool echo_of_gateway(struct stack *s, struct frame *f)
{
	struct net_addr gateway = frame_gateway(net_addr_is4(&f->dst));

	if (!net_addr_equal(&f->dst, &gateway))
		return false;
	f->payload[0] = net_addr_is4(&f->dst) ? 0 : 129;
	link_send(s, frame_icmp(s->out, &gateway, f->payload, f->payload_len));
	return true;
}

void datagram_frame(struct stack *s, struct frame *f)
{
	bool echo = f->kind == FRAME_ECHO;
	struct datagram *d;

	if (echo && echo_of_gateway(s, f))
		return;
	d = datagram_find(s, f, echo);
	if (!d && !recently_refused(s, f, echo)) {
		d = datagram_make(s, f, echo);
		if (!d)
			note_refused(s, f, echo);
	}
	if (!d) {
		link_send(s, frame_unreachable(s->out, f, true));
		return;
	}
	d->used_ns = mono_ns();
	if (send(d->fd, f->payload, f->payload_len, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) {
		d->out += f->payload_len;
		d->packets_out++;
		return;
	}
	if (errno == ECONNREFUSED) /* an error of an earlier packet */
		datagram_refused(d);
	else if (errno == EPIPE) /* the broker shut it down */
		datagram_free(d);
}
