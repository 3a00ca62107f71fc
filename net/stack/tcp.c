/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp.c: TCP by libslirp (4.7 and later). It gets TCP packets only, checked by frame.c, and may send the guest TCP and ICMP errors only.
 * Its sockets: the library calls socket() and connect(), which this program defines itself (main.c), so they come here. socket() gives a
 * placeholder. connect() asks the broker for the real socket, which the broker makes and connects. Then connect() puts that socket in the
 * placeholder's place, and the library sees a connect that is in progress. The library's resolver, DHCP, TFTP and host loopback are off.
 */
#include "net/stack/stack.h"

#include <fcntl.h>
#include <poll.h>
#include <slirp/libslirp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/log.h"

/* the library wants two addresses of its own; nothing is there */
#define SLIRP_HOST4 (NET_GATEWAY_IP4 + 252)
#define SLIRP_DNS4  (NET_GATEWAY_IP4 + 253)
#define ETH_TYPE    12u
#define IP6_NEXT    20u
#define ICMP6_TYPE  54u
#define ETH_SRC     6u

/* Lets TCP and ICMP errors out. The library makes no other IPv4 packets, because it gets only TCP. Its own ARP requests, router advertisements and
 * neighbour discovery are dropped. */
static bool may_leave(const uint8_t *p, size_t n)
{
	if (n <= ICMP6_TYPE)
		return n > IP6_NEXT + ETH_TYPE && p[ETH_TYPE] == 0x08 && p[ETH_TYPE + 1] == 0x00;
	if (p[ETH_TYPE] == 0x08 && p[ETH_TYPE + 1] == 0x00)
		return true;
	if (p[ETH_TYPE] != 0x86 || p[ETH_TYPE + 1] != 0xdd)
		return false;
	return p[IP6_NEXT] == IPPROTO_TCP || (p[IP6_NEXT] == IPPROTO_ICMPV6 && p[ICMP6_TYPE] < 128);
}

static ssize_t cb_send(const void *p, size_t n, void *opaque)
{
	struct stack *s = opaque;
	/* the library's own buffer; it is not const there */
	uint8_t *frame = (uint8_t *)(uintptr_t)p;

	if (!may_leave(p, n))
		return (ssize_t)n;
	memcpy(frame + ETH_SRC, NET_GATEWAY_MAC, 6);
	link_send_frame(s, frame, n);
	return (ssize_t)n;
}

static void cb_guest_error(const char *msg, void *opaque)
{
	log_limited(LOG_WARN, "libslirp: %.100s", msg);
}

static int64_t cb_clock(void *opaque)
{
	return (int64_t)mono_ns();
}

/* The library's only timer sends router advertisements, which no guest of ours asks for. */
static void *cb_timer_new(SlirpTimerCb cb, void *arg, void *opaque)
{
	return opaque;
}

static void cb_timer_free(void *timer, void *opaque)
{
}

static void cb_timer_mod(void *timer, int64_t at_ms, void *opaque)
{
}

static void cb_register(int fd, void *opaque)
{
}

/* Called for each socket before the library closes it. */
static void cb_unregister(int fd, void *opaque)
{
	struct stack *s = opaque;

	if (fd < 0 || (unsigned int)fd >= FLOW_FDS_MAX || !s->flow_of[fd])
		return;
	ask_close(s, s->flow_of[fd], 0, 0);
	s->flow_of[fd] = 0;
}

static void cb_notify(void *opaque)
{
}

static const SlirpCb callbacks = {
	.send_packet = cb_send,
	.guest_error = cb_guest_error,
	.clock_get_ns = cb_clock,
	.timer_new = cb_timer_new,
	.timer_free = cb_timer_free,
	.timer_mod = cb_timer_mod,
	.register_poll_fd = cb_register,
	.unregister_poll_fd = cb_unregister,
	.notify = cb_notify,
};

int tcp_start(struct stack *s, struct err *e)
{
	SlirpConfig c = {
		.version = 4,
		.in_enabled = true,
		.in6_enabled = true,
		.vnetwork.s_addr = htonl(NET_GATEWAY_IP4 & ~0xffu),
		.vnetmask.s_addr = htonl(~0xffu),
		.vhost.s_addr = htonl(SLIRP_HOST4),
		.vnameserver.s_addr = htonl(SLIRP_DNS4),
		.vdhcp_start.s_addr = htonl(NET_GUEST_IP4),
		.vprefix_len = NET_PREFIX6,
		.if_mtu = NET_MTU,
		.if_mru = NET_MTU,
		.disable_host_loopback = true,
		.disable_dns = true,
		.disable_dhcp = true,
	};
	uint8_t teach[FRAME_TEACH_MAX];
	int sv[2];

	memcpy(&c.vprefix_addr6, NET_GATEWAY_IP6, 8);
	memcpy(&c.vhost6, NET_GATEWAY_IP6, 16);
	c.vhost6.s6_addr[15] = 0xfd;
	c.vnameserver6 = c.vhost6;
	c.vnameserver6.s6_addr[15] = 0xfe;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sv) < 0)
		return err_set(e, errno, "socketpair for libslirp");
	close(sv[1]);
	s->placeholder = sv[0];
	s->slirp = slirp_new(&c, &callbacks, s);
	if (!s->slirp)
		return err_plain(
			e, ENOMEM, "libslirp %s refuses its configuration", slirp_version_string());
	slirp_input(s->slirp, teach, (int)frame_teach4(teach));
	slirp_input(s->slirp, teach, (int)frame_teach6(teach));
	return 0;
}

