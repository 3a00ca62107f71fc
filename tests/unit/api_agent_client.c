/* SPDX-License-Identifier: Apache-2.0
 *
 * api_agent_client: the host's side of the agent protocol against a scripted peer, a thread that plays
 * agent and monitor: what is asked for, what is made of good and of hostile answers, and that a
 * lost stream goes on at the next byte.
 */
#include "lib/test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <signal.h>
#include <sys/socket.h>
#include <stdarg.h>
#include <sys/un.h>

#include "api/links/agent_client.h"
#include "lib/proto_vmm.h"

struct peer {
	int listener;
	char path[64];
	pthread_t thread;
	void (*script)(struct peer *p);
	bool joined;
	int fd; /* the connection of the moment */
	struct agent_hdr h;
	uint8_t body[AGENT_FRAME_MAX];
};

/* a tenth of what the daemon waits */
#define PACE_RECONNECT_NS 20000000ull
#define PACE_UNREAD_NS    100000000ull

static struct {
	struct loop *l;
	struct agentc *a;
	char log[4096];
	int pending;
} T;

static void note(const char *fmt, ...) _printf_(1, 2);
static void note(const char *fmt, ...)
{
	size_t n = strlen(T.log);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(T.log + n, sizeof(T.log) - n, fmt, ap);
	va_end(ap);
}

static void one_less(void)
{
	if (--T.pending == 0)
		loop_stop(T.l, 0);
}

/* ---- the peer's hands; a script that meets something else just ends, and the test sees the lost
 * connection */

static void p_accept(struct peer *p, bool vsock)
{
	struct vsock_open o;

	p->fd = accept4(p->listener, NULL, NULL, SOCK_CLOEXEC);
	if (!vsock)
		return;
	if (read_full(p->fd, &o, sizeof(o)) || o.magic != VSOCK_OPEN_MAGIC ||
		o.port != VSOCK_PORT_AGENT)
		note("bad-open ");
	write_full(p->fd, &o, sizeof(o));
}

static int p_recv(struct peer *p)
{
	if (read_full(p->fd, &p->h, sizeof(p->h)) || p->h.len > sizeof(p->body))
		return -1;
	return read_full(p->fd, p->body, p->h.len);
}

static void p_send(struct peer *p, uint16_t type, uint16_t flags, uint32_t id, const struct buf *b)
{
	struct agent_hdr h = {
		.len = b ? (uint32_t)b->len : 0, .type = type, .flags = flags, .id = id};

	(void)!write_full(p->fd, &h, sizeof(h));
	if (b && b->len)
		(void)!write_full(p->fd, b->p, b->len);
}

static void p_hello(struct peer *p)
{
	struct buf b;

	if (p_recv(p) || p->h.type != AGENT_HELLO)
		note("no-hello ");
	buf_init(&b, 64);
	buf_u32(&b, AGENT_VERSION);
	buf_u64(&b, 7);
	p_send(p, AGENT_OK, 0, p->h.id, &b);
	buf_fini(&b);
}

static void p_err(struct peer *p, uint32_t err, uint32_t step, const char *text)
{
	struct buf b;

	buf_init(&b, 1024);
	buf_u32(&b, err);
	buf_u32(&b, step);
	buf_str(&b, text);
	p_send(p, AGENT_ERR, 0, p->h.id, &b);
	buf_fini(&b);
}

static void p_out(struct peer *p, uint8_t stream, uint64_t off, const char *s)
{
	struct buf b;

	buf_init(&b, 1024);
	buf_u8(&b, stream);
	buf_u64(&b, off);
	buf_put(&b, s, strlen(s));
	p_send(p, AGENT_OUT, 0, 0, &b);
	buf_fini(&b);
}

static void p_exit(struct peer *p, uint32_t state, uint32_t code)
{
	struct buf b;

	buf_init(&b, 64);
	buf_u32(&b, state);
	buf_u32(&b, code);
	buf_str(&b, "");
	p_send(p, AGENT_EXIT, 0, 0, &b);
	buf_fini(&b);
}

static void p_ok32(struct peer *p, uint32_t v)
{
	struct buf b;

	buf_init(&b, 64);
	buf_u32(&b, v);
	p_send(p, AGENT_OK, 0, p->h.id, &b);
	buf_fini(&b);
}

static void *p_main(void *arg)
{
	struct peer *p = arg;

	p->script(p);
	return NULL;
}

