/* SPDX-License-Identifier: Apache-2.0
 *
 * upgrade.c: see upgrade.h. mayflyd's loop. libmicrohttpd sends the 101 and then gives the socket
 * away; from then on only this file reads and writes it. libmicrohttpd keeps its memory for the
 * connection (64 KiB were seen) until its descriptor is closed. So the socket is duplicated, and
 * libmicrohttpd closes its own descriptor at once. struct http_conn, which counts against the
 * server's limits, stays until the end.
 *
 * An upgrade is WAITING until the 101 is out, then OPEN, then LINGERING after its owner closed it:
 * queued bytes are sent, then our end of file, and we wait for the client's, so that the last bytes
 * are not lost to a reset.
 */
#include "api/http/upgrade.h"
#include "api/http/http_int.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "lib/log.h"
#include "lib/websocket.h"
#include "lib/websocket_skim.h"

#define SEC      1000000000ull
#define LINGER_S 5
#define STEP     (64u * 1024)
#define READS    2 /* of one connection in one turn of the loop */

enum upgrade_state { UP_WAITING, UP_OPEN, UP_LINGERING, UP_OVER };

struct http_upgrade {
	struct request *r;
	const struct http_upgrade_ops *ops;
	void *arg;
	enum upgrade_state state;
	struct MHD_UpgradeResponseHandle *handle;
	int fd; /* a duplicate */
	struct watch *watch;
	uint32_t events;
	struct timer *timer;   /* limit for a client that takes nothing, and for LINGERING */
	struct buf out, early; /* early: what came with the request's head */
	size_t out_at;
	int err, in_call;
	/* held: the owner takes no bytes now; full: drained() must be called later; end: the owner
	 * ended its side, ended: the end of file was sent; late: a call of upgrade_late() is
	 * deferred; closed: the owner must not be called any more */
	/* hung_up: the kernel reported it. Both directions are over, or the client broke off; bytes that it sent before may be unread */
	bool held, full, end, ended, got_eof, told_eof, hung_up, late, closed;
};

static void upgrade_late(void *arg);

/* Runs upgrade_turn() from the loop: the owner must not be called back inside its own call. */
static void upgrade_later(struct http_upgrade *u)
{
	if (!u->late && !loop_defer(u->r->pub.http->loop, upgrade_late, u))
		u->late = true;
}

/* ---- the end */

/* libmicrohttpd gives back its descriptor and its memory. Not from inside its calls. */
static void upgrade_leave_server(struct http_upgrade *u)
{
	struct MHD_UpgradeResponseHandle *handle = take_ptr(u->handle);

	if (!handle)
		return;
	MHD_upgrade_action(handle, MHD_UPGRADE_ACTION_CLOSE);
	http_kick(u->r->pub.http);
}

/* Frees u, and may free the request. */
static void upgrade_free(struct http_upgrade *u)
{
	struct request *r = u->r;

	if (u->late)
		loop_undefer(r->pub.http->loop, upgrade_late, u);
	watch_remove(u->watch);
	timer_remove(u->timer);
	account_give(r->account, u->out.len - u->out_at);
	buf_fini(&u->out);
	buf_fini(&u->early);
	upgrade_leave_server(u);
	if (r->given_away)
		request_end_given_away(r);
	close_fd(&u->fd);
	r->upgrade = NULL;
	free(u);
	request_finished(r);
}

static void upgrade_settle(struct http_upgrade *u)
{
	if (!u->in_call && u->closed && u->state == UP_OVER)
		upgrade_free(u);
}

/* The connection has ended. Tells the owner, once. */
static void upgrade_over(struct http_upgrade *u, int err)
{
	if (u->state == UP_OVER)
		return;
	u->state = UP_OVER;
	watch_remove(u->watch);
	u->watch = NULL;
	timer_set(u->timer, 0);
	if (u->closed)
		return;
	u->in_call++;
	u->ops->closed(u->arg, err);
	u->in_call--;
	u->closed = true;
}

/* ---- writing */

