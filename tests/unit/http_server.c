/* SPDX-License-Identifier: Apache-2.0
 *
 * http_server: the real server against raw sockets: framing attacks, limits, streaming both ways,
 * clients that leave.
 */
#include "lib/test.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/socket.h>

#include "api/http/http.h"
#include "tests/loopthread.h"

static struct {
	struct loop *loop;
	struct http *http;
	struct loop_thread thread;
	int port;
	_Atomic int gone, freed, handled, body_pauses, stalled;
	_Atomic int ahead; /* events written before their reader has seen them */
	sem_t go_on;
	struct http_req *held, *stream;
	struct timer *t;
} S;

static void count_free(struct http_req *r)
{
	S.freed++;
}

static void h_hello(struct http_req *r)
{
	S.handled++;
	http_reply(r, 200, "text/plain", "hello", 5);
}

static void h_echo(struct http_req *r)
{
	const char *bad = http_query(r, "inject");

	if (bad)
		http_add_header(r, "X-Bad", bad);
	http_reply(r, 200, "application/octet-stream", r->body, r->body_len);
}

static void h_param(struct http_req *r)
{
	char *s = http_printf(r, "%s|%s|%s", http_param(r, "a"),
		http_query(r, "q") ? http_query(r, "q") : "-", r->path);

	http_reply(r, 200, "text/plain", s, strlen(s));
}

static void held_gone(struct http_req *r)
{
	S.gone++;
	S.held = NULL;
	http_error(r, 500, "X", "nobody reads this");
}

static void h_hold(struct http_req *r)
{
	http_on_gone(r, held_gone);
	http_on_free(r, count_free);
	S.held = r;
	S.handled++;
}

static void later(void *arg)
{
	struct http_req *r = S.held;

	S.held = NULL;
	if (r)
		http_reply(r, 200, "text/plain", "late", 4);
}

static void h_late(struct http_req *r)
{
	S.held = r;
	timer_after(S.t, 20000000);
}

static _Atomic int stream_left;
static void stream_fill(struct http_req *r)
{
	static char block[65536];

	while (stream_left > 0 && http_stream_room(r) >= sizeof(block)) {
		memset(block, 'a' + stream_left % 26, sizeof(block));
		http_stream_write(r, block, sizeof(block));
		stream_left--;
	}
	if (!stream_left)
		http_stream_end(r);
}

static void stream_gone(struct http_req *r)
{
	S.gone++;
	stream_left = 0;
	http_stream_end(r);
}

static void h_stream(struct http_req *r)
{
	stream_left = atoi(http_query(r, "blocks"));
	http_on_gone(r, stream_gone);
	http_on_free(r, count_free);
	http_stream_writable(r, stream_fill);
	http_stream_begin(r, 200, "text/plain", http_query(r, "len") ? stream_left * 65536ll : -1);
	stream_fill(r);
}

static void tick(void *arg)
{
	struct http_req *r = S.stream;

	if (!r)
		return;
	if (S.ahead > 0) {
		timer_after(S.t, 5000000);
	} else if (stream_left-- > 0) {
		S.ahead++;
		http_stream_write(r, "{\"n\":1}\n\n", 9);
		timer_after(S.t, 50000000);
	} else {
		S.stream = NULL;
		http_stream_end(r);
	}
}

static void events_gone(struct http_req *r)
{
	S.gone++;
	S.stream = NULL;
	http_stream_end(r);
}

static void on_timer(void *arg)
{
	if (S.stream)
		tick(arg);
	else
		later(arg);
}

static void h_events(struct http_req *r)
{
	S.stream = r;
	stream_left = 1000;
	S.ahead = 0;
	http_on_gone(r, events_gone);
	http_on_free(r, count_free);
	http_stream_begin(r, 200, "text/event-stream", -1);
	tick(NULL);
}

static uint64_t up_bytes;
static int up_paused;
static void up_again(void *arg)
{
	struct http_req *r = S.held;

	up_paused = 0;
	http_body_resume(r);
}

