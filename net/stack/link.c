/* SPDX-License-Identifier: Apache-2.0
 *
 * link.c: packets to and from the monitor over one SOCK_SEQPACKET. Hostile: the packets.
 *
 * Back-pressure is the socket's: when it is full this process waits, because all other work would make more packets. A guest that
 * takes nothing for LINK_PATIENCE_MS (it is paused, or hostile) loses packets until it takes one again; TCP sends them again.
 *
 * No sendmsg and no sendmmsg here: they carry an address, which would let a process that was taken over send anywhere from a UDP socket.
 */
#include "net/stack/stack.h"

#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define LINK_PATIENCE_MS 200

/* Waits until the link takes a packet; false: drop the packet. */
static bool link_wait(struct stack *s, int timeout_ms)
{
	struct pollfd p[2] = {{.fd = s->frames, .events = POLLOUT}, {.fd = s->broker, .events = 0}};

	if (poll(p, 2, timeout_ms) <= 0)
		return false;
	if (p[1].revents || (p[0].revents & (POLLERR | POLLHUP))) {
		s->stop = true;
		return false;
	}
	return true;
}

static void link_write(struct stack *s, const struct iovec *v, int n)
{
	for (int tries = 0; tries < 3; tries++) {
		if (writev(s->frames, v, n) >= 0) {
			s->stat[ST_FRAMES_OUT]++;
			s->link_stuck = false;
			return;
		}
		if (errno != EAGAIN || !link_wait(s, s->link_stuck ? 0 : LINK_PATIENCE_MS))
			break;
	}
	s->link_stuck = true;
	s->stat[ST_LOST]++;
}

void link_send(struct stack *s, size_t n)
{
	struct iovec v = {.iov_base = s->out, .iov_len = n};

	if (n)
		link_write(s, &v, 1);
}

void link_send_frame(struct stack *s, const void *frame, size_t n)
{
	uint8_t head[NET_VHDR_BYTES] = {0};
	struct iovec v[2] = {{.iov_base = head, .iov_len = sizeof(head)},
		{.iov_base = (void *)(uintptr_t)frame, .iov_len = n}};

	if (n >= NET_FRAME_MIN && n <= NET_FRAME_MAX)
		link_write(s, v, 2);
}

static void link_packet(struct stack *s, uint8_t *p, size_t n)
{
	struct frame f;

	s->stat[ST_FRAMES_IN]++;
	switch (frame_read(p, n, &f)) {
	case FRAME_ARP:
		link_send(s, frame_arp_reply(s->out));
		break;
	case FRAME_NEIGHBOUR:
		link_send(s, frame_neighbour_reply(s->out));
		break;
	case FRAME_TCP:
		tcp_frame(s, p + NET_VHDR_BYTES, (size_t)(f.ip - p) - NET_VHDR_BYTES + f.ip_len);
		break;
	case FRAME_UDP:
		if (f.dport == 53)
			dns_frame(s, &f);
		else
			datagram_frame(s, &f);
		break;
	case FRAME_ECHO:
		datagram_frame(s, &f);
		break;
	case FRAME_DROP:
		s->stat[ST_DROPPED]++;
		s->drop[f.why]++;
	}
}

void link_ready(struct stack *s)
{
	struct iovec v[LINK_BATCH];
	struct mmsghdr m[LINK_BATCH] = {0};
	int n;

	for (unsigned int i = 0; i < LINK_BATCH; i++) {
		v[i] = (struct iovec){.iov_base = s->in[i], .iov_len = NET_PACKET_MAX};
		m[i].msg_hdr.msg_iov = &v[i];
		m[i].msg_hdr.msg_iovlen = 1;
	}
	n = recvmmsg(s->frames, m, LINK_BATCH, MSG_DONTWAIT, NULL);
	if (n < 0 && errno != EAGAIN && errno != EINTR)
		s->stop = true;
	for (int i = 0; i < n; i++) {
		if (m[i].msg_len == 0) { /* the monitor is gone */
			s->stop = true;
			return;
		}
		if (!(m[i].msg_hdr.msg_flags & MSG_TRUNC))
			link_packet(s, s->in[i], m[i].msg_len);
	}
}