static uint64_t upgrade_write_limit(const struct http_upgrade *u)
{
	return u->r->pub.http->c.write_limit_s * SEC;
}

static size_t upgrade_unsent(const struct http_upgrade *u)
{
	return u->out.len - u->out_at;
}

/* 0, or an errno. */
static int upgrade_flush(struct http_upgrade *u)
{
	size_t before = upgrade_unsent(u);

	while (u->state != UP_WAITING && upgrade_unsent(u)) {
		ssize_t n = send(u->fd, u->out.p + u->out_at, upgrade_unsent(u),
			MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			break;
		if (n < 0)
			return errno;
		u->out_at += (size_t)n;
		account_give(u->r->account, (uint64_t)n);
		u->r->pub.http->stats.bytes_out += (uint64_t)n;
	}
	if (!upgrade_unsent(u)) {
		buf_fini(&u->out); /* an idle connection keeps no buffer */
		u->out_at = 0;
	} else if (u->out_at > HTTP_UPGRADE_HIGH) {
		buf_consume(&u->out, u->out_at);
		u->out_at = 0;
	}
	if (u->state == UP_OPEN && upgrade_unsent(u) != before)
		timer_set(u->timer, upgrade_unsent(u) ? mono_ns() + upgrade_write_limit(u) : 0);
	if (u->state != UP_WAITING && u->end && !u->ended && !upgrade_unsent(u)) {
		u->ended = true;
		shutdown(u->fd, SHUT_WR);
	}
	return 0;
}

/* Stops watching, because the kernel would report a hang-up again and again. The owner may still
 * take the bytes that came before, but not for ever: the server in the sandbox may hang. Each turn,
 * that is each piece that the owner took, starts the limit again. */
static void upgrade_unwatch(struct http_upgrade *u)
{
	watch_remove(u->watch);
	u->watch = NULL;
	if (u->state == UP_OPEN)
		timer_after(u->timer, upgrade_write_limit(u));
}

static void upgrade_want(struct http_upgrade *u)
{
	uint32_t ev = 0;

	if (!u->watch)
		return;
	/* both directions are over */
	if (u->got_eof && u->ended) {
		upgrade_unwatch(u);
		return;
	}
	if (!u->got_eof && (!u->held || u->state == UP_LINGERING))
		ev |= EPOLLIN;
	if (upgrade_unsent(u))
		ev |= EPOLLOUT;
	if (ev != u->events)
		watch_events(u->watch, ev);
	u->events = ev;
}

static void upgrade_tell_drained(struct http_upgrade *u)
{
	if (!u->full || u->closed || upgrade_unsent(u) > HTTP_UPGRADE_HIGH / 4)
		return;
	u->full = false;
	if (u->ops->drained)
		u->ops->drained(u->arg);
}

/* Sends what the socket takes at once, without a buffer, and returns how much. An error is met again when the rest is flushed. */
static size_t upgrade_send_now(struct http_upgrade *u, const uint8_t *p, size_t n)
{
	size_t done = 0;

	while (done < n && u->state == UP_OPEN && !upgrade_unsent(u)) {
		ssize_t k = send(u->fd, p + done, n - done, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (k <= 0)
			break;
		done += (size_t)k;
	}
	u->r->pub.http->stats.bytes_out += done;
	return done;
}

bool http_upgrade_send(struct http_upgrade *u, const void *p, size_t n)
{
	size_t done;
	int rc;

	if (u->state == UP_OVER || u->state == UP_LINGERING || u->end || u->err ||
		upgrade_unsent(u) + n > HTTP_UPGRADE_MAX)
		return false;
	done = upgrade_send_now(u, p, n);
	if (done == n)
		return true;
	n -= done;
	if (!account_take(u->r->account, n))
		return false;
	if (!upgrade_unsent(u) && u->state == UP_OPEN)
		timer_after(u->timer, upgrade_write_limit(u));
	buf_put(&u->out, (const uint8_t *)p + done, n);
	if (u->out.bad) {
		u->out.bad = false;
		account_give(u->r->account, n);
		return false;
	}
	rc = upgrade_flush(u);
	if (rc) {
		u->err = rc;
		upgrade_later(u);
		return false;
	}
	u->full |= upgrade_unsent(u) > HTTP_UPGRADE_HIGH;
	upgrade_want(u);
	return true;
}

bool http_upgrade_full(const struct http_upgrade *u)
{
	return upgrade_unsent(u) > HTTP_UPGRADE_HIGH;
}

void http_upgrade_end(struct http_upgrade *u)
{
	int rc;

	u->end = true;
	rc = u->state == UP_OPEN ? upgrade_flush(u) : 0;
	if (rc) {
		u->err = rc;
		upgrade_later(u);
	}
	upgrade_want(u);
}

/* ---- reading */

static void upgrade_bytes(struct http_upgrade *u, const uint8_t *p, size_t n)
{
	u->r->pub.http->stats.bytes_in += n;
	if (u->state == UP_OPEN && !u->closed)
		u->ops->bytes(u->arg, p, n);
}

/* Bytes that libmicrohttpd had read already come first. */
static void upgrade_give_early(struct http_upgrade *u)
{
	struct buf b = u->early;

	if (!b.len || u->held || u->state != UP_OPEN)
		return;
	buf_init(&u->early, SIZE_MAX / 2);
	upgrade_bytes(u, b.p, b.len);
	buf_fini(&b);
}

static void upgrade_read(struct http_upgrade *u)
{
	static uint8_t scratch[STEP]; /* the loop has one thread, and nothing is kept in it */

	for (int i = 0; i < READS && !u->got_eof && u->state != UP_OVER; i++) {
		ssize_t n;

		if (u->held && u->state == UP_OPEN)
			return;
		n = recv(u->fd, scratch, sizeof(scratch), MSG_DONTWAIT);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return;
		if (n < 0) {
			upgrade_over(u, errno);
			return;
		}
		u->got_eof = n == 0;
		if (n > 0)
			upgrade_bytes(u, scratch, (size_t)n);
		if ((size_t)n < sizeof(scratch))
			break;
	}
}

static void upgrade_tell_eof(struct http_upgrade *u)
{
	if (u->state != UP_OPEN || !u->got_eof || u->told_eof || u->held || u->early.len)
		return;
	u->told_eof = true;
	u->ops->bytes(u->arg, NULL, 0);
}

static void upgrade_turn(struct http_upgrade *u, uint32_t events)
{
	int rc = u->err;

	u->in_call++;
	upgrade_give_early(u);
	if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
		upgrade_read(u);
	upgrade_tell_eof(u);
	if (!rc && u->state != UP_OVER)
		rc = upgrade_flush(u);
	/* the client is gone, and we did not end our side: nobody receives the rest */
	if (!rc && u->hung_up && u->got_eof && !u->ended && !u->held && u->state == UP_OPEN)
		rc = ECONNRESET;
	if (rc)
		upgrade_over(u, rc);
	/* its end of file came before ours was sent: no further event will say so */
	if (u->state == UP_LINGERING && u->got_eof && u->ended)
		upgrade_over(u, 0);
	if (u->state == UP_OPEN)
		upgrade_tell_drained(u);
	upgrade_want(u);
	if (!u->watch && u->state == UP_OPEN)
		timer_after(u->timer, upgrade_write_limit(u));
	if (u->hung_up && !u->held && !u->got_eof && u->state != UP_OVER)
		upgrade_later(u);
	u->in_call--;
	upgrade_settle(u);
}

static void upgrade_event(void *arg, uint32_t events)
{
	struct http_upgrade *u = arg;

	/* The kernel reports a hang-up as long as the socket is watched, and a held connection is
	 * not read. So stop watching; the bytes are read later. */
	if ((events & (EPOLLHUP | EPOLLERR)) && u->held && u->state == UP_OPEN) {
		upgrade_unwatch(u);
		u->hung_up = true;
		/* Nobody will take these bytes: the send fails and ends the connection. The owner may hold the other side until then. */
		if (upgrade_unsent(u))
			upgrade_turn(u, 0);
		return;
	}
	if ((events & (EPOLLHUP | EPOLLERR)) && u->got_eof)
		u->hung_up = true;
	upgrade_turn(u, events);
}

static void upgrade_late(void *arg)
{
	struct http_upgrade *u = arg;

	u->late = false;
	upgrade_leave_server(u);
	upgrade_turn(u, u->hung_up ? EPOLLIN : 0);
}

static void upgrade_on_time(void *arg)
{
	struct http_upgrade *u = arg;

	if (u->state != UP_LINGERING) {
		log_info("%s %s%s: cut off: %s took nothing for %llu s, request %s",
			u->r->pub.method, u->r->pub.log_prefix, u->r->pub.path,
			u->watch ? "its client" : "its client has left and the sandbox",
			(unsigned long long)(upgrade_write_limit(u) / SEC), u->r->pub.id);
		u->r->pub.http->stats.cut_off++;
	}
	u->err = ETIMEDOUT;
	upgrade_turn(u, 0);
}

void http_upgrade_hold(struct http_upgrade *u, bool hold)
{
	if (u->held == hold || u->state == UP_OVER)
		return;
	u->held = hold;
	if (!hold && (u->early.len || u->got_eof || u->hung_up))
		upgrade_later(u);
	upgrade_want(u);
}

void http_upgrade_close(struct http_upgrade *u)
{
	if (!u || u->closed)
		return;
	u->closed = true;
	u->in_call++;
	if (u->state == UP_OPEN) {
		http_upgrade_end(u); /* sends only while it is open */
		u->state = UP_LINGERING;
		timer_after(u->timer, LINGER_S * SEC);
		if (u->err || u->hung_up || (u->ended && u->got_eof))
			upgrade_over(u, u->err);
	} else if (u->state == UP_WAITING) {
		u->end = true; /* its last words follow the 101 */
	}
	u->in_call--;
	upgrade_settle(u);
}

/* ---- the beginning */

/* Every write is sent at once. With the options that libmicrohttpd leaves on the socket after its
 * 101, the echo of a keystroke waited 40 ms for an acknowledgement. Keepalive: the kernel reports a
 * client whose host is gone after about three minutes. */
static void upgrade_socket_options(int fd)
{
	static const int idle_s = 60, every_s = 30, times = 4, on = 1, off = 0;

	setsockopt(fd, IPPROTO_TCP, TCP_CORK, &off, sizeof(off));
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof(every_s));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof(times));
}