static size_t up_piece(struct http_req *r, const uint8_t *p, size_t n)
{
	char *s;

	if (!p) {
		S.gone += n != 0;
		s = http_printf(r, "%llu", (unsigned long long)up_bytes);
		http_reply(r, 200, "text/plain", s, strlen(s));
		return 0;
	}
	/* takes at most 1000 bytes a call and stops now and then */
	if (up_bytes / 1000000 != (up_bytes + MIN(n, 1000ul)) / 1000000) {
		if (!up_paused) {
			up_paused = 1;
			S.body_pauses++;
			S.held = r;
			loop_defer(S.loop, up_again, NULL);
		}
	}
	n = MIN(n, 1000ul);
	up_bytes += n;
	if (!up_paused)
		loop_defer(S.loop, up_again, NULL), up_paused = 1, S.held = r;
	return n;
}

/* the request may end while a call that was put off still names it */
static void up_free(struct http_req *r)
{
	loop_undefer(S.loop, up_again, NULL);
	S.freed++;
}

static void h_upload(struct http_req *r)
{
	up_bytes = 0;
	up_paused = 0;
	http_on_free(r, up_free);
	http_body_read(r, up_piece);
	S.handled++;
}

/* Holds the server until the test says go on, in a deferred call: it then has a turn before it in
 * which the sockets are looked at first and the calls put off meanwhile come behind the server's
 * own. */
static void stall(void *arg)
{
	struct http_req *r = arg;

	S.stalled++;
	sem_wait(&S.go_on);
	http_reply_empty(r, 200);
}

static void h_stall(struct http_req *r)
{
	loop_defer(S.loop, stall, r);
}

static void h_early(struct http_req *r)
{
	http_error(r, 403, "NO", "not you");
}

static const struct http_route routes[] = {
	{"GET", "/hello", h_hello, HTTP_BODY_NONE, 0, 0},
	{"POST", "/echo", h_echo, HTTP_BODY_WHOLE, 0, 1000},
	{"GET", "/p/{a}/x", h_param, HTTP_BODY_NONE, 0, 0},
	{"GET", "/hold", h_hold, HTTP_BODY_NONE, 0, 0},
	{"GET", "/late", h_late, HTTP_BODY_NONE, 0, 0},
	{"GET", "/stream", h_stream, HTTP_BODY_NONE, 0, 0},
	{"GET", "/events", h_events, HTTP_BODY_NONE, 0, 0},
	{"POST", "/upload", h_upload, HTTP_BODY_STREAM, 0, 0},
	{"GET", "/stall", h_stall, HTTP_BODY_NONE, 0, 0},
	{"POST", "/early", h_early, HTTP_BODY_STREAM, 0, 0},
	{"DELETE", "/none", h_hello, HTTP_BODY_NONE, 0, 0},
};

static const struct http_route *dispatch(struct http_req *r)
{
	const struct http_table t = {routes, ARRAY_LEN(routes)};
	int status;
	const struct http_route *rt = http_match(r, &t, &status);

	if (!rt)
		http_error_detail(r, status, status == 405 ? "Method Not Allowed" : "Not Found");
	return rt;
}

static void invoke(struct http_req *r)
{
	r->route->fn(r);
}

/* what is in the middle of a stream is let go */
static void drop_stream(void)
{
	S.stream = NULL;
}

static int server_start(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t n = sizeof(a);
	struct http_config c = {.connections_max = 5000, .dispatch = dispatch, .invoke = invoke};

	signal(SIGPIPE, SIG_IGN);
	sem_init(&S.go_on, 0, 0);
	c.listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (bind(c.listen_fd, (void *)&a, sizeof(a)) || listen(c.listen_fd, 1024))
		return -1;
	getsockname(c.listen_fd, (void *)&a, &n);
	S.port = ntohs(a.sin_port);
	S.loop = loop_create();
	S.t = loop_timer(S.loop, on_timer, NULL);
	S.http = http_create(S.loop, &c);
	S.thread.at_end = drop_stream;
	return S.http && loop_thread_start(&S.thread, S.loop) ? 0 : -1;
}

