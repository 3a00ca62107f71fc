/* SPDX-License-Identifier: Apache-2.0
 *
 * api_request: what a client may send to the daemon's listener, into the real server: the first
 * byte says where it is cut in two, the rest goes over a socket as it is. Routes ask for everything
 * that can be asked of a request. Whatever came, the server's own turns end it: each answer has
 * only headers that we send, no request and no connection is left, and the next client is served.
 */
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "api/http/http.h"
#include "api/http/multipart.h"

static struct {
	struct loop *loop;
	struct http *http;
	struct sockaddr_un at;
	socklen_t at_len;
	int live;
} S;

static void freed(struct http_req *r)
{
	S.live--;
}

static void each(void *arg, const char *k, const char *v)
{
	size_t *n = arg;

	*n += strlen(k) + strlen(v);
}

static void show(struct http_req *r)
{
	const char *vals[8], *a = http_param(r, "a"), *rest = http_param(r, "rest"),
			     *q = http_query(r, "q");
	size_t n = http_query_all(r, "q", vals, ARRAY_LEN(vals)), bytes = 0;
	char ip[64], *text;

	ASSERT(n <= ARRAY_LEN(vals) && (q != NULL) == (n > 0) &&
		(!q || q == vals[0] || !strcmp(q, vals[0])));
	ASSERT(!a || (*a && strcmp(a, "..") != 0 && strcmp(a, ".") != 0));
	http_headers_each(r, each, &bytes);
	(void)http_address(r, ip, sizeof(ip));
	http_add_header(r, "X-Echo", q ? q : "");
	http_add_header(r, "X-Echo", a ? a : "");
	text = http_printf(r, "%s %s %s %zu %zu", http_host(r), a ? a : "", rest ? rest : "", bytes,
		r->body_len);
	http_reply(r, 200, "text/plain", text, strlen(text));
}

struct form {
	struct multipart m;
	size_t parts;
};

static void form_free(struct http_req *r)
{
	struct form *f = r->user;

	multipart_fini(&f->m);
}

static size_t form_piece(struct http_req *r, const uint8_t *p, size_t n)
{
	struct form *f = r->user;
	const uint8_t *data;
	size_t left = n, len;
	enum multipart_ev ev;

	if (!p) {
		http_reply_empty(r, 200);
		return 0;
	}
	while ((ev = multipart_next(&f->m, &p, &left, &data, &len)) != MP_MORE && ev != MP_BAD)
		f->parts += ev == MP_PART;
	if (ev == MP_BAD)
		http_error(r, 400, "INVALID_FILE_CONTENT", "%s",
			f->m.why ? f->m.why : "not multipart");
	return n;
}

static void form(struct http_req *r)
{
	struct form *f = http_alloc(r, sizeof(*f));

	ASSERT(f);
	if (multipart_init(&f->m, http_header(r, "Content-Type"))) {
		multipart_fini(&f->m);
		http_error(r, 400, "INVALID_FILE", "not a form");
		return;
	}
	r->user = f;
	http_on_free(r, form_free);
	http_body_read(r, form_piece);
}

static const struct http_route routes[] = {
	{"GET", "/q/{a}/x", show, HTTP_BODY_NONE, 0, 0},
	{"POST", "/whole", show, HTTP_BODY_WHOLE, 0, 100},
	{"POST", "/form", form, HTTP_BODY_STREAM, 0, 0},
	{"*", "/any/{a}/{rest*}", show, HTTP_BODY_NONE, 0, 0},
};

static const struct http_route *dispatch(struct http_req *r)
{
	const struct http_table t = {routes, ARRAY_LEN(routes)};
	int status;
	const struct http_route *rt = http_match(r, &t, &status);

	S.live++;
	http_on_free(r, freed);
	if (!rt)
		http_error_detail(r, status, "Not Found");
	return rt;
}

static void invoke(struct http_req *r)
{
	r->route->fn(r);
}

static void start(void)
{
	struct http_config c = {.connections_max = 100, .dispatch = dispatch, .invoke = invoke};

	c.listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	S.at.sun_family = AF_UNIX;
	/* a name chosen by the kernel */
	ASSERT(!bind(c.listen_fd, (void *)&S.at, sizeof(S.at.sun_family)) &&
		!listen(c.listen_fd, 64));
	S.at_len = sizeof(S.at);
	ASSERT(!getsockname(c.listen_fd, (void *)&S.at, &S.at_len));
	S.loop = loop_create();
	S.http = http_create(S.loop, &c);
	ASSERT(S.http);
}

static void turns(int n)
{
	while (n-- > 0)
		loop_turn(S.loop, 0);
}

static bool name_is_ours(const char *line, size_t n)
{
	static const char *const names[] = {"Date", "Content-Type", "Content-Length", "Connection",
		"X-Request-ID", "X-Echo", "Allow", "Transfer-Encoding",
		"Access-Control-Allow-Origin", "Access-Control-Allow-Credentials",
		"Access-Control-Expose-Headers", "Access-Control-Allow-Methods",
		"Access-Control-Max-Age", "Access-Control-Allow-Headers", "Vary"};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (n > strlen(names[i]) && line[strlen(names[i])] == ':' &&
			!strncasecmp(line, names[i], strlen(names[i])))
			return true;
	return false;
}

/* The first answer's head: a status, and no header that somebody else made. */
static void look_at(const char *p, size_t n)
{
	const char *end = n ? memmem(p, n, "\r\n\r\n", 4) : NULL, *line;

	if (!end)
		return;
	ASSERT(!strncmp(p, "HTTP/1.", 7));
	for (line = p; (line = memchr(line, '\n', (size_t)(end - line))); line++)
		ASSERT(name_is_ours(line + 1, (size_t)(end - line - 1)));
}

static void talk(const uint8_t *p, size_t n, size_t cut)
{
	static char answer[65536];
	_cleanup_close_ int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	size_t got = 0;

	/* with a name of its own: the server asks who it is */
	ASSERT(!bind(s, (const void *)&(struct sockaddr_un){.sun_family = AF_UNIX},
		sizeof(sa_family_t)));
	ASSERT(!connect(s, (void *)&S.at, S.at_len));
	turns(2);
	(void)!send(s, p, cut, MSG_NOSIGNAL);
	turns(4);
	(void)!send(s, p + cut, n - cut, MSG_NOSIGNAL);
	for (int i = 0; i < 12; i++) {
		ssize_t k = recv(s, answer + got, sizeof(answer) - 1 - got, 0);

		got += k > 0 ? (size_t)k : 0;
		turns(1);
	}
	answer[got] = 0;
	look_at(answer, got);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	if (!S.http)
		start();
	if (n < 1 || n > 200000)
		return 0;
	talk(p + 1, n - 1, (n - 1) * p[0] / 256);
	for (int i = 0; i < 1000 && http_stats(S.http)->open; i++)
		turns(1);
	ASSERT(!http_stats(S.http)->open && !S.live);
	return 0;
}
