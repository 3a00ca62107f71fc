/* SPDX-License-Identifier: Apache-2.0
 *
 * dial.c: connects to 127.0.0.1 (then ::1) or a Unix socket, and passes bytes both ways. The loop's
 * thread; the bytes are never looked at. A half-close is passed on. At most one read is buffered,
 * so many idle streams cost little.
 */
#include "agent/dial.h"

#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "agent/request.h"

#define STEP KIB(64)
#define TURN 8 /* reads of one stream a turn */

struct side {
	struct dial *d;
	int fd;
	struct watch *w;
	uint32_t events;
	struct buf out; /* bytes to write to this side */
	bool eof;       /* end of file was read from this side */
	bool shut;      /* SHUT_WR was done on this side: the other has eof */
};

struct dial {
	struct agent *a;
	struct side s[2]; /* the host's, the guest's */
	uint64_t conn;    /* the host's connection, while we connect to the guest's */
	uint32_t id;
	uint16_t port;
	bool second, dead; /* second: the address tried is ::1 */
};

static void dial_free(void *arg)
{
	free(arg);
}

static void dial_end(struct dial *d)
{
	if (d->dead)
		return;
	d->dead = true;
	for (int i = 0; i < 2; i++) {
		watch_remove(d->s[i].w);
		close_fd(&d->s[i].fd);
		buf_fini(&d->s[i].out);
	}
	d->a->n.dials--;
	if (loop_defer(d->a->loop, dial_free, d) < 0)
		log_limited(LOG_WARN, "no memory to free a stream");
}

static void side_event(void *arg, uint32_t events);

/* Watches a side for what can make progress. If nothing can, it is not watched at all, because
 * epoll reports a hang-up without being asked. */
static void side_update(struct side *s, struct side *other)
{
	uint32_t ev = (!s->eof && !other->out.len ? EPOLLIN : 0) | (s->out.len ? EPOLLOUT : 0);

	if (ev == s->events)
		return;
	s->events = ev;
	if (!ev) {
		watch_remove(s->w);
		s->w = NULL;
	} else if (s->w) {
		watch_events(s->w, ev);
	} else {
		s->w = loop_watch(s->d->a->loop, s->fd, ev, side_event, s);
		if (!s->w)
			dial_end(s->d);
	}
}

static int side_write(struct side *s, const uint8_t *p, size_t n, size_t *done)
{
	*done = 0;
	while (*done < n) {
		ssize_t k = send(s->fd, p + *done, n - *done, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0)
			return errno == EAGAIN ? 0 : -errno;
		*done += (size_t)k;
	}
	return 0;
}

static void side_flush(struct side *s)
{
	size_t done;

	if (side_write(s, s->out.p, s->out.len, &done) < 0) {
		dial_end(s->d);
		return;
	}
	buf_consume(&s->out, done);
	if (!s->out.len)
		buf_fini(&s->out);
}

static void side_read(struct side *s, struct side *to)
{
	static uint8_t scratch[STEP];

	for (int i = 0; i < TURN && !s->eof && !to->out.len; i++) {
		ssize_t k = recv(s->fd, scratch, sizeof(scratch), MSG_DONTWAIT);
		size_t done;

		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0 && errno == EAGAIN)
			return;
		if (k < 0) {
			dial_end(s->d);
			return;
		}
		if (k == 0) {
			s->eof = true;
			return;
		}
		if (side_write(to, scratch, (size_t)k, &done) < 0) {
			dial_end(s->d);
			return;
		}
		buf_put(&to->out, scratch + done, (size_t)k - done);
	}
}

static void dial_update(struct dial *d)
{
	for (int i = 0; i < 2 && !d->dead; i++) {
		struct side *s = &d->s[i], *o = &d->s[!i];

		if (o->eof && !s->out.len && !s->shut) {
			s->shut = true;
			shutdown(s->fd, SHUT_WR);
		}
	}
	if (!d->dead && d->s[0].shut && d->s[1].shut) {
		dial_end(d);
		return;
	}
	for (int i = 0; i < 2 && !d->dead; i++)
		side_update(&d->s[i], &d->s[!i]);
}