static int dial(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
		.sin_port = htons((uint16_t)S.port)};
	int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct timeval tv = {.tv_sec = 3};

	setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
	if (connect(s, (void *)&a, sizeof(a)))
		printf("connect: %d\n", errno);
	return s;
}

/* sends, then reads until the peer closes, a time-out, or `until` was seen */
static char answer[1 << 20];
static int talk(int s, const char *req, size_t n, const char *until)
{
	size_t got = 0;
	ssize_t k;

	if (req)
		(void)!send(s, req, n ? n : strlen(req), MSG_NOSIGNAL);
	while (got < sizeof(answer) - 1) {
		k = recv(s, answer + got, sizeof(answer) - 1 - got, 0);
		if (k <= 0)
			break;
		got += (size_t)k;
		answer[got] = 0;
		if (until && strstr(answer, until))
			break;
	}
	answer[got] = 0;
	return atoi(strncmp(answer, "HTTP/1.", 7) ? "0" : answer + 9);
}

static void put(int s, const char *p)
{
	(void)!send(s, p, strlen(p), MSG_NOSIGNAL);
}

static int ask(const char *req, const char *until)
{
	_cleanup_close_ int s = dial();

	return talk(s, req, 0, until);
}

static void wait_for(_Atomic int *v, int want)
{
	for (int i = 0; i < 300 && *v < want; i++)
		poll(NULL, 0, 10);
	CHECK_INT(*v, want);
}

#define H "Host: t\r\n"
static void simple_requests(void)
{
	CHECK_INT(ask("GET /hello HTTP/1.1\r\n" H "\r\n", "hello"), 200);
	/* headers without a value, or with blanks around it, are no folds */
	CHECK_INT(ask("GET /hello HTTP/1.1\r\n" H "X-A:\r\nX-B: \r\nX-C: \t  d \r\nX-E:f\r\n\r\n",
			  "hello"),
		200);
	CHECK(strstr(answer, "X-Request-ID: "));
	CHECK(strstr(answer, "Date: "));
	CHECK_INT(
		ask("GET /hello HTTP/1.1\r\n" H "X-Request-ID: my id 7\r\nOrigin: http://x\r\n\r\n",
			"hello"),
		200);
	CHECK(strstr(answer, "X-Request-ID: my id 7\r\n"));
	CHECK(strstr(answer, "Access-Control-Allow-Origin: *\r\n"));
	CHECK_INT(ask("GET /nope HTTP/1.1\r\n" H "\r\n", "}"), 404);
	CHECK(strstr(answer, "{\"detail\":\"Not Found\"}"));
	CHECK(strstr(answer, "X-Request-ID: "));
	CHECK_INT(ask("PUT /hello HTTP/1.1\r\n" H "Content-Length: 0\r\n\r\n", "}"), 405);
	CHECK_INT(ask("GET /p/a%2Fb%20c/x?q=%41+b&q=2 HTTP/1.1\r\n" H "\r\n", "/x"), 200);
	CHECK(strstr(answer, "a/b c|A b|/p/a%2Fb%20c/x"));
	CHECK_INT(ask("GET /p/../x HTTP/1.1\r\n" H "\r\n", "}"), 404);
	CHECK_INT(ask("GET /p/%2e%2e/x HTTP/1.1\r\n" H "\r\n", "}"), 404);
	CHECK_INT(ask("GET /p/a%00b/x HTTP/1.1\r\n" H "\r\n", "}"), 404);
	CHECK_INT(ask("GET /p//x HTTP/1.1\r\n" H "\r\n", "}"), 404);
	CHECK_INT(ask("POST /echo?inject=a%0d%0aX-Evil:1 HTTP/1.1\r\n" H
		      "Content-Length: 2\r\n\r\nok",
			  "ok"),
		200);
	CHECK(!strstr(answer, "X-Evil") && !strstr(answer, "X-Bad"));
	CHECK_INT(ask("OPTIONS /hello HTTP/1.1\r\n" H
		      "Origin: a\r\nAccess-Control-Request-Method: GET\r\n\r\n",
			  "OK"),
		200);
}