static struct peer *begin(void (*script)(struct peer *), uint32_t port)
{
	struct peer *p = calloc(1, sizeof(*p));
	struct sockaddr_un sa = {.sun_family = AF_UNIX};

	memset(&T, 0, sizeof(T));
	snprintf(p->path, sizeof(p->path), "/tmp/unit-agentc-%d.sock", getpid());
	snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", p->path);
	unlink(p->path);
	signal(SIGPIPE, SIG_IGN);
	p->fd = -1;
	p->script = script;
	p->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ASSERT(!bind(p->listener, (const struct sockaddr *)&sa, sizeof(sa)) &&
		!listen(p->listener, 16));
	ASSERT(!pthread_create(&p->thread, NULL, p_main, p));
	T.l = loop_create();
	T.a = agentc_create(T.l, p->path, port, NULL);
	agentc_pace(T.a, PACE_RECONNECT_NS, PACE_UNREAD_NS);
	ASSERT(T.a);
	return p;
}

static void finish(struct peer *p)
{
	agentc_destroy(T.a);
	if (!p->joined)
		pthread_join(p->thread, NULL);
	close(p->listener);
	close_fd(&p->fd);
	unlink(p->path);
	free(p);
	loop_destroy(T.l);
}

static void on_limit(void *arg)
{
	note("TIMEOUT");
	loop_stop(T.l, 1);
}

static void run(int n)
{
	struct timer *t = loop_timer(T.l, on_limit, NULL);

	T.pending = n;
	timer_after(t, 5ull * 1000000000);
	loop_run(T.l);
	timer_remove(t);
}

/* ---- CONTROL */

static void on_reply(void *arg, const struct agent_reply *r)
{
	struct cur body = r->body;

	note("%s:%d/%u/%s/%u%s ", (const char *)arg, r->err, r->step, r->text, cur_u32(&body),
		r->more ? "+" : "");
	if (!r->more)
		one_less();
}

/* a label for note(), which is only read */
static void *tag(const char *s)
{
	return (void *)(uintptr_t)s;
}

static void script_control(struct peer *p)
{
	struct agent_hdr first;

	p_accept(p, true);
	p_hello(p);
	p_recv(p);
	first = p->h;
	p_recv(p);
	p_err(p, ENOENT, AGENT_STEP_PATH, "no\nsuch");
	p->h = first;
	for (int i = 0; i < 2; i++) {
		struct buf b;

		buf_init(&b, 8);
		buf_u32(&b, 40 + (uint32_t)i);
		p_send(p, AGENT_OK, i ? 0 : AGENT_FL_MORE, first.id, &b);
		buf_fini(&b);
	}
	p_recv(p); /* the one that is not answered, then the end */
	p_recv(p);
}

static void answers_find_their_request_in_any_order(void)
{
	struct peer *p = begin(script_control, VSOCK_PORT_AGENT);
	struct agent_call *c;

	CHECK(agentc_call(T.a, AGENT_LIST, NULL, 0, on_reply, tag("a")));
	CHECK(agentc_call(T.a, AGENT_STAT, NULL, 0, on_reply, tag("b")));
	CHECK(agentc_call(T.a, AGENT_STAT, NULL, 30, on_reply, tag("c")));
	c = agentc_call(T.a, AGENT_STAT, NULL, 0, on_reply, tag("cancelled"));
	REQUIRE(c);
	agent_call_cancel(c);
	CHECK_INT(loop_turn(T.l, 0), 0);
	CHECK_STR(T.log, ""); /* down: nothing happens */
	agentc_up(T.a);
	run(3);
	CHECK_STR(T.log, "b:2/4/no such/0 a:0/0//40+ a:0/0//41 c:110/0//0 ");
	T.log[0] = 0;
	CHECK(agentc_call(T.a, AGENT_STAT, NULL, 0, on_reply, tag("d")));
	T.pending = 9;
	finish(p);
	CHECK_STR(T.log, "d:125/0//0 ");
}

