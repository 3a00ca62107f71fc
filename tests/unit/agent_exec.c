/* SPDX-License-Identifier: Apache-2.0
 *
 * agent_exec: commands through the real agent as a process: output, ends, limits, back-pressure,
 * lost streams, background, sessions, terminals.
 */
#include "tests/agent_host.h"

#include <sys/resource.h>

static struct host H;
static struct got G;

static const char *const *sh(const char *text)
{
	static const char *v[2];

	v[0] = text;
	return v;
}

/* Runs to the end; r holds everything. Returns AGENT_ERR's errno, if it came to that. */
static int run(struct ran *r, const char *id, uint32_t flags, const char *cwd, uint64_t timeout_ms,
	const char *session, const char *const *argv, const char *const *env)
{
	int fd = host_open(&H, AGENT_CONN_EXEC, &r->g);
	struct buf b;
	int code = 0;

	buf_init(&b, AGENT_FRAME_MAX);
	host_exec_body(&b, id, flags, cwd, timeout_ms, session, argv, env);
	host_send(fd, AGENT_EXEC, 5, &b);
	buf_fini(&b);
	if (!host_recv(fd, &r->g))
		code = -1;
	else if (r->g.h.type != AGENT_OK)
		code = r->g.code;
	else
		CHECK(ran_wait(r, fd));
	close(fd);
	return code;
}

static void forget(const char *id)
{
	int fd = host_open(&H, AGENT_CONN_CONTROL, &G);
	struct buf b;

	buf_init(&b, 256);
	buf_str(&b, id);
	CHECK(host_ask(&H, fd, AGENT_FORGET, &b, &G));
	buf_fini(&b);
	close(fd);
}

static void output_and_code(void)
{
	static const char *const env[] = {"A", "one two", NULL};
	static const char *const argv[] = {"/bin/echo", "$A", NULL};
	struct ran r;

	ran_init(&r);
	CHECK_INT(run(&r, "e1", AGENT_X_SHELL, "/tmp", 0, "",
			  sh("echo hi $A; pwd; echo oops >&2; exit 3"), env),
		0);
	CHECK_STR(buf_cstr(&r.out), "hi one two\n/tmp\n");
	CHECK_STR(buf_cstr(&r.err), "oops\n");
	CHECK_INT(r.state, AGENT_EXITED);
	CHECK_INT(r.code, 3);
	ran_fini(&r);
	ran_init(&r);
	CHECK_INT(run(&r, "e2", 0, "/", 0, "", argv, NULL), 0);
	CHECK_STR(buf_cstr(&r.out), "$A\n");
	ran_fini(&r);
	forget("e1");
	forget("e2");
}

static void failures_say_which_step(void)
{
	static const char *const none[] = {"no-such-program-here", NULL};
	struct ran r;

	ran_init(&r);
	CHECK_INT(run(&r, "f1", AGENT_X_SHELL, "/no/such/dir", 0, "", sh("true"), NULL), ENOENT);
	CHECK_INT(r.g.step, AGENT_STEP_CWD);
	CHECK_INT(run(&r, "f2", 0, "/", 0, "", none, NULL), ENOENT);
	CHECK_INT(r.g.step, AGENT_STEP_START);
	CHECK_INT(run(&r, "f3", AGENT_X_SHELL | AGENT_X_EXPAND_CWD, "$UNSET_X/y", 0, "", sh("true"),
			  NULL),
		EINVAL);
	CHECK_INT(r.g.step, AGENT_STEP_CWD);
	CHECK_INT(run(&r, "f4", AGENT_X_SHELL, "", 0, "nosuch", sh("true"), NULL), ENOENT);
	/* a name that failed is free again */
	CHECK_INT(run(&r, "f1", AGENT_X_SHELL, "", 0, "", sh("true"), NULL), 0);
	forget("f1");
	ran_fini(&r);
}

/* AGENT_EXEC with limits at its end; answers as run() does. */
static int run_limited(
	struct ran *r, const char *id, const char *text, uint32_t n, const uint64_t *v)
{
	int fd = host_open(&H, AGENT_CONN_EXEC, &r->g), code = 0;
	struct buf b;

