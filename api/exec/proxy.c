/* SPDX-License-Identifier: Apache-2.0
 *
 * proxy.c: the way from a client to a server inside a guest: one HTTP request over one dialled
 * connection, streamed both ways. mayflyd. The client's headers and the guest's whole answer are
 * hostile: names and values are checked on the way in by libmicrohttpd and here, on the way out by
 * http1.c; hop-by-hop headers and headers with this host's secrets never pass. The guest
 * always gets "Connection: close", so a connection carries one answer only. A request body is passed
 * on in chunks, unless its length is known.
 *
 * An upgrade is offered to the server in the guest before the client has its answer. If that server accepts with a 101, the client gets one, too, and both
 * connections become one (relay.c). The handshake of a WebSocket is made again on each side: keys and extensions do not pass.
 */
#include "api/exec/execd_int.h"
#include "api/exec/relay.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "api/core/daemon.h"
#include "api/http/authenticate.h"
#include "lib/http1.h"
#include "lib/websocket.h"

#define REQUEST_HEAD_MAX (256u * 1024)

struct proxy {
	struct http_req *r;
	struct agent_dial *dial;
	struct http1_response *resp;
	struct timer *limit;
	struct buf head; /* of the request */
	const char *connection;
	bool keyed; /* the client showed an API key: it is a program and no browser, so cookies are its own */
	bool documented; /* [/v1]/sandboxes/ID/proxy/PORT, as the protocol has it; else /ID/PORT */
	bool has_body, chunked, body_done, opened, streaming, done;
	const char *upgrade; /* what the client wants to speak instead of HTTP; NULL: HTTP */
	bool websocket;
	char key[WS_KEY_CHARS + 1]; /* ours, towards the guest */
	struct buf protocols;       /* what the client offered, all headers together */
	struct relay relay;
};

static void proxy_free(struct http_req *r)
{
	struct proxy *x = r->user;

	agent_dial_close(x->dial);
	timer_remove(x->limit);
	if (x->resp)
		http1_fini(x->resp);
	free(x->resp);
	buf_fini(&x->head);
	buf_fini(&x->protocols);
}

static void proxy_fail(struct proxy *x, int status, const char *code, const char *why)
{
	if (x->done)
		return;
	x->done = true;
	agent_dial_close(take_ptr(x->dial));
	timer_set(x->limit, 0);
	if (x->streaming)
		http_abort(x->r);
	else
		execd_error(x->r, status, code, "%s", why);
}

static void proxy_gone(struct http_req *r)
{
	struct proxy *x = r->user;

	if (x->done)
		return;
	x->done = true;
	agent_dial_close(take_ptr(x->dial));
	http_abort(r);
}

uint64_t execd_backend_limit_ns(const struct http_req *r)
{
	const struct daemon *d = r->app;

	return (uint64_t)(d ? d->cfg.backend_timeout_seconds : 180) * 1000000000u;
}

static void too_late(void *arg)
{
	proxy_fail(arg, 504, "BACKEND_TIMEOUT", "the server in the sandbox did not answer in time");
}

/* ---- the request's head */

static const char *const hop_by_hop[] = {"connection", "keep-alive", "proxy-authenticate",
	"proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade", "proxy-connection"};
/* Headers of a request that never pass: the proxy writes them itself, they are for this server only, or a client could lie with them. */
static const char *const never[] = {"host", "content-length", "expect", "open-sandbox-api-key",
	"opensandbox-secure-access", "opensandbox-access-renew", "opensandbox-ingress-to",
	"open-sandbox-ingress", "opensandbox-egress-auth", "x-execd-access-token", "forwarded",
	"x-real-ip"};
/* of a WebSocket's handshake: each side makes its own */
static const char *const of_handshake[] = {"sec-websocket-key", "sec-websocket-version",
	"sec-websocket-extensions", "sec-websocket-accept"};
static const char *const credentials[] = {"authorization", "cookie"};
/* Headers of an answer that would hold for this server's whole origin, which all sandboxes and the API share. */
static const char *const of_origin[] = {"service-worker-allowed", "clear-site-data"};

/* If a header's name begins with `begin` (lower case), returns the rest of it, otherwise NULL. '_' counts as '-': CGI and WSGI servers take both for one name. */
static const char *name_after(const char *name, const char *begin)
{
	for (; *begin; begin++, name++) {
		char c = *name == '_' ? '-' : *name;

		if (c >= 'A' && c <= 'Z')
			c = (char)(c | 0x20);
		if (c != *begin)
			return NULL;
	}
	return name;
}