static void script_hostile(struct peer *p)
{
	struct agent_hdr h = {.len = UINT32_MAX, .type = AGENT_OK, .id = 1};

	/* 1: an answer to a request never made; 2: a frame too long; 3: a wrong version; 4: no
	 * agent behind the port */
	p_accept(p, true);
	p_hello(p);
	p_recv(p);
	p->h.id = 77;
	p_ok32(p, 1);
	p_recv(p);
	close_fd(&p->fd);
	p_accept(p, true);
	p_hello(p);
	p_recv(p);
	(void)!write_full(p->fd, &h, sizeof(h));
	p_recv(p);
	close_fd(&p->fd);
	p_accept(p, true);
	p_recv(p);
	p->h.id = 0;
	p_ok32(p, 99);
	p_recv(p);
	p_recv(p);
	close_fd(&p->fd);
	struct vsock_open o;
	p->fd = accept4(p->listener, NULL, NULL, SOCK_CLOEXEC);
	(void)!read_full(p->fd, &o, sizeof(o));
	o.status = ECONNREFUSED;
	(void)!write_full(p->fd, &o, sizeof(o));
	p_recv(p);
}

static void hostile_answers_end_the_connection_only(void)
{
	struct peer *p = begin(script_hostile, VSOCK_PORT_AGENT);
	static const char *const want[] = {"x:71/0//0 ", "x:90/0//0 ", "x:71/0//0 ", "x:111/0//0 "};

	agentc_up(T.a);
	for (size_t i = 0; i < ARRAY_LEN(want); i++) {
		T.log[0] = 0;
		CHECK(agentc_call(T.a, AGENT_PING, NULL, 0, on_reply, tag("x")));
		run(1);
		CHECK_STR(T.log, want[i]);
	}
	finish(p);
}

static void x_started(void *arg, uint32_t pid);
static void x_ended(void *arg, const struct agent_reply *r, uint32_t state, uint32_t code);
static void next_exec_conn(struct peer *p);

static _Atomic int strays_sent, opened;
static _Atomic bool strays_over;

static bool strays_lost(struct peer *p)
{
	return send(p->fd, NULL, 0, MSG_NOSIGNAL) < 0;
}

/* Answers a request for ever, with an id that it had before. */
static void script_strays(struct peer *p)
{
	p_accept(p, true);
	p_hello(p);
	p_recv(p);
	p_ok32(p, 1);
	for (strays_sent = 0; strays_sent < 100000 && !strays_lost(p); strays_sent++)
		p_ok32(p, 2);
	strays_over = true;
}

static void answers_that_nobody_asked_for_end_the_connection(void)
{
	struct peer *p = begin(script_strays, VSOCK_PORT_AGENT);

	agentc_up(T.a);
	CHECK(agentc_call(T.a, AGENT_PING, NULL, 0, on_reply, tag("x")));
	run(1);
	CHECK_STR(T.log, "x:0/0//1 ");
	for (uint64_t end = mono_ns() + 5000000000ull; !strays_over && mono_ns() < end;)
		loop_turn(T.l, 10);
	CHECK(strays_over && strays_sent < 100000);
	finish(p);
}

/* Ends each connection after its greeting. */
static void script_leaves(struct peer *p)
{
	for (opened = 0;; opened++) {
		p_accept(p, true);
		if (p->fd < 0)
			return;
		p_hello(p);
		close_fd(&p->fd);
	}
}

static void ask_again(void *arg, const struct agent_reply *r)
{
	if (r->err != ECANCELED)
		agentc_call(T.a, AGENT_PING, NULL, 0, ask_again, NULL);
}

static void an_agent_that_leaves_is_asked_later_and_later(void)
{
	struct peer *p = begin(script_leaves, VSOCK_PORT_AGENT);
	uint64_t begun = mono_ns();

	agentc_up(T.a);
	CHECK(agentc_call(T.a, AGENT_PING, NULL, 0, ask_again, NULL));
	while (opened < 3 && mono_ns() < begun + 30000000000ull)
		loop_turn(T.l, 10);
	/* the second comes once that time after the first, the third twice that time later; without a pause there were thousands a second */
	CHECK(opened == 3 && mono_ns() - begun >= 3 * PACE_RECONNECT_NS - 1000000);
	shutdown(p->listener, SHUT_RDWR);
	finish(p);
}

static void script_nothing(struct peer *p)
{
}