static void upgrade_open(void *cls, struct MHD_Connection *c, void *ctx, const char *extra,
	size_t n, MHD_socket fd, struct MHD_UpgradeResponseHandle *handle)
{
	struct http_upgrade *u = cls;
	struct request *r = u->r;

	u->handle = handle;
	u->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	u->state = u->closed ? UP_LINGERING : UP_OPEN;
	upgrade_socket_options(u->fd);
	if (u->fd >= 0)
		request_give_away(r, u->fd);
	else
		u->err = errno;
	buf_put(&u->early, extra, n);
	u->watch = u->fd < 0 ? NULL : loop_watch(r->pub.http->loop, u->fd, 0, upgrade_event, u);
	if (!u->err && (!u->watch || u->early.bad))
		u->err = ENOMEM;
	if (u->closed)
		timer_after(u->timer, LINGER_S * SEC);
	else if (upgrade_unsent(u))
		timer_after(u->timer, upgrade_write_limit(u));
	upgrade_later(u);
}

void upgrade_lost(struct request *r)
{
	struct http_upgrade *u = r->upgrade;

	u->in_call++;
	upgrade_over(u, ECONNRESET);
	u->in_call--;
	upgrade_settle(u);
}

void upgrade_leave(struct request *r)
{
	struct http_upgrade *u = r->upgrade;

	if (u->closed)
		return;
	if (u->ops->leave && u->state == UP_OPEN) {
		u->ops->leave(u->arg);
		return;
	}
	if (u->state == UP_WAITING) {
		/* libmicrohttpd must not call upgrade_open() any more: u is freed */
		r->aborted = true;
		shutdown(r->hc->fd, SHUT_RDWR);
	}
	upgrade_lost(r);
}

