/* SPDX-License-Identifier: Apache-2.0
 *
 * agent_conn.c: connection, opening and framing towards the agent. The daemon's loop thread; every
 * received byte is hostile. States: connecting -> opening (struct vsock_open) -> greeting (HELLO)
 * -> open -> [raw] -> over. A time limit covers everything until open. Callbacks may close the
 * connection: after each one `closing` is tested before anything of it is touched.
 */
#include "api/links/agent_conn.h"

#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "lib/log.h"
#include "lib/proto_vmm.h"

#define OPEN_LIMIT_NS    (20ull * 1000000000)
#define CONNECT_RETRY_NS 2000000ull /* a full backlog cannot be waited for on a Unix socket */
#define IN_CHUNK         (64u * 1024)
#define OUT_KEPT         4096u

enum aconn_state { AC_CONNECTING, AC_OPENING, AC_GREETING, AC_OPEN, AC_RAW, AC_OVER };

struct aconn {
	struct loop *loop;
	const struct aconn_ops *ops;
	void *arg;
	enum aconn_state state;
	enum agent_conn kind;
	struct sockaddr_un addr;
	uint32_t port, version;
	size_t high;
	int fd;
	struct watch *watch;
	uint32_t events; /* of the watch, as set last */
	struct timer *timer;
	uint64_t deadline_ns;
	int pending_err; /* connect failed at once: told from the timer */
	struct aconn_budget *budget;
	size_t charged; /* bytes: what the two buffers may hold */
	struct buf in, out;
	size_t in_at, out_at;
	bool held, was_full, send_end, sent_end, got_eof, told_eof, in_call, closing;
};

void aconn_budget_unref(struct aconn_budget *b)
{
	if (b && --b->refs == 0)
		free(b);
}

/* Charges the buffers as large as they are now. False: over a budget. */
static bool aconn_fits(struct aconn *c)
{
	struct account *a = c->budget ? &c->budget->account : NULL;
	size_t now = c->in.cap + c->out.cap;

	if (now > c->charged && !account_take(a, now - c->charged))
		return false;
	if (now < c->charged)
		account_give(a, c->charged - now);
	c->charged = now;
	return true;
}

static void aconn_free(struct aconn *c)
{
	watch_remove(c->watch);
	timer_remove(c->timer);
	close_fd(&c->fd);
	buf_fini(&c->in);
	buf_fini(&c->out);
	(void)aconn_fits(c);
	aconn_budget_unref(c->budget);
	free(c);
}

/* The connection is over: the owner is told once, and calls aconn_close(). */
static void fail(struct aconn *c, int err)
{
	if (c->closing || c->state == AC_OVER)
		return;
	c->state = AC_OVER;
	watch_remove(c->watch);
	c->watch = NULL;
	timer_set(c->timer, 0);
	close_fd(&c->fd);
	c->ops->closed(c->arg, err);
}

static void want(struct aconn *c)
{
	uint32_t ev = 0;
	bool queued = c->out.len > c->out_at;

	if (!c->watch)
		return;
	if (c->state == AC_OPENING || c->state == AC_GREETING || (!c->held && !c->got_eof))
		ev |= EPOLLIN;
	if ((queued || c->was_full) && c->state != AC_OPENING)
		ev |= EPOLLOUT;
	if (ev != c->events)
		watch_events(c->watch, ev);
	c->events = ev;
}