static void what_waits_for_an_agent_has_a_budget(void)
{
	struct peer *p = begin(script_nothing, 0);
	struct agent_call *c[AGENTC_CALLS_MAX];
	unsigned int n = 0;
	struct buf b;

	buf_init(&b, AGENT_FRAME_MAX);
	(void)buf_room(&b, AGENT_FRAME_MAX);
	memset(b.p, 'x', AGENT_FRAME_MAX);
	b.len = AGENT_FRAME_MAX;
	while (n < ARRAY_LEN(c) && (c[n] = agentc_call(T.a, AGENT_STAT, &b, 0, on_reply, tag("x"))))
		n++;
	CHECK_INT(n, AGENTC_QUEUED_MAX / AGENT_FRAME_MAX);
	CHECK_INT(errno, EBUSY);
	agent_call_cancel(c[0]);
	CHECK(agentc_call(T.a, AGENT_STAT, &b, 0, on_reply, tag("x")));
	buf_fini(&b);
	T.pending = 1000;
	finish(p);
}

static void p_answer(struct peer *p, size_t bytes)
{
	struct buf b;

	buf_init(&b, AGENT_FRAME_MAX);
	buf_u32(&b, 7);
	memset(buf_room(&b, bytes), 'x', bytes);
	b.len += bytes;
	p_send(p, AGENT_OK, 0, p->h.id, &b);
	buf_fini(&b);
}

static void script_large_answer(struct peer *p)
{
	for (int i = 0; i < 2; i++) {
		p_accept(p, false);
		p_hello(p);
		p_recv(p);
		p_answer(p, i ? 10 : KIB(200));
		if (i == 0)
			close_fd(&p->fd);
	}
}

/* What arrives is charged before it is read on: a guest's answer cannot make the daemon larger than its budget. */
static void an_answer_over_the_budget_is_refused(void)
{
	struct peer *p = begin(script_large_answer, 0);
	struct account all = {.whose = "all", .limit = KIB(160)};

	agentc_destroy(T.a);
	T.a = agentc_create(T.l, p->path, 0, &all);
	REQUIRE(T.a);
	agentc_pace(T.a, PACE_RECONNECT_NS, PACE_UNREAD_NS);
	agentc_up(T.a);
	CHECK(agentc_call(T.a, AGENT_STAT, NULL, 0, on_reply, tag("large")));
	run(1);
	CHECK(strstr(T.log, "large:105/"));
	CHECK_INT(all.used, 0);
	CHECK(all.refused > 0);
	CHECK(agentc_call(T.a, AGENT_STAT, NULL, 0, on_reply, tag("small")));
	run(1);
	CHECK(strstr(T.log, "small:0/0//7 "));
	T.pending = 9;
	finish(p);
	CHECK_INT(all.used, 0);
}

/* ---- EXEC */

static _Atomic size_t flooded;

/* A process that prints without end. */
static void script_flood(struct peer *p)
{
	static const char text[65536] = "";
	struct buf b;
	int control;

	p_accept(p, false);
	p_hello(p);
	control = take_fd(&p->fd);
	next_exec_conn(p);
	p_ok32(p, 42);
	for (flooded = 0;; flooded += sizeof(text)) {
		struct agent_hdr h = {.len = 9 + sizeof(text), .type = AGENT_OUT};
		bool lost;

		buf_init(&b, 100000);
		buf_u8(&b, 1);
		buf_u64(&b, flooded);
		buf_put(&b, text, sizeof(text));
		lost = write_full(p->fd, &h, sizeof(h)) || write_full(p->fd, b.p, b.len);
		buf_fini(&b);
		if (lost)
			break;
	}
	close(control);
}

static struct agent_exec *thrower;

static void x_throw_away(void *arg, int stream, const uint8_t *p, size_t n)
{
	agent_exec_unread(thrower, n);
}

static void flood_is_slow(const struct agent_exec_ops *ops)
{
	struct agent_exec *x;
	struct peer *p;
	uint64_t begun = mono_ns();

	flooded = 0;
	p = begin(script_flood, 0);
	agentc_up(T.a);
	x = thrower = agent_exec_attach(T.a, "entrypoint", 0, 0, ops, NULL);
	REQUIRE(x);
	while (flooded < MIB(3) && mono_ns() < begun + 30000000000ull)
		loop_turn(T.l, 10);
	/* its share of each time is 1 MiB; less than another is on its way */
	CHECK(flooded >= MIB(3) && mono_ns() - begun >= PACE_UNREAD_NS * 9 / 10);
	agent_exec_close(x);
	T.pending = 9;
	finish(p);
}

static void output_that_nobody_reads_is_slow(void)
{
	static const struct agent_exec_ops unread = {x_started, NULL, x_ended},
					   thrown_away = {x_started, x_throw_away, x_ended};

	flood_is_slow(&unread);
	flood_is_slow(&thrown_away);
}

