/* SPDX-License-Identifier: Apache-2.0
 *
 * http.h: the HTTP server as handlers see it. One thread, driven by lib/loop; mayflyd. Everything a client sends is hostile.
 * The server checks framing, sizes and time limits; the handlers check what the bytes mean.
 *
 * A request lives from the dispatcher's call until its handler has finished it: exactly one of http_reply*, http_error*,
 * http_stream_end, http_abort or the end of an upgrade (upgrade.h), now or at any later time from the loop. A client that leaves
 * does not end it: `gone` is called once, what is written afterwards is dropped, and the handler still finishes it. After that the
 * pointer is invalid.
 */
#pragma once

#include "api/core/account.h"
#include "api/core/principal.h"
#include "lib/loop.h"

struct cJSON;
struct http;
struct http_req;
struct sandbox;

typedef void (*http_fn)(struct http_req *r);

enum http_body {
	HTTP_BODY_NONE, /* a body is thrown away (up to a limit) */
	/* the handler is called when r->body is complete; longer than body_max: 413 */
	HTTP_BODY_WHOLE,
	/* the handler is called with the headers and then asks for the body: http_body_read */
	HTTP_BODY_STREAM,
};

enum {
	HTTP_R_NO_KEY = 1 /* needs no API key */,
	HTTP_R_NO_WAIT = 2 /* also answered while the sandbox does not run */,
	HTTP_R_OPERATOR = 4 /* operators only: about the host, not what a principal owns */
};

struct http_route {
	const char *method; /* "GET", "*" = any */
	/* "/files/{name}": one segment, decoded; "/proxy/{rest*}": all that follows, raw, possibly
	 * "" */
	const char *path;
	http_fn fn;
	enum http_body body;
	uint32_t flags;
	uint32_t body_max; /* WHOLE: 0 = 1 MiB */
};

struct http_table {
	const struct http_route *routes;
	size_t n;
};

#define HTTP_PARAMS_MAX 4
struct http_pair {
	const char *key, *val;
};

struct http_req {
	struct http *http;
	void *app;               /* struct daemon: http_config.app */
	struct sandbox *sandbox; /* referenced; behind an endpoint only */
	/* whose request it is; ROLE_NONE: it needed no key and showed none */
	struct principal principal;
	const char *method;
	const char *uri;  /* as sent */
	const char *path; /* raw; behind an endpoint what follows `prefix`, at least "/" */
	/* what was stripped from the path: "", "/v1", "/v1/sandboxes/ID/proxy/44772", "/ID/44772" */
	const char *prefix;
	const char *log_prefix; /* prefix for logs: without the signature of a gateway's route */
	const char *query;      /* raw, without '?'; "" if there is none */
	const char *id;         /* X-Request-ID, theirs or ours */
	uint16_t port;          /* behind an endpoint: which */
	/* set by the dispatcher, before the body is read, and not used later: what this request holds is charged to `account`, its connection to
	 * `connections`. They must live until the functions of http_on_free are called. NULL: no limit. */
	struct account *account, *connections;
	/* The id of a sandbox: a program in it sent this request, through the sandbox's own 127.0.0.1:44772. It gets that sandbox's execution
	 * API and nothing else. NULL: the client is outside. */
	const char *inward;
	/* A WebSocket on the documented path of an endpoint: http_error() accepts the handshake and sends the error as a close code. */
	bool ws_codes;
	bool counts; /* it was let in to `sandbox` and counts as activity there until it ends */
	/* ---- set by the ingress gateway's dispatcher; zero for every other request */
	bool gateway;    /* it came to the gateway's listener */
	bool own_origin; /* its host name belongs to this port of this sandbox alone */
	/* the headers Host (own_origin only), Origin and Referer, without any signature */
	const char *shown_host, *shown_origin, *shown_referer;
	/* NULL: errors are JSON. Else they are plain text that begins with this. */
	const char *error_text;
	const struct http_route *route;
	const uint8_t *body; /* WHOLE: body_len bytes, maybe with a NUL, and a NUL behind them */
	size_t body_len;
	void *user; /* the handler's own */
	uint64_t start_ns;
};

/* ---- the request. Strings live as long as it does. NULL: not there. */
const char *http_header(const struct http_req *r, const char *name);
/* Calls fn for each header in order, also for repeated ones. */
void http_headers_each(
	const struct http_req *r, void (*fn)(void *arg, const char *k, const char *v), void *arg);
const char *http_param(const struct http_req *r, const char *name);
/* decoded query values; http_query is the first one, NULL if absent */
const char *http_query(const struct http_req *r, const char *key);
size_t http_query_all(const struct http_req *r, const char *key, const char **vals, size_t max);
/* Decodes %XX in place and, if plus, + as a blank. false: a bad escape or a NUL. */
bool url_decode(char *s, bool plus);
/* "host:port" of the client's Host header, or of the listener if it sent none */
const char *http_host(const struct http_req *r);
bool http_client_gone(const struct http_req *r);
/* The user at the other end of a Unix socket. false: the client came over TCP. */
bool http_peer_uid(const struct http_req *r, uid_t *uid);
/* the client's numeric address */
bool http_address(const struct http_req *r, char *out, size_t cap);
/* The same. behind_proxy: the last element of X-Forwarded-For, which the proxy in front of us wrote, if that element is an address. */
bool http_client_address(const struct http_req *r, bool behind_proxy, char *out, size_t cap);