	buf_init(&b, AGENT_FRAME_MAX);
	host_exec_body(&b, id, AGENT_X_SHELL, "", 0, "", sh(text), NULL);
	b.len -= 4;
	buf_u32(&b, n);
	for (uint32_t i = 0; i < n; i++) {
		buf_u32(&b, (uint32_t)v[3 * i]);
		buf_u64(&b, v[3 * i + 1]);
		buf_u64(&b, v[3 * i + 2]);
	}
	host_send(fd, AGENT_EXEC, 5, &b);
	buf_fini(&b);
	if (!host_recv(fd, &r->g))
		code = -1;
	else if (r->g.h.type != AGENT_OK)
		code = r->g.code;
	else
		CHECK(ran_wait(r, fd));
	close(fd);
	return code;
}

static void limits_are_the_command_s(void)
{
	/* room for one more than the agent takes */
	static const uint64_t good[17 * 3] = {
		RLIMIT_NOFILE, 50, 60, RLIMIT_CORE, 0, 0, RLIMIT_FSIZE, 512 * 1024, 512 * 1024};
	static const uint64_t none_such[] = {99, 1, 1}, upside_down[] = {RLIMIT_NOFILE, 9, 5};
	struct ran r;

	ran_init(&r);
	CHECK_INT(run_limited(&r, "lim1", "ulimit -n; ulimit -H -n; ulimit -c", 3, good), 0);
	CHECK_STR(buf_cstr(&r.out), "50\n60\n0\n");
	ran_fini(&r);
	ran_init(&r);
	CHECK_INT(run_limited(&r, "lim2", "true", 1, none_such), EINVAL);
	CHECK_INT(r.g.step, AGENT_STEP_START);
	CHECK_INT(run_limited(&r, "lim2", "true", 1, upside_down), EINVAL);
	CHECK_INT(run_limited(&r, "lim2", "true", 17, good), EPROTO);
	ran_fini(&r);
	forget("lim1");
}

/* A daemon of the version before sends no limits; one of the version after is told what we speak.
 */
static void the_version_before_is_spoken(void)
{
	struct buf b;
	struct ran r;
	int fd = host_connect_as(&H, AGENT_CONN_EXEC, 1);

	ran_init(&r);
	buf_init(&b, AGENT_FRAME_MAX);
	CHECK(host_recv(fd, &G) && G.h.type == AGENT_OK);
	CHECK_INT(cur_u32(&G.c), 1);
	host_exec_body(&b, "v1", AGENT_X_SHELL, "", 0, "", sh("echo old"), NULL);
	b.len -= 4;
	host_send(fd, AGENT_EXEC, 5, &b);
	CHECK(host_recv(fd, &G) && G.h.type == AGENT_OK);
	CHECK(ran_wait(&r, fd));
	CHECK_STR(buf_cstr(&r.out), "old\n");
	close(fd);
	for (uint32_t v = 0; v <= AGENT_VERSION + 1; v += AGENT_VERSION + 1) {
		fd = host_connect_as(&H, AGENT_CONN_CONTROL, v);
		CHECK(host_recv(fd, &G));
		CHECK_INT(G.code, EPROTO);
		CHECK_STR(G.text, "no greeting of versions 1 to 3");
		CHECK(!host_recv(fd, &G));
		close(fd);
	}
	buf_fini(&b);
	ran_fini(&r);
	forget("v1");
}