static void x_started(void *arg, uint32_t pid)
{
	note("start%u ", pid);
}

static void x_output(void *arg, int stream, const uint8_t *p, size_t n)
{
	note("%d:%.*s ", stream, (int)n, (const char *)p);
}

static void x_ended(void *arg, const struct agent_reply *r, uint32_t state, uint32_t code)
{
	note("end%d/%u/%u", r->err, state, code);
	one_less();
}

static const struct agent_exec_ops x_ops = {x_started, x_output, x_ended};

static const struct agent_exec_spec *spec(void)
{
	static const char *const argv[] = {"echo hi"}, *const k[] = {"A"}, *const v[] = {"1"};
	static const struct agent_exec_spec s = {.exec_id = "id1",
		.flags = AGENT_X_SHELL,
		.uid = AGENT_NO_ID,
		.gid = AGENT_NO_ID,
		.argc = 1,
		.argv = argv,
		.envc = 1,
		.env_keys = k,
		.env_vals = v};

	return &s;
}

/* An agent of the version before, as a snapshot may hold it: refuses the greeting, and then is
 * asked in its own way. */
static void script_older(struct peer *p)
{
	struct cur c;

	p_accept(p, false);
	p_recv(p);
	c = cur_of(p->body, p->h.len);
	cur_u32(&c);
	note("v%u ", cur_u32(&c));
	for (int i = 0; i < 2; i++) {
		p_err(p, EPROTO, 0, "no greeting of versions 1 to 1");
		close_fd(&p->fd);
		p_accept(p, false);
		p_recv(p);
		c = cur_of(p->body, p->h.len);
		cur_u32(&c);
		note("v%u ", cur_u32(&c));
	}
	{
		struct buf b;

		buf_init(&b, 64);
		buf_u32(&b, 1);
		buf_u64(&b, 7);
		p_send(p, AGENT_OK, 0, p->h.id, &b);
		buf_fini(&b);
	}
	p_recv(p);
	note("%u:%u ", p->h.type, p->h.len);
	p_ok32(p, 42);
	p_recv(p);
}

static void got_pid(void *arg, const struct agent_reply *r)
{
	note("pid%d/%u", r->err, *r->body.p);
	one_less();
}

static void an_older_agent_is_spoken_to_in_its_version(void)
{
	struct peer *p = begin(script_older, 0);
	char want[64];
	struct buf b;

	buf_init(&b, 4096);
	agent_exec_encode(&b, spec());
	snprintf(want, sizeof(want), "v3 v2 v1 %u:%zu pid0/42", (unsigned int)AGENT_EXEC, b.len);
	agentc_up(T.a);
	CHECK(agentc_call(T.a, AGENT_EXEC, &b, 0, got_pid, NULL) != NULL);
	run(1);
	CHECK_STR(T.log, want);
	buf_fini(&b);
	finish(p);
}

static atomic_int spare_seen;

static void script_spare(struct peer *p)
{
	int control;

	p_accept(p, false);
	p_hello(p);
	control = take_fd(&p->fd);
	p_accept(p, false);
	p_hello(p);
	for (int i = 0; i < 2; i++) {
		p_recv(p);
		note("[%u] ", p->h.type);
		p_ok32(p, 42);
		p_exit(p, AGENT_EXITED, 0);
		p_recv(p);
		if (i)
			break;
		/* the spare one comes by itself, before the next command */
		close_fd(&p->fd);
		p_accept(p, false);
		p_hello(p);
		atomic_store(&spare_seen, 1);
	}
	close(control);
}

static void a_second_command_finds_its_connection(void)
{
	struct peer *p = begin(script_spare, 0);

	agentc_keep_spare(T.a);
	agentc_up(T.a);
	for (int i = 0; i < 2; i++) {
		struct agent_exec *x = agent_exec_start(T.a, spec(), &x_ops, NULL);

		CHECK(x != NULL);
		run(1);
		agent_exec_close(x);
		for (int turn = 0; turn < 500 && !atomic_load(&spare_seen); turn++)
			loop_turn(T.l, 10);
	}
	p->joined = !pthread_join(p->thread, NULL);
	CHECK(atomic_load(&spare_seen));
	CHECK_STR(T.log, "[30] start42 end0/2/0[30] start42 end0/2/0");
	finish(p);
}

