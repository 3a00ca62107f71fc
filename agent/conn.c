/* SPDX-License-Identifier: Apache-2.0
 *
 * conn.c: connections. The loop's thread. All input comes from the host and counts as hostile: a
 * malformed frame ends its connection, a request that makes no sense gets AGENT_ERR. While a host
 * does not read its answers, its requests are not read.
 */
#include "agent/conn.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "agent/procio.h"
#include "agent/session.h"

#define OUT_MAX   MIB(8) /* more unsent bytes: the connection ends */
#define OUT_MANY  MIB(1) /* more unsent bytes: no request is read */
#define READ_STEP KIB(64)
#define TURN_MAX  KIB(512) /* bytes of one connection a turn, so that others get theirs */
#define CONNS_MAX 1024

struct conn {
	struct agent *a;
	struct conn *next, **link;
	uint64_t number;
	int fd;
	struct watch *w;
	uint32_t events;
	enum agent_conn kind; /* 0: AGENT_HELLO has not come */
	uint32_t version;     /* what the greeting agreed on */
	struct buf in, out;
	size_t out_at; /* this much of out was sent */
	struct proc *proc;
	struct session *view; /* of the request at hand */
	bool held, dead, busy;
};

static void conn_event(void *arg, uint32_t events);

int conn_create(struct agent *a, int fd)
{
	struct conn *c;

	if (a->n.conns >= CONNS_MAX || !(c = calloc(1, sizeof(*c)))) {
		close(fd);
		return -ENOMEM;
	}
	*c = (struct conn){.a = a, .fd = fd, .number = ++a->next_conn, .events = EPOLLIN};
	buf_init(&c->in, sizeof(struct agent_hdr) + AGENT_FRAME_MAX + READ_STEP);
	buf_init(&c->out, OUT_MAX + 2 * AGENT_FRAME_MAX);
	c->w = loop_watch(a->loop, fd, EPOLLIN, conn_event, c);
	if (!c->w) {
		close(fd);
		free(c);
		return -ENOMEM;
	}
	c->next = a->conns;
	c->link = &a->conns;
	if (c->next)
		c->next->link = &c->next;
	a->conns = c;
	a->n.conns++;
	a->n.conns_total++;
	return 0;
}

int conn_create_bulk(struct agent *a, int fd)
{
	int rc = conn_create(a, fd);

	if (rc == 0)
		a->conns->kind = AGENT_CONN_BULK;
	return rc;
}

static void conn_free(void *arg)
{
	struct conn *c = arg;

	buf_fini(&c->in);
	buf_fini(&c->out);
	free(c);
}

void conn_close(struct conn *c)
{
	if (!c || c->dead)
		return;
	c->dead = true;
	if (c->proc)
		procio_conn_gone(c->proc, c);
	c->proc = NULL;
	*c->link = c->next;
	if (c->next)
		c->next->link = c->link;
	c->a->n.conns--;
	watch_remove(c->w);
	close_fd(&c->fd);
	/* callers up the stack still look at c->dead */
	if (loop_defer(c->a->loop, conn_free, c) < 0)
		log_limited(LOG_WARN, "no memory to free a connection");
}

void conn_close_all(struct agent *a)
{
	while (a->conns)
		conn_close(a->conns);
}

uint64_t conn_number(const struct conn *c)
{
	return c->number;
}

struct conn *conn_find(struct agent *a, uint64_t number)
{
	for (struct conn *c = a->conns; c; c = c->next)
		if (c->number == number)
			return c;
	return NULL;
}

enum agent_conn conn_kind(const struct conn *c)
{
	return c->kind;
}

uint32_t conn_version(const struct conn *c)
{
	return c->version;
}

size_t conn_backlog(const struct conn *c)
{
	return c->out.len - c->out_at;
}

void conn_set_proc(struct conn *c, struct proc *p)
{
	c->proc = p;
}

struct proc *conn_proc(struct conn *c)
{
	return c->proc;
}

static void want_events(struct conn *c)
{
	uint32_t ev = 0;

	if (c->dead)
		return;
	if (!c->held && conn_backlog(c) < OUT_MANY)
		ev |= EPOLLIN;
	if (conn_backlog(c))
		ev |= EPOLLOUT;
	if (ev == c->events)
		return;
	if (watch_events(c->w, ev) < 0)
		conn_close(c);
	else
		c->events = ev;
}

static void conn_flush(struct conn *c);
static void take_frames(struct conn *c);

/* Frames that had come before the connection was held raise no event of their own. */
static void take_held(void *arg)
{
	struct conn *c = arg;

	if (c->dead || c->held)
		return;
	c->busy = true;
	take_frames(c);
	c->busy = false;
	if (!c->dead)
		conn_flush(c);
}

void conn_hold(struct conn *c, bool hold)
{
	if (c->dead || c->held == hold)
		return;
	c->held = hold;
	want_events(c);
	if (!hold && c->in.len && loop_defer(c->a->loop, take_held, c) < 0)
		conn_close(c);
}

