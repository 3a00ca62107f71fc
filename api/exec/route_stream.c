/* SPDX-License-Identifier: Apache-2.0
 *
 * route_stream.c: GET /stream?port=N or ?path=/SOCKET with "Upgrade: mayfly-stream": raw bytes to whatever listens there inside the sandbox. `mayfly port-forward`
 * uses it for every protocol. mayflyd's loop; the query is a client's, the bytes are hostile and are not looked at.
 *
 * The listener in the sandbox is dialled first. The client gets its 101 only when that connection is open, so that a refused connection is an HTTP error.
 */
#include "api/exec/execd_int.h"
#include "api/exec/relay.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/un.h>

#include "lib/opt.h"
#include "lib/websocket_handshake.h"

#define STREAM_PROTOCOL "mayfly-stream"

struct stream {
	struct http_req *r;
	struct agent_dial *dial;
	struct timer *limit;
	bool done;
	struct relay relay;
};

static void stream_free(struct http_req *r)
{
	struct stream *x = r->user;

	agent_dial_close(x->dial);
	timer_remove(x->limit);
}

static void stream_fail(struct stream *x, int status, const char *code, const char *why)
{
	if (x->done)
		return;
	x->done = true;
	timer_set(x->limit, 0);
	agent_dial_close(take_ptr(x->dial));
	execd_error(x->r, status, code, "%s", why);
}

static void stream_late(void *arg)
{
	stream_fail(arg, 504, "BACKEND_TIMEOUT", "the connection inside the sandbox took too long");
}

static void stream_gone(struct http_req *r)
{
	struct stream *x = r->user;

	if (x->done)
		return;
	x->done = true;
	agent_dial_close(take_ptr(x->dial));
	http_abort(r);
}

static void stream_opened(void *arg)
{
	struct stream *x = arg;

	x->done = true;
	timer_set(x->limit, 0);
	relay_begin(&x->relay, take_ptr(x->dial), false);
	x->relay.client = http_upgrade(x->r, STREAM_PROTOCOL, &relay_client_ops, &x->relay);
	if (x->relay.client)
		return;
	relay_end(&x->relay, 0, "");
	execd_error(x->r, 500, "RUNTIME_ERROR", "this connection cannot be upgraded");
}

static void stream_closed(void *arg, const struct agent_reply *rep)
{
	if (rep->err == ETIMEDOUT)
		stream_late(arg);
	else
		stream_fail(arg, 502, "BACKEND_CONNECTION_FAILED",
			rep->err == ECONNREFUSED || rep->err == ENOENT
				? "nothing listens there in the sandbox"
				: "the connection inside the sandbox cannot be made");
}

/* Used until the connection is open. Then relay_begin() sets others. */
static const struct agent_dial_ops stream_ops = {.opened = stream_opened, .closed = stream_closed};

/* What the query names: a port, or a path (NULL: the port). false: answered. */
static bool stream_target(struct http_req *r, uint16_t *port, const char **path)
{
	const char *digits = http_query(r, "port");
	uint64_t n = 0;

	*path = http_query(r, "path");
	if (!digits == !*path) {
		execd_error(r, 400, "INVALID_REQUEST_BODY", "give either port or path");
	} else if (*path &&
		   ((*path)[0] != '/' ||
			   strlen(*path) >= sizeof(((struct sockaddr_un *)NULL)->sun_path))) {
		execd_error(r, 400, "INVALID_REQUEST_BODY",
			"path must be the absolute path of a Unix socket, with at most 107 bytes");
	} else if (digits && (!uint_parse(digits, &n) || n < 1 || n > 65535)) {
		execd_error(r, 400, "INVALID_REQUEST_BODY", "port must be between 1 and 65535");
	} else {
		*port = (uint16_t)n;
		return true;
	}
	return false;
}

static bool stream_wanted(struct http_req *r)
{
	const char *upgrade = http_header(r, "Upgrade");

	if (upgrade && !strcasecmp(upgrade, STREAM_PROTOCOL) &&
		http_list_has(http_header(r, "Connection"), "upgrade"))
		return true;
	http_add_header(r, "Upgrade", STREAM_PROTOCOL);
	execd_error(r, 426, "INVALID_REQUEST_BODY",
		"this needs the headers \"Connection: Upgrade\" and \"Upgrade: " STREAM_PROTOCOL
		"\"");
	return false;
}

void route_stream(struct http_req *r)
{
	struct agentc *a = sandbox_agentc(r->sandbox);
	struct stream *x;
	const char *path;
	uint16_t port;

	if (!stream_wanted(r) || !stream_target(r, &port, &path))
		return;
	x = a ? http_alloc(r, sizeof(*x)) : NULL;
	if (!x) {
		execd_error(r, 502, "BACKEND_CONNECTION_FAILED", "the sandbox does not run");
		return;
	}
	x->r = r;
	r->user = x;
	http_on_free(r, stream_free);
	http_on_gone(r, stream_gone);
	x->limit = loop_timer(agentc_loop(a), stream_late, x);
	x->dial = path ? agent_dial_unix(a, path, &stream_ops, x)
		       : agent_dial_tcp(a, port, &stream_ops, x);
	if (!x->limit || !x->dial)
		stream_fail(x, 502, "BACKEND_CONNECTION_FAILED",
			"too many connections into this sandbox");
	else
		timer_after(x->limit, execd_backend_limit_ns(r));
}