static void next_exec_conn(struct peer *p)
{
	close_fd(&p->fd);
	p_accept(p, false);
	p_hello(p);
	p_recv(p);
	note("[%u ", p->h.type);
	if (p->h.type == AGENT_ATTACH) {
		struct cur c = cur_of(p->body, p->h.len);
		char id[64];

		cur_str(&c, id, sizeof(id));
		note("%s %llu ", id, (unsigned long long)cur_u64(&c));
		note("%llu", (unsigned long long)cur_u64(&c));
	}
	note("] ");
}

static void script_exec_lost(struct peer *p)
{
	int control;

	p_accept(p, false);
	p_hello(p);
	control = take_fd(&p->fd);
	next_exec_conn(p); /* lost before it is answered: asks whether it is there, and starts it */
	next_exec_conn(p);
	p_err(p, ENOENT, 0, "");
	p_recv(p);
	note("[%u] ", p->h.type);
	p_ok32(p, 42);
	p_out(p, 1, 0, "abc");
	p_out(p, 2, 0, "E");
	shutdown(p->fd, SHUT_WR);
	p_recv(p);
	next_exec_conn(p);
	p_ok32(p, AGENT_RUNNING);
	p_out(p, 1, 1, "bcdef"); /* two of them seen before */
	p_exit(p, AGENT_EXITED, 3);
	p_recv(p); /* an acknowledgement of everything: looked at when this thread has ended */
	close(control);
}

static void a_lost_stream_goes_on_at_the_next_byte(void)
{
	struct peer *p = begin(script_exec_lost, 0);
	struct agent_exec *x;

	agentc_up(T.a);
	x = agent_exec_start(T.a, spec(), &x_ops, NULL);
	REQUIRE(x);
	run(1);
	agent_exec_close(x);
	pthread_join(p->thread, NULL);
	CHECK_INT(p->h.type, AGENT_ACK);
	CHECK_INT(p->body[0] + p->body[8], 7);
	p->joined = true;
	finish(p);
	CHECK_STR(T.log, "[30 ] [31 id1 0 0] [30] start42 1:abc 2:E [31 id1 3 1] 1:def end0/2/3");
}

static void script_hole(struct peer *p)
{
	int control;

	p_accept(p, false);
	p_hello(p);
	control = take_fd(&p->fd);
	next_exec_conn(p);
	p_ok32(p, 42);
	p_out(p, 1, 5, "abc");
	p_recv(p);
	close(control);
}

static void a_hole_in_the_output_is_an_error(void)
{
	struct peer *p = begin(script_hole, 0);
	struct agent_exec *x;

	agentc_up(T.a);
	x = agent_exec_start(T.a, spec(), &x_ops, NULL);
	REQUIRE(x);
	run(1);
	agent_exec_close(x);
	finish(p);
	CHECK_STR(T.log, "[30 ] start42 end71/0/0");
}

static _Atomic bool detached; /* the peer has said all that it notes */

static void script_detach(struct peer *p)
{
	int control;

	p_accept(p, false);
	p_hello(p);
	control = take_fd(&p->fd);
	next_exec_conn(p);
	p_ok32(p, 42);
	p_out(p, 1, 0, "abc");
	p_recv(p);
	note("[%u]", p->h.type);
	p_send(p, AGENT_OK, 0, p->h.id, NULL);
	if (p_recv(p))
		note("closed");
	detached = true;
	close(control);
}

static struct agent_exec *closing;
static void close_at_output(void *arg, int stream, const uint8_t *p, size_t n)
{
	agent_exec_close(closing);
	one_less();
}

static void closing_detaches(void)
{
	struct peer *p = begin(script_detach, 0);
	static const struct agent_exec_ops ops = {x_started, close_at_output, x_ended};

	agentc_up(T.a);
	closing = agent_exec_start(T.a, spec(), &ops, NULL);
	REQUIRE(closing);
	run(1);
	for (uint64_t end = mono_ns() + 60000000000ull; !detached && mono_ns() < end;)
		loop_turn(T.l, 10);
	finish(p);
	CHECK_STR(T.log, "[30 ] start42 [34]closed");
}

/* ---- files and dials */

static struct agent_file *F;

static void f_opened(
	void *arg, uint64_t size, uint64_t off, uint64_t len, const struct agent_item *i)
{
	note("open%llu+%llu/%llu %s %c%o ", (unsigned long long)off, (unsigned long long)len,
		(unsigned long long)size, i->path, i->type, i->mode);
}