static void two_lengths_are_refused(void)
{
	static const char *const bad[] = {
		"POST /echo HTTP/1.1\r\n" H "Content-Length: 2\r\nContent-Length: 2\r\n\r\nok",
		"POST /echo HTTP/1.1\r\n" H
		"Content-Length: 2\r\nContent-Length: 40\r\n\r\nokGET /hello HTTP/1.1\r\n" H "\r\n",
		"POST /echo HTTP/1.1\r\n" H "Content-Length: 2\r\nTransfer-Encoding: "
		"chunked\r\n\r\n0\r\n\r\nGET /hello HTTP/1.1\r\n" H "\r\n",
		"POST /echo HTTP/1.1\r\n" H
		"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"POST /echo HTTP/1.1\r\n" H
		"Transfer-Encoding: gzip\r\n\r\n0\r\n\r\nGET /hello HTTP/1.1\r\n" H "\r\n",
		"POST /echo HTTP/1.1\r\n" H "Content-Length: +2\r\n\r\nok",
		"POST /echo HTTP/1.1\r\n" H "Content-Length : 2\r\n\r\nokGET /hello HTTP/1.1\r\n" H
		"\r\n",
		"DELETE /none HTTP/1.1\r\n" H
		"Content-Length: 2\r\nContent-Length: 40\r\n\r\nokGET /hello HTTP/1.1\r\n" H "\r\n",
		/* folded: whoever is in front reads the two lines as one */
		"POST /echo HTTP/1.1\r\n" H
		"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\nGET /hello "
		"HTTP/1.1\r\n" H "\r\n",
		"POST /echo HTTP/1.1\r\n" H
		"Transfer-Encoding: \r\n\tchunked\r\n\r\n0\r\n\r\nGET /hello "
		"HTTP/1.1\r\n" H "\r\n",
		"POST /echo HTTP/1.1\r\n" H
		"Transfer-Enc: chunked\r\n oding\r\n\r\n0\r\n\r\nGET /hello "
		"HTTP/1.1\r\n" H "\r\n",
		"GET /hello HTTP/1.1\r\n" H "X-A: b\r\n c\r\n\r\n",
		"POST /echo HTTP/1.1\r\n" H "Content-Length2: 2\r\n\r\nok",
		"PATCH /none HTTP/1.1\r\n" H
		"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nokGET /hello HTTP/1.1\r\n" H
		"\r\n",
	};
	int before = S.handled;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		_cleanup_close_ int s = dial();
		int st = talk(s, bad[i], 0, NULL);

		if (st != 400 && !(st == 0 && !answer[0])) {
			printf("case %zu: %d %s\n", i, st, answer);
			CHECK(false);
		}
		CHECK(!strstr(answer, "hello"));
	}
	CHECK_INT(S.handled, before);
}