static void conn_flush(struct conn *c)
{
	while (!c->dead && conn_backlog(c)) {
		ssize_t k = send(
			c->fd, c->out.p + c->out_at, conn_backlog(c), MSG_NOSIGNAL | MSG_DONTWAIT);

		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0 && errno == EAGAIN)
			break;
		if (k < 0) {
			conn_close(c);
			return;
		}
		c->out_at += (size_t)k;
		c->a->n.bytes_out += (uint64_t)k;
	}
	if (c->dead)
		return;
	if (!conn_backlog(c)) {
		c->out_at = 0;
		buf_reset(&c->out);
		/* keep the heap small and dense: it is in every snapshot */
		if (c->out.cap > KIB(16))
			buf_fini(&c->out);
	} else if (c->out_at > KIB(256)) {
		buf_consume(&c->out, c->out_at);
		c->out_at = 0;
	}
	want_events(c);
}

static void conn_record(struct agent *a, const struct conn *c, uint8_t dir, const void *p, size_t n)
{
	struct buf b;

	if (a->record_fd < 0)
		return;
	buf_init(&b, 2 * AGENT_FRAME_MAX);
	buf_u64(&b, mono_ns());
	buf_u32(&b, (uint32_t)c->number);
	buf_u8(&b, dir);
	buf_blob(&b, p, n);
	if (b.bad || write_full(a->record_fd, b.p, b.len) < 0)
		close_fd(&a->record_fd);
	buf_fini(&b);
}

/* Called after frames were put into out: sends, unless the connection is busy reading, which sends
 * at its end. */
static void conn_put_done(struct conn *c, size_t at)
{
	conn_record(c->a, c, 1, c->out.p + at, c->out.len - at);
	if (c->out.bad || conn_backlog(c) > OUT_MAX) {
		log_limited(LOG_WARN, "a connection does not take its answers");
		conn_close(c);
		return;
	}
	if (!c->busy)
		conn_flush(c);
}

void conn_frame(struct conn *c, uint16_t type, uint32_t id, const void *p, size_t n)
{
	size_t at = c->out.len;

	if (c->dead)
		return;
	frame_put(&c->out, type, 0, id, p, n);
	conn_put_done(c, at);
}

static void put_ok(struct conn *c, uint16_t flags, uint32_t id, const struct buf *payload)
{
	size_t at = c->out.len;

	if (c->dead)
		return;
	if (payload && (payload->bad || payload->len > AGENT_FRAME_MAX)) {
		conn_error(c, id, E2BIG, AGENT_STEP_NONE, "the answer is too long");
		return;
	}
	frame_put(&c->out, AGENT_OK, flags, id, payload ? payload->p : NULL,
		payload ? payload->len : 0);
	conn_put_done(c, at);
}

void conn_ok(struct conn *c, uint32_t id, const struct buf *payload)
{
	put_ok(c, 0, id, payload);
}

void conn_ok_more(struct conn *c, uint32_t id, const struct buf *payload)
{
	put_ok(c, AGENT_FL_MORE, id, payload);
}

void conn_error(struct conn *c, uint32_t id, int code, enum agent_step step, const char *fmt, ...)
{
	char text[500];
	size_t at = c->out.len;
	va_list ap;

	if (c->dead)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	frame_error(&c->out, id, code < 0 ? -code : code, step, text);
	conn_put_done(c, at);
}

int conn_detach(struct conn *c, struct buf *rest)
{
	int fd;

	/* send the answers so far first: the new owner writes to the socket itself */
	c->busy = false;
	conn_flush(c);
	if (c->dead || conn_backlog(c))
		return -EPIPE;
	*rest = c->in;
	c->in = (struct buf){.max = c->in.max};
	watch_remove(c->w);
	c->w = NULL;
	fd = take_fd(&c->fd);
	conn_close(c);
	return fd;
}

static void conn_hello(struct conn *c, const struct frame *f)
{
	struct cur b = f->body;
	uint32_t magic = cur_u32(&b), version = cur_u32(&b), kind = cur_u32(&b);
	struct buf p;

	if (f->h.type != AGENT_HELLO || !cur_done(&b) || magic != AGENT_MAGIC ||
		version < AGENT_VERSION_MIN || version > AGENT_VERSION ||
		kind < AGENT_CONN_CONTROL || kind > AGENT_CONN_DIAL) {
		c->a->n.frames_bad++;
		conn_error(c, f->h.id, EPROTO, AGENT_STEP_NONE, "no greeting of versions %u to %u",
			AGENT_VERSION_MIN, AGENT_VERSION);
		conn_flush(c);
		conn_close(c);
		return;
	}
	c->kind = (enum agent_conn)kind;
	c->version = version;
	buf_init(&p, 64);
	buf_u32(&p, version);
	buf_u64(&p, c->a->generation);
	conn_ok(c, f->h.id, &p);
	buf_fini(&p);
}