struct http_upgrade *http_upgrade(
	struct http_req *pub, const char *protocol, const struct http_upgrade_ops *ops, void *arg)
{
	struct request *r = request_of(pub);
	struct http_upgrade *u;
	struct MHD_Response *resp;

	if (r->aborted || r->gone || r->has_body || !r->is_1_1)
		return NULL;
	u = calloc(1, sizeof(*u));
	resp = u ? MHD_create_response_for_upgrade(upgrade_open, u) : NULL;
	if (!resp) {
		free(u);
		return NULL;
	}
	*u = (struct http_upgrade){.r = r, .ops = ops, .arg = arg, .fd = -1};
	u->timer = loop_timer(pub->http->loop, upgrade_on_time, u);
	if (!u->timer) {
		MHD_destroy_response(resp);
		free(u);
		return NULL;
	}
	buf_init(&u->out, HTTP_UPGRADE_MAX + HTTP_UPGRADE_HIGH);
	buf_init(&u->early, SIZE_MAX / 2);
	MHD_add_response_header(resp, "Upgrade", protocol);
	request_upgrade(r, resp, u);
	return u;
}

/* ---- WebSockets */

void http_websocket_offer(const struct http_req *r, struct ws_offer *o)
{
	*o = (struct ws_offer){.method = r->method,
		.upgrade = http_header(r, "Upgrade"),
		.connection = http_header(r, "Connection"),
		.version = http_header(r, "Sec-WebSocket-Version"),
		.key = http_header(r, "Sec-WebSocket-Key")};
}

