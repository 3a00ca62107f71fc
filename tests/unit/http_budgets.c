/* SPDX-License-Identifier: Apache-2.0
 *
 * http_budgets: clients that take nothing, or give without end, cost the server a bounded number of bytes and are cut off with a reason; a
 * client that behaves is served meanwhile.
 */
#include "lib/test.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "api/http/http.h"

#define CLIENTS 24
#define BLOCK   65536u

static struct {
	struct loop *loop;
	struct http *http;
	struct sockaddr_un at;
	socklen_t at_len;
	int gone, live;
	/* all > greedy, other: a request with the header "X-Who: other" is the other's */
	struct account all, greedy, other, connections;
} S;

static void fill(struct http_req *r)
{
	static char block[BLOCK];

	while (http_stream_room(r) >= sizeof(block))
		http_stream_write(r, block, sizeof(block));
}

static void gone(struct http_req *r)
{
	S.gone++;
	http_abort(r);
}

static void freed(struct http_req *r)
{
	S.live--;
}

static void h_stream(struct http_req *r)
{
	S.live++;
	http_on_gone(r, gone);
	http_on_free(r, freed);
	http_stream_writable(r, fill);
	http_stream_begin(r, 200, "text/plain", -1);
	fill(r);
}

static void h_hello(struct http_req *r)
{
	http_reply(r, 200, "text/plain", "hello", 5);
}

/* It waits for something that does not come. */
static void h_wait(struct http_req *r)
{
	http_on_gone(r, gone);
}

static void h_long(struct http_req *r)
{
	static char text[BLOCK * 8];

	memset(text, 'x', sizeof(text));
	http_reply(r, 200, "text/plain", text, sizeof(text));
}

static void h_kept(struct http_req *r)
{
	static char text[BLOCK * 8];

	memset(text, 'x', sizeof(text));
	http_reply_kept(r, 200, "text/plain", text, sizeof(text));
}

/* A handler that asks for a key, as policies do, must not move what was charged before. */
static void h_switch(struct http_req *r)
{
	r->account = &S.other;
	h_long(r);
}

static const struct http_route routes[] = {
	{"GET", "/switch", h_switch, HTTP_BODY_NONE, 0, 0},
	{"GET", "/long", h_long, HTTP_BODY_NONE, 0, 0},
	{"POST", "/long", h_long, HTTP_BODY_NONE, 0, 0},
	{"POST", "/kept", h_kept, HTTP_BODY_NONE, 0, 0},
	{"GET", "/stream", h_stream, HTTP_BODY_NONE, 0, 0},
	{"POST", "/body", h_hello, HTTP_BODY_WHOLE, 0, 0},
	{"GET", "/hello", h_hello, HTTP_BODY_NONE, 0, 0},
	{"GET", "/wait", h_wait, HTTP_BODY_NONE, 0, 0},
};

static const struct http_route *dispatch(struct http_req *r)
{
	const struct http_table t = {routes, ARRAY_LEN(routes)};
	int status = 404;
	const struct http_route *rt = http_match(r, &t, &status);

	r->account = http_header(r, "X-Who") ? &S.other : &S.greedy;
	if (r->account == &S.greedy)
		r->connections = &S.connections;
	if (!rt)
		http_error_detail(r, status, "Not Found");
	return rt;
}

static void invoke(struct http_req *r)
{
	r->route->fn(r);
}