static void usage_of_a_group(void)
{
	int fd = host_open(&H, AGENT_CONN_EXEC, &G), ctl = host_open(&H, AGENT_CONN_CONTROL, &G);
	struct ran r;
	struct buf b;

	ran_init(&r);
	buf_init(&b, AGENT_FRAME_MAX);
	/* works until it has used some time of the processor, with a child beside it */
	host_exec_body(&b, "use", AGENT_X_SHELL, "", 0, "",
		sh("sleep 100 & i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done; echo on; wait"),
		NULL);
	host_send(fd, AGENT_EXEC, 5, &b);
	buf_reset(&b);
	while (!r.out.len && ran_step(&r, fd, true))
		;
	buf_str(&b, "use");
	CHECK(host_ask(&H, ctl, AGENT_USAGE, &b, &G));
	CHECK_INT(cur_u32(&G.c), 2);
	CHECK(cur_u64(&G.c) >= 10000000); /* one tick */
	CHECK(cur_u64(&G.c) > 100000);
	cur_u64(&G.c);
	cur_u64(&G.c);
	CHECK(cur_done(&G.c));
	buf_str(&b, "use");
	buf_u32(&b, SIGKILL);
	buf_u32(&b, 0);
	CHECK(host_ask(&H, ctl, AGENT_SIGNAL, &b, &G));
	CHECK(ran_wait(&r, fd));
	buf_str(&b, "use");
	CHECK(!host_ask(&H, ctl, AGENT_USAGE, &b, &G));
	CHECK_INT(G.code, ESRCH);
	forget("use");
	buf_str(&b, "use");
	CHECK(!host_ask(&H, ctl, AGENT_USAGE, &b, &G));
	CHECK_INT(G.code, ENOENT);
	close(fd);
	close(ctl);
	buf_fini(&b);
	ran_fini(&r);
}

static void time_limit_kills_the_group(void)
{
	struct ran r;
	uint64_t t = mono_ns();

	ran_init(&r);
	CHECK_INT(run(&r, "t1", AGENT_X_SHELL, "", H.guest ? 3000 : 1000, "",
			  sh("echo a; sleep 30 | cat; echo b"), NULL),
		0);
	CHECK_INT(r.state, AGENT_TIMED_OUT);
	CHECK_STR(buf_cstr(&r.out), "a\n");
	CHECK(mono_ns() - t < 20000000000u);
	forget("t1");
	ran_fini(&r);
}

static void lost_stream_goes_on(void)
{
	int fd = host_open(&H, AGENT_CONN_EXEC, &G);
	struct ran r;
	struct buf b;

	ran_init(&r);
	buf_init(&b, AGENT_FRAME_MAX);
	host_exec_body(&b, "l1", AGENT_X_SHELL, "", 0, "",
		sh("echo one; read x < /tmp/../dev/null; echo two; echo err >&2; sleep 0.05; echo "
		   "three"),
		NULL);
	host_send(fd, AGENT_EXEC, 5, &b);
	CHECK(host_recv(fd, &G) && G.h.type == AGENT_OK);
	while (r.off[0] < 4 && ran_step(&r, fd, true))
		;
	close(fd);
	/* again, from what was really taken */
	fd = host_open(&H, AGENT_CONN_EXEC, &G);
	buf_reset(&b);
	buf_str(&b, "l1");
	buf_u64(&b, r.off[0]);
	buf_u64(&b, r.off[1]);
	host_send(fd, AGENT_ATTACH, 6, &b);
	CHECK(host_recv(fd, &G) && G.h.type == AGENT_OK);
	CHECK(ran_wait(&r, fd));
	CHECK_STR(buf_cstr(&r.out), "one\ntwo\nthree\n");
	CHECK_STR(buf_cstr(&r.err), "err\n");
	close(fd);
	/* acknowledged bytes are gone */
	fd = host_open(&H, AGENT_CONN_EXEC, &G);
	buf_reset(&b);
	buf_str(&b, "l1");
	buf_u64(&b, 0);
	buf_u64(&b, 0);
	host_send(fd, AGENT_ATTACH, 7, &b);
	CHECK(host_recv(fd, &G) && G.code == EPIPE);
	close(fd);
	buf_fini(&b);
	ran_fini(&r);
	forget("l1");
}

static void slow_reader_holds_the_process(void)
{
	int fd = host_open(&H, AGENT_CONN_EXEC, &G), ctl = host_open(&H, AGENT_CONN_CONTROL, &G);
	struct ran r;
	struct buf b;
	uint64_t made;

	ran_init(&r);
	buf_init(&b, AGENT_FRAME_MAX);
	host_exec_body(&b, "s1", AGENT_X_SHELL, "", 0, "", sh("head -c 5000000 /dev/zero"), NULL);
	host_send(fd, AGENT_EXEC, 5, &b);
	CHECK(host_recv(fd, &G) && G.h.type == AGENT_OK);
	while (r.out.len < AGENT_WINDOW && ran_step(&r, fd, false))
		;
	/* the window is full, and the agent answers others meanwhile */
	buf_reset(&b);
	buf_str(&b, "s1");
	CHECK(host_ask(&H, ctl, AGENT_STATUS, &b, &G));
	CHECK_INT(cur_u32(&G.c), AGENT_RUNNING);
	cur_u32(&G.c);
	cur_u64(&G.c);
	cur_u64(&G.c);
	made = cur_u64(&G.c);
	CHECK_INT(made, AGENT_WINDOW);
	host_ack(fd, &r);
	CHECK(ran_wait(&r, fd));
	CHECK_INT(r.out.len, 5000000);
	close(fd);
	close(ctl);
	buf_fini(&b);
	ran_fini(&r);
	forget("s1");
}