static bool listed(const char *const *list, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++) {
		const char *after = name_after(name, list[i]);

		if (after && !*after)
			return true;
	}
	return false;
}
#define LISTED(list, name) listed(list, ARRAY_LEN(list), name)

static bool value_is_clean(const char *v)
{
	for (; *v; v++)
		if (((unsigned char)*v < 0x20 && *v != '\t') || *v == 0x7f)
			return false;
	return true;
}

/* Cookies belong to this server's origin, so they may be another sandbox's. Authorization belongs to the application, unless it has a key of ours. */
static bool is_secret(const struct proxy *x, const char *k, const char *v)
{
	if (x->documented)
		return LISTED(credentials, k);
	return (!strcasecmp(k, "cookie") && !x->keyed && !x->r->own_origin) ||
	       (!strcasecmp(k, "authorization") && holds_our_key(x->r, v));
}

/* A request through the gateway: a page's address in Origin or Referer may have a signature in it, which no sandbox may see. */
static const char *shown(const struct proxy *x, const char *k, const char *v)
{
	if (!x->r->gateway)
		return v;
	return !strcasecmp(k, "origin")    ? x->r->shown_origin
	       : !strcasecmp(k, "referer") ? x->r->shown_referer
					   : v;
}

static void pass_header(void *arg, const char *k, const char *v)
{
	struct proxy *x = arg;

	if (LISTED(hop_by_hop, k) || LISTED(never, k) || name_after(k, "x-forwarded-") ||
		http_list_has(x->connection, k) || is_secret(x, k, v) ||
		(x->websocket && LISTED(of_handshake, k)))
		return;
	v = shown(x, k, v);
	if (!v)
		return;
	if (x->websocket && !strcasecmp(k, "sec-websocket-protocol"))
		buf_printf(&x->protocols, "%s%s", x->protocols.len ? "," : "", v);
	if (http1_token(k, strlen(k)) && value_is_clean(v))
		buf_printf(&x->head, "%s: %s\r\n", k, v);
}

/* The target as it came, with its query. libmicrohttpd passes on no blank or control character in it;
 * this looks again. */
static bool put_request_line(struct proxy *x, const char *path)
{
	const char *q = x->r->query;

	for (const char *p = path; *p; p++)
		if ((unsigned char)*p <= 0x20 || *p == 0x7f)
			return false;
	for (const char *p = q; *p; p++)
		if ((unsigned char)*p <= 0x20 || *p == 0x7f)
			return false;
	if (!http1_token(x->r->method, strlen(x->r->method)))
		return false;
	buf_printf(&x->head, "%s %s%s%s%s HTTP/1.1\r\n", x->r->method, *path == '/' ? "" : "/",
		path, *q ? "?" : "", q);
	return true;
}

static bool has_body(const struct http_req *r)
{
	const char *length = http_header(r, "Content-Length");

	return http_header(r, "Transfer-Encoding") || (length && strcmp(length, "0") != 0);
}

/* X-Forwarded-*: protocol, host and address of the client. Behind a proxy of the operator, the gateway takes what that proxy says. */
static void put_forwarded(struct proxy *x)
{
	const struct daemon *d = x->r->app;
	bool behind = x->r->gateway && d && d->cfg.ingress_behind_proxy;
	const char *proto = behind ? http_header(x->r, "X-Forwarded-Proto") : NULL;
	char ip[64];

	buf_printf(&x->head, "X-Forwarded-Proto: %s\r\nX-Forwarded-Host: %s\r\n",
		proto && !strcmp(proto, "https") ? "https" : "http",
		x->r->own_origin ? x->r->shown_host : http_host(x->r));
	if (http_client_address(x->r, behind, ip, sizeof(ip)))
		buf_printf(&x->head, "X-Forwarded-For: %s\r\n", ip);
}

static bool put_head(struct proxy *x, const char *path, uint16_t port)
{
	const char *length = http_header(x->r, "Content-Length");

	x->connection = http_header(x->r, "Connection");
	if (!put_request_line(x, path))
		return false;
	/* applications compare Origin with Host */
	if (x->r->own_origin)
		buf_printf(&x->head, "Host: %s\r\n", x->r->shown_host);
	else
		buf_printf(&x->head, "Host: 127.0.0.1:%u\r\n", port);
	http_headers_each(x->r, pass_header, x);
	put_forwarded(x);
	x->chunked = http_header(x->r, "Transfer-Encoding") != NULL;
	if (x->chunked)
		buf_printf(&x->head, "Transfer-Encoding: chunked\r\n");
	else if (length && strspn(length, "0123456789") == strlen(length))
		buf_printf(&x->head, "Content-Length: %s\r\n", length);
	if (x->websocket)
		buf_printf(
			&x->head, "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %s\r\n", x->key);
	if (x->upgrade)
		buf_printf(&x->head, "Connection: Upgrade\r\nUpgrade: %s\r\n\r\n", x->upgrade);
	else
		buf_printf(&x->head, "Connection: close\r\n\r\n");
	return !x->head.bad && !x->protocols.bad;
}