void tcp_stop(struct stack *s)
{
	if (s->slirp)
		slirp_cleanup(s->slirp);
	s->slirp = NULL;
	close_fd(&s->placeholder);
	free(s->polls.p);
}

void tcp_frame(struct stack *s, const uint8_t *frame, size_t n)
{
	slirp_input(s->slirp, frame, (int)n);
}

int tcp_socket(struct stack *s)
{
	return fcntl(s->placeholder, F_DUPFD_CLOEXEC, 0);
}

/* A connection that is shut down in both directions has ended, but libslirp keeps its descriptor for ten seconds more (TIME_WAIT). The broker
 * learns of the end now: otherwise a hundred short connections a second would use up a sandbox's budget of open ones. */
int tcp_shutdown(struct stack *s, int fd, int how)
{
	int rc = (int)syscall(SYS_shutdown, fd, how), saved = errno;

	if (s && fd >= 0 && (unsigned int)fd < FLOW_FDS_MAX && s->flow_of[fd]) {
		s->shut_of[fd] |= how == SHUT_RD ? 1 : how == SHUT_WR ? 2 : 3;
		if (s->shut_of[fd] == 3) {
			ask_close(s, s->flow_of[fd], 0, 0);
			s->flow_of[fd] = 0;
		}
	}
	errno = saved;
	return rc;
}

int tcp_connect(struct stack *s, int fd, const struct sockaddr *to, socklen_t len)
{
	_cleanup_close_ int real = -1;
	struct net_addr a;
	uint32_t flow = 0;
	uint16_t port;
	int rc;

	if (fd < 0 || (unsigned int)fd >= FLOW_FDS_MAX ||
		!net_addr_of_sockaddr(to, len, &a, &port)) {
		errno = EINVAL;
		return -1;
	}
	if (port == 53) {
		real = dns_connect(s);
		rc = MIN(real, 0);
	} else {
		rc = ask_open(s, NET_FLOW_TCP, &a, port, &flow, &real);
	}
	if (rc == 0 && dup3(real, fd, O_CLOEXEC) < 0)
		rc = -errno;
	if (rc < 0) {
		if (flow)
			ask_close(s, flow, 0, 0);
		/* what the library tells the guest: refused is a reset, all else "host unreachable" */
		errno = rc == -ECONNREFUSED ? ECONNREFUSED : EHOSTUNREACH;
		return -1;
	}
	s->flow_of[fd] = flow;
	s->shut_of[fd] = 0;
	errno = EINPROGRESS;
	return -1;
}

static int cb_add_poll(int fd, int events, void *opaque)
{
	struct stack *s = opaque;
	struct pollfd *more;

	if (s->polls.n == s->polls.cap) {
		more = realloc(s->polls.p, (s->polls.cap + 64) * sizeof(*more));
		if (!more)
			return -1;
		s->polls.p = more;
		s->polls.cap += 64;
	}
	s->polls.p[s->polls.n] = (struct pollfd){.fd = fd,
		.events = (short)((events & SLIRP_POLL_IN ? POLLIN : 0) |
				  (events & SLIRP_POLL_OUT ? POLLOUT : 0) |
				  (events & SLIRP_POLL_PRI ? POLLPRI : 0))};
	return (int)s->polls.n++;
}

static int cb_revents(int i, void *opaque)
{
	struct stack *s = opaque;
	short r;

	if (i < 0 || (size_t)i >= s->polls.n)
		return 0;
	r = s->polls.p[i].revents;
	return (r & POLLIN ? SLIRP_POLL_IN : 0) | (r & POLLOUT ? SLIRP_POLL_OUT : 0) |
	       (r & POLLPRI ? SLIRP_POLL_PRI : 0) | (r & POLLERR ? SLIRP_POLL_ERR : 0) |
	       (r & POLLHUP ? SLIRP_POLL_HUP : 0);
}

int tcp_turn(struct stack *s)
{
	uint32_t timeout = UINT32_MAX;
	int n;

	s->polls.n = 0;
	if (cb_add_poll(loop_fd(s->loop), SLIRP_POLL_IN, s) < 0)
		return -ENOMEM;
	slirp_pollfds_fill(s->slirp, &timeout, cb_add_poll, s);
	if (s->ndatagrams)
		timeout = MIN(timeout, SWEEP_MS);
	n = poll(s->polls.p, s->polls.n, timeout > INT32_MAX ? -1 : (int)timeout);
	if (n < 0 && errno != EINTR)
		return -errno;
	slirp_pollfds_poll(s->slirp, n < 0, cb_revents, s);
	return loop_turn(s->loop, 0);
}