static int flush(struct aconn *c)
{
	while (c->state >= AC_GREETING && c->out.len > c->out_at) {
		ssize_t n = send(c->fd, c->out.p + c->out_at, c->out.len - c->out_at,
			MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0) {
			if (errno == EINTR)
				continue;
			if (errno == EAGAIN)
				break;
			if (errno == EPIPE && c->state == AC_RAW) {
				/* The peer reads no more, but may still answer. Drop the queue, or
				 * epoll would wake us for ever */
				c->out_at = c->out.len;
				break;
			}
			return errno;
		}
		c->out_at += (size_t)n;
	}
	if (c->out_at == c->out.len) {
		/* an idle connection keeps no large buffer to write from */
		if (c->out.cap > OUT_KEPT)
			buf_fini(&c->out);
		buf_reset(&c->out);
		c->out_at = 0;
		(void)aconn_fits(c);
	} else if (c->out_at > c->high) {
		buf_consume(&c->out, c->out_at);
		c->out_at = 0;
	}
	if (c->send_end && !c->sent_end && c->out.len == 0 && c->state >= AC_GREETING) {
		c->sent_end = true;
		shutdown(c->fd, SHUT_WR);
	}
	return 0;
}

void aconn_close(struct aconn *c)
{
	if (!c)
		return;
	/* sends what the socket still takes, mostly a last acknowledgement */
	if (!c->closing && c->state >= AC_GREETING && c->state != AC_OVER)
		(void)flush(c);
	c->closing = true;
	c->state = AC_OVER;
	if (!c->in_call)
		aconn_free(c);
}

static void put_hdr(struct buf *b, uint16_t type, uint16_t flags, uint32_t id, size_t n)
{
	buf_u32(b, (uint32_t)n);
	buf_u16(b, type);
	buf_u16(b, flags);
	buf_u32(b, id);
}

