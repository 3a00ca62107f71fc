/* SPDX-License-Identifier: Apache-2.0
 *
 * agent_terminal: terminal sessions through the real agent: the first attach starts the shell, replay by offset, viewers, take-over,
 * pipe mode, resize, exit codes, a new shell on an ended session.
 */
#include "tests/agent_host.h"

static struct host H;
static struct got G;
static int ctl = -1;
static uint64_t before; /* processes that other tests left in this guest */

/* What one connection has seen. */
struct seen {
	int fd;
	struct buf all, err; /* err: stream 2 */
	uint64_t next;
	uint32_t mode, state, code;
	uint64_t from, offset;
	bool replay, live, exited, evicted;
};

static void make(const char *id, const char *command, const char *note)
{
	struct buf b;

	buf_init(&b, AGENT_FRAME_MAX);
	buf_str(&b, id);
	buf_str(&b, "/tmp");
	buf_u32(&b, AGENT_SE_TERMINAL);
	buf_str(&b, command);
	buf_u32(&b, AGENT_NO_ID);
	buf_u32(&b, AGENT_NO_ID);
	buf_str(&b, "");
	buf_u32(&b, 1);
	buf_str(&b, "PS1");
	buf_str(&b, "$ ");
	buf_str(&b, note);
	CHECK(host_ask(&H, ctl, AGENT_SESSION_NEW, &b, &G));
	buf_fini(&b);
}

static int drop(const char *id)
{
	struct buf b;
	bool ok;

	buf_init(&b, 128);
	buf_str(&b, id);
	ok = host_ask(&H, ctl, AGENT_SESSION_DEL, &b, &G);
	buf_fini(&b);
	return ok ? 0 : G.code;
}

/* 0, or the error's errno. */
static int attach(struct seen *s, const char *id, uint32_t flags, uint64_t since)
{
	struct buf b;

	*s = (struct seen){.fd = host_open(&H, AGENT_CONN_EXEC, &G)};
	buf_init(&s->all, MIB(8));
	buf_init(&s->err, MIB(8));
	buf_init(&b, 256);
	buf_str(&b, id);
	buf_u32(&b, flags);
	buf_u64(&b, since);
	buf_u16(&b, 90);
	buf_u16(&b, 30);
	host_send(s->fd, AGENT_SESSION_ATTACH, 7, &b);
	buf_fini(&b);
	if (!host_recv(s->fd, &G))
		return -1;
	if (G.h.type != AGENT_OK)
		return G.code;
	s->mode = cur_u32(&G.c);
	s->from = s->next = cur_u64(&G.c);
	s->offset = cur_u64(&G.c);
	CHECK(cur_done(&G.c));
	return 0;
}

static void leave(struct seen *s)
{
	close(s->fd);
	buf_fini(&s->all);
	buf_fini(&s->err);
}

static bool step(struct seen *s)
{
	if (!host_recv(s->fd, &G))
		return false;
	if (G.h.type == AGENT_OUT) {
		uint8_t stream = cur_u8(&G.c);
		uint64_t off = cur_u64(&G.c);

		CHECK_INT(off, s->next);
		s->next = off + cur_left(&G.c);
		s->replay |= stream == 3;
		s->live |= stream != 3;
		if (stream == 3)
			CHECK(off < s->offset);
		buf_put(stream == 2 ? &s->err : &s->all, G.c.p, cur_left(&G.c));
	} else if (G.h.type == AGENT_EXIT) {
		s->state = cur_u32(&G.c);
		s->code = cur_u32(&G.c);
		s->exited = true;
	} else if (G.h.type == AGENT_EVICTED) {
		s->evicted = true;
	}
	return true;
}

/* Until it has said `text`, or ended. */
static bool until(struct seen *s, const char *text)
{
	while (!strstr(buf_cstr(&s->all), text))
		if (s->exited || !step(s))
			return false;
	return true;
}

static void until_exit(struct seen *s)
{
	while (!s->exited && step(s))
		;
	CHECK(s->exited);
}

static void type(struct seen *s, const char *text)
{
	struct buf b;

	buf_init(&b, 4096);
	buf_put(&b, text, strlen(text));
	host_send(s->fd, AGENT_STDIN, 0, &b);
	buf_fini(&b);
}

struct item {
	uint32_t kind, state, runs, exit_state, exit_code;
	uint64_t last_run, offset;
	char note[200];
};