static void input_is_a_stream(void)
{
	int fd = host_open(&H, AGENT_CONN_EXEC, &G);
	struct ran r;
	struct buf b;

	ran_init(&r);
	buf_init(&b, AGENT_FRAME_MAX);
	host_exec_body(&b, "i1", AGENT_X_SHELL | AGENT_X_STDIN, "", 0, "", sh("tr a-z A-Z"), NULL);
	host_send(fd, AGENT_EXEC, 5, &b);
	buf_reset(&b);
	buf_put(&b, "hello ", 6);
	host_send(fd, AGENT_STDIN, 0, &b);
	buf_reset(&b);
	buf_put(&b, "world\n", 6);
	host_send(fd, AGENT_STDIN, 0, &b);
	host_send(fd, AGENT_STDIN, 0, NULL);
	CHECK(ran_wait(&r, fd));
	CHECK_STR(buf_cstr(&r.out), "HELLO WORLD\n");
	CHECK_INT(r.code, 0);
	close(fd);
	buf_fini(&b);
	ran_fini(&r);
	forget("i1");
}

static void background_output_is_kept(void)
{
	int ctl = host_open(&H, AGENT_CONN_CONTROL, &G);
	uint32_t state = AGENT_RUNNING;
	struct buf b;

	buf_init(&b, AGENT_FRAME_MAX);
	host_exec_body(&b, "b1", AGENT_X_SHELL | AGENT_X_BACKGROUND, "", 0, "",
		sh("echo out; echo err >&2; exit 4"), NULL);
	CHECK(host_ask(&H, ctl, AGENT_EXEC, &b, &G));
	for (int i = 0; state == AGENT_RUNNING && i < 5000; i++) {
		buf_str(&b, "b1");
		CHECK(host_ask(&H, ctl, AGENT_STATUS, &b, &G));
		state = cur_u32(&G.c);
		poll(NULL, 0, 5);
	}
	CHECK_INT(state, AGENT_EXITED);
	CHECK_INT(cur_u32(&G.c), 4);
	buf_str(&b, "b1");
	buf_u64(&b, 4);
	buf_u32(&b, 1000);
	CHECK(host_ask(&H, ctl, AGENT_LOGS, &b, &G));
	CHECK_INT(cur_u64(&G.c), 8);
	CHECK(!memcmp(G.c.p, "err\n", 4));
	close(ctl);
	buf_fini(&b);
	forget("b1");
}

static void signals_reach_the_group(void)
{
	int fd = host_open(&H, AGENT_CONN_EXEC, &G), ctl = host_open(&H, AGENT_CONN_CONTROL, &G);
	struct ran r;
	struct buf b;

	ran_init(&r);
	buf_init(&b, AGENT_FRAME_MAX);
	host_exec_body(&b, "k1", AGENT_X_SHELL, "", 0, "",
		sh("trap '' TERM; echo on; sleep 30 & wait; wait"), NULL);
	host_send(fd, AGENT_EXEC, 5, &b);
	while (!r.out.len && ran_step(&r, fd, true))
		;
	buf_reset(&b);
	buf_str(&b, "k1");
	buf_u32(&b, SIGTERM);
	buf_u32(&b, 50);
	CHECK(host_ask(&H, ctl, AGENT_SIGNAL, &b, &G));
	CHECK(ran_wait(&r, fd));
	CHECK_INT(r.state, AGENT_SIGNALED);
	CHECK_INT(r.code, SIGKILL);
	buf_str(&b, "k1");
	buf_u32(&b, SIGTERM);
	buf_u32(&b, 0);
	CHECK(!host_ask(&H, ctl, AGENT_SIGNAL, &b, &G));
	CHECK_INT(G.code, ESRCH);
	close(fd);
	close(ctl);
	buf_fini(&b);
	ran_fini(&r);
	forget("k1");
}

