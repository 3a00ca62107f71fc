/* SPDX-License-Identifier: Apache-2.0
 *
 * ports.c: tells when something listens on a port. The loop's thread. The kernel announces no new
 * listener. So while somebody waits, the agent asks, every 2 ms at first and every 50 ms later. It
 * dumps only the listening sockets (sock_diag). A connection would disturb the server; this does
 * not.
 */
#include "agent/ports.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "agent/request.h"

#define WAITS_MAX    256u
#define LISTEN_STATE (1u << 10) /* TCP_LISTEN */

struct port_wait {
	struct port_wait *next;
	uint64_t conn, until_ns;
	uint32_t id;
	uint16_t port;
};

struct ports {
	struct port_wait *first;
	struct timer *timer;
	uint64_t pause_ns;
	unsigned n;
};

static bool scan_reply(char *p, size_t n, uint16_t port, bool *end)
{
	for (struct nlmsghdr *h = (void *)p; NLMSG_OK(h, n); h = NLMSG_NEXT(h, n)) {
		const struct inet_diag_msg *m = NLMSG_DATA(h);

		if (h->nlmsg_type == NLMSG_DONE || h->nlmsg_type == NLMSG_ERROR) {
			*end = true;
			return false;
		}
		if (h->nlmsg_len >= NLMSG_LENGTH(sizeof(*m)) && ntohs(m->id.idiag_sport) == port)
			return true;
	}
	return false;
}

static bool family_listens(int nl, uint8_t family, uint16_t port)
{
	struct {
		struct nlmsghdr h;
		struct inet_diag_req_v2 r;
	} q = {
		.h = {.nlmsg_len = sizeof(q),
			.nlmsg_type = SOCK_DIAG_BY_FAMILY,
			.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
		.r = {.sdiag_family = family,
			.sdiag_protocol = IPPROTO_TCP,
			.idiag_states = LISTEN_STATE},
	};
	_Alignas(8) char p[8192];
	bool end = false, found = false;

	if (send(nl, &q, sizeof(q), 0) < 0)
		return false;
	/* read the whole answer: the socket may serve the other family next */
	while (!end) {
		ssize_t n = recv(nl, p, sizeof(p), MSG_DONTWAIT);

		if (n <= 0)
			break;
		found |= scan_reply(p, (size_t)n, port, &end);
	}
	return found;
}

static bool port_listens(uint16_t port)
{
	_cleanup_close_ int nl = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);

	return nl >= 0 && (family_listens(nl, AF_INET, port) || family_listens(nl, AF_INET6, port));
}

static void ports_fired(void *arg)
{
	struct agent *a = arg;
	struct ports *ps = a->ports;
	struct port_wait **l = &ps->first;
	uint64_t now = mono_ns();

	while (*l) {
		struct port_wait *w = *l;
		struct conn *c = conn_find(a, w->conn);
		bool up = c && port_listens(w->port);

		if (c && !up && now < w->until_ns) {
			l = &w->next;
			continue;
		}
		*l = w->next;
		ps->n--;
		if (c && up)
			conn_ok(c, w->id, NULL);
		else if (c)
			conn_error(c, w->id, ETIMEDOUT, AGENT_STEP_NONE,
				"nothing listens on port %u", w->port);
		free(w);
	}
	if (!ps->first)
		return;
	ps->pause_ns = MIN(ps->pause_ns * 5 / 4, 50000000u);
	timer_after(ps->timer, ps->pause_ns);
}

void req_wait_port(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	uint16_t port = cur_u16(b);
	uint32_t limit_ms = cur_u32(b);
	struct port_wait *w;

	if (!cur_done(b) || !port) {
		req_bad(a, c, id);
		return;
	}
	if (port_listens(port)) {
		conn_ok(c, id, NULL);
		return;
	}
	if (!a->ports && (a->ports = calloc(1, sizeof(*a->ports))))
		a->ports->timer = loop_timer(a->loop, ports_fired, a);
	w = a->ports && a->ports->timer && a->ports->n < WAITS_MAX ? calloc(1, sizeof(*w)) : NULL;
	if (!w) {
		conn_error(c, id, EAGAIN, AGENT_STEP_NONE, "too many wait for ports");
		return;
	}
	*w = (struct port_wait){
		.next = a->ports->first, .conn = conn_number(c), .id = id, .port = port};
	w->until_ns = mono_ns() + (uint64_t)limit_ms * 1000000;
	a->ports->first = w;
	a->ports->n++;
	a->ports->pause_ns = 2000000;
	timer_after(a->ports->timer, a->ports->pause_ns);
}

void ports_fini(struct agent *a)
{
	if (!a->ports)
		return;
	while (a->ports->first) {
		struct port_wait *w = a->ports->first;

		a->ports->first = w->next;
		free(w);
	}
	timer_remove(a->ports->timer);
	free(a->ports);
	a->ports = NULL;
}