static bool get(const char *id, struct item *i)
{
	char name[64];
	struct buf b;
	bool ok;

	memset(i, 0, sizeof(*i));
	buf_init(&b, 128);
	buf_str(&b, id);
	ok = host_ask(&H, ctl, AGENT_SESSION_GET, &b, &G);
	buf_fini(&b);
	if (!ok)
		return false;
	cur_str(&G.c, name, sizeof(name));
	CHECK_STR(name, id);
	i->kind = cur_u32(&G.c);
	i->state = cur_u32(&G.c);
	i->runs = cur_u32(&G.c);
	CHECK(cur_u64(&G.c) > 0);
	i->last_run = cur_u64(&G.c);
	CHECK(cur_u64(&G.c) == UINT64_MAX);
	i->offset = cur_u64(&G.c);
	i->exit_state = cur_u32(&G.c);
	i->exit_code = cur_u32(&G.c);
	cur_str(&G.c, i->note, sizeof(i->note));
	CHECK(cur_done(&G.c));
	return true;
}

static void first_attach_starts_the_shell(void)
{
	uint64_t execs;
	struct item i;
	struct seen s, v;

	ctl = host_begin(&H, &G);
	REQUIRE(ctl >= 0);
	before = host_self(&H, ctl, "procs", &G);
	make("t1", "echo up; read x; echo got $x; exit 7", "{\"a\":1}");
	execs = host_self(&H, ctl, "execs_total", &G);
	CHECK(get("t1", &i));
	CHECK_INT(i.kind, AGENT_SE_TERMINAL);
	CHECK_INT(i.runs, 0);
	CHECK_INT(i.offset, 0);
	CHECK_INT(i.last_run, 0);
	CHECK_STR(i.note, "{\"a\":1}");
	CHECK_INT(attach(&v, "t1", AGENT_SA_VIEW, 0), ESRCH);
	leave(&v);
	CHECK_INT(host_self(&H, ctl, "execs_total", &G), execs);
	CHECK_INT(attach(&s, "t1", 0, 0), 0);
	CHECK_INT(s.mode, AGENT_TM_PTY);
	CHECK(until(&s, "up\r\n"));
	CHECK(get("t1", &i) && i.runs == 1 && i.offset == 4);
	type(&s, "in\n");
	until_exit(&s);
	CHECK_STR(buf_cstr(&s.all), "up\r\nin\r\ngot in\r\n");
	CHECK(s.live && !s.replay);
	CHECK_INT(s.state, AGENT_EXITED);
	CHECK_INT(s.code, 7);
	leave(&s);
	CHECK(get("t1", &i));
	CHECK_INT(i.runs, 0);
	CHECK_INT(i.exit_state, AGENT_EXITED);
	CHECK_INT(i.exit_code, 7);
	CHECK_INT(i.offset, 16);
	CHECK_INT(drop("t1"), 0);
	CHECK_INT(drop("t1"), ENOENT);
	CHECK(!get("t1", &i));
}

static void a_new_shell_keeps_the_replay(void)
{
	struct seen s;

	make("t2", "echo one; exit 3", "");
	CHECK_INT(attach(&s, "t2", 0, 0), 0);
	until_exit(&s);
	CHECK_INT(s.code, 3);
	leave(&s);
	CHECK_INT(attach(&s, "t2", 0, 0), 0);
	CHECK_INT(s.from, 0);
	CHECK_INT(s.offset, 5);
	until_exit(&s);
	CHECK_STR(buf_cstr(&s.all), "one\r\none\r\n");
	CHECK(s.replay && s.live);
	leave(&s);
	/* from the middle, from beyond the end */
	CHECK_INT(attach(&s, "t2", 0, 7), 0);
	CHECK_INT(s.from, 7);
	until_exit(&s);
	CHECK_STR(buf_cstr(&s.all), "e\r\none\r\n");
	leave(&s);
	CHECK_INT(attach(&s, "t2", 0, 1u << 30), 0);
	CHECK_INT(s.from, 15);
	until_exit(&s);
	CHECK_STR(buf_cstr(&s.all), "one\r\n");
	leave(&s);
	CHECK_INT(drop("t2"), 0);
}

