/* SPDX-License-Identifier: Apache-2.0
 *
 * reply.c: answers, whole and streamed. mayflyd. What handlers put into a header may come from
 * a guest or another client: a header that could split the response is dropped.
 */
#include "api/http/http_int.h"
#include "api/http/event_stream.h"
#include "api/http/upgrade.h"

#include <cjson/cJSON.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "lib/log.h"

static bool header_is_safe(const char *k, const char *v)
{
	if (!*k)
		return false;
	for (const unsigned char *p = (const unsigned char *)k; *p; p++)
		if (*p <= ' ' || *p == ':' || *p >= 127)
			return false;
	for (const unsigned char *p = (const unsigned char *)v; *p; p++)
		if ((*p < ' ' && *p != '\t') || *p == 127)
			return false;
	return true;
}

void http_add_header(struct http_req *pub, const char *name, const char *value)
{
	struct request *r = request_of(pub);
	char *k, *v;

	if (!name || !value || r->nheaders == HTTP_HEADERS_MAX || !header_is_safe(name, value))
		return;
	k = http_strdup(pub, name, strlen(name));
	v = http_strdup(pub, value, strlen(value));
	if (k && v)
		r->headers[r->nheaders++] = (struct http_pair){k, v};
}

static void response_headers(struct request *r)
{
	const char *origin = http_header(&r->pub, "Origin");

	for (size_t i = 0; i < r->nheaders; i++)
		MHD_add_response_header(r->resp, r->headers[i].key, r->headers[i].val);
	MHD_add_response_header(r->resp, "X-Request-ID", r->pub.id);
	if (!origin || r->pub.own_origin)
		return;
	MHD_add_response_header(r->resp, "Access-Control-Allow-Origin", "*");
	MHD_add_response_header(r->resp, "Access-Control-Allow-Credentials", "true");
	MHD_add_response_header(r->resp, "Access-Control-Expose-Headers", "OPEN-SANDBOX-ORIGIN");
}

static void reply_with(struct request *r, int status, const char *type, struct MHD_Response *resp)
{
	/* The handler was told of the end, but something that it started before still answers. */
	if (r->aborted) {
		if (resp)
			MHD_destroy_response(resp);
		return;
	}
	ASSERT(!r->finished && !r->streaming);
	r->status = status;
	r->resp = resp;
	if (!resp) {
		r->aborted = true;
	} else {
		if (type)
			MHD_add_response_header(resp, "Content-Type", type);
		response_headers(r);
	}
	request_finished(r);
}

void request_upgrade(struct request *r, struct MHD_Response *takes, struct http_upgrade *u)
{
	ASSERT(!r->finished && !r->streaming && !r->upgrade);
	r->status = 101;
	r->resp = takes;
	r->upgrade = u;
	response_headers(r);
	request_resume(r);
}

bool http_hold(struct http_req *pub, size_t n)
{
	struct request *r = request_of(pub);

	if (!account_take(r->account, n)) {
		r->full = account_full(r->account, n);
		return false;
	}
	r->held += n;
	return true;
}

void http_unhold(struct http_req *pub, size_t n)
{
	struct request *r = request_of(pub);

	ASSERT(n <= r->held);
	r->held -= n;
	account_give(r->account, n);
}

void http_error_full(struct http_req *pub)
{
	const struct account *full = request_of(pub)->full;

	http_add_header(pub, "Retry-After", "5");
	http_error(pub, 429, "KUBERNETES::POOL_CAPACITY_EXHAUSTED",
		"This server holds nearly as much for %s as it may (%llu of %llu bytes). Read or "
		"close answers that are open, and try again.",
		full ? full->whose : "this request", (unsigned long long)(full ? full->used : 0),
		(unsigned long long)(full ? full->limit : 0));
}

static void reply_whole(struct http_req *pub, int status, const char *type, const void *body,
	size_t n, bool may_be_refused)
{
	struct request *r = request_of(pub);

	if (n > HTTP_SMALL_ANSWER && may_be_refused && !r->aborted) {
		if (!http_hold(pub, n)) {
			http_error_full(pub);
			return;
		}
	} else {
		account_force(r->account, n);
		r->held += n;
	}
	pub->http->stats.bytes_out += n;
	reply_with(r, status, type,
		MHD_create_response_from_buffer(n, (void *)(uintptr_t)body, MHD_RESPMEM_MUST_COPY));
}

/* If a budget is full, the answer to a GET may be refused: the client can ask again. Any other request may have changed something, and its client must
 * be told. */
void http_reply(struct http_req *r, int status, const char *type, const void *body, size_t n)
{
	reply_whole(r, status, type, body, n, !strcmp(r->method, "GET"));
}