static void sessions_keep_state(void)
{
	int ctl = host_open(&H, AGENT_CONN_CONTROL, &G);
	struct ran r;
	struct buf b;

	buf_init(&b, AGENT_FRAME_MAX);
	buf_str(&b, "sess");
	buf_str(&b, "/tmp");
	CHECK(host_ask(&H, ctl, AGENT_SESSION_NEW, &b, &G));
	ran_init(&r);
	CHECK_INT(run(&r, "r1", AGENT_X_SHELL | AGENT_X_MERGE, "", 0, "sess",
			  sh("pwd; export FOO='a b'\ncd /usr; lost=1; exit 7"), NULL),
		0);
	CHECK_STR(buf_cstr(&r.out), "/tmp\n");
	CHECK_INT(r.code, 7);
	ran_fini(&r);
	ran_init(&r);
	CHECK_INT(run(&r, "r2", AGENT_X_SHELL | AGENT_X_MERGE, "/", 0, "sess",
			  sh("pwd; echo \"$FOO|$lost\"; unset FOO"), NULL),
		0);
	CHECK_STR(buf_cstr(&r.out), "/\na b|\n");
	CHECK_INT(r.code, 0);
	ran_fini(&r);
	ran_init(&r);
	CHECK_INT(run(&r, "r3", AGENT_X_SHELL | AGENT_X_MERGE, "", 0, "sess",
			  sh("pwd; echo \"${FOO-none}\""), NULL),
		0);
	CHECK_STR(buf_cstr(&r.out), "/usr\nnone\n");
	ran_fini(&r);
	buf_str(&b, "sess");
	CHECK(host_ask(&H, ctl, AGENT_SESSION_DEL, &b, &G));
	buf_str(&b, "sess");
	CHECK(!host_ask(&H, ctl, AGENT_SESSION_DEL, &b, &G));
	close(ctl);
	buf_fini(&b);
}

static void terminals(void)
{
	int fd = host_open(&H, AGENT_CONN_EXEC, &G), ctl = host_open(&H, AGENT_CONN_CONTROL, &G),
	    two;
	struct ran r;
	struct buf b;

	ran_init(&r);
	buf_init(&b, AGENT_FRAME_MAX);
	host_exec_body(&b, "p1", AGENT_X_SHELL | AGENT_X_PTY | AGENT_X_STDIN, "", 0, "",
		sh("tty >/dev/null && echo is-tty; read x; stty size; echo got $x"), NULL);
	host_send(fd, AGENT_EXEC, 5, &b);
	while (r.out.len < 8 && ran_step(&r, fd, false))
		;
	CHECK_STR(buf_cstr(&r.out), "is-tty\r\n");
	buf_reset(&b);
	buf_str(&b, "p1");
	buf_u16(&b, 100);
	buf_u16(&b, 40);
	CHECK(host_ask(&H, ctl, AGENT_RESIZE, &b, &G));
	/* another one takes it over and sees what was there as a replay */
	two = host_open(&H, AGENT_CONN_EXEC, &G);
	buf_str(&b, "p1");
	buf_u64(&b, 0);
	buf_u64(&b, 0);
	host_send(two, AGENT_ATTACH, 6, &b);
	CHECK(host_recv(two, &G) && G.h.type == AGENT_OK);
	CHECK(host_recv(two, &G) && G.h.type == AGENT_OUT);
	CHECK_INT(cur_u8(&G.c), 3);
	buf_reset(&b);
	buf_put(&b, "abc\n", 4);
	host_send(two, AGENT_STDIN, 0, &b);
	/* the first one still watches */
	CHECK(ran_wait(&r, fd));
	CHECK(strstr(buf_cstr(&r.out), "40 100\r\ngot abc\r\n") != NULL);
	close(two);
	close(fd);
	close(ctl);
	buf_fini(&b);
	ran_fini(&r);
	forget("p1");
}