/* ---- upgrades */

/* Versions of HTTP and TLS are offers, which a server may ignore. Java's client makes one with each request. */
static const char *const left_alone[] = {"h2c", "h2", "http/1.1", "http/2.0", "tls/1.0", "tls/1.2"};

static void look_for_upgrade(struct proxy *x)
{
	const char *wanted = http_header(x->r, "Upgrade");

	if (!wanted || !http1_token(wanted, strcspn(wanted, "/")) || x->has_body ||
		!value_is_clean(wanted) || strpbrk(wanted, ", \t") || LISTED(left_alone, wanted) ||
		!http_list_has(http_header(x->r, "Connection"), "upgrade"))
		return;
	x->websocket = !strcasecmp(wanted, "websocket");
	x->upgrade = x->websocket ? "websocket" : wanted;
	if (x->websocket)
		ws_new_key(x->key);
}

/* ---- the request's body */

/* Sends the last chunk. An empty body may have ended before the dial was open. */
static void end_body(struct proxy *x)
{
	if (x->body_done && x->chunked)
		agent_dial_send(x->dial, "0\r\n\r\n", 5);
}

static size_t proxy_body(struct http_req *r, const uint8_t *p, size_t n)
{
	struct proxy *x = r->user;
	char size[24];

	if (x->done || x->body_done)
		return n;
	if (!p) {
		x->body_done = n == 0;
		if (x->opened)
			end_body(x);
		return 0;
	}
	if (!x->opened || agent_dial_full(x->dial))
		return 0;
	if (x->chunked) {
		snprintf(size, sizeof(size), "%zx\r\n", n);
		agent_dial_send(x->dial, size, strlen(size));
	}
	agent_dial_send(x->dial, p, n);
	if (x->chunked)
		agent_dial_send(x->dial, "\r\n", 2);
	return n;
}

static void dial_opened(void *arg)
{
	struct proxy *x = arg;

	x->opened = true;
	agent_dial_send(x->dial, x->head.p, x->head.len);
	buf_reset(&x->head);
	timer_after(x->limit, execd_backend_limit_ns(x->r));
	end_body(x);
	if (x->has_body && !x->body_done)
		http_body_resume(x->r);
}

static void dial_drained(void *arg)
{
	struct proxy *x = arg;

	if (x->has_body && !x->body_done && !x->done)
		http_body_resume(x->r);
}

/* ---- the answer */

/* A Location that is a path on the server in the guest gets the endpoint's prefix. */
static void pass_location(struct proxy *x, const char *v)
{
	_cleanup_free_ char *full = NULL;
	const char *prefix = x->r->prefix;

	if (v[0] == '/' && v[1] != '/' &&
		asprintf(&full, "%s%s%s", prefix, http_param(x->r, "port") ? "/proxy/" : "",
			http_param(x->r, "port") ? http_param(x->r, "port") : "") >= 0) {
		_cleanup_free_ char *whole = NULL;

		if (asprintf(&whole, "%s%s", full, v) >= 0)
			http_add_header(x->r, "Location", whole);
	} else {
		http_add_header(x->r, "Location", v);
	}
}

/* Passes a cookie without its Domain. With it, browsers would send the cookie to other sandboxes below the gateway's domain. */
static void pass_cookie(struct proxy *x, const char *v)
{
	struct buf b;

	buf_init(&b, HTTP1_HEAD_MAX);
	for (const char *p = v; *p;) {
		size_t n = strcspn(p, ";"), blank = strspn(p, " \t");

		if (p == v || strncasecmp(p + blank, "domain", 6) != 0)
			buf_printf(&b, "%s%.*s", p == v ? "" : ";", (int)n, p);
		p += n;
		p += *p == ';';
	}
	http_add_header(x->r, "Set-Cookie", buf_cstr(&b));
	buf_fini(&b);
}

static void pass_answer_header(struct proxy *x, const char *k, const char *v)
{
	if (!strcasecmp(k, "location"))
		pass_location(x, v);
	else if (x->r->own_origin && !strcasecmp(k, "set-cookie"))
		pass_cookie(x, v);
	else
		http_add_header(x->r, k, v);
}

/* Headers that would hold for an origin that this application shares with others. */
static bool is_of_origin(const struct proxy *x, const char *k)
{
	if (x->r->own_origin)
		return false;
	return LISTED(of_origin, k) ||
	       (!x->documented && !x->keyed && !strcasecmp(k, "set-cookie")) ||
	       !strncasecmp(k, "access-control-", 15);
}