void http_reply_kept(struct http_req *r, int status, const char *type, const void *body, size_t n)
{
	reply_whole(r, status, type, body, n, true);
}

void http_reply_empty(struct http_req *pub, int status)
{
	reply_with(request_of(pub), status, NULL,
		MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT));
}

void http_reply_json(struct http_req *r, int status, struct cJSON *takes)
{
	_cleanup_free_ char *s = takes ? cJSON_PrintUnformatted(takes) : NULL;
	_cleanup_(buf_fini) struct buf b;

	cJSON_Delete(takes);
	buf_init(&b, SIZE_MAX / 2);
	if (s)
		utf8_clean(&b, s, strlen(s)); /* see list_put() */
	if (!s || b.bad)
		http_error(r, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
	else
		http_reply(r, status, "application/json", b.p, b.len);
}

/* An error of the gateway. false: errors are JSON here. */
static bool error_as_text(struct http_req *r, int status, const char *msg)
{
	_cleanup_(buf_fini) struct buf b = {0};

	if (!r->error_text)
		return false;
	buf_init(&b, 16384);
	utf8_clean(&b, r->error_text, strlen(r->error_text));
	utf8_clean(&b, msg, strlen(msg));
	buf_put(&b, "\n", 1);
	/* it has a sandbox's id and may have its words: no browser may take it for a page */
	http_add_header(r, "X-Content-Type-Options", "nosniff");
	http_reply(r, status, "text/plain; charset=utf-8", b.p, b.bad ? 0 : b.len);
	return true;
}

void http_error(struct http_req *r, int status, const char *code, const char *fmt, ...)
{
	_cleanup_(buf_fini) struct buf b;
	char msg[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(msg, sizeof(msg), fmt, ap);
	va_end(ap);
	/* msg may be cut, or come from a path or a guest: it can be any bytes */
	buf_init(&b, 16384);
	if (http_websocket_error(r, status, msg) || error_as_text(r, status, msg))
		return;
	buf_printf(&b, "{\"code\":\"%s\",\"message\":", code);
	json_string(&b, msg);
	buf_put(&b, "}", 1);
	if (b.bad)
		http_reply_empty(r, status);
	else
		http_reply(r, status, "application/json", b.p, b.len);
}

void http_error_detail(struct http_req *r, int status, const char *detail)
{
	char s[128];
	int n = snprintf(s, sizeof(s), "{\"detail\":\"%s\"}", detail);

	if (http_websocket_error(r, status, detail) || error_as_text(r, status, detail))
		return;
	http_reply(r, status, "application/json", s, (size_t)n);
}

/* ---- streams whose clients read nothing: one list for the server, first the one without progress for longest */

static void stall_unlink(struct request *r)
{
	struct http *h = r->pub.http;

	if (!r->stalls)
		return;
	r->stalls = false;
	*(r->stall_prev ? &r->stall_prev->stall_next : &h->stall_first) = r->stall_next;
	*(r->stall_next ? &r->stall_next->stall_prev : &h->stall_last) = r->stall_prev;
	r->stall_prev = r->stall_next = NULL;
}

/* Its client took something, or there are bytes to take again. */
static void stall_progress(struct request *r)
{
	struct http *h = r->pub.http;

	stall_unlink(r);
	if (r->out.len == r->out_off)
		return;
	r->took_ns = mono_ns();
	r->stalls = true;
	r->stall_prev = h->stall_last;
	*(h->stall_last ? &h->stall_last->stall_next : &h->stall_first) = r;
	h->stall_last = r;
	if (h->stall_first == r)
		timer_after(h->stall_timer, h->c.write_limit_s * 1000000000ull);
}

void stream_forget(struct request *r)
{
	stall_unlink(r);
	account_give(r->account, r->out.len - r->out_off);
	buf_reset(&r->out);
	r->out_off = 0;
}

static void stream_cut_off(struct request *r, const char *why)
{
	log_info("%s %s%s: cut off: its client took nothing for %llu s%s, request %s",
		r->pub.method, r->pub.log_prefix, r->pub.path,
		(unsigned long long)((mono_ns() - r->took_ns) / 1000000000), why, r->pub.id);
	r->pub.http->stats.cut_off++;
	stream_forget(r);
	r->aborted = true;
	if (r->hc)
		shutdown(r->hc->fd, SHUT_RDWR);
	request_resume(r);
}

void streams_cut_off(void *arg)
{
	struct http *h = arg;
	uint64_t limit = h->c.write_limit_s * 1000000000ull, now = mono_ns();

	while (h->stall_first && now - h->stall_first->took_ns >= limit)
		stream_cut_off(h->stall_first, "");
	if (h->stall_first)
		timer_set(h->stall_timer, h->stall_first->took_ns + limit);
}

/* An account has passed its limit: cuts off the streams in it whose clients took nothing for longest. Streams of other accounts stay. */
static void streams_fit(struct http *h, struct account *a)
{
	struct account *full;

	while ((full = account_full(a, 0))) {
		struct request *r = h->stall_first;
		char why[128];

		while (r && (!account_within(r->account, full) ||
				    r->account->used <= r->account->reserve))
			r = r->stall_next;
		if (!r)
			return;
		snprintf(why, sizeof(why), ", and the budget of %s is full", full->whose);
		full->refused++;
		stream_cut_off(r, why);
	}
}

/* libmicrohttpd asks for the next bytes of a stream. If there are none, the connection is suspended until the next write. */
ssize_t stream_read(void *cls, uint64_t pos, char *to, size_t max)
{
	struct request *r = cls;
	size_t n = r->out.len - r->out_off;

	if (r->gone || r->aborted)
		return MHD_CONTENT_READER_END_WITH_ERROR;
	if (n > max)
		n = max;
	if (n == 0) {
		if (r->stream_ended)
			return r->stream_length >= 0 && pos < (uint64_t)r->stream_length
				       ? MHD_CONTENT_READER_END_WITH_ERROR
				       : MHD_CONTENT_READER_END_OF_STREAM;
		r->suspended = true;
		MHD_suspend_connection(r->conn);
		return 0;
	}
	memcpy(to, r->out.p + r->out_off, n);
	r->out_off += n;
	account_give(r->account, n);
	stall_progress(r);
	if (r->stream_ended)
		conn_deadline(r->hc, r->pub.http->c.write_limit_s * 1000000000ull);
	if (r->out_off == r->out.len || r->out_off >= HTTP_STREAM_SOFT) {
		buf_consume(&r->out, r->out_off);
		r->out_off = 0;
	}
	r->pub.http->stats.bytes_out += n;
	if (r->stream_full && http_stream_room(&r->pub) >= HTTP_STREAM_SOFT / 2) {
		r->stream_full = false;
		r->busy++;
		if (r->writable && !r->finished)
			r->writable(&r->pub);
		r->busy--;
	}
	return (ssize_t)n;
}

void http_stream_begin(struct http_req *pub, int status, const char *type, int64_t length)
{
	struct request *r = request_of(pub);

	ASSERT(!r->finished && !r->streaming);
	r->streaming = true;
	r->status = status;
	r->stream_length = length;
	buf_init(&r->out, HTTP_STREAM_SOFT + 2 * HTTP_STREAM_HARD);
	r->resp = MHD_create_response_from_callback(
		length < 0 ? MHD_SIZE_UNKNOWN : (uint64_t)length, 32768, stream_read, r, NULL);
	if (!r->resp) {
		r->aborted = true;
	} else {
		if (type)
			MHD_add_response_header(r->resp, "Content-Type", type);
		response_headers(r);
	}
	request_resume(r);
}

size_t http_stream_room(const struct http_req *pub)
{
	const struct request *r = request_of(pub);
	size_t used = r->out.len - r->out_off;

	if (r->gone || r->aborted)
		return HTTP_STREAM_SOFT;
	return used >= HTTP_STREAM_SOFT ? 0 : HTTP_STREAM_SOFT - used;
}

void http_stream_write(struct http_req *pub, const void *p, size_t n)
{
	struct request *r = request_of(pub);

	if (r->gone || r->aborted || n == 0)
		return;
	ASSERT(r->streaming && !r->finished);
	if (r->out.len - r->out_off + n > HTTP_STREAM_HARD) {
		r->aborted = true;
	} else {
		buf_put(&r->out, p, n);
		if (r->out.bad)
			r->aborted = true;
		else
			account_force(r->account, n);
		if (!r->stalls)
			stall_progress(r);
		streams_fit(pub->http, r->account);
	}
	/* from half full on: a writer of large pieces stops before the buffer is full */
	if (http_stream_room(pub) < HTTP_STREAM_SOFT / 2)
		r->stream_full = true;
	request_resume(r);
}

void http_stream_writable(struct http_req *r, http_fn fn)
{
	request_of(r)->writable = fn;
}

void http_stream_end(struct http_req *pub)
{
	struct request *r = request_of(pub);

	ASSERT(r->streaming && !r->finished);
	r->stream_ended = true;
	conn_deadline(r->hc, pub->http->c.write_limit_s * 1000000000ull);
	request_finished(r);
}

void http_abort(struct http_req *pub)
{
	struct request *r = request_of(pub);

	r->aborted = true;
	request_finished(r);
}