/* The socket is connected: asks the monitor for the port. If the agent itself listens, no request is needed. */
static int say_open(struct aconn *c)
{
	struct vsock_open o = {.magic = VSOCK_OPEN_MAGIC, .port = c->port};

	if (!c->port) {
		c->state = AC_GREETING;
		return 0;
	}
	c->state = AC_OPENING;
	/* twelve bytes into an empty socket buffer: short or refused means that the peer is gone */
	if (send(c->fd, &o, sizeof(o), MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof(o))
		return errno ? errno : EIO;
	return 0;
}

static int got_vsock_answer(struct aconn *c)
{
	struct vsock_open o;

	if (c->in.len - c->in_at < sizeof(o))
		return 0;
	memcpy(&o, c->in.p + c->in_at, sizeof(o));
	c->in_at += sizeof(o);
	if (o.magic != VSOCK_OPEN_MAGIC || o.port != c->port)
		return EPROTO;
	if (o.status)
		return o.status < 4096 ? (int)o.status : EPROTO;
	c->state = AC_GREETING;
	return 0;
}

static int got_hello(struct aconn *c, const struct agent_hdr *h, struct cur body)
{
	uint32_t v;
	uint64_t gen;

	if (h->id != 0)
		return EPROTO;
	if (h->type == AGENT_ERR) {
		v = cur_u32(&body);
		if (v == EPROTO)
			return EPROTONOSUPPORT;
		return v && v < 4096 ? (int)v : EPROTO;
	}
	v = cur_u32(&body);
	gen = cur_u64(&body);
	if (h->type != AGENT_OK || !cur_done(&body) || v != c->version)
		return EPROTO;
	c->state = AC_OPEN;
	timer_set(c->timer, 0);
	if (c->ops->ready)
		c->ops->ready(c->arg, gen);
	return 0;
}

/* Takes one frame from what has arrived: 1 = took one, 0 = not whole yet, < 0 = broken (-errno). */
static int take_frame(struct aconn *c)
{
	struct agent_hdr h;
	struct cur k = cur_of(c->in.p + c->in_at, c->in.len - c->in_at);
	struct cur body;
	int rc;

	if (cur_left(&k) < sizeof(h))
		return 0;
	h.len = cur_u32(&k);
	h.type = cur_u16(&k);
	h.flags = cur_u16(&k);
	h.id = cur_u32(&k);
	if (h.len > AGENT_FRAME_MAX)
		return -EMSGSIZE;
	if (cur_left(&k) < h.len)
		return 0;
	body = cur_of(k.p, h.len);
	c->in_at += sizeof(h) + h.len;
	rc = c->state == AC_GREETING ? got_hello(c, &h, body) : c->ops->frame(c->arg, &h, body);
	return rc ? -abs(rc) : 1;
}

/* Hands over what is in the buffer, as far as the owner takes it. Returns 0 or an errno. */
static int deliver(struct aconn *c)
{
	int rc = 0;

	while (!c->closing && c->state != AC_OVER && c->in.len > c->in_at) {
		if (c->state == AC_OPENING) {
			rc = got_vsock_answer(c);
			if (rc || c->state == AC_OPENING)
				break;
			continue;
		}
		if (c->held && c->state >= AC_OPEN)
			break;
		if (c->state == AC_RAW) {
			size_t at = c->in_at;

			c->in_at = c->in.len;
			c->ops->bytes(c->arg, c->in.p + at, c->in.len - at);
			continue;
		}
		rc = take_frame(c);
		if (rc <= 0) {
			rc = -rc;
			break;
		}
		rc = 0;
	}
	if (!c->closing) {
		buf_consume(&c->in, c->in_at);
		c->in_at = 0;
	}
	return rc;
}

/* End of file is passed on only when everything before it was. */
static void deliver_eof(struct aconn *c)
{
	if (c->closing || c->state == AC_OVER || !c->got_eof || c->held)
		return;
	if (c->state != AC_RAW) {
		fail(c, c->state < AC_OPEN ? ECONNRESET : 0);
		return;
	}
	if (!c->told_eof) {
		c->told_eof = true;
		c->ops->bytes(c->arg, NULL, 0);
	}
	if (!c->closing && c->state == AC_RAW && c->sent_end)
		fail(c, 0);
}

/* Passes raw bytes on without a buffer, if none are buffered. One read; false: not possible, or no more bytes now. */
static bool pass_raw(struct aconn *c)
{
	static uint8_t scratch[IN_CHUNK]; /* the loop has one thread, and nothing is kept in it */
	ssize_t n;

	if (c->state != AC_RAW || c->in.len || c->held || c->got_eof)
		return false;
	n = recv(c->fd, scratch, sizeof(scratch), MSG_DONTWAIT);
	if (n < 0 && errno != EAGAIN && errno != EINTR)
		fail(c, errno);
	if (n > 0)
		c->ops->bytes(c->arg, scratch, (size_t)n);
	c->got_eof = n == 0;
	return n == sizeof(scratch);
}

static void read_raw(struct aconn *c)
{
	for (int i = 0; i < 2 && !c->closing && pass_raw(c); i++)
		;
	if (!c->closing && c->got_eof)
		deliver_eof(c);
}

static void on_readable(struct aconn *c)
{
	int rc = 0;

	if (c->state == AC_RAW && !c->in.len && !c->held) {
		read_raw(c);
		return;
	}

	/* at most two chunks in one turn, so that other streams do not wait */
	for (int i = 0; i < 2 && !c->closing && c->state != AC_OVER; i++) {
		uint8_t *to = buf_room(&c->in, IN_CHUNK);
		ssize_t n = to ? recv(c->fd, to, IN_CHUNK, MSG_DONTWAIT) : -1;

		if (!to || !aconn_fits(c)) {
			fail(c, to ? ENOBUFS : ENOMEM);
			return;
		}
		if (n < 0) {
			if (errno != EAGAIN && errno != EINTR)
				fail(c, errno);
			break;
		}
		if (n == 0)
			c->got_eof = true;
		c->in.len += (size_t)n;
		rc = deliver(c);
		if (rc && !c->closing) {
			fail(c, rc);
			return;
		}
		if (c->got_eof || (size_t)n < IN_CHUNK || c->held)
			break;
	}
	/* an idle connection keeps no room to read into: there are several for each sandbox */
	if (!c->in.len) {
		buf_fini(&c->in);
		(void)aconn_fits(c);
	}
	if (c->got_eof)
		deliver_eof(c);
}

static void told_drained(struct aconn *c)
{
	/* after aconn_send_end() the owner waits until all bytes have left */
	size_t enough = c->send_end ? 0 : c->high / 4;

	if (c->closing || c->state == AC_OVER || !c->was_full || c->out.len - c->out_at > enough)
		return;
	c->was_full = false;
	if (c->ops->drained)
		c->ops->drained(c->arg);
}

static void on_event(void *arg, uint32_t ev)
{
	struct aconn *c = arg;
	int rc;

	c->in_call = true;
	/* a hang-up while held: there is nobody left to write to, but what arrived is still to be
	 * read */
	if (c->state != AC_OVER && (ev & (EPOLLIN | EPOLLHUP | EPOLLERR)) &&
		(!c->held || c->state < AC_OPEN))
		on_readable(c);
	else if (c->state != AC_OVER && (ev & (EPOLLHUP | EPOLLERR)) && c->held) {
		watch_remove(c->watch);
		c->watch = NULL; /* aconn_hold(false) reads the rest */
	}
	/* closed both ways: nothing that we might still send can arrive */
	if (!c->closing && c->told_eof && (ev & EPOLLHUP))
		fail(c, c->sent_end ? 0 : EPIPE);
	if (!c->closing && c->state >= AC_GREETING && c->state != AC_OVER) {
		rc = flush(c);
		if (rc)
			fail(c, rc);
		told_drained(c);
	}
	c->in_call = false;
	if (c->closing)
		aconn_free(c);
	else
		want(c);
}

/* 0, or an errno; EAGAIN: the listener's backlog is full. A Unix socket connects at once or not at
 * all. */
static int try_connect(struct aconn *c)
{
	_cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return errno;
	if (connect(fd, (const struct sockaddr *)&c->addr, sizeof(c->addr)) < 0)
		return errno;
	c->watch = loop_watch(c->loop, fd, EPOLLIN, on_event, c);
	if (!c->watch)
		return errno;
	c->events = EPOLLIN;
	c->fd = take_fd(&fd);
	return say_open(c);
}

static void begin(struct aconn *c)
{
	int rc = try_connect(c);

	if (rc == EAGAIN) {
		timer_after(c->timer, CONNECT_RETRY_NS);
		return;
	}
	c->pending_err = rc;
	timer_set(c->timer, rc ? 1 : c->deadline_ns);
	want(c);
}

static void resume_reading(struct aconn *c)
{
	int rc = deliver(c);

	if (rc && !c->closing)
		fail(c, rc);
	if (!c->closing && c->state != AC_OVER && !c->held) {
		/* no watch: the peer hung up while reading was stopped. Read what the kernel still
		 * has */
		while (!c->watch && !c->got_eof && !c->held && !c->closing && c->state != AC_OVER)
			on_readable(c);
		deliver_eof(c);
	}
}

static void on_timer(void *arg)
{
	struct aconn *c = arg;

	c->in_call = true;
	if (c->pending_err)
		fail(c, c->pending_err);
	else if (c->state >= AC_OPEN && c->state != AC_OVER)
		resume_reading(c);
	else if (mono_ns() >= c->deadline_ns)
		fail(c, ETIMEDOUT);
	else if (c->state == AC_CONNECTING && c->fd < 0)
		begin(c);
	c->in_call = false;
	if (c->closing)
		aconn_free(c);
	else
		want(c);
}

struct aconn *aconn_open(struct loop *l, const struct aconn_target *t, enum agent_conn kind,
	const struct aconn_ops *ops, void *arg)
{
	struct aconn *c;
	size_t n = strlen(t->path);

	if (n >= sizeof(c->addr.sun_path)) {
		errno = ENAMETOOLONG;
		return NULL;
	}
	c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	*c = (struct aconn){.loop = l,
		.ops = ops,
		.arg = arg,
		.kind = kind,
		.port = t->port,
		.version = t->version,
		.high = t->high ? t->high : ACONN_HIGH,
		.fd = -1};
	c->addr.sun_family = AF_UNIX;
	memcpy(c->addr.sun_path, t->path, n);
	buf_init(&c->in, AGENT_FRAME_MAX + sizeof(struct agent_hdr) + 2 * IN_CHUNK);
	buf_init(&c->out, ACONN_MAX + ACONN_HIGH);
	c->timer = loop_timer(l, on_timer, c);
	if (!c->timer) {
		free(c);
		errno = ENOMEM;
		return NULL;
	}
	c->budget = t->budget;
	if (c->budget)
		c->budget->refs++;
	c->deadline_ns = mono_ns() + OPEN_LIMIT_NS;
	put_hdr(&c->out, AGENT_HELLO, 0, 0, 12);
	buf_u32(&c->out, AGENT_MAGIC);
	buf_u32(&c->out, t->version);
	buf_u32(&c->out, (uint32_t)kind);
	begin(c);
	return c;
}

void aconn_give(struct aconn *c, const struct aconn_ops *ops, void *arg)
{
	c->ops = ops;
	c->arg = arg;
}

static bool queued(struct aconn *c)
{
	if (c->out.bad) {
		c->out.bad = false;
		return false;
	}
	/* an error comes again in the loop, where closed() may be called */
	if (!c->in_call && c->state >= AC_GREETING)
		(void)flush(c);
	if (c->out.len - c->out_at > c->high)
		c->was_full = true;
	if (!c->in_call)
		want(c);
	return true;
}

bool aconn_send(struct aconn *c, uint16_t type, uint32_t id, const void *p, size_t n)
{
	return aconn_send_flags(c, type, 0, id, p, n);
}

bool aconn_send_flags(
	struct aconn *c, uint16_t type, uint16_t flags, uint32_t id, const void *p, size_t n)
{
	if (c->state == AC_OVER || c->state == AC_RAW || n > AGENT_FRAME_MAX)
		return false;
	if (c->out.len - c->out_at + n + sizeof(struct agent_hdr) > ACONN_MAX)
		return false;
	if (!buf_room(&c->out, n + sizeof(struct agent_hdr)) || !aconn_fits(c)) {
		c->out.bad = false;
		return false;
	}
	put_hdr(&c->out, type, flags, id, n);
	buf_put(&c->out, p, n);
	return queued(c);
}

void aconn_make_raw(struct aconn *c)
{
	if (c->state == AC_OPEN)
		c->state = AC_RAW;
}

bool aconn_send_raw(struct aconn *c, const void *p, size_t n)
{
	const uint8_t *at = p;

	if (c->state != AC_RAW || c->send_end || c->out.len - c->out_at + n > ACONN_MAX)
		return false;
	/* what fits into the socket needs no buffer; an error shows again when the rest is flushed */
	while (n > 0 && !c->in_call && c->out.len == c->out_at) {
		ssize_t k = send(c->fd, at, n, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (k <= 0)
			break;
		at += k;
		n -= (size_t)k;
	}
	if (!n)
		return true;
	if (!buf_room(&c->out, n) || !aconn_fits(c)) {
		c->out.bad = false;
		return false;
	}
	buf_put(&c->out, at, n);
	return queued(c);
}

void aconn_send_end(struct aconn *c)
{
	if (c->state == AC_OVER)
		return;
	c->send_end = true;
	if (!c->in_call)
		(void)flush(c);
	c->was_full |= aconn_ending(c);
	if (!c->in_call)
		want(c);
}

bool aconn_full(const struct aconn *c)
{
	return c->out.len - c->out_at > c->high;
}

bool aconn_ending(const struct aconn *c)
{
	return c->send_end && !c->sent_end && c->state != AC_OVER;
}

void aconn_hold(struct aconn *c, bool hold)
{
	if (c->held == hold || c->state == AC_OVER)
		return;
	c->held = hold;
	if (!hold && c->state >= AC_OPEN)
		timer_set(c->timer, 1); /* what is buffered is delivered from the loop, never from
					   inside this call */
	if (!c->in_call)
		want(c);
}