static void pass_answer_headers(struct proxy *x)
{
	const struct http1_response *h = x->resp;
	const char *connection = NULL;

	for (size_t i = 0; i < h->nheaders; i++)
		if (!strcasecmp(h->headers[i].name, "connection"))
			connection = h->headers[i].value;
	for (size_t i = 0; i < h->nheaders; i++) {
		const char *k = h->headers[i].name, *v = h->headers[i].value;

		if (LISTED(hop_by_hop, k) || !strcasecmp(k, "server") ||
			!strcasecmp(k, "content-length") || !strcasecmp(k, "date") ||
			http_list_has(connection, k) || !strcasecmp(k, "x-request-id") ||
			is_of_origin(x, k) || !strcasecmp(k, "opensandbox-wake"))
			continue;
		pass_answer_header(x, k, v);
	}
}

static void begin_answer(struct proxy *x)
{
	const struct http1_response *h = x->resp;
	int64_t length = -1;

	pass_answer_headers(x);
	if (h->no_body)
		length = h->to_head && h->has_length ? (int64_t)h->length : 0;
	else if (h->has_length)
		length = (int64_t)h->length;
	x->streaming = true;
	timer_set(x->limit, 0);
	http_stream_begin(x->r, h->status, NULL, length);
}

static void end_answer(struct proxy *x)
{
	x->done = true;
	timer_set(x->limit, 0);
	agent_dial_close(take_ptr(x->dial));
	http_stream_end(x->r);
}

/* The header of a 101 that names the new protocol. */
static const char *upgraded_to(const struct http1_response *h)
{
	for (size_t i = 0; i < h->nheaders; i++)
		if (!strcasecmp(h->headers[i].name, "upgrade"))
			return h->headers[i].value;
	return "";
}

/* The server in the guest answered 101; p, n: what it sent behind that. */
static void begin_relay(struct proxy *x, const uint8_t *p, size_t n)
{
	const char *why = NULL, *protocol = "";

	if (x->websocket)
		why = ws_response_check(x->resp, x->key, buf_cstr(&x->protocols), &protocol);
	else if (strcasecmp(upgraded_to(x->resp), x->upgrade) != 0)
		why = "the server in the sandbox upgrades to another protocol";
	if (why) {
		proxy_fail(x, 502, "BACKEND_RESPONSE_FAILED", why);
		return;
	}
	x->done = true;
	timer_set(x->limit, 0);
	relay_begin(&x->relay, take_ptr(x->dial), x->websocket);
	if (!x->websocket)
		pass_answer_headers(x);
	x->relay.client =
		x->websocket ? http_websocket_accept(x->r, protocol, &relay_client_ops, &x->relay)
			     : http_upgrade(x->r, x->upgrade, &relay_client_ops, &x->relay);
	if (!x->relay.client) {
		relay_end(&x->relay, WS_INTERNAL, "");
		execd_error(x->r, 500, "RUNTIME_ERROR", "this connection cannot be upgraded");
		return;
	}
	if (n)
		relay_from_backend(&x->relay, p, n);
}

/* The server answered a WebSocket's handshake, but not with 101. Where the protocol wants a close code instead of a status, the client gets one. */
static bool refuses_websocket(struct proxy *x)
{
	if (!x->websocket || !x->r->ws_codes || x->resp->status == 101)
		return false;
	x->done = true;
	agent_dial_close(take_ptr(x->dial));
	timer_set(x->limit, 0);
	http_websocket_refuse(x->r, WS_POLICY, "the server in the sandbox refused the WebSocket");
	return true;
}

static void dial_bytes(void *arg, const uint8_t *p, size_t n)
{
	struct proxy *x = arg;
	const uint8_t *data = NULL;
	size_t len = 0;

	if (x->done)
		return;
	if (n == 0) {
		if (x->streaming && http1_closed(x->resp))
			end_answer(x);
		else
			proxy_fail(x, 502, "BACKEND_RESPONSE_FAILED",
				"the server in the sandbox closed before its answer was whole");
		return;
	}
	for (;;) {
		enum http1_ev ev = http1_next(x->resp, &p, &n, &data, &len);

		if (ev == H1_HEAD && x->resp->status == 101) {
			begin_relay(x, p, n);
			return;
		}
		if (ev == H1_HEAD && refuses_websocket(x))
			return;
		if (ev == H1_HEAD) {
			begin_answer(x);
		} else if (ev == H1_DATA) {
			http_stream_write(x->r, data, len);
		} else if (ev == H1_DONE) {
			end_answer(x);
			return;
		} else if (ev == H1_BAD) {
			proxy_fail(x, 502, "BACKEND_RESPONSE_FAILED", x->resp->why);
			return;
		} else {
			break;
		}
	}
	if (x->streaming && http_stream_room(x->r) == 0) {
		agent_dial_hold(x->dial, true);
		/* The client gets no answer before its request is complete. A server that answers while
		 * it still has to read would wait for us, and we for it. */
		if (x->has_body && !x->body_done)
			timer_after(x->limit, execd_backend_limit_ns(x->r));
	}
}

