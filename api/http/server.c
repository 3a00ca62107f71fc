/* SPDX-License-Identifier: Apache-2.0
 *
 * server.c: the server: libmicrohttpd in external-epoll mode inside our loop. mayflyd. This file does what that library leaves open:
 * - it accepts connections, within conn_limits.h;
 * - it refuses repeated Content-Length, and Content-Length with chunked;
 * - it watches the socket of a suspended connection, because libmicrohttpd does not report that such a client left;
 * - it has deadlines for slow clients.
 *
 * libmicrohttpd calls on_access once with the headers, then with pieces of the body, then (size 0)
 * for the answer; a connection that waits for us is suspended and comes back through the same call.
 */
#include "api/http/http_int.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "lib/log.h"

#define SEC 1000000000ull
/* For a server without a configuration, as in tests: what api/core/config.c has as defaults. */
#define HEAD_LIMIT_S 30 /* connection to whole headers */
#define IDLE_LIMIT_S 75 /* between requests: longer than the SDKs' pools keep theirs */
#define BODY_LIMIT_S 60 /* a whole body; for a streamed one, each piece */
/* The URI and all headers together. It is below the limit at which libmicrohttpd itself answers, because that answer is not the documented one. */
#define HEAD_BYTES_MAX 65536u
#define WRITE_LIMIT_S  600 /* for a client to take some bytes of its answer */

static void listeners_look(struct http *h);

static void run_mhd(void *arg)
{
	struct http *h = arg;
	MHD_UNSIGNED_LONG_LONG wait;

	h->run_pending = false;
	MHD_run(h->mhd);
	if (MHD_get_timeout(h->mhd, &wait) == MHD_YES && wait == 0)
		http_kick(h);
	if (h->quiescing && !h->live && h->drained) {
		timer_fn fn = h->drained;

		h->drained = NULL;
		fn(h->drained_arg);
	}
}

void http_kick(struct http *h)
{
	if (!h->run_pending && !loop_defer(h->loop, run_mhd, h))
		h->run_pending = true;
}

static void on_epoll(void *arg, uint32_t events)
{
	run_mhd(arg);
}

/* ---- connections */

static void conn_expired(void *arg)
{
	struct http_conn *hc = arg;

	/* libmicrohttpd sees the end of file and cleans up */
	shutdown(hc->fd, SHUT_RDWR);
}

void conn_deadline(struct http_conn *hc, uint64_t after_ns)
{
	if (hc && hc->deadline)
		timer_set(hc->deadline, after_ns ? mono_ns() + after_ns : 0);
}

static void peer_user(struct http_conn *hc)
{
	struct ucred who;
	socklen_t n = sizeof(who);

	/* on failure: a user id that nobody has, so that no key by user id matches */
	hc->uid = getsockopt(hc->fd, SOL_SOCKET, SO_PEERCRED, &who, &n) ? (uid_t)-1 : who.uid;
}

/* Gives the connection a place, if needed by closing one that waits. Without a place the new connection is closed. */
static void conn_place(struct http *h, struct http_conn *hc, const struct sockaddr *from)
{
	struct conn_slot *out;
	bool placed = conn_limits_add(&h->limits, &hc->slot, from, &out);

	h->stats.refused += !placed || out;
	if (!placed)
		shutdown(hc->fd, SHUT_RDWR);
	else if (out)
		shutdown(container_of(out, struct http_conn, slot)->fd, SHUT_RDWR);
}

/* The client address of a connection from a sandbox, for libmicrohttpd: no accepted socket has this family. */
struct inward_address {
	sa_family_t family; /* AF_UNSPEC */
	char sandbox[37];
};

void http_adopt(struct http *h, int fd, const char *sandbox)
{
	struct inward_address from = {.family = AF_UNSPEC};

	snprintf(from.sandbox, sizeof(from.sandbox), "%s", sandbox);
	MHD_add_connection(h->mhd, fd, (void *)&from, sizeof(from));
	http_kick(h);
}