static void bodies_have_limits(void)
{
	static char big[200000];
	int n;

	CHECK_INT(ask("POST /echo HTTP/1.1\r\n" H "Content-Length: 999999999\r\n\r\n", NULL), 413);
	n = snprintf(big, sizeof(big),
		"POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n7d0\r\n");
	memset(big + n, 'x', 2000);
	memcpy(big + n + 2000, "\r\n0\r\n\r\n", 8);
	CHECK_INT(ask(big, "}"), 413);
	n = snprintf(big, sizeof(big), "GET /hello HTTP/1.1\r\n" H "X-Long: ");
	memset(big + n, 'x', 180000);
	memcpy(big + n + 180000, "\r\n\r\n", 5);
	n = ask(big, "nothing");
	CHECK(n == 431 || n == 0 || n == 400 || n == 413);
	/* a handler that refuses before the body came */
	CHECK_INT(ask("POST /early HTTP/1.1\r\n" H
		      "Content-Length: 5000000\r\nExpect: 100-continue\r\n\r\n",
			  NULL),
		403);
	CHECK(!strstr(answer, "100 Continue"));
	/* small body, early answer: the connection goes on and the body is not taken for a request
	 */
	CHECK_INT(
		ask("POST /early HTTP/1.1\r\n" H
		    "Content-Length: 18\r\n\r\nGET /hello HTTP/1.GET /p/1/x HTTP/1.1\r\n" H "\r\n",
			"1|-|/p"),
		403);
	CHECK(strstr(answer, "1|-|/p"));
	CHECK_INT(ask("DELETE /none HTTP/1.1\r\n" H
		      "Content-Length: 3\r\n\r\nabcGET /p/1/x HTTP/1.1\r\n" H "\r\n",
			  "1|-|/p"),
		200);
	CHECK(strstr(answer, "1|-|/p"));
}

static void late_answers_and_pipelines(void)
{
	_cleanup_close_ int s = dial();

	CHECK_INT(ask("GET /late HTTP/1.1\r\n" H "\r\n", "late"), 200);
	CHECK_INT(talk(s, "GET /late HTTP/1.1\r\n" H "\r\nGET /hello HTTP/1.1\r\n" H "\r\n", 0,
			  "hello"),
		200);
	CHECK(strstr(answer, "late") && strstr(answer, "hello"));
}

static void client_that_leaves_is_noticed(void)
{
	int s = dial(), gone = S.gone, freed = S.freed, n = S.handled;

	put(s, "GET /hold HTTP/1.1\r\n" H "\r\n");
	wait_for(&S.handled, n + 1);
	close(s);
	wait_for(&S.gone, gone + 1);
	wait_for(&S.freed, freed + 1);
	s = dial();
	CHECK_INT(talk(s, "GET /events HTTP/1.1\r\n" H "\r\n", 0, "{\"n\":1}"), 200);
	close(s);
	wait_for(&S.gone, gone + 2);
	wait_for(&S.freed, freed + 2);
}

static void events_leave_at_once(void)
{
	_cleanup_close_ int s = dial();
	char b[4096];
	int got = 0, gone = S.gone;

	put(s, "GET /events HTTP/1.1\r\n" H "\r\n");
	while (got < 4) {
		ssize_t k = recv(s, b, sizeof(b) - 1, 0);

		REQUIRE(k > 0);
		b[k] = 0;
		/* the next one is written when this one was read: one that is kept for later would never come */
		for (char *p = b; (p = strstr(p, "{\"n\":1}")); p++, S.ahead--)
			got++;
	}
	close_fd(&s);
	wait_for(&S.gone, gone + 1);
}