/* STREAM: fn gets the body in pieces and returns how many bytes it took; fewer than n stops the client until http_body_resume.
 * p == NULL: the end; n is then 0 for a complete body, 1 for a connection that broke off (gone is called as well).
 * Replying before the end is fine: the rest is thrown away, and the connection closed if it is long. */
typedef size_t (*http_body_fn)(struct http_req *r, const uint8_t *p, size_t n);
void http_body_read(struct http_req *r, http_body_fn fn);
void http_body_resume(struct http_req *r);

/* Called once, from the loop, when the client went away before the request was finished. */
void http_on_gone(struct http_req *r, http_fn fn);
/* fn is called last of all, when the request is freed. It must free what `user` holds, and cancel
 * every deferred call and timer that has the request as its argument: a client that breaks off can
 * end the request before they run. The dispatcher and the handler may each register functions, up
 * to four together. The last one is called first. */
void http_on_free(struct http_req *r, http_fn fn);

/* ---- memory that lives as long as the request; NULL only when there is none */
void *http_alloc(struct http_req *r, size_t n);
char *http_strdup(struct http_req *r, const char *s, size_t n);
char *http_printf(struct http_req *r, const char *fmt, ...) _printf_(2, 3);

/* Charges bytes that a handler keeps for this request, a long answer that it puts together for
 * example. They are given back by http_unhold() or when the request is freed. False: a budget is
 * full; answer with http_error_full. */
bool http_hold(struct http_req *r, size_t n);
void http_unhold(struct http_req *r, size_t n);
/* Answers 429 and says whose budget is full. */
void http_error_full(struct http_req *r);

/* ---- the answer. It is held while the client takes it. The answer to a GET becomes a 429 if the budget has no room for it. */

/* Before the reply or http_stream_begin. Name and value are copied. A header with a control character in it is left out. */
void http_add_header(struct http_req *r, const char *name, const char *value);
void http_reply(struct http_req *r, int status, const char *type, const void *body, size_t n);
/* For an answer that is stored and can be asked for again: with any method it may become a 429. */
void http_reply_kept(struct http_req *r, int status, const char *type, const void *body, size_t n);
void http_reply_empty(struct http_req *r, int status); /* Content-Length: 0, except with 204 */
void http_reply_json(struct http_req *r, int status, struct cJSON *takes);
/* {"code","message"} */
void http_error(struct http_req *r, int status, const char *code, const char *fmt, ...)
	_printf_(4, 5);
/* An error as the reference's framework (FastAPI) writes it when no route, method or body fits: {"detail":"Not Found"} */
void http_error_detail(struct http_req *r, int status, const char *detail);

/* A streamed answer. The headers and every write are sent after the handlers of this turn of the
 * loop. Writes of one turn may be one chunk. type NULL: no Content-Type but one from
 * http_add_header. length < 0: chunked. http_stream_room() says how many bytes fit into the buffer
 * of 256 KiB. A write beyond that is still taken; with more than 1 MiB unsent the stream is
 * aborted. `writable` is called when a buffer that was over half full is below half again. */
void http_stream_begin(struct http_req *r, int status, const char *type, int64_t length);
void http_stream_write(struct http_req *r, const void *p, size_t n);
size_t http_stream_room(const struct http_req *r);
void http_stream_writable(struct http_req *r, http_fn fn);
void http_stream_end(struct http_req *r);
/* Ends the request by cutting the connection: what was streamed is visibly incomplete. */
void http_abort(struct http_req *r);

/* ---- the server */
struct http_stats {
	uint64_t connections, open, requests, refused, cut_off, by_class[6], bytes_in, bytes_out,
		gone;
};

struct http_config {
	void *app;
	int listen_fd;                                 /* taken; -1: http_listen gives one */
	unsigned int connections_max, per_address_max; /* conn_limits.h; 0: no share per address */
	bool count_busy;                               /* conn_limits.h */
	/* how long a client may take for each; 0: a default (server.c) */
	unsigned int head_limit_s, body_limit_s, idle_limit_s, write_limit_s;
	/* the account of requests for which the dispatcher set none. When an account is full, the stream in it whose client took nothing for
	 * longest is cut off, and a new request or body is answered with 429. */
	struct account *account;
	/* dispatch() also gets CORS preflights, and calls http_preflight() if the server answers them */
	bool dispatch_preflights;
	/* Finds the route and sets sandbox, path, prefix, params (http_match), or answers with an
	 * error and returns NULL. */
	const struct http_route *(*dispatch)(struct http_req *r);
	/* Calls the handler: r->route->fn(r) now, or later when its sandbox is up. */
	http_fn invoke;
	void (*done)(struct http_req *r, int status); /* for logs and metrics; may be NULL */
};

struct http *http_create(struct loop *l, const struct http_config *c);
/* Another listener: fd is taken. 0 or -errno. */
int http_listen(struct http *h, int fd);
/* Serves a connection that did not come to a listener, but from a program in that sandbox. fd is taken. */
void http_adopt(struct http *h, int fd, const char *sandbox);
/* Stops listening. `drained` is called when the last request has ended. */
void http_quiesce(struct http *h, timer_fn drained, void *arg);
void http_destroy(struct http *h);
const struct http_stats *http_stats(const struct http *h);

/* Answers r if it is a CORS preflight. false: it is not one. */
bool http_preflight(struct http_req *r);

/* Matches r->path in a table and sets the parameters. NULL: *status is 404 or 405. */
const struct http_route *http_match(struct http_req *r, const struct http_table *t, int *status);
