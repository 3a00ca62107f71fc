/* SPDX-License-Identifier: Apache-2.0
 *
 * http_upgrade: the real server, raw clients, connections after a 101: bytes with the head, half-closes both ways, back-pressure both ways, clients that leave at
 * each moment, clients that take nothing, the end of the daemon, and what an idle one costs. Server and clients share one thread, so that every step is known.
 */
#include "lib/test.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "api/http/upgrade.h"
#include "lib/buf.h"
#include "lib/websocket.h"

static struct {
	struct loop *loop;
	struct http *http;
	int port;
	struct http_upgrade *up;
	struct http_req *waiting;
	struct buf got;
	int drained, closed, err, freed, eof, left;
	bool echo, end_on_eof, count_only;
	uint64_t bytes;
} S;

static void up_bytes(void *arg, const uint8_t *p, size_t n)
{
	S.bytes += n;
	if (!n) {
		S.eof++;
		if (S.end_on_eof)
			http_upgrade_end(S.up);
		return;
	}
	if (!S.count_only)
		buf_put(&S.got, p, n);
	if (S.echo)
		CHECK(http_upgrade_send(S.up, p, n));
}

static void up_drained(void *arg)
{
	S.drained++;
}

static void up_leave(void *arg)
{
	S.left++;
	http_upgrade_send(S.up, "bye", 3);
	http_upgrade_close(take_ptr(S.up));
}

static void up_closed(void *arg, int err)
{
	S.closed++;
	S.err = err;
	S.up = NULL;
}

static const struct http_upgrade_ops ops = {up_bytes, up_drained, up_leave, up_closed};

static void count_free(struct http_req *r)
{
	S.freed++;
}

static void h_up(struct http_req *r)
{
	http_on_free(r, count_free);
	http_add_header(r, "X-Mine", "yes");
	S.up = http_upgrade(r, "raw", &ops, NULL);
	if (!S.up)
		http_error(r, 400, "NO", "no upgrade");
}

static void wait_gone(struct http_req *r)
{
	S.waiting = NULL;
	http_abort(r);
}

static void h_wait(struct http_req *r)
{
	http_on_free(r, count_free);
	http_on_gone(r, wait_gone);
	S.waiting = r;
}

static void h_refuse(struct http_req *r)
{
	http_on_free(r, count_free);
	http_websocket_refuse(r, 1011, "nobody there");
}

static const struct http_route routes[] = {
	{"GET", "/up", h_up, HTTP_BODY_NONE, 0, 0},
	{"POST", "/up", h_up, HTTP_BODY_NONE, 0, 0},
	{"GET", "/wait", h_wait, HTTP_BODY_NONE, 0, 0},
	{"GET", "/refuse", h_refuse, HTTP_BODY_NONE, 0, 0},
};

static const struct http_route *dispatch(struct http_req *r)
{
	const struct http_table t = {routes, ARRAY_LEN(routes)};
	int status;
	const struct http_route *rt = http_match(r, &t, &status);

	if (!rt)
		http_error_detail(r, status, "Not Found");
	return rt;
}

static void invoke(struct http_req *r)
{
	r->route->fn(r);
}

static void server_start(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t n = sizeof(a);
	struct http_config c = {.connections_max = 5000,
		.write_limit_s = 1,
		.dispatch = dispatch,
		.invoke = invoke};

	memset(&S, 0, sizeof(S));
	buf_init(&S.got, MIB(64));
	c.listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	ASSERT(!bind(c.listen_fd, (void *)&a, sizeof(a)) && !listen(c.listen_fd, 1024) &&
		!getsockname(c.listen_fd, (void *)&a, &n));
	S.port = ntohs(a.sin_port);
	S.loop = loop_create();
	S.http = http_create(S.loop, &c);
	ASSERT(S.http);
}

static void server_stop(void)
{
	http_destroy(S.http);
	loop_destroy(S.loop);
	buf_fini(&S.got);
}

static int dial(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
		.sin_port = htons((uint16_t)S.port)};
	int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	ASSERT(!connect(s, (void *)&a, sizeof(a)));
	fcntl(s, F_SETFL, O_NONBLOCK);
	return s;
}

/* Turns the loop until the condition holds, for at most 20 s. */
#define PUMP(cond)                                                                                 \
	do {                                                                                       \
		uint64_t end_ = mono_ns() + 20000000000ull;                                        \
		while (!(cond) && mono_ns() < end_)                                                \
			loop_turn(S.loop, 10);                                                     \
		CHECK(cond);                                                                       \
	} while (0)

static char answer[4096];
static size_t answered;
/* One look at what came. false: the end. */
static bool take(int s)
{
	ssize_t n = recv(s, answer + answered, sizeof(answer) - 1 - answered, MSG_DONTWAIT);

	if (n > 0)
		answered += (size_t)n;
	answer[answered] = 0;
	return n != 0 && !(n < 0 && errno != EAGAIN);
}