static void f_data(void *arg, const uint8_t *p, size_t n)
{
	note("%.*s ", (int)n, (const char *)p);
}

static void f_writable(void *arg)
{
	CHECK(agent_file_put(F, "hello", 5));
	agent_file_finish(F);
}

static void f_ended(void *arg, const struct agent_reply *r)
{
	note("end%d ", r->err);
	one_less();
}

static const struct agent_file_ops f_ops = {f_opened, f_data, f_writable, f_ended};

static void script_files(struct peer *p)
{
	struct buf b;
	int control;

	p_accept(p, false);
	p_hello(p);
	control = take_fd(&p->fd);
	for (int i = 0; i < 2; i++) {
		next_exec_conn(p);
		buf_init(&b, 1024);
		buf_u64(&b, 10);
		buf_u64(&b, 2);
		buf_u64(&b, 3);
		buf_str(&b, "/x");
		buf_u8(&b, 'f');
		for (int k = 0; k < 3; k++)
			buf_u64(&b, 0);
		buf_str(&b, "root");
		buf_str(&b, "root");
		buf_u32(&b, 0644);
		buf_u32(&b, 0);
		buf_u32(&b, 0);
		buf_str(&b, "");
		p_send(p, AGENT_OK, 0, 1, &b);
		buf_reset(&b);
		buf_put(&b, "cdefgh", i ? 6 : 3); /* the second time more than was said */
		p_send(p, AGENT_DATA, 0, 1, &b);
		p_send(p, AGENT_DATA, 0, 1, NULL);
		buf_fini(&b);
		p_recv(p);
	}
	next_exec_conn(p);
	p_send(p, AGENT_OK, 0, 1, NULL);
	p_recv(p);
	note("<%.*s> ", (int)p->h.len, (const char *)p->body);
	p_recv(p);
	note("<%u> ", p->h.len);
	p_send(p, AGENT_OK, 0, 1, NULL);
	p_recv(p);
	close(control);
}

static void files_go_both_ways(void)
{
	struct peer *p = begin(script_files, 0);
	struct agent_read_spec r = {
		.uid = AGENT_NO_ID, .gid = AGENT_NO_ID, .path = "/x", .offset = 2, .len = 3};
	struct agent_write_spec w = {.uid = AGENT_NO_ID,
		.gid = AGENT_NO_ID,
		.path = "/y",
		.owner = "",
		.group = "",
		.mode = AGENT_NO_MODE};

	agentc_up(T.a);
	for (int i = 0; i < 3; i++) {
		F = i < 2 ? agent_file_read(T.a, &r, &f_ops, NULL)
			  : agent_file_write(T.a, &w, &f_ops, NULL);
		REQUIRE(F);
		run(1);
		agent_file_close(F);
	}
	finish(p);
	CHECK_STR(T.log, "[80 ] open2+3/10 /x f644 cde end0 [80 ] open2+3/10 /x f644 end71 [81 ] "
			 "<hello> <0> end0 ");
}

static struct agent_dial *D;

static void d_opened(void *arg)
{
	note("open ");
	agent_dial_send(D, "GET", 3);
	agent_dial_end(D);
}

static void d_bytes(void *arg, const uint8_t *p, size_t n)
{
	note("<%.*s> ", (int)n, (const char *)p);
}

static void d_closed(void *arg, const struct agent_reply *r)
{
	note("closed%d", r->err);
	one_less();
}

static const struct agent_dial_ops d_ops = {d_opened, d_bytes, NULL, d_closed};

static void script_dial(struct peer *p)
{
	char got[8] = "";
	int control;

	p_accept(p, false);
	p_hello(p);
	control = take_fd(&p->fd);
	next_exec_conn(p);
	p_send(p, AGENT_OK, 0, 1, NULL);
	read_full(p->fd, got, 3);
	if (read(p->fd, got + 3, 1) == 0)
		note("%s+eof ", got);
	(void)!write(p->fd, "answer", 6);
	close_fd(&p->fd);
	close(control);
}

static void a_dial_keeps_half_close(void)
{
	struct peer *p = begin(script_dial, 0);

	agentc_up(T.a);
	D = agent_dial_tcp(T.a, 80, &d_ops, NULL);
	REQUIRE(D);
	run(1);
	agent_dial_close(D);
	finish(p);
	CHECK_STR(T.log, "[90 ] open GET+eof <answer> <> closed0");
}