static void one_holds_others_view(void)
{
	struct seen a, b, v, w;

	make("t3", "stty -echo; echo up; while read x; do echo \"<$x>\"; done", "");
	CHECK_INT(attach(&a, "t3", 0, 0), 0);
	CHECK(until(&a, "up\r\n"));
	CHECK_INT(attach(&b, "t3", 0, 0), EBUSY);
	CHECK_INT(G.step, AGENT_STEP_BUSY);
	leave(&b);
	CHECK_INT(attach(&v, "t3", AGENT_SA_VIEW, 2), 0);
	CHECK_INT(v.from, 2);
	type(&v, "from the viewer\n");
	type(&a, "one\n");
	CHECK(until(&a, "<one>\r\n"));
	CHECK(until(&v, "<one>\r\n"));
	CHECK_STR(buf_cstr(&v.all), "\r\n<one>\r\n");
	/* taken over: the first one is told, the viewer stays, input comes from the new holder only */
	CHECK_INT(attach(&b, "t3", AGENT_SA_TAKE, 0), 0);
	while (!a.evicted && step(&a))
		;
	CHECK(a.evicted);
	type(&a, "from the evicted\n");
	type(&b, "two\n");
	CHECK(until(&b, "<two>\r\n"));
	CHECK_STR(buf_cstr(&b.all), "up\r\n<one>\r\n<two>\r\n");
	CHECK(until(&v, "<two>\r\n"));
	leave(&a);
	/* the holder leaves: the shell stays, the next one takes it without the flag */
	leave(&b);
	CHECK_INT(attach(&w, "t3", AGENT_SA_TAKE, 0), 0);
	type(&w, "three\n");
	CHECK(until(&w, "<three>\r\n"));
	CHECK(until(&v, "<three>\r\n"));
	CHECK(!strstr(buf_cstr(&v.all), "from the"));
	type(&w, "\004");
	until_exit(&w);
	until_exit(&v);
	leave(&w);
	leave(&v);
	CHECK_INT(drop("t3"), 0);
}

static void pipes_keep_the_streams_apart(void)
{
	struct seen s;

	make("t4", "tty >/dev/null || echo pipe; echo oops >&2; read x; echo $x; echo end >&2", "");
	CHECK_INT(attach(&s, "t4", AGENT_SA_PIPE, 0), 0);
	CHECK_INT(s.mode, AGENT_TM_PIPE);
	while (s.next < 10 && step(&s))
		;
	CHECK_STR(buf_cstr(&s.all), "pipe\n");
	CHECK_STR(buf_cstr(&s.err), "oops\n");
	type(&s, "x\n");
	until_exit(&s);
	CHECK_STR(buf_cstr(&s.all), "pipe\nx\n");
	CHECK_STR(buf_cstr(&s.err), "oops\nend\n");
	CHECK_INT(s.code, 0);
	leave(&s);
	CHECK_INT(drop("t4"), 0);
	/* both streams are one replay; input ends at an empty frame */
	make("t5", "", "");
	CHECK_INT(attach(&s, "t5", AGENT_SA_PIPE, 0), 0);
	type(&s, "echo out; sleep 0.05; echo err >&2; sleep 0.05; echo out\n");
	while (s.next < 12 && step(&s))
		;
	leave(&s);
	do {
		struct item i;

		if (!get("t5", &i))
			break;
		CHECK_INT(i.offset, 12);
	} while (0);
	while (attach(&s, "t5", 0, 0) == EBUSY)
		leave(&s);
	host_send(s.fd, AGENT_STDIN, 0, NULL);
	until_exit(&s);
	CHECK_STR(buf_cstr(&s.all), "out\nerr\nout\n");
	CHECK(s.replay && !s.live);
	leave(&s);
	CHECK_INT(drop("t5"), 0);
}

static void size_and_signals(void)
{
	struct seen s;
	struct buf b;

	buf_init(&b, 128);
	make("t6", "trap 'echo int' INT; stty size; while :; do read x && stty size; done", "");
	CHECK_INT(attach(&s, "t6", 0, 0), 0);
	CHECK(until(&s, "30 90\r\n"));
	buf_str(&b, "t6");
	buf_u16(&b, 132);
	buf_u16(&b, 50);
	CHECK(host_ask(&H, ctl, AGENT_RESIZE, &b, &G));
	type(&s, "\n");
	CHECK(until(&s, "50 132\r\n"));
	buf_str(&b, "t6");
	buf_u32(&b, SIGINT);
	buf_u32(&b, 0);
	CHECK(host_ask(&H, ctl, AGENT_SIGNAL, &b, &G));
	/* a shell that has the signal just before it reads runs the trap after the line */
	type(&s, "\n");
	CHECK(until(&s, "int\r\n"));
	/* the shell is the session's: nobody forgets it */
	buf_str(&b, "t6");
	CHECK(!host_ask(&H, ctl, AGENT_FORGET, &b, &G));
	CHECK_INT(G.code, EBUSY);
	/* deleted under its holder, who hears the end */
	CHECK_INT(drop("t6"), 0);
	until_exit(&s);
	CHECK_INT(s.state, AGENT_SIGNALED);
	leave(&s);
	buf_fini(&b);
}