static int attach(const char *id, uint64_t off, uint32_t flags)
{
	int fd = host_open(&H, AGENT_CONN_EXEC, &G);
	struct buf b;

	buf_init(&b, 256);
	buf_str(&b, id);
	buf_u64(&b, off);
	buf_u64(&b, 0);
	if (flags)
		buf_u32(&b, flags);
	host_send(fd, AGENT_ATTACH, 6, &b);
	buf_fini(&b);
	CHECK(host_recv(fd, &G));
	return fd;
}

/* Nobody reads a terminal for a while: it writes on, and who comes later gets the last megabyte,
 * and is told where that begins. */
static void a_terminal_keeps_its_last_megabyte(void)
{
	int fd = host_open(&H, AGENT_CONN_EXEC, &G);
	const uint64_t whole = 3000000;
	uint64_t first, next;
	struct buf b, all;

	buf_init(&b, AGENT_FRAME_MAX);
	buf_init(&all, MIB(4));
	host_exec_body(&b, "p2", AGENT_X_SHELL | AGENT_X_PTY, "", 0, "",
		sh("stty -opost; head -c 3000000 /dev/zero | tr '\\000' x; echo; echo end"), NULL);
	host_send(fd, AGENT_EXEC, 5, &b);
	CHECK(host_recv(fd, &G) && G.h.type == AGENT_OK);
	close(fd);
	{
		int ctl = host_open(&H, AGENT_CONN_CONTROL, &G);
		uint32_t code;

		CHECK_INT(host_wait_state(&H, ctl, "p2", &code, &G), AGENT_EXITED);
		close(ctl);
	}
	fd = attach("p2", 0, 0);
	CHECK(host_recv(fd, &G) && G.h.type == AGENT_OUT);
	CHECK_INT(cur_u8(&G.c), 3);
	first = next = cur_u64(&G.c);
	while (G.h.type == AGENT_OUT) {
		size_t n = cur_left(&G.c);

		buf_put(&all, G.c.p, n);
		next += n;
		if (!host_recv(fd, &G))
			break;
		if (G.h.type != AGENT_OUT)
			break;
		CHECK_INT(cur_u8(&G.c), 3);
		CHECK_INT(cur_u64(&G.c), next);
	}
	CHECK_INT(G.h.type, AGENT_EXIT);
	CHECK_INT(next, whole + 5);
	CHECK(all.len >= AGENT_WINDOW && all.len < AGENT_WINDOW + KIB(200));
	CHECK_INT(first, whole + 5 - all.len);
	CHECK(all.len > 6 && !memcmp(all.p + all.len - 6, "x\nend\n", 6));
	close(fd);
	buf_fini(&all);
	buf_fini(&b);
	forget("p2");
}

/* Watchers come and go beside the holder; what they say is not the terminal's input. */
/* Its reader is slower than it: what it said last, and that it ended, come when there is room
 * again. */
static void a_slow_reader_hears_a_terminal_s_end(void)
{
	int fd = host_open(&H, AGENT_CONN_EXEC, &G), ctl;
	uint64_t got = 0;
	struct buf b;

	buf_init(&b, AGENT_FRAME_MAX);
	host_exec_body(&b, "p3", AGENT_X_SHELL | AGENT_X_PTY, "", 0, "",
		sh("stty -opost; head -c 5000000 /dev/zero | tr '\\000' x; echo end"), NULL);
	host_send(fd, AGENT_EXEC, 5, &b);
	REQUIRE(host_recv(fd, &G) && G.h.type == AGENT_OK);
	/* its window and the socket are full: it stands still, and is ended there */
	for (int same = 0, last = 0, now = 0; same < 4; last = now) {
		poll(NULL, 0, 50);
		CHECK_INT(ioctl(fd, FIONREAD, &now), 0);
		same = now && now == last ? same + 1 : 0;
	}
	ctl = host_open(&H, AGENT_CONN_CONTROL, &G);
	buf_reset(&b);
	buf_str(&b, "p3");
	buf_u32(&b, SIGKILL);
	buf_u32(&b, 0);
	CHECK(host_ask(&H, ctl, AGENT_SIGNAL, &b, &G));
	poll(NULL, 0, 100);
	while (host_recv(fd, &G) && G.h.type == AGENT_OUT)
		got += cur_left(&G.c) - 9;
	CHECK_INT(G.h.type, AGENT_EXIT);
	CHECK(got > 0);
	close(ctl);
	close(fd);
	buf_fini(&b);
	forget("p3");
}