static char big[700000];

static void deaf_opened(void *arg)
{
	note("sent%d ", agent_dial_send(D, big, sizeof(big)));
}

static void deaf_closed(void *arg, const struct agent_reply *r)
{
	note("closed%d ", r->err);
}

static const struct agent_dial_ops deaf_ops = {deaf_opened, d_bytes, NULL, deaf_closed};

static void script_deaf(struct peer *p)
{
	int control;
	char c;

	p_accept(p, false);
	p_hello(p);
	control = take_fd(&p->fd);
	next_exec_conn(p);
	shutdown(p->fd, SHUT_RD);
	p_send(p, AGENT_OK, 0, 1, NULL);
	(void)!read(control, &c, 1); /* until the host goes */
	close(control);
}

/* It reads no more and may still answer: what waits for it must not wake the loop for ever. */
static void a_deaf_peer_does_not_spin_the_loop(void)
{
	struct peer *p = begin(script_deaf, 0);
	unsigned int turns = 0;
	uint64_t until;

	agentc_up(T.a);
	D = agent_dial_tcp(T.a, 80, &deaf_ops, NULL);
	REQUIRE(D);
	until = mono_ns() + 300000000ull;
	while (mono_ns() < until && ++turns < 1000)
		loop_turn(T.l, 100);
	agent_dial_close(D);
	agentc_down(T.a);
	CHECK(turns < 1000);
	finish(p);
}

static void script_idle(struct peer *p)
{
	char c;

	p_accept(p, false);
	p_hello(p);
	(void)!read(p->fd, &c, 1); /* until the host goes */
	close_fd(&p->fd);
}

/* What is added when it is sent, by the agent's version, must fit, too: else it is refused, not
 * forgotten. */
static void a_command_of_the_greatest_length(void)
{
	struct peer *p = begin(script_idle, 0);
	const char *argv[1] = {big};
	struct agent_exec_spec s = {
		.exec_id = "x1", .user = "", .cwd = "", .session = "", .argc = 1, .argv = argv};
	static const struct agent_exec_ops ops;
	struct buf b;

	buf_init(&b, AGENT_FRAME_MAX);
	big[0] = 0;
	agent_exec_encode(&b, &s);
	memset(big, 'a', AGENT_FRAME_MAX - b.len - 2);
	big[AGENT_FRAME_MAX - b.len - 2] = 0;
	errno = 0;
	CHECK(!agent_exec_start(T.a, &s, &ops, NULL));
	CHECK_INT(errno, E2BIG);
	buf_fini(&b);
	agentc_up(T.a);
	for (uint64_t end = mono_ns() + 100000000ull; mono_ns() < end;)
		loop_turn(T.l, 10);
	agentc_down(T.a);
	finish(p);
}

static const struct test tests[] = {
	{"a_deaf_peer_does_not_spin_the_loop", a_deaf_peer_does_not_spin_the_loop},
	{"a_command_of_the_greatest_length", a_command_of_the_greatest_length},
	{"answers_find_their_request_in_any_order", answers_find_their_request_in_any_order},
	{"hostile_answers_end_the_connection_only", hostile_answers_end_the_connection_only},
	{"an_older_agent_is_spoken_to_in_its_version", an_older_agent_is_spoken_to_in_its_version},
	{"a_second_command_finds_its_connection", a_second_command_finds_its_connection},
	{"a_lost_stream_goes_on_at_the_next_byte", a_lost_stream_goes_on_at_the_next_byte},
	{"a_hole_in_the_output_is_an_error", a_hole_in_the_output_is_an_error},
	{"closing_detaches", closing_detaches},
	{"answers_that_nobody_asked_for_end_the_connection",
		answers_that_nobody_asked_for_end_the_connection},
	{"an_agent_that_leaves_is_asked_later_and_later",
		an_agent_that_leaves_is_asked_later_and_later},
	{"what_waits_for_an_agent_has_a_budget", what_waits_for_an_agent_has_a_budget},
	{"an_answer_over_the_budget_is_refused", an_answer_over_the_budget_is_refused},
	{"output_that_nobody_reads_is_slow", output_that_nobody_reads_is_slow},
	{"files_go_both_ways", files_go_both_ways},
	{"a_dial_keeps_half_close", a_dial_keeps_half_close},
};
TEST_MAIN(tests)