bool http_websocket_ok(struct http_req *r)
{
	struct ws_offer o;
	const char *why;

	http_websocket_offer(r, &o);
	why = ws_offer_check(&o);
	if (!why)
		return true;
	if (o.version && strcmp(o.version, "13") != 0) {
		http_add_header(r, "Sec-WebSocket-Version", "13");
		http_error(r, 426, "INVALID_REQUEST_BODY", "%s", why);
	} else {
		http_error(r, 400, "INVALID_REQUEST_BODY", "%s", why);
	}
	return false;
}

struct http_upgrade *http_websocket_accept(
	struct http_req *r, const char *subprotocol, const struct http_upgrade_ops *ops, void *arg)
{
	char accept[WS_ACCEPT_CHARS + 1];

	ws_accept(http_header(r, "Sec-WebSocket-Key"), accept);
	http_add_header(r, "Sec-WebSocket-Accept", accept);
	if (subprotocol && *subprotocol)
		http_add_header(r, "Sec-WebSocket-Protocol", subprotocol);
	return http_upgrade(r, "websocket", ops, arg);
}

static void refused_bytes(void *arg, const uint8_t *p, size_t n)
{
}

static void refused_closed(void *arg, int err)
{
}

static const struct http_upgrade_ops refused_ops = {
	.bytes = refused_bytes, .closed = refused_closed};

void http_websocket_refuse(struct http_req *r, int code, const char *reason)
{
	uint8_t frame[WS_CLOSE_MAX + 6];
	struct http_upgrade *u;

	r->ws_codes = false;
	if (!http_websocket_ok(r))
		return;
	u = http_websocket_accept(r, NULL, &refused_ops, NULL);
	if (!u) {
		http_error(r, 503, "SERVICE_UNAVAILABLE", "%s", reason);
		return;
	}
	http_upgrade_send(u, frame, ws_close_frame(frame, code, reason, false));
	http_upgrade_close(u);
}

bool http_websocket_error(struct http_req *r, int status, const char *text)
{
	if (!r->ws_codes)
		return false;
	http_websocket_refuse(r, status == 401 || status == 403 ? WS_POLICY : WS_INTERNAL, text);
	return true;
}