static void watchers_only_look(void)
{
	int fd = host_open(&H, AGENT_CONN_EXEC, &G), w[3];
	struct ran r, seen[3];
	struct buf b;

	ran_init(&r);
	buf_init(&b, AGENT_FRAME_MAX);
	host_exec_body(&b, "p3", AGENT_X_SHELL | AGENT_X_PTY | AGENT_X_STDIN, "", 0, "",
		sh("stty -echo; echo ready; read x; echo got $x"), NULL);
	host_send(fd, AGENT_EXEC, 5, &b);
	while (r.out.len < 7 && ran_step(&r, fd, false))
		;
	for (size_t i = 0; i < ARRAY_LEN(w); i++) {
		ran_init(&seen[i]);
		w[i] = attach("p3", 0, AGENT_AT_WATCH);
		CHECK_INT(G.h.type, AGENT_OK);
		buf_reset(&b);
		buf_put(&b, "intruder\n", 9);
		host_send(w[i], AGENT_STDIN, 0, &b);
	}
	close(w[1]);
	/* they have been heard, and still see, and the holder still holds */
	CHECK(ran_step(&seen[0], w[0], false));
	CHECK_STR(buf_cstr(&seen[0].out), "ready\r\n");
	buf_reset(&b);
	buf_put(&b, "holder\n", 7);
	host_send(fd, AGENT_STDIN, 0, &b);
	CHECK(ran_wait(&r, fd));
	CHECK_STR(buf_cstr(&r.out), "ready\r\ngot holder\r\n");
	for (size_t i = 0; i < ARRAY_LEN(w); i += 2) {
		CHECK(ran_wait(&seen[i], w[i]));
		CHECK_STR(buf_cstr(&seen[i].out), "ready\r\ngot holder\r\n");
		close(w[i]);
	}
	for (size_t i = 0; i < ARRAY_LEN(w); i++)
		ran_fini(&seen[i]);
	close(fd);
	buf_fini(&b);
	ran_fini(&r);
	forget("p3");
}

/* In a guest: the image's own program, linked as the image links. */
static void program_of_the_image(void)
{
	const char *argv[] = {getenv("AGENT_PROGRAM"), NULL};
	struct ran r;

	if (!argv[0])
		return;
	ran_init(&r);
	CHECK_INT(run(&r, "prog", 0, "", 0, "", argv, NULL), 0);
	CHECK_STR(buf_cstr(&r.out), "hello from the image\n");
	CHECK_INT(r.code, 5);
	ran_fini(&r);
	forget("prog");
}

static void start(void)
{
	REQUIRE(host_start(&H));
}

static void stop(void)
{
	CHECK(host_stop(&H));
}

static const struct test tests[] = {
	{"start", start},
	{"output_and_code", output_and_code},
	{"failures_say_which_step", failures_say_which_step},
	{"limits_are_the_command_s", limits_are_the_command_s},
	{"the_version_before_is_spoken", the_version_before_is_spoken},
	{"usage_of_a_group", usage_of_a_group},
	{"time_limit_kills_the_group", time_limit_kills_the_group},
	{"lost_stream_goes_on", lost_stream_goes_on},
	{"slow_reader_holds_the_process", slow_reader_holds_the_process},
	{"input_is_a_stream", input_is_a_stream},
	{"background_output_is_kept", background_output_is_kept},
	{"signals_reach_the_group", signals_reach_the_group},
	{"sessions_keep_state", sessions_keep_state},
	{"terminals", terminals},
	{"a_terminal_keeps_its_last_megabyte", a_terminal_keeps_its_last_megabyte},
	{"a_slow_reader_hears_a_terminal_s_end", a_slow_reader_hears_a_terminal_s_end},
	{"watchers_only_look", watchers_only_look},
	{"program_of_the_image", program_of_the_image},
	{"stop", stop},
};
AGENT_TEST_MAIN(tests)