#define HEAD "GET /up HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n"

#define WAIT "GET /wait HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n"

/* A client behind its 101. more: sent with the head. */
static int upgraded(const char *more)
{
	char head[300];
	int s = dial();

	answered = 0;
	snprintf(head, sizeof(head), "%s%s", HEAD, more);
	CHECK(send(s, head, strlen(head), MSG_NOSIGNAL) > 0);
	PUMP(take(s) && strstr(answer, "\r\n\r\n"));
	return s;
}

static void bytes_cross_and_early_ones_are_kept(void)
{
	int s;

	server_start();
	S.echo = true;
	s = upgraded("early");
	CHECK(!strncmp(answer, "HTTP/1.1 101 ", 13));
	CHECK(strcasestr(answer, "\r\nUpgrade: raw\r\n") &&
		strcasestr(answer, "\r\nConnection: Upgrade\r\n") && strstr(answer, "X-Mine: yes"));
	PUMP(take(s) && strstr(answer, "\r\n\r\nearly"));
	CHECK(send(s, " more", 5, MSG_NOSIGNAL) == 5);
	PUMP(take(s) && strstr(answer, "early more"));
	close(s);
	PUMP(S.eof);
	CHECK_INT(S.freed, 0);
	http_upgrade_close(take_ptr(S.up));
	PUMP(S.freed == 1);
	CHECK_INT(S.closed, 0);
	PUMP(http_stats(S.http)->open == 0);
	server_stop();
}

static void half_closes_both_ways(void)
{
	int s;

	/* the client ends first, the server still speaks */
	server_start();
	s = upgraded("");
	shutdown(s, SHUT_WR);
	PUMP(S.eof == 1);
	CHECK(http_upgrade_send(S.up, "after", 5));
	PUMP(take(s) && strstr(answer, "after"));
	http_upgrade_end(S.up);
	PUMP(!take(s));
	http_upgrade_close(take_ptr(S.up));
	PUMP(S.freed == 1);
	close(s);
	/* the server ends first, the client still speaks */
	s = upgraded("");
	http_upgrade_end(S.up);
	CHECK(!http_upgrade_send(S.up, "x", 1));
	PUMP(!take(s));
	CHECK(send(s, "still", 5, MSG_NOSIGNAL) == 5);
	PUMP(S.got.len == 5);
	close(s);
	PUMP(S.eof == 2);
	http_upgrade_close(take_ptr(S.up));
	PUMP(S.freed == 2);
	server_stop();
}

static void what_is_queued_leaves_with_the_close(void)
{
	static char big[700000];
	size_t got = 0;
	ssize_t n = 1;
	int s;

	server_start();
	s = upgraded("");
	CHECK(http_upgrade_send(S.up, big, sizeof(big)));
	http_upgrade_close(take_ptr(S.up));
	for (uint64_t end = mono_ns() + 10000000000ull; n != 0 && mono_ns() < end;) {
		loop_turn(S.loop, 1);
		n = recv(s, big, sizeof(big), MSG_DONTWAIT);
		got += n > 0 ? (size_t)n : 0;
	}
	CHECK_INT(got, sizeof(big));
	close(s);
	PUMP(S.freed == 1);
	server_stop();
}

/* Output: full and drained. Input: held, then everything, also from a client that left meanwhile. */
static void back_pressure_both_ways(void)
{
	static char block[65536], sink[1 << 20];
	size_t sent = 0, got = 0;
	ssize_t n;
	int s;

	server_start();
	s = upgraded("");
	while (!http_upgrade_full(S.up)) {
		CHECK(http_upgrade_send(S.up, block, sizeof(block)));
		sent += sizeof(block);
		loop_turn(S.loop, 0);
	}
	CHECK(sent >= HTTP_UPGRADE_HIGH);
	CHECK_INT(S.drained, 0);
	for (uint64_t end = mono_ns() + 10000000000ull; got < sent && mono_ns() < end;) {
		n = recv(s, sink, sizeof(sink), MSG_DONTWAIT);
		got += n > 0 ? (size_t)n : 0;
		loop_turn(S.loop, 1);
	}
	CHECK_INT(got, sent);
	CHECK_INT(S.drained, 1);

	http_upgrade_hold(S.up, true);
	http_upgrade_end(S.up);
	S.count_only = true;
	sent = 0;
	while ((n = send(s, block, sizeof(block), MSG_NOSIGNAL)) > 0) {
		sent += (size_t)n;
		loop_turn(S.loop, 0);
	}
	CHECK_INT(S.bytes, 0);
	close(s); /* with unread nothing on its side: a plain end of file */
	for (int i = 0; i < 5; i++)
		loop_turn(S.loop, 1);
	CHECK_INT(S.bytes, 0);
	http_upgrade_hold(S.up, false);
	PUMP(S.bytes == sent && S.eof == 1);
	http_upgrade_close(take_ptr(S.up));
	PUMP(S.freed == 1);
	server_stop();
}