/* More than is kept, in both modes, while nobody reads. */
static void only_the_last_megabyte(void)
{
	static const uint32_t modes[] = {0, AGENT_SA_PIPE};

	for (size_t k = 0; k < ARRAY_LEN(modes); k++) {
		struct item i = {.runs = 1};
		struct seen s;

		make("t7", "head -c 3000000 /dev/zero | tr '\\000' x; echo end >&2", "");
		CHECK_INT(attach(&s, "t7", modes[k], 0), 0);
		leave(&s);
		while (i.runs && get("t7", &i))
			poll(NULL, 0, 5);
		CHECK(i.offset >= 3000004);
		CHECK_INT(attach(&s, "t7", modes[k], 0), 0);
		CHECK(s.from > 1880000 && s.from < 3000004);
		CHECK_INT(s.offset, i.offset);
		leave(&s);
		CHECK_INT(drop("t7"), 0);
	}
}

static void wrong_requests(void)
{
	static const char *const env[] = {NULL};
	struct seen s;
	struct buf b;
	int fd;

	buf_init(&b, 4096);
	CHECK_INT(attach(&s, "none", 0, 0), ENOENT);
	leave(&s);
	buf_str(&b, "shell");
	buf_str(&b, "");
	CHECK(host_ask(&H, ctl, AGENT_SESSION_NEW, &b, &G));
	CHECK_INT(attach(&s, "shell", 0, 0), EINVAL);
	leave(&s);
	make("t8", "exit 0", "");
	CHECK_INT(attach(&s, "t8", 64, 0), EPROTO);
	leave(&s);
	/* a run belongs to the other kinds */
	fd = host_open(&H, AGENT_CONN_EXEC, &G);
	host_exec_body(
		&b, "r", AGENT_X_SHELL, "", 0, "t8", (const char *const[]){"true", NULL}, env);
	host_send(fd, AGENT_EXEC, 3, &b);
	CHECK(host_recv(fd, &G) && G.code == EINVAL);
	close(fd);
	for (uint32_t kind = 0; kind < 9; kind += 4) {
		buf_reset(&b);
		buf_str(&b, "bad");
		buf_str(&b, "");
		buf_u32(&b, kind);
		CHECK(!host_ask(&H, ctl, AGENT_SESSION_NEW, &b, &G));
		CHECK_INT(G.code, EINVAL);
	}
	buf_str(&b, "cut");
	buf_str(&b, "");
	buf_u32(&b, AGENT_SE_TERMINAL);
	buf_str(&b, "true");
	CHECK(!host_ask(&H, ctl, AGENT_SESSION_NEW, &b, &G));
	CHECK_INT(G.code, EPROTO);
	CHECK(host_ask(&H, ctl, AGENT_SESSION_LIST, NULL, &G));
	CHECK_INT(cur_u32(&G.c), 2);
	CHECK_INT(drop("t8"), 0);
	CHECK_INT(drop("shell"), 0);
	/* a program that is not there: the session stays, and may be tried again */
	buf_reset(&b);
	buf_str(&b, "t9");
	buf_str(&b, "/tmp");
	buf_u32(&b, AGENT_SE_TERMINAL);
	buf_str(&b, "true");
	buf_u32(&b, AGENT_NO_ID);
	buf_u32(&b, AGENT_NO_ID);
	buf_str(&b, "");
	buf_u32(&b, 1);
	buf_str(&b, "PATH");
	buf_str(&b, "/nowhere");
	buf_str(&b, "");
	CHECK(host_ask(&H, ctl, AGENT_SESSION_NEW, &b, &G));
	for (int i = 0; i < 2; i++) {
		CHECK_INT(attach(&s, "t9", 0, 0), ENOENT);
		CHECK_INT(G.step, AGENT_STEP_START);
		leave(&s);
	}
	CHECK_INT(drop("t9"), 0);
	buf_fini(&b);
}

static void nothing_is_left(void)
{
	for (int i = 0; i < 4000 && host_self(&H, ctl, "procs", &G) != before; i++)
		poll(NULL, 0, 10);
	CHECK_INT(host_self(&H, ctl, "procs", &G), before);
	CHECK(host_end(&H, ctl));
}

static const struct test tests[] = {
	{"first_attach_starts_the_shell", first_attach_starts_the_shell},
	{"a_new_shell_keeps_the_replay", a_new_shell_keeps_the_replay},
	{"one_holds_others_view", one_holds_others_view},
	{"pipes_keep_the_streams_apart", pipes_keep_the_streams_apart},
	{"size_and_signals", size_and_signals},
	{"only_the_last_megabyte", only_the_last_megabyte},
	{"wrong_requests", wrong_requests},
	{"nothing_is_left", nothing_is_left},
};
AGENT_TEST_MAIN(tests)
