/* SPDX-License-Identifier: Apache-2.0
 *
 * inward.c: the guest's way to its own execution API. The loop's thread. Any program of the guest connects here: its bytes are never looked at.
 *
 * The port is opened with the first stream that the host sets waiting, so a host without this part
 * leaves it closed. Programs of isolated sessions share the network by default and would get out of
 * their session through the API: the kernel tells the cgroup of a connection's other end, and a
 * connection from a session's cgroup is refused, also after the session's end. Once a session was
 * made, a connection whose cgroup the kernel does not tell is refused, too.
 */
#include "agent/inward.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "agent/dial.h"
#include "agent/isolate.h"
#include "agent/request.h"
#include "agent/session.h"

#define INWARD_PORT  44772
#define WAITING_MAX  32u
#define REFUSED_MAX  16u
#define ATTR_CGROUP  21 /* INET_DIAG_CGROUP_ID, which older headers lack */
#define TCP_PROTOCOL 6

/* A refused connection. If it were closed with unread bytes of the request, the kernel would send a
 * reset and the answer might be lost. So its bytes are read until the program closes it. At most
 * REFUSED_MAX such connections are kept: one more closes the oldest. */
struct refused {
	int fd;
	struct watch *w;
};

struct inward {
	struct refused refused[REFUSED_MAX];
	size_t next_refused;
	int fd;
	struct watch *w;
	struct {
		uint64_t conn;
		uint32_t id;
	} waiting[WAITING_MAX];
	size_t n;
};

static uint64_t read_answer(const uint8_t *p, size_t n)
{
	const size_t head =
		NLMSG_ALIGN(sizeof(struct nlmsghdr)) + NLMSG_ALIGN(sizeof(struct inet_diag_msg));
	struct nlmsghdr h;

	if (n < head)
		return 0;
	memcpy(&h, p, sizeof(h));
	if (h.nlmsg_type != SOCK_DIAG_BY_FAMILY)
		return 0;
	for (size_t at = head; at + 4 <= MIN(n, (size_t)h.nlmsg_len);) {
		uint16_t len, type;
		uint64_t v;

		memcpy(&len, p + at, 2);
		memcpy(&type, p + at + 2, 2);
		if (len < 4)
			return 0;
		if (type == ATTR_CGROUP && len >= 12 && at + 12 <= n) {
			memcpy(&v, p + at + 4, 8);
			return v;
		}
		at += NLMSG_ALIGN(len);
	}
	return 0;
}

uint64_t inward_cgroup_of(uint32_t address, uint16_t port, uint16_t to_port)
{
	_cleanup_close_ int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
	struct {
		struct nlmsghdr h;
		struct inet_diag_req_v2 r;
	} q = {.h = {.nlmsg_len = sizeof(q),
		       .nlmsg_type = SOCK_DIAG_BY_FAMILY,
		       .nlmsg_flags = NLM_F_REQUEST},
		.r = {.sdiag_family = AF_INET,
			.sdiag_protocol = TCP_PROTOCOL,
			.idiag_states = ~0u,
			.id = {.idiag_sport = port,
				.idiag_dport = to_port,
				.idiag_src = {address},
				.idiag_dst = {htonl(INADDR_LOOPBACK)},
				.idiag_cookie = {INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE}}}};
	uint8_t answer[2048];
	ssize_t n;

	if (fd < 0 || send(fd, &q, sizeof(q), 0) != (ssize_t)sizeof(q))
		return 0;
	/* the kernel answers within the send */
	n = recv(fd, answer, sizeof(answer), MSG_DONTWAIT);
	return n > 0 ? read_answer(answer, (size_t)n) : 0;
}

static bool is_refused(struct agent *a, const struct sockaddr_in *peer, uint16_t port)
{
	/* Sessions that ended count, too: a program may have connected before it died, and the
	 * connection is accepted only now. */
	return isolate_was_any(a) &&
	       isolate_has_cgroup(a, inward_cgroup_of(peer->sin_addr.s_addr, peer->sin_port, port));
}

static void refused_close(struct refused *r)
{
	if (!r->w)
		return;
	watch_remove(take_ptr(r->w));
	close_fd(&r->fd);
}

static void refused_event(void *arg, uint32_t events)
{
	static char scratch[KIB(4)];
	struct refused *r = arg;
	ssize_t n = recv(r->fd, scratch, sizeof(scratch), MSG_DONTWAIT);

	if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
		refused_close(r);
}