static void slow_readers_get_back_pressure(void)
{
	_cleanup_close_ int s = dial();
	uint64_t total = 0;
	ssize_t k;
	int small = 65536, freed = S.freed;

	setsockopt(s, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	put(s, "GET /stream?blocks=400&len=1 HTTP/1.1\r\n" H "Connection: close\r\n\r\n");
	poll(NULL, 0, 100);
	CHECK(stream_left > 200);
	while ((k = recv(s, answer, sizeof(answer), 0)) > 0)
		total += (uint64_t)k;
	CHECK_INT(k, 0);
	CHECK(total > 400 * 65536 && total < 400 * 65536 + 1000);
	wait_for(&S.freed, freed + 1);
}

static void uploads_are_taken_in_pieces(void)
{
	_cleanup_close_ int s = dial();
	static char part[65536 + 16];
	int n;

	put(s, "POST /upload HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n");
	for (int i = 0; i < 40; i++) {
		n = snprintf(part, sizeof(part), "10000\r\n");
		memset(part + n, 'x', 65536);
		part[n + 65536] = '\r';
		part[n + 65537] = '\n';
		REQUIRE(!write_full(s, part, (size_t)n + 65538));
	}
	CHECK_INT(talk(s, "0\r\n\r\n", 0, "2621440"), 200);
	CHECK(strstr(answer, "\r\n\r\n2621440"));
	CHECK(S.body_pauses > 0);
	/* one that breaks off tells the reader */
	n = S.gone;
	{
		_cleanup_close_ int s2 = dial();

		put(s2, "POST /upload HTTP/1.1\r\n" H "Content-Length: 100\r\n\r\nabc");
		poll(NULL, 0, 50);
	}
	wait_for(&S.gone, n + 1);
}

/* A piece and the end of the connection in one turn: nothing touches the request after it was freed
 * (under ASan it would show). */
static void upload_breaks_off_with_its_last_piece(void)
{
	for (int i = 0; i < 5; i++) {
		_cleanup_close_ int s = dial();
		int up = dial(), gone = S.gone, freed = S.freed, handled = S.handled,
		    stalled = S.stalled;

		put(up, "POST /upload HTTP/1.1\r\n" H "Content-Length: 100\r\n\r\n");
		wait_for(&S.handled, handled + 1);
		put(s, "GET /stall HTTP/1.1\r\n" H "\r\n");
		wait_for(&S.stalled, stalled + 1);
		put(up, "abc");
		close(up);
		sem_post(&S.go_on);
		wait_for(&S.gone, gone + 1);
		wait_for(&S.freed, freed + 1);
		CHECK_INT(talk(s, NULL, 0, "\r\n\r\n"), 200);
	}
}

static void many_idle_connections_do_not_stall(void)
{
	static int fds[1500];
	int n = 0;

	for (; n < 1500; n++) {
		fds[n] = dial();
		if (fds[n] < 0)
			break;
		put(fds[n], "GET /hel");
	}
	CHECK_INT(ask("GET /hello HTTP/1.1\r\n" H "\r\n", "hello"), 200);
	while (n-- > 0)
		close(fds[n]);
}

/* The tests before leave it work (closing 1500 connections takes a loaded machine its time), so it
 * is asked whether it comes to rest: a server that spins never does. */
static void idle_server_sleeps(void)
{
	struct timespec a, b;
	clockid_t c;
	bool rested = false;

	pthread_getcpuclockid(S.thread.thread, &c);
	for (int i = 0; i < 20 && !rested; i++) {
		clock_gettime(c, &a);
		poll(NULL, 0, 200);
		clock_gettime(c, &b);
		rested = (b.tv_sec - a.tv_sec) * 1000000000ll + b.tv_nsec - a.tv_nsec < 10000000;
	}
	CHECK(rested);
}

static const struct test tests[] = {
	{"simple_requests", simple_requests},
	{"two_lengths_are_refused", two_lengths_are_refused},
	{"bodies_have_limits", bodies_have_limits},
	{"late_answers_and_pipelines", late_answers_and_pipelines},
	{"client_that_leaves_is_noticed", client_that_leaves_is_noticed},
	{"events_leave_at_once", events_leave_at_once},
	{"slow_readers_get_back_pressure", slow_readers_get_back_pressure},
	{"uploads_are_taken_in_pieces", uploads_are_taken_in_pieces},
	{"upload_breaks_off_with_its_last_piece", upload_breaks_off_with_its_last_piece},
	{"many_idle_connections_do_not_stall", many_idle_connections_do_not_stall},
	{"idle_server_sleeps", idle_server_sleeps},
};

int main(int argc, char **argv)
{
	int rc;

	if (server_start()) {
		printf("no server: %d\n", errno);
		return 1;
	}
	rc = test_main(argc, argv, tests, ARRAY_LEN(tests));
	loop_thread_stop(&S.thread);
	http_destroy(S.http);
	timer_remove(S.t);
	loop_destroy(S.loop);
	return rc;
}