static void conn_start(struct http *h, struct MHD_Connection *c, void **ctx)
{
	/* libmicrohttpd 1.0 returns a pointer to one place per connection, which the next call of MHD_get_connection_info() overwrites */
	const struct sockaddr *from =
		MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS)->client_addr;
	int fd = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
	struct http_conn *hc = calloc(1, sizeof(*hc));
	int one = 1, unsent = HTTP_STREAM_SOFT;

	*ctx = hc;
	if (!hc)
		return;
	*hc = (struct http_conn){.http = h, .fd = fd, .next = h->conns};
	hc->deadline = loop_timer(h->loop, conn_expired, hc);
	if (h->conns)
		h->conns->prev = hc;
	h->conns = hc;
	h->stats.connections++;
	h->stats.open++;
	setsockopt(hc->fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	setsockopt(hc->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	/* Otherwise the kernel buffers megabytes for a client that reads nothing, and they are in nobody's account. Bytes in flight to a client that
	 * reads are not limited by this. */
	setsockopt(hc->fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof(unsent));
	if (from->sa_family == AF_UNSPEC)
		memcpy(hc->inward, ((const struct inward_address *)(const void *)from)->sandbox,
			sizeof(hc->inward));
	hc->local = from->sa_family == AF_UNIX;
	if (hc->local)
		peer_user(hc);
	conn_place(h, hc, from);
	conn_deadline(hc, h->c.head_limit_s * SEC);
}

/* Counts the connection in the account of its last request, and in no other. False: that account is full. */
static bool conn_count(struct http_conn *hc, struct account *in)
{
	if (hc->counted == in)
		return true;
	if (in && !account_take(in, 1))
		return false;
	account_give(hc->counted, 1);
	hc->counted = in;
	return true;
}

static void conn_free(struct http *h, struct http_conn *hc)
{
	timer_remove(hc->deadline);
	if (hc->prev)
		hc->prev->next = hc->next;
	else
		h->conns = hc->next;
	if (hc->next)
		hc->next->prev = hc->prev;
	conn_count(hc, NULL);
	conn_limits_remove(&h->limits, &hc->slot);
	h->stats.open--;
	free(hc);
	listeners_look(h);
}

static void conn_end(struct http *h, void **ctx)
{
	struct http_conn *hc = *ctx;

	*ctx = NULL;
	if (!hc)
		return;
	hc->left = true;
	if (!hc->req || !hc->upgraded)
		conn_free(h, hc);
}

void request_give_away(struct request *r, int fd)
{
	watch_remove(take_ptr(r->gone_watch));
	r->given_away = r->hc->upgraded = true;
	r->hc->fd = fd;
	conn_deadline(r->hc, 0);
}

void request_end_given_away(struct request *r)
{
	struct http *h = r->pub.http;
	struct http_conn *hc = take_ptr(r->hc);

	if (h->c.done)
		h->c.done(&r->pub, r->status);
	conn_count(hc, NULL);
	hc->req = NULL;
	hc->fd = -1;
	if (hc->left)
		conn_free(h, hc);
}

static void on_connection(
	void *cls, struct MHD_Connection *c, void **ctx, enum MHD_ConnectionNotificationCode toe)
{
	if (toe == MHD_CONNECTION_NOTIFY_STARTED)
		conn_start(cls, c, ctx);
	else
		conn_end(cls, ctx);
}

/* ---- listeners */

#define ACCEPTS_A_TURN 64
#define LEAVING_MAX    256u /* connections that libmicrohttpd has not cleared away yet */

static void on_listener(void *arg, uint32_t events)
{
	struct http_listener *l = arg;
	struct http *h = l->http;

	for (int i = 0; i < ACCEPTS_A_TURN && conn_limits_room(&h->limits); i++) {
		struct sockaddr_storage from = {0};
		socklen_t n = sizeof(from);
		int fd = accept4(l->fd, (void *)&from, &n, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd < 0)
			break;
		/* accept4() gave no address: the client's Unix socket is not bound */
		if (n < sizeof(from.ss_family))
			from.ss_family = AF_UNIX;
		/* at its own limit libmicrohttpd closes the descriptor itself; else conn_start follows, now or in its next turn */
		MHD_add_connection(
			h->mhd, fd, (void *)&from, MAX(n, (socklen_t)sizeof(from.ss_family)));
	}
	listeners_look(h);
	http_kick(h);
}

/* While the server is full and has no connection to close, new ones wait in the kernel's queue. */
static void listeners_look(struct http *h)
{
	for (size_t i = 0; i < h->nlisteners; i++)
		if (h->listeners[i].watch)
			watch_events(
				h->listeners[i].watch, conn_limits_room(&h->limits) ? EPOLLIN : 0);
}

int http_listen(struct http *h, int owned)
{
	_cleanup_close_ int fd = owned;
	struct http_listener *l = &h->listeners[h->nlisteners];

	if (h->nlisteners == HTTP_LISTENERS_MAX)
		return -ENOSPC;
	/* accept4() must not wait for the next client if one has left before it was accepted */
	if (fcntl(fd, F_SETFL, O_NONBLOCK) < 0)
		return -errno;
	*l = (struct http_listener){.http = h, .fd = fd};
	l->watch = loop_watch(h->loop, fd, EPOLLIN, on_listener, l);
	if (!l->watch)
		return -errno;
	take_fd(&fd);
	h->nlisteners++;
	return 0;
}

static void listeners_close(struct http *h)
{
	for (size_t i = 0; i < h->nlisteners; i++) {
		watch_remove(h->listeners[i].watch);
		close(h->listeners[i].fd);
	}
	h->nlisteners = 0;
}

/* ---- the life of a request */

static void request_free(struct request *r)
{
	struct http *h = r->pub.http;

	watch_remove(r->gone_watch);
	/* first: the account may be a sandbox's, to which the functions below drop the reference */
	stream_forget(r);
	http_unhold(&r->pub, r->held);
	while (r->nfree > 0)
		r->free_fns[--r->nfree](&r->pub);
	if (r->resp)
		MHD_destroy_response(r->resp);
	/* it may have held a registry's password or an access token */
	if (r->whole.p)
		explicit_bzero(r->whole.p, r->whole.len);
	buf_fini(&r->whole);
	buf_fini(&r->out);
	arena_free(r);
	free(r);
	h->live--;
	if (h->quiescing)
		http_kick(h);
}

static void request_maybe_free(struct request *r)
{
	if (r->finished && !r->conn && !r->busy)
		request_free(r);
}

void request_resume(struct request *r)
{
	if (!r->suspended || !r->conn)
		return;
	r->suspended = false;
	MHD_resume_connection(r->conn);
	http_kick(r->pub.http);
}

void request_finished(struct request *r)
{
	ASSERT(!r->finished);
	r->finished = true;
	request_resume(r);
	request_maybe_free(r);
}

void http_on_gone(struct http_req *r, http_fn fn)
{
	request_of(r)->gone_fn = fn;
}

void http_on_free(struct http_req *r, http_fn fn)
{
	struct request *q = request_of(r);

	ASSERT(q->nfree < ARRAY_LEN(q->free_fns));
	q->free_fns[q->nfree++] = fn;
}

bool http_client_gone(const struct http_req *r)
{
	return request_of(r)->gone;
}

static void request_gone(struct request *r)
{
	if (r->gone)
		return;
	r->gone = true;
	r->pub.http->stats.gone++;
	if (r->upgrade) {
		upgrade_lost(r);
		return;
	}
	if (r->finished || !r->invoked)
		return;
	r->busy++;
	if (r->body_fn && !r->body_end_told) {
		r->body_end_told = true;
		r->body_fn(&r->pub, NULL, 1);
	}
	if (r->gone_fn && !r->finished)
		r->gone_fn(&r->pub);
	r->busy--;
}

static void client_left(void *arg, uint32_t events)
{
	struct request *r = arg;

	watch_remove(r->gone_watch);
	r->gone_watch = NULL;
	if (!r->conn)
		return;
	shutdown(r->hc->fd, SHUT_RDWR);
	r->busy++;
	request_gone(r);
	r->busy--;
	request_resume(r);
	request_maybe_free(r);
}

void request_watch_client(struct request *r)
{
	if (r->gone_watch || !r->hc || r->gone)
		return;
	r->gone_watch = loop_watch(r->pub.http->loop, r->hc->fd, EPOLLRDHUP, client_left, r);
}

/* No request is in progress on it. A stranger's connection is not counted in an account: it is closed for any newcomer. */
static void conn_waits(struct http_conn *hc, bool showed_key)
{
	if (showed_key) {
		conn_limits_known(&hc->http->limits, &hc->slot);
		return;
	}
	if (!hc->slot.known)
		conn_count(hc, NULL);
	conn_limits_waits(&hc->http->limits, &hc->slot);
}

static void on_completed(
	void *cls, struct MHD_Connection *c, void **ctx, enum MHD_RequestTerminationCode toe)
{
	struct request *r = *ctx;

	if (!r)
		return;
	*ctx = NULL;
	if (r->given_away) {
		r->conn = NULL;
		request_maybe_free(r);
		return;
	}
	r->busy++;
	watch_remove(r->gone_watch);
	r->gone_watch = NULL;
	if (!r->finished)
		request_gone(r);
	if (r->pub.http->c.done && r->seen)
		r->pub.http->c.done(&r->pub, r->gone && !r->queued ? 499 : r->status);
	r->conn = NULL;
	conn_deadline(r->hc, r->pub.http->c.idle_limit_s * SEC);
	if (r->hc) {
		r->hc->req = NULL;
		conn_waits(r->hc, r->pub.principal.role != ROLE_NONE &&
					  conn_count(r->hc, r->pub.connections));
	}
	r->hc = NULL;
	if (!r->invoked)
		r->finished = true;
	r->busy--;
	request_maybe_free(r);
}

static void *on_uri(void *cls, const char *uri, struct MHD_Connection *c)
{
	struct request *r = calloc(1, sizeof(*r));

	if (!r)
		return NULL;
	r->pub.http = cls;
	r->conn = c;
	r->pub.http->live++;
	r->pub.start_ns = mono_ns();
	r->pub.uri = http_strdup(&r->pub, uri, strlen(uri));
	return r;
}

/* ---- the first call: checks the request and finds its route */

struct framing {
	unsigned int lengths, codings;
	uint64_t length;
	size_t bytes;
	bool bad;
};

static void framing_header(void *arg, const char *k, const char *v)
{
	struct framing *f = arg;
	size_t kn = strlen(k);

	f->bytes += kn + strlen(v);
	if (strcspn(k, " \t\r\n") != kn)
		f->bad = true;
	/* libmicrohttpd puts a folded line behind the name: "Transfer-Encoding:\r\n chunked" is a header "Transfer-Encodingchunked" */
	if (kn > 14 && !strncasecmp(k, "Content-Length", 14))
		f->bad = true;
	if (kn > 17 && !strncasecmp(k, "Transfer-Encoding", 17))
		f->bad = true;
	if (!strcasecmp(k, "Content-Length")) {
		f->lengths++;
		if (!*v || v[strspn(v, "0123456789")] || strlen(v) > 18)
			f->bad = true;
		f->length = strtoull(v, NULL, 10);
	} else if (!strcasecmp(k, "Transfer-Encoding")) {
		f->codings++;
		if (strcasecmp(v, "chunked") != 0)
			f->bad = true;
	}
}

/* Finds a header that was folded over two lines (RFC 9112 5.2: to be refused). libmicrohttpd does not report it: it makes one name of the name and the
 * second line, so a proxy in front of us would read another message. But it then copies the name to another place. Name and value of a header on one line
 * are in the buffer as they came, with only blanks between them. */
static enum MHD_Result look_for_fold(
	void *cls, enum MHD_ValueKind kind, const char *k, const char *v)
{
	const char *p = k + strlen(k) + 1;
	bool *folded = cls;

	if (!v)
		return MHD_YES;
	if ((uintptr_t)v < (uintptr_t)p || (uintptr_t)v - (uintptr_t)p > HEAD_BYTES_MAX) {
		*folded = true;
		return MHD_NO;
	}
	while (p < v && (*p == ' ' || *p == '\t'))
		p++;
	*folded = p != v;
	return *folded ? MHD_NO : MHD_YES;
}

static const char *request_id(struct request *r)
{
	const char *theirs = http_header(&r->pub, "X-Request-ID");
	uint8_t raw[16];
	char hexed[33];

	if (theirs && *theirs && strlen(theirs) <= 256) {
		const char *p = theirs;

		while (*p >= ' ' && *p < 127)
			p++;
		if (!*p)
			return http_strdup(&r->pub, theirs, strlen(theirs));
	}
	random_bytes(raw, sizeof(raw));
	for (size_t i = 0; i < sizeof(raw); i++)
		snprintf(hexed + 2 * i, 3, "%02x", raw[i]);
	return http_strdup(&r->pub, hexed, 32);
}

static bool request_split(struct request *r, const char *method)
{
	const char *q = strchr(r->pub.uri, '?');

	r->pub.method = http_strdup(&r->pub, method, strlen(method));
	r->pub.path =
		http_strdup(&r->pub, r->pub.uri, q ? (size_t)(q - r->pub.uri) : strlen(r->pub.uri));
	r->pub.query = q ? q + 1 : "";
	r->pub.prefix = r->pub.log_prefix = "";
	r->pub.id = request_id(r);
	if (r->hc && r->hc->inward[0] &&
		!(r->pub.inward = http_strdup(&r->pub, r->hc->inward, strlen(r->hc->inward))))
		return false;
	return r->pub.method && r->pub.path && r->pub.id;
}

bool http_preflight(struct http_req *r)
{
	const char *want = http_header(r, "Access-Control-Request-Headers");

	if (strcmp(r->method, "OPTIONS") != 0 || !http_header(r, "Origin") ||
		!http_header(r, "Access-Control-Request-Method"))
		return false;
	http_add_header(
		r, "Access-Control-Allow-Methods", "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT");
	http_add_header(r, "Access-Control-Max-Age", "600");
	http_add_header(r, "Access-Control-Allow-Headers", want ? want : "*");
	http_reply(r, 200, "text/plain; charset=utf-8", "OK", 2);
	return true;
}

static void request_invoke(struct request *r)
{
	r->invoked = true;
	r->busy++;
	r->pub.http->c.invoke(&r->pub);
	r->busy--;
}

static enum MHD_Result queue_answer(struct request *r, bool close)
{
	enum MHD_Result rc;

	if (r->aborted || !r->resp)
		return MHD_NO;
	if (close)
		MHD_add_response_header(r->resp, "Connection", "close");
	r->queued = true;
	conn_deadline(
		r->hc, r->streaming && !r->stream_ended ? 0 : r->pub.http->c.write_limit_s * SEC);
	rc = MHD_queue_response(r->conn, (unsigned int)r->status, r->resp);
	if (r->streaming)
		request_watch_client(r);
	return rc;
}

/* Charges the request. Answers if an account has no room for it. */
static void request_charge(struct request *r, size_t head)
{
	r->account = r->pub.account ? r->pub.account : r->pub.http->c.account;
	if (!http_hold(&r->pub, HTTP_REQUEST_COST + 2 * head)) {
		http_error_full(&r->pub);
	} else if (!conn_count(r->hc, r->pub.connections)) {
		http_add_header(&r->pub, "Retry-After", "5");
		http_error(&r->pub, 429, "KUBERNETES::POOL_CAPACITY_EXHAUSTED",
			"%s: %llu connections are open, which is the limit.",
			r->pub.connections->whose, (unsigned long long)r->pub.connections->used);
	}
}

static enum MHD_Result request_begin(struct request *r, const char *method, const char *version)
{
	const union MHD_ConnectionInfo *i =
		MHD_get_connection_info(r->conn, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
	struct http *h = r->pub.http;
	struct framing f = {0};
	bool refused = false, folded = false;

	r->seen = true;
	r->is_1_1 = !strcmp(version, "HTTP/1.1");
	r->hc = i ? i->socket_context : NULL;
	if (r->hc)
		r->hc->req = r;
	r->pub.app = h->c.app;
	h->stats.requests++;
	conn_deadline(r->hc, r->pub.http->c.body_limit_s * SEC);
	if (!r->pub.uri || !r->hc || !request_split(r, method))
		return MHD_NO;
	http_headers_each(&r->pub, framing_header, &f);
	MHD_get_connection_values(r->conn, MHD_HEADER_KIND, look_for_fold, &folded);
	if (folded) {
		h->stats.refused++;
		r->has_body = refused = true;
		http_error(&r->pub, 400, "SANDBOX::INVALID_PARAMETER",
			"a header is folded over two lines, which this server does not take");
	} else if (f.bad || f.lengths + f.codings > 1 ||
		   (f.codings && strcmp(version, "HTTP/1.1") != 0)) {
		h->stats.refused++;
		r->has_body = refused = true;
		http_error(&r->pub, 400, "SANDBOX::INVALID_PARAMETER",
			"the message's length is given twice, or not in a form this server takes");
	} else if (f.bytes + strlen(r->pub.uri) > HEAD_BYTES_MAX) {
		h->stats.refused++;
		r->has_body = refused = true;
		http_error(&r->pub, 431, "SANDBOX::INVALID_PARAMETER",
			"the request's headers are longer than %u bytes", HEAD_BYTES_MAX);
	} else {
		r->has_body = f.codings || f.length > 0;
		if (h->c.dispatch_preflights || !http_preflight(&r->pub))
			r->pub.route = h->c.dispatch(&r->pub);
		ASSERT(r->pub.route || r->finished || r->upgrade);
	}
	if (r->pub.route && !r->finished)
		request_charge(r, f.bytes);
	/* Only a request that was let in keeps its connection from being closed for a newcomer. A stranger could send a part of a request on
	 * every connection that there is, and hold them all until the time limit. */
	if (r->pub.route && !r->finished && (r->pub.principal.role != ROLE_NONE || r->pub.sandbox))
		conn_limits_busy(&h->limits, &r->hc->slot);
	if (r->pub.route && !r->finished) {
		if (r->pub.route->body == HTTP_BODY_WHOLE &&
			f.length > (r->pub.route->body_max ? r->pub.route->body_max
							   : HTTP_BODY_MAX_DEFAULT))
			http_error(
				&r->pub, 413, "SANDBOX::INVALID_PARAMETER", "the body is too long");
		else if (r->pub.route->body == HTTP_BODY_STREAM && r->has_body)
			request_invoke(r);
	}
	/* an early answer to a long body: do not read the body, and close the connection */
	if (r->finished && !r->streaming && r->has_body &&
		(refused || f.codings || f.length > HTTP_EARLY_MAX ||
			http_header(&r->pub, "Expect")))
		return queue_answer(r, true);
	return MHD_YES;
}

/* ---- the following calls */

static void wait_suspended(struct request *r)
{
	r->suspended = true;
	MHD_suspend_connection(r->conn);
	request_watch_client(r);
}

static size_t body_taken(struct request *r, const uint8_t *p, size_t n)
{
	enum http_body kind = r->pub.route ? r->pub.route->body : HTTP_BODY_NONE;
	uint32_t max;
	size_t took;

	r->pub.http->stats.bytes_in += n;
	if (r->finished && kind == HTTP_BODY_STREAM) {
		/* the answer can be sent only after the end of the body */
		conn_deadline(r->hc, r->pub.http->c.body_limit_s * SEC);
		return n;
	}
	if (r->finished || kind == HTTP_BODY_NONE) {
		r->body_seen += n;
		return n;
	}
	if (kind == HTTP_BODY_WHOLE) {
		max = r->pub.route->body_max ? r->pub.route->body_max : HTTP_BODY_MAX_DEFAULT;
		if (r->whole.len + n > max) {
			http_error(
				&r->pub, 413, "SANDBOX::INVALID_PARAMETER", "the body is too long");
			return n;
		}
		if (!http_hold(&r->pub, n)) {
			http_error_full(&r->pub);
			return n;
		}
		if (!r->whole.p)
			buf_init(&r->whole, (size_t)max + 1);
		buf_put(&r->whole, p, n);
		return n;
	}
	if (!r->body_fn)
		return 0;
	conn_deadline(r->hc, r->pub.http->c.body_limit_s * SEC);
	r->busy++;
	took = r->body_fn(&r->pub, p, n);
	r->busy--;
	return r->finished ? n : MIN(took, n);
}

static enum MHD_Result request_piece(struct request *r, const char *p, size_t *n)
{
	size_t took = body_taken(r, (const uint8_t *)p, *n);

	*n -= took;
	if (r->body_seen > HTTP_DISCARD_MAX)
		return MHD_NO;
	if (*n > 0) {
		/* waiting for us, not for the client */
		conn_deadline(r->hc, 0);
		wait_suspended(r);
	}
	return MHD_YES;
}

static void body_is_complete(struct request *r)
{
	enum http_body kind = r->pub.route ? r->pub.route->body : HTTP_BODY_NONE;

	r->body_ended = true;
	conn_deadline(r->hc, 0);
	if (r->finished || r->upgrade)
		return;
	if (kind == HTTP_BODY_WHOLE && r->whole.bad) {
		http_error(&r->pub, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
		return;
	}
	if (!r->invoked) {
		r->pub.body = (const uint8_t *)buf_cstr(&r->whole);
		r->pub.body_len = r->whole.len;
		request_invoke(r);
	}
}

static void body_end_tell(struct request *r)
{
	if (!r->body_ended || !r->body_fn || r->body_end_told || r->finished)
		return;
	r->body_end_told = true;
	r->busy++;
	r->body_fn(&r->pub, NULL, 0);
	r->busy--;
}

static enum MHD_Result on_access(void *cls, struct MHD_Connection *c, const char *url,
	const char *method, const char *version, const char *p, size_t *n, void **ctx)
{
	struct request *r = *ctx;

	if (!r || r->gone || r->aborted)
		return MHD_NO;
	if (!r->seen)
		return request_begin(r, method, version);
	if (*n > 0)
		return request_piece(r, p, n);
	if (!r->body_ended)
		body_is_complete(r);
	body_end_tell(r);
	if (r->aborted)
		return MHD_NO;
	if (r->resp && !r->queued)
		return queue_answer(r, r->pub.http->quiescing && !r->upgrade);
	wait_suspended(r);
	return MHD_YES;
}

void http_body_read(struct http_req *pub, http_body_fn fn)
{
	struct request *r = request_of(pub);

	r->body_fn = fn;
	if (!r->has_body)
		r->body_ended = true;
	else /* libmicrohttpd's epoll is edge-triggered: it misses an end that comes together with data */
		request_watch_client(r);
	request_resume(r);
}

void http_body_resume(struct http_req *pub)
{
	struct request *r = request_of(pub);

	if (r->suspended && !r->body_ended) {
		conn_deadline(r->hc, r->pub.http->c.body_limit_s * SEC);
		request_resume(r);
	}
}

/* ---- the server */

static void on_log(void *cls, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
static void on_log(void *cls, const char *fmt, va_list ap)
{
	char line[300];
	size_t n;

	vsnprintf(line, sizeof(line), fmt, ap);
	n = strlen(line);
	if (n && line[n - 1] == '\n')
		line[n - 1] = 0;
	log_debug("http: %s", line);
}

/* Escapes stay as they are: a path is split into segments before these are decoded. */
static size_t no_unescape(void *cls, struct MHD_Connection *c, char *s)
{
	return strlen(s);
}

struct http *http_create(struct loop *l, const struct http_config *cfg)
{
	struct http *h = calloc(1, sizeof(*h));
	const union MHD_DaemonInfo *info;

	if (!h)
		return NULL;
	*h = (struct http){.loop = l, .c = *cfg};
	h->c.head_limit_s = cfg->head_limit_s ? cfg->head_limit_s : HEAD_LIMIT_S;
	h->c.body_limit_s = cfg->body_limit_s ? cfg->body_limit_s : BODY_LIMIT_S;
	h->c.idle_limit_s = cfg->idle_limit_s ? cfg->idle_limit_s : IDLE_LIMIT_S;
	h->c.write_limit_s = cfg->write_limit_s ? cfg->write_limit_s : WRITE_LIMIT_S;
	h->stall_timer = loop_timer(l, streams_cut_off, h);
	conn_limits_init(&h->limits, cfg->connections_max, cfg->per_address_max);
	h->limits.count_busy = cfg->count_busy;
	h->mhd = MHD_start_daemon(MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_ALLOW_UPGRADE |
					  MHD_USE_ERROR_LOG | MHD_USE_NO_LISTEN_SOCKET,
		0, NULL, NULL, on_access, h, MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL,
		MHD_OPTION_CONNECTION_LIMIT, cfg->connections_max + LEAVING_MAX,
		MHD_OPTION_CONNECTION_TIMEOUT, 0u, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
		(size_t)131072, MHD_OPTION_CONNECTION_MEMORY_INCREMENT, (size_t)16384,
		MHD_OPTION_NOTIFY_COMPLETED, on_completed, h, MHD_OPTION_NOTIFY_CONNECTION,
		on_connection, h, MHD_OPTION_URI_LOG_CALLBACK, on_uri, h,
		MHD_OPTION_UNESCAPE_CALLBACK, no_unescape, NULL, MHD_OPTION_STRICT_FOR_CLIENT, 1,
		MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_END);
	info = h->mhd ? MHD_get_daemon_info(h->mhd, MHD_DAEMON_INFO_EPOLL_FD) : NULL;
	if (info)
		h->watch = loop_watch(l, info->epoll_fd, EPOLLIN, on_epoll, h);
	if (!h->stall_timer || !h->watch ||
		(cfg->listen_fd >= 0 && http_listen(h, cfg->listen_fd) < 0)) {
		http_destroy(h);
		return NULL;
	}
	return h;
}

void http_quiesce(struct http *h, timer_fn drained, void *arg)
{
	listeners_close(h);
	h->quiescing = true;
	h->drained = drained;
	h->drained_arg = arg;
	for (struct http_conn *c = h->conns, *next; c; c = next) {
		next = c->next;
		if (c->req && c->req->upgrade)
			upgrade_leave(c->req);
	}
	http_kick(h);
}

void http_destroy(struct http *h)
{
	if (!h)
		return;
	listeners_close(h);
	watch_remove(h->watch);
	/* libmicrohttpd insists that nothing is suspended when it stops */
	h->run_pending = true;
	for (struct http_conn *c = h->conns, *next; c; c = next) {
		next = c->next;
		if (c->req && c->req->upgrade)
			upgrade_lost(c->req);
	}
	for (struct http_conn *c = h->conns; c; c = c->next) {
		shutdown(c->fd, SHUT_RDWR);
		if (c->req && c->req->suspended) {
			c->req->aborted = true;
			request_resume(c->req);
		}
	}
	if (h->mhd) {
		MHD_run(h->mhd);
		MHD_stop_daemon(h->mhd);
	}
	timer_remove(h->stall_timer);
	free(h);
}

const struct http_stats *http_stats(const struct http *h)
{
	return &h->stats;
}