struct session *conn_view(const struct conn *c)
{
	return c->view;
}

static bool is_about_files(uint16_t type)
{
	return (type >= AGENT_STAT && type <= AGENT_REPLACE) || type == AGENT_READ ||
	       type == AGENT_WRITE;
}

/* For AGENT_FL_SESSION: finds the session. False: an error was answered. */
static bool take_view(struct conn *c, const struct frame *f, struct cur *body)
{
	char name[64];
	struct session *s;

	if (!is_about_files(f->h.type) || !cur_str(body, name, sizeof(name))) {
		conn_error(c, f->h.id, EINVAL, AGENT_STEP_NONE, "request %u takes no session",
			f->h.type);
		return false;
	}
	s = session_find(c->a, name);
	if (!s || !s->iso) {
		conn_error(c, f->h.id, ENOENT, AGENT_STEP_SESSION, "no isolated session %s", name);
		return false;
	}
	c->view = s;
	return true;
}

static void conn_dispatch(struct conn *c, const struct frame *f)
{
	const struct request *r;
	struct cur body = f->body;

	c->a->n.frames_in++;
	if (!c->kind) {
		conn_hello(c, f);
		return;
	}
	r = request_find(f->h.type);
	if (!r) {
		c->a->n.frames_bad++;
		conn_error(c, f->h.id, ENOSYS, AGENT_STEP_NONE, "no request %u", f->h.type);
	} else if (!(r->kinds & (1u << c->kind))) {
		c->a->n.frames_bad++;
		conn_error(c, f->h.id, EINVAL, AGENT_STEP_NONE,
			"request %u does not belong on this connection", f->h.type);
	} else {
		if (!(f->h.flags & AGENT_FL_SESSION) || take_view(c, f, &body))
			r->fn(c->a, c, f->h.id, &body);
		c->view = NULL;
	}
}

/* Handles the complete frames in c->in. */
static void take_frames(struct conn *c)
{
	size_t at = 0, used;
	struct frame f;
	int rc = 0;

	while (!c->dead && !c->held && conn_backlog(c) < OUT_MANY &&
		(rc = frame_next(c->in.p + at, c->in.len - at, &f, &used)) == 1) {
		conn_record(c->a, c, 0, c->in.p + at, used);
		at += used;
		if (f.h.type == AGENT_READ || f.h.type == AGENT_WRITE ||
			f.h.type == AGENT_DIAL_TCP || f.h.type == AGENT_DIAL_UNIX) {
			/* these requests take the connection over, and the bytes behind the
			 * frame */
			_cleanup_free_ uint8_t *copy = malloc(used);
			size_t dummy;

			if (!copy) {
				conn_close(c);
				return;
			}
			memcpy(copy, c->in.p + at - used, used);
			frame_next(copy, used, &f, &dummy);
			buf_consume(&c->in, at);
			at = 0;
			conn_dispatch(c, &f);
			continue;
		}
		conn_dispatch(c, &f);
	}
	if (c->dead)
		return;
	buf_consume(&c->in, at);
	if (rc < 0) {
		c->a->n.frames_bad++;
		conn_error(c, 0, EPROTO, AGENT_STEP_NONE, "a frame of more than %u bytes",
			AGENT_FRAME_MAX);
		conn_flush(c);
		conn_close(c);
	} else if (!c->in.len && c->in.cap > KIB(4)) {
		buf_fini(&c->in);
	}
}

static void conn_read(struct conn *c)
{
	size_t turn = 0;

	while (!c->dead && !c->held && conn_backlog(c) < OUT_MANY && turn < TURN_MAX) {
		size_t room = c->in.len < KIB(4) ? KIB(4) : READ_STEP;
		uint8_t *to = buf_room(&c->in, room);
		ssize_t k;

		if (!to) {
			conn_close(c);
			return;
		}
		k = recv(c->fd, to, room, MSG_DONTWAIT);
		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0 && errno == EAGAIN)
			break;
		if (k <= 0) {
			conn_close(c);
			return;
		}
		c->in.len += (size_t)k;
		c->a->n.bytes_in += (uint64_t)k;
		turn += (size_t)k;
		take_frames(c);
		if ((size_t)k < room)
			break;
	}
}

static void conn_event(void *arg, uint32_t events)
{
	struct conn *c = arg;

	if (c->held && (events & (EPOLLHUP | EPOLLERR))) {
		/* epoll reports a hang-up again and again: waiting for the end of the hold would
		 * spin */
		conn_close(c);
		return;
	}
	c->busy = true;
	if (events & EPOLLOUT)
		conn_flush(c);
	/* frames that were left when this connection was held or had too much to send */
	if (!c->dead && c->in.len)
		take_frames(c);
	if (!c->dead && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
		conn_read(c);
	c->busy = false;
	if (c->dead)
		return;
	conn_flush(c);
	if (!c->dead && c->proc && conn_backlog(c) < CONN_FEW)
		procio_pump(c->proc);
}