static void start(unsigned int write_limit_s, size_t all, size_t greedy)
{
	struct http_config c = {.connections_max = 100,
		.dispatch = dispatch,
		.invoke = invoke,
		.write_limit_s = write_limit_s};

	memset(&S, 0, sizeof(S));
	S.all = (struct account){.whose = "all", .limit = all};
	S.greedy = (struct account){.whose = "the greedy", .limit = greedy, .parent = &S.all};
	S.other = (struct account){.whose = "the other", .parent = &S.all};
	S.connections = (struct account){.whose = "the greedy"};
	c.listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	S.at.sun_family = AF_UNIX;
	ASSERT(!bind(c.listen_fd, (void *)&S.at, sizeof(sa_family_t)) && !listen(c.listen_fd, 64));
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

static void stop(void)
{
	for (int i = 0; i < 2000 && http_stats(S.http)->open; i++)
		turns(1);
	CHECK_INT(http_stats(S.http)->open, 0);
	CHECK_INT(S.live, 0);
	http_destroy(S.http);
	CHECK_INT(S.all.used, 0);
	CHECK_INT(S.greedy.used, 0);
	CHECK_INT(S.connections.used, 0);
	loop_destroy(S.loop);
}

static int say(const char *text)
{
	int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), small = 4096;

	setsockopt(s, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	ASSERT(!connect(s, (void *)&S.at, S.at_len));
	ASSERT(send(s, text, strlen(text), MSG_NOSIGNAL) == (ssize_t)strlen(text));
	turns(20);
	return s;
}

static bool hears(int s, const char *want)
{
	char text[4096];
	size_t n = 0;

	for (int i = 0; i < 200; i++) {
		ssize_t k = recv(s, text + n, sizeof(text) - 1 - n, 0);

		n += k > 0 ? (size_t)k : 0;
		text[n] = 0;
		if (strstr(text, want))
			return true;
		turns(1);
	}
	return false;
}

/* A POST without a body, on a connection of its own. */
static void posts(const char *path, const char *want)
{
	char text[128];
	int s;

	snprintf(text, sizeof(text), "POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
		path);
	s = say(text);
	CHECK(hears(s, want));
	close(s);
	turns(100);
}

static bool is_served(void)
{
	int s = say("GET /hello HTTP/1.1\r\nHost: a\r\nX-Who: other\r\n\r\n");
	bool ok = hears(s, "hello");

	close(s);
	turns(20);
	return ok;
}

static void who_takes_nothing_is_cut_off_in_time(void)
{
	int s;

	start(1, 0, 0);
	s = say("GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
	CHECK_INT(S.live, 1);
	for (uint64_t end = mono_ns() + 30000000000ull; mono_ns() < end && !S.gone;)
		loop_turn(S.loop, 20);
	CHECK_INT(S.gone, 1);
	CHECK_INT(http_stats(S.http)->cut_off, 1);
	CHECK(is_served());
	close(s);
	stop();
}

static void streams_have_a_budget_together(void)
{
	int s[CLIENTS];

	/* each one's writer respects its own 256 KiB; together they would hold 6 MiB */
	start(600, MIB(2), 0);
	for (int i = 0; i < CLIENTS; i++)
		s[i] = say("GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
	turns(200);
	CHECK(http_stats(S.http)->cut_off >= CLIENTS / 2);
	CHECK(S.live <= 10 && S.live > 0);
	CHECK(is_served());
	for (int i = 0; i < CLIENTS; i++)
		close(s[i]);
	turns(200);
	stop();
}

static void bodies_have_a_budget_together(void)
{
	static char piece[200000];
	int s[CLIENTS], last;

	/* 24 clients that each give 200,000 bytes of a body and then wait */
	start(600, MIB(16), MIB(2));
	for (int i = 0; i < CLIENTS; i++) {
		s[i] = say("POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 300000\r\n\r\n");
		for (size_t at = 0; at < sizeof(piece);) {
			ssize_t n = send(s[i], piece + at, sizeof(piece) - at, MSG_NOSIGNAL);

			at += n > 0 ? (size_t)n : 0;
			if (n <= 0 && errno != EAGAIN)
				break;
			turns(2);
		}
	}
	last = say("POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n");
	for (size_t at = 0; at < sizeof(piece);) {
		ssize_t n = send(last, piece + at, sizeof(piece) - at, MSG_NOSIGNAL);

		at += n > 0 ? (size_t)n : 0;
		turns(2);
	}
	CHECK(hears(last, "429"));
	CHECK(is_served());
	close(last);
	for (int i = 0; i < CLIENTS; i++)
		close(s[i]);
	turns(400);
	/* what they gave is given back */
	last = say("POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}");
	CHECK(hears(last, "200"));
	close(last);
	turns(50);
	stop();
}

/* The other's stream stood still first. It is the greedy one's budget that is full, so it is the greedy one's streams that end. */
static void nobody_pays_for_another(void)
{
	int s[CLIENTS], theirs;

	start(600, MIB(64), MIB(1));
	theirs = say("GET /stream HTTP/1.1\r\nHost: a\r\nX-Who: other\r\n\r\n");
	turns(50);
	for (int i = 0; i < CLIENTS; i++)
		s[i] = say("GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
	turns(200);
	CHECK(http_stats(S.http)->cut_off >= CLIENTS / 2);
	CHECK(S.other.used > KIB(100));
	CHECK(S.greedy.used <= MIB(1));
	CHECK(is_served());
	for (int i = 0; i < CLIENTS; i++)
		close(s[i]);
	close(theirs);
	turns(200);
	stop();
}

static void long_answers_that_nobody_takes_are_refused(void)
{
	int s[CLIENTS];

	start(600, MIB(64), MIB(2));
	for (int i = 0; i < CLIENTS; i++)
		s[i] = say("GET /long HTTP/1.1\r\nHost: a\r\n\r\n");
	turns(100);
	CHECK(S.greedy.used <= MIB(2));
	CHECK(S.greedy.used > MIB(1));
	CHECK(hears(s[CLIENTS - 1], "429"));
	CHECK(is_served());
	for (int i = 0; i < CLIENTS; i++)
		close(s[i]);
	turns(200);
	/* what a change did is answered, whatever it costs */
	S.greedy.limit = KIB(64);
	posts("/long", "200 OK");
	/* unless it can be asked for again */
	posts("/kept", "429");
	S.greedy.limit = MIB(2);
	posts("/kept", "200 OK");
	stop();
}

/* The heads of requests that wait are held, too. */
static void long_heads_have_a_budget_together(void)
{
	static char head[20000];
	int s[CLIENTS];

	snprintf(
		head, sizeof(head), "GET /wait HTTP/1.1\r\nHost: a\r\nX-Long: %019000d\r\n\r\n", 1);
	start(600, MIB(64), KIB(256));
	for (int i = 0; i < CLIENTS; i++)
		s[i] = say(head);
	turns(50);
	CHECK(S.greedy.used > KIB(128) && S.greedy.used <= KIB(256));
	CHECK(hears(s[CLIENTS - 1], "429"));
	CHECK(is_served());
	for (int i = 0; i < CLIENTS; i++)
		close(s[i]);
	turns(200);
	stop();
}

static void open_connections_have_a_limit(void)
{
	int s[4];

	start(600, 0, 0);
	S.connections.limit = 3;
	for (int i = 0; i < 3; i++)
		s[i] = say("GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
	s[3] = say("GET /hello HTTP/1.1\r\nHost: a\r\n\r\n");
	CHECK(hears(s[3], "429"));
	CHECK(is_served());
	CHECK_INT(S.connections.used, 3);
	close(s[0]);
	turns(50);
	close(s[3]);
	s[3] = say("GET /hello HTTP/1.1\r\nHost: a\r\n\r\n");
	CHECK(hears(s[3], "hello"));
	/* no key was shown on it: it does not count while it waits */
	turns(20);
	CHECK_INT(S.connections.used, 2);
	for (int i = 1; i < 4; i++)
		close(s[i]);
	turns(100);
	stop();
}

static void what_was_taken_is_given_back_to_whom_it_was_taken_from(void)
{
	int s;

	start(600, 0, 0);
	s = say("GET /switch HTTP/1.1\r\nHost: a\r\n\r\n");
	CHECK(hears(s, "200 OK"));
	CHECK_INT(S.other.used, 0);
	close(s);
	turns(100);
	CHECK_INT(S.other.used, 0);
	stop();
}

static const struct test tests[] = {
	{"what_was_taken_is_given_back_to_whom_it_was_taken_from",
		what_was_taken_is_given_back_to_whom_it_was_taken_from},
	{"nobody_pays_for_another", nobody_pays_for_another},
	{"long_answers_that_nobody_takes_are_refused", long_answers_that_nobody_takes_are_refused},
	{"long_heads_have_a_budget_together", long_heads_have_a_budget_together},
	{"open_connections_have_a_limit", open_connections_have_a_limit},
	{"who_takes_nothing_is_cut_off_in_time", who_takes_nothing_is_cut_off_in_time},
	{"streams_have_a_budget_together", streams_have_a_budget_together},
	{"bodies_have_a_budget_together", bodies_have_a_budget_together},
};
TEST_MAIN(tests)