static void answer_writable(struct http_req *r)
{
	struct proxy *x = r->user;

	if (x->done || !x->dial)
		return;
	timer_set(x->limit, 0);
	agent_dial_hold(x->dial, false);
}

static void dial_closed(void *arg, const struct agent_reply *rep)
{
	struct proxy *x = arg;

	if (x->done)
		return;
	if (!x->opened && (rep->err == ETIMEDOUT))
		proxy_fail(x, 504, "BACKEND_TIMEOUT",
			"the server in the sandbox did not answer in time");
	else if (!x->opened)
		proxy_fail(x, 502, "BACKEND_CONNECTION_FAILED",
			"nothing listens on this port in the sandbox");
	else if (x->streaming && http1_closed(x->resp) && !rep->err)
		end_answer(x);
	else
		proxy_fail(x, 502, "BACKEND_RESPONSE_FAILED",
			"the connection to the server in the sandbox broke off");
}

static const struct agent_dial_ops dial_ops = {dial_opened, dial_bytes, dial_drained, dial_closed};

static void proxy_start(struct http_req *r, const char *path, uint16_t port, bool documented)
{
	struct agentc *a = sandbox_agentc(r->sandbox);
	struct proxy *x = http_alloc(r, sizeof(*x));
	const char *key = http_header(r, "OPEN-SANDBOX-API-KEY");

	if (!x || !a) {
		execd_error(r, 502, "BACKEND_CONNECTION_FAILED", "the sandbox does not run");
		return;
	}
	x->r = r;
	x->documented = documented;
	x->keyed = !r->gateway && key && holds_our_key(r, key);
	buf_init(&x->head, REQUEST_HEAD_MAX);
	buf_init(&x->protocols, WS_PROTOCOLS_BYTES);
	x->has_body = has_body(r);
	look_for_upgrade(x);
	if (x->websocket && !http_websocket_ok(r))
		return;
	r->user = x;
	http_on_free(r, proxy_free);
	x->resp = malloc(sizeof(*x->resp));
	x->limit = loop_timer(agentc_loop(a), too_late, x);
	if (x->resp) {
		http1_init(x->resp, !strcmp(r->method, "HEAD"));
		x->resp->upgrade_ok = x->upgrade != NULL;
	}
	if (!x->resp || !x->limit || !put_head(x, path, port)) {
		execd_error(r, 400, "INVALID_REQUEST_BODY", "the request cannot be passed on");
		x->done = true;
		return;
	}
	timer_after(x->limit, execd_backend_limit_ns(x->r));
	http_on_gone(r, proxy_gone);
	http_stream_writable(r, answer_writable);
	x->dial = agent_dial_tcp(a, port, &dial_ops, x);
	if (!x->dial) {
		x->done = true;
		execd_error(r, 502, "BACKEND_CONNECTION_FAILED",
			"too many connections into this sandbox");
		return;
	}
	if (x->has_body)
		http_body_read(r, proxy_body);
}

/* The protocol says what passes on this path. What passes on /ID/PORT is our decision. */
static bool behind_documented_path(const struct http_req *r)
{
	return strstr(r->prefix, "/sandboxes/") != NULL;
}

void route_proxy(struct http_req *r)
{
	if (!strcmp(r->method, "HEAD") && behind_documented_path(r)) {
		http_add_header(r, "Allow", "GET, POST, PUT, DELETE, PATCH");
		http_error_detail(r, 405, "Method Not Allowed");
		return;
	}
	proxy_start(r, r->path, r->port, behind_documented_path(r));
}

void route_execd_proxy(struct http_req *r)
{
	const char *port = http_param(r, "port"), *rest = http_param(r, "rest");
	char *end;
	unsigned long n = strtoul(port, &end, 10);

	if (*end || end == port || n < 1 || n > 65535 || *port < '0' || *port > '9')
		execd_error(r, 400, "INVALID_REQUEST_BODY", "not a port: %s", port);
	else
		proxy_start(r, rest ? rest : "", (uint16_t)n, behind_documented_path(r));
}