static void side_event(void *arg, uint32_t events)
{
	struct side *s = arg;
	struct dial *d = s->d;
	struct side *other = s == &d->s[0] ? &d->s[1] : &d->s[0];

	if (d->dead)
		return;
	if (s->out.len)
		side_flush(s);
	if (!d->dead && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
		side_read(s, other);
	/* both directions were hung up: nobody takes the bytes that wait */
	if (!d->dead && (events & (EPOLLHUP | EPOLLERR)) && s->out.len)
		dial_end(d);
	if (!d->dead)
		dial_update(d);
}

static void connect_event(void *arg, uint32_t events);

static int connect_tcp(struct dial *d)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET,
		.sin_port = htons(d->port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6,
		.sin6_port = htons(d->port),
		.sin6_addr = IN6ADDR_LOOPBACK_INIT};
	int fd = socket(
		d->second ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return -errno;
	d->s[1].fd = fd;
	if (connect(fd, d->second ? (struct sockaddr *)&v6 : (struct sockaddr *)&v4,
		    d->second ? sizeof(v6) : sizeof(v4)) == 0 ||
		errno == EINPROGRESS)
		return 0;
	return -errno;
}

static void dial_failed(struct dial *d, int code)
{
	struct conn *c = conn_find(d->a, d->conn);

	if (c) {
		conn_hold(c, false);
		conn_error(c, d->id, code, AGENT_STEP_NONE, "cannot connect: %s", strerror(code));
	}
	dial_end(d);
}

static void dial_connected(struct dial *d)
{
	struct conn *c = conn_find(d->a, d->conn);
	struct buf rest = {0};

	if (!c) {
		dial_end(d);
		return;
	}
	conn_ok(c, d->id, NULL);
	d->s[0].fd = conn_detach(c, &rest);
	if (d->s[0].fd < 0) {
		conn_close(c);
		dial_end(d);
		return;
	}
	buf_put(&d->s[1].out, rest.p, rest.len);
	buf_fini(&rest);
	watch_remove(d->s[1].w);
	d->s[1].w = NULL;
	side_flush(&d->s[1]);
	if (!d->dead)
		dial_update(d);
}

static void connect_event(void *arg, uint32_t events)
{
	struct dial *d = arg;
	int code = 0, rc;
	socklen_t n = sizeof(code);

	if (d->dead)
		return;
	getsockopt(d->s[1].fd, SOL_SOCKET, SO_ERROR, &code, &n);
	if (!code) {
		dial_connected(d);
		return;
	}
	watch_remove(d->s[1].w);
	d->s[1].w = NULL;
	close_fd(&d->s[1].fd);
	if (!d->port || d->second) {
		dial_failed(d, code);
		return;
	}
	d->second = true;
	rc = connect_tcp(d);
	if (rc == 0 &&
		!(d->s[1].w = loop_watch(d->a->loop, d->s[1].fd, EPOLLOUT, connect_event, d)))
		rc = -errno;
	/* report the IPv4 error, which says more */
	if (rc < 0)
		dial_failed(d, code);
}

static struct dial *dial_create(struct agent *a, struct conn *c, uint32_t id)
{
	struct dial *d = calloc(1, sizeof(*d));

	if (!d) {
		conn_error(c, id, ENOMEM, AGENT_STEP_NONE, "no memory");
		return NULL;
	}
	d->a = a;
	d->conn = conn_number(c);
	d->id = id;
	for (int i = 0; i < 2; i++) {
		d->s[i].d = d;
		d->s[i].fd = -1;
		buf_init(&d->s[i].out, MIB(1));
	}
	a->n.dials++;
	return d;
}

void dial_join(struct agent *a, struct conn *c, uint32_t id, int fd)
{
	struct dial *d = dial_create(a, c, id);

	if (!d) {
		close(fd);
		return;
	}
	d->s[1].fd = fd;
	dial_connected(d);
}

static void dial_start(struct dial *d, struct conn *c, int rc)
{
	if (rc == 0 &&
		!(d->s[1].w = loop_watch(d->a->loop, d->s[1].fd, EPOLLOUT, connect_event, d)))
		rc = -errno;
	if (rc < 0)
		dial_failed(d, -rc);
	else
		conn_hold(c, true);
}

void req_dial_tcp(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	uint16_t port = cur_u16(b);
	struct dial *d;
	int rc;

	if (!cur_done(b) || !port) {
		req_bad(a, c, id);
		return;
	}
	d = dial_create(a, c, id);
	if (!d)
		return;
	d->port = port;
	rc = connect_tcp(d);
	if (rc < 0) {
		close_fd(&d->s[1].fd);
		d->second = true;
		rc = connect_tcp(d) == 0 ? 0 : rc;
	}
	dial_start(d, c, rc);
}

void req_dial_unix(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	struct dial *d;
	int rc = 0;

	if (!cur_str(b, sa.sun_path, sizeof(sa.sun_path)) || !cur_done(b) || !sa.sun_path[0]) {
		req_bad(a, c, id);
		return;
	}
	d = dial_create(a, c, id);
	if (!d)
		return;
	d->s[1].fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (d->s[1].fd < 0 || connect(d->s[1].fd, (struct sockaddr *)&sa, sizeof(sa)) < 0)
		rc = -errno;
	dial_start(d, c, rc);
}