static void a_client_that_takes_nothing_is_cut_off(void)
{
	static char block[65536];
	int s;

	server_start();
	s = upgraded("");
	while (http_upgrade_send(S.up, block, sizeof(block)))
		loop_turn(S.loop, 0);
	PUMP(S.closed == 1 && S.freed == 1);
	CHECK_INT(S.err, ETIMEDOUT);
	CHECK_INT(http_stats(S.http)->cut_off, 1);
	close(s);
	server_stop();
}

static void a_client_that_breaks_off(void)
{
	struct linger hard = {.l_onoff = 1};
	int s;

	server_start();
	s = upgraded("");
	setsockopt(s, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
	close(s);
	PUMP(S.closed == 1 && S.freed == 1);
	CHECK_INT(S.err, ECONNRESET);
	/* before the handler decided: as any other request */
	s = dial();
	CHECK(send(s,
		      "GET /wait HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: "
		      "raw\r\n\r\n",
		      66, MSG_NOSIGNAL) > 0);
	PUMP(S.waiting);
	close(s);
	PUMP(S.freed == 2);
	/* after it decided, before the 101 is out */
	s = dial();
	CHECK(send(s,
		      "GET /wait HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: "
		      "raw\r\n\r\n",
		      66, MSG_NOSIGNAL) > 0);
	PUMP(S.waiting);
	S.up = http_upgrade(S.waiting, "raw", &ops, NULL);
	CHECK(S.up);
	CHECK(http_upgrade_send(S.up, "x", 1));
	setsockopt(s, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
	close(s);
	PUMP(S.closed == 2 && S.freed == 3);
	/* and closed by its owner at that moment: its bytes follow the 101 all the same */
	s = dial();
	answered = 0;
	CHECK(send(s,
		      "GET /wait HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: "
		      "raw\r\n\r\n",
		      66, MSG_NOSIGNAL) > 0);
	S.waiting = NULL;
	PUMP(S.waiting);
	S.up = http_upgrade(S.waiting, "raw", &ops, NULL);
	CHECK(http_upgrade_send(S.up, "last", 4));
	http_upgrade_close(take_ptr(S.up));
	PUMP(!take(s));
	CHECK(strstr(answer, "\r\n\r\nlast"));
	close(s);
	PUMP(S.freed == 4);
	server_stop();
}

/* Processor time of this process. */
static uint64_t used_ns(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000000ull +
	       (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1000;
}

/* A client that ended its side and then breaks off while the owner still has something to say. */
static void a_client_that_breaks_off_after_its_end(void)
{
	struct linger hard = {.l_onoff = 1};

	for (int held = 0; held < 2; held++) {
		int s;

		server_start();
		s = upgraded("");
		shutdown(s, SHUT_WR);
		PUMP(S.eof == 1);
		http_upgrade_hold(S.up, held);
		setsockopt(s, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
		close(s);
		if (held) {
			uint64_t end = mono_ns() + 200000000ull, used = used_ns();

			while (mono_ns() < end)
				loop_turn(S.loop, 10);
			CHECK(used_ns() - used < 100000000ull);
			http_upgrade_hold(S.up, false);
		}
		PUMP(S.closed == 1 && S.freed == 1);
		CHECK_INT(S.err, ECONNRESET);
		server_stop();
	}
}

/* Both directions have ended, or the client broke off, and the owner still keeps the connection: it has the write limit. */
static void an_owner_that_never_closes_has_a_limit(void)
{
	struct linger hard = {.l_onoff = 1};
	int s;

	server_start();
	s = upgraded("");
	close(s);
	PUMP(S.eof == 1);
	http_upgrade_end(S.up);
	PUMP(S.closed == 1 && S.freed == 1);
	CHECK_INT(S.err, ETIMEDOUT);
	server_stop();

	server_start();
	s = upgraded("");
	http_upgrade_hold(S.up, true);
	CHECK(send(s, "tail", 4, MSG_NOSIGNAL) == 4);
	setsockopt(s, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
	close(s);
	PUMP(S.closed == 1 && S.freed == 1);
	CHECK_INT(S.err, ETIMEDOUT);
	CHECK_INT(http_stats(S.http)->cut_off, 1);
	server_stop();
}

static void what_cannot_be_upgraded(void)
{
	static const char *const asks[] = {
		"GET /up HTTP/1.0\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n",
		"POST /up HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: "
		"Upgrade\r\nUpgrade: raw\r\n\r\nhi",
	};

	server_start();
	for (size_t i = 0; i < ARRAY_LEN(asks); i++) {
		int s = dial();

		answered = 0;
		CHECK(send(s, asks[i], strlen(asks[i]), MSG_NOSIGNAL) > 0);
		PUMP((take(s), strstr(answer, "no upgrade")));
		CHECK(!strncmp(answer + 8, " 400", 4));
		close(s);
	}
	PUMP(S.freed == 2);
	server_stop();
}

static void a_websocket_is_refused_with_a_code(void)
{
	static const char head[] =
		"GET /refuse HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: "
		"websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "
		"dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
	static const char eight[] =
		"GET /refuse HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
		"Sec-WebSocket-Version: 8\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
	const char *frame;
	int s;

	server_start();
	s = dial();
	answered = 0;
	CHECK(send(s, head, sizeof(head) - 1, MSG_NOSIGNAL) > 0);
	PUMP(!take(s));
	CHECK(!strncmp(answer, "HTTP/1.1 101 ", 13));
	CHECK(strstr(answer, "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
	frame = strstr(answer, "\r\n\r\n");
	CHECK(frame && !memcmp(frame + 4, "\x88\x0e\x03\xf3nobody there", 16));
	close(s);
	s = dial();
	answered = 0;
	CHECK(send(s, eight, sizeof(eight) - 1, MSG_NOSIGNAL) > 0);
	PUMP(take(s) && strstr(answer, "must be 13"));
	CHECK(!strncmp(answer + 8, " 426", 4) && strcasestr(answer, "Sec-WebSocket-Version: 13"));
	close(s);
	PUMP(S.freed == 2);
	server_stop();
}

static bool quiet;
static void all_quiet(void *arg)
{
	quiet = true;
}

static void the_daemon_ends(void)
{
	int s;

	server_start();
	s = upgraded("");
	quiet = false;
	http_quiesce(S.http, all_quiet, NULL);
	CHECK_INT(S.left, 1);
	PUMP(!take(s));
	CHECK(strstr(answer, "\r\n\r\nbye"));
	close(s);
	PUMP(quiet);
	server_stop();
	/* without a goodbye */
	server_start();
	s = upgraded("");
	http_destroy(take_ptr(S.http));
	CHECK_INT(S.closed, 1);
	CHECK_INT(S.freed, 1);
	close(s);
	loop_destroy(S.loop);
	buf_fini(&S.got);
}

static long resident_kib(void)
{
	FILE *f = fopen("/proc/self/statm", "re");
	long all = 0, resident = 0;

	if (!f || fscanf(f, "%ld %ld", &all, &resident) != 2)
		resident = 0;
	if (f)
		fclose(f);
	return resident * 4;
}

/* Two thousand idle ones; the bound is far above what was measured (docs/api.md). */
static void idle_ones_cost_little(void)
{
	enum { N = 2000 };
	static int fds[N];
	struct rlimit files;
	long before;
	int n = 0;

	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
	server_start();
	loop_turn(S.loop, 0);
	before = resident_kib();
	for (; n < N && n < (int)files.rlim_cur / 2 - 50; n++)
		fds[n] = upgraded("");
	printf("%d idle upgraded connections: %.1f KiB each in this process\n", n,
		(double)(resident_kib() - before) / n);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	CHECK((resident_kib() - before) / n < 64);
#endif
	while (n-- > 0)
		close(fds[n]);
	server_stop();
}

static const struct test tests[] = {
	{"bytes_cross_and_early_ones_are_kept", bytes_cross_and_early_ones_are_kept},
	{"half_closes_both_ways", half_closes_both_ways},
	{"what_is_queued_leaves_with_the_close", what_is_queued_leaves_with_the_close},
	{"back_pressure_both_ways", back_pressure_both_ways},
	{"a_client_that_takes_nothing_is_cut_off", a_client_that_takes_nothing_is_cut_off},
	{"a_client_that_breaks_off", a_client_that_breaks_off},
	{"a_client_that_breaks_off_after_its_end", a_client_that_breaks_off_after_its_end},
	{"an_owner_that_never_closes_has_a_limit", an_owner_that_never_closes_has_a_limit},
	{"what_cannot_be_upgraded", what_cannot_be_upgraded},
	{"a_websocket_is_refused_with_a_code", a_websocket_is_refused_with_a_code},
	{"the_daemon_ends", the_daemon_ends},
	{"idle_ones_cost_little", idle_ones_cost_little},
};

int main(int argc, char **argv)
{
	signal(SIGPIPE, SIG_IGN);
	return test_main(argc, argv, tests, ARRAY_LEN(tests));
}