static void inward_refuse(
	struct agent *a, int fd, const char *status, const char *code, const char *text)
{
	struct refused *r = &a->inward->refused[a->inward->next_refused++ % REFUSED_MAX];
	char body[200], all[500];
	int n = snprintf(body, sizeof(body), "{\"code\":\"%s\",\"message\":\"%s\"}", code, text);

	n = snprintf(all, sizeof(all),
		"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: "
		"%d\r\nConnection: close\r\n\r\n%s",
		status, n, body);
	(void)!send(fd, all, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
	shutdown(fd, SHUT_WR);
	refused_close(r);
	*r = (struct refused){fd, loop_watch(a->loop, fd, EPOLLIN, refused_event, r)};
	if (!r->w)
		close(fd);
}

static void inward_accepted(struct agent *a, struct inward *in, int fd)
{
	while (in->n) {
		struct conn *c = conn_find(a, in->waiting[0].conn);
		uint32_t id = in->waiting[0].id;

		in->n--;
		memmove(in->waiting, in->waiting + 1, in->n * sizeof(in->waiting[0]));
		if (c) {
			dial_join(a, c, id, fd);
			return;
		}
	}
	inward_refuse(a, fd, "503 Service Unavailable", "SERVICE_UNAVAILABLE",
		"all ways from this sandbox to its execution API are in use");
}

static void inward_event(void *arg, uint32_t events)
{
	struct agent *a = arg;
	struct inward *in = a->inward;

	for (int i = 0; i < 8; i++) {
		struct sockaddr_in peer = {0}, self = {0};
		socklen_t n = sizeof(peer), m = sizeof(self);
		int fd =
			accept4(in->fd, (struct sockaddr *)&peer, &n, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd < 0)
			return;
		getsockname(fd, (struct sockaddr *)&self, &m);
		if (is_refused(a, &peer, self.sin_port))
			inward_refuse(a, fd, "403 Forbidden", "NOT_SUPPORTED",
				"a program of an isolated session may not call the execution API");
		else
			inward_accepted(a, in, fd);
	}
}

static int inward_open(struct agent *a)
{
	struct sockaddr_in sa = {.sin_family = AF_INET,
		.sin_port = htons(INWARD_PORT),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct inward *in = calloc(1, sizeof(*in));
	int one = 1, rc = 0;

	if (!in)
		return -ENOMEM;
	in->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (in->fd < 0 || setsockopt(in->fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
		bind(in->fd, (struct sockaddr *)&sa, sizeof(sa)) < 0 || listen(in->fd, 64) < 0 ||
		!(in->w = loop_watch(a->loop, in->fd, EPOLLIN, inward_event, a)))
		rc = -errno;
	if (rc == 0) {
		a->inward = in;
		return 0;
	}
	close_fd(&in->fd);
	free(in);
	return rc;
}

void inward_fini(struct agent *a)
{
	if (!a->inward)
		return;
	for (size_t i = 0; i < REFUSED_MAX; i++)
		refused_close(&a->inward->refused[i]);
	watch_remove(a->inward->w);
	close_fd(&a->inward->fd);
	free(take_ptr(a->inward));
}

/* Removes those whose connection was closed. */
static void drop_gone(struct agent *a, struct inward *in)
{
	size_t n = 0;

	for (size_t i = 0; i < in->n; i++)
		if (conn_find(a, in->waiting[i].conn))
			in->waiting[n++] = in->waiting[i];
	in->n = n;
}

void req_dial_accept(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	uint32_t what = cur_u32(b);
	struct inward *in;
	int rc = 0;

	if (!cur_done(b) || what != AGENT_AC_API) {
		req_bad(a, c, id);
		return;
	}
	if (!a->inward)
		rc = inward_open(a);
	if (rc < 0) {
		conn_error(c, id, rc, AGENT_STEP_NONE, "port %d of the guest: %s", INWARD_PORT,
			strerror(-rc));
		return;
	}
	in = a->inward;
	drop_gone(a, in);
	for (size_t i = 0; i < in->n; i++)
		if (in->waiting[i].conn == conn_number(c))
			rc = -EBUSY;
	if (rc < 0 || in->n == WAITING_MAX) {
		conn_error(c, id, EAGAIN, AGENT_STEP_BUSY,
			"this stream waits already, or %u others do", WAITING_MAX);
		return;
	}
	in->waiting[in->n].conn = conn_number(c);
	in->waiting[in->n++].id = id;
}
