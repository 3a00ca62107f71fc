/* SPDX-License-Identifier: Apache-2.0
 *
 * agent_all: every request of lib/proto_agent.h once, with what it answers, on the connection it
 * belongs to; the agent's own table says whether one was left out. The conversation is recorded
 * (--record), and sent again to another agent, which must answer alike.
 */
#include "tests/agent_host.h"

#include "agent/request.h"

#define CONNS 64

static struct host H = {.with_record = true};
static struct got G;
static int ctl = -1, exec_fd = -1;
static bool asked[256];
static struct buf B;

/* B is the payload, and is empty afterwards; the answer is G. */
static int ask_on(int fd, uint16_t type)
{
	bool ok = host_ask(&H, fd, type, &B, &G);

	asked[type] = true;
	return ok ? 0 : G.code ? G.code : -1;
}

static int ask(uint16_t type)
{
	return ask_on(ctl, type);
}

static void put_ids(void)
{
	buf_u32(&B, AGENT_NO_ID);
	buf_u32(&B, AGENT_NO_ID);
}

static const char *path_of(const char *name)
{
	static char p[4][200];
	static int next;
	char *to = p[next++ % 4];

	snprintf(to, sizeof(p[0]), "/tmp/agent-all-%d/%s", getpid(), name);
	return to;
}

static void life(void)
{
	CHECK_INT(ask(AGENT_PING), 0);
	CHECK_INT(ask(AGENT_METRICS), 0);
	CHECK_INT(ask(AGENT_SELF), 0);
	host_put_identity(&B, 1, "all", "A", "b");
	buf_u32(&B, 0);
	buf_str(&B, "/");
	buf_str(&B, "");
	buf_u32(&B, 1);
	buf_str(&B, "/bin/true");
	buf_str(&B, "");
	CHECK_INT(ask(AGENT_SETUP), 0);
	buf_u32(&B, AGENT_PREP_FREEZE);
	buf_u32(&B, 1000);
	CHECK_INT(ask(AGENT_PREPARE), 0);
	host_put_identity(&B, 2, "all", NULL, NULL);
	CHECK_INT(ask(AGENT_THAW), 0);
	buf_u16(&B, 9);
	buf_u32(&B, 1);
	CHECK_INT(ask(AGENT_WAIT_PORT), ETIMEDOUT); /* that one is told of a server: agent_life */
	buf_u32(&B, 1);
	buf_str(&B, "LATER");
	buf_str(&B, "1");
	CHECK_INT(ask(AGENT_SET_ENV), 0);
	buf_u64(&B, MIB(300));
	CHECK_INT(ask(AGENT_LIMITS), EOPNOTSUPP); /* no cgroup here; with one: test_lifecycle */
	CHECK_INT(ask(AGENT_MOUNT),
		EPROTO);                 /* no volume at all; the mounts themselves: test_volumes */
	CHECK_INT(ask(AGENT_HARDEN), 0); /* asks only; the floor itself: agent_init */
	CHECK_INT(cur_u32(&G.c), 5);
}

static void processes(void)
{
	static const char *const argv[] = {"read x; cat >/dev/null; echo $x $LATER", NULL},
				 *const bg[] = {"echo kept; sleep 100", NULL};
	uint32_t code = 0;

	exec_fd = host_open(&H, AGENT_CONN_EXEC, &G);
	host_exec_body(&B, "fg", AGENT_X_SHELL | AGENT_X_STDIN, "/", 0, "", argv, NULL);
	CHECK_INT(ask_on(exec_fd, AGENT_EXEC), 0);
	buf_str(&B, "fg");
	CHECK_INT(ask(AGENT_USAGE), 0);
	CHECK_INT(cur_u32(&G.c), 1);
	buf_put(&B, "in\n", 3);
	while (B.len < AGENT_TAKEN_EVERY)
		buf_u8(&B, 'y');
	host_send(exec_fd, AGENT_STDIN, 0, &B);
	buf_reset(&B);
	host_send(exec_fd, AGENT_STDIN, 0, &B);
	CHECK(host_recv(exec_fd, &G) && G.h.type == AGENT_STDIN_TAKEN);
	CHECK_INT(cur_u64(&G.c), AGENT_TAKEN_EVERY);
	CHECK(host_recv(exec_fd, &G) && G.h.type == AGENT_OUT);
	CHECK(G.h.len == 9 + 5 && !memcmp(G.p + 9, "in 1\n", 5));
	CHECK(host_recv(exec_fd, &G) && G.h.type == AGENT_EXIT);
	buf_u64(&B, 5);
	buf_u64(&B, 0);
	host_send(exec_fd, AGENT_ACK, 0, &B);
	buf_reset(&B);
	asked[AGENT_ACK] = asked[AGENT_STDIN] = true;
	close(exec_fd);
	exec_fd = host_open(&H, AGENT_CONN_EXEC, &G);
	buf_str(&B, "fg");
	buf_u64(&B, 5);
	buf_u64(&B, 0);
	CHECK_INT(ask_on(exec_fd, AGENT_ATTACH), 0);
	CHECK(host_recv(exec_fd, &G) && G.h.type == AGENT_EXIT);
	close(exec_fd);
	buf_str(&B, "fg");
	CHECK_INT(ask(AGENT_DETACH), 0);
	buf_str(&B, "fg");
	CHECK_INT(ask(AGENT_FORGET), 0);

	host_exec_body(&B, "bg", AGENT_X_SHELL | AGENT_X_BACKGROUND, "/", 0, "", bg, NULL);
	CHECK_INT(ask(AGENT_EXEC), 0);
	buf_str(&B, "bg");
	CHECK_INT(ask(AGENT_STATUS), 0);
	CHECK_INT(cur_u32(&G.c), AGENT_RUNNING);
	buf_str(&B, "bg");
	buf_u16(&B, 80);
	buf_u16(&B, 24);
	CHECK_INT(ask(AGENT_RESIZE), ENOTTY); /* one that has a terminal: agent_exec */
	CHECK_INT(ask(AGENT_EXECS), 0);
	buf_str(&B, "bg");
	buf_u32(&B, SIGTERM);
	buf_u32(&B, 0);
	CHECK_INT(ask(AGENT_SIGNAL), 0);
	CHECK_INT(host_wait_state(&H, ctl, "bg", &code, &G), AGENT_SIGNALED);
	CHECK_INT(code, SIGTERM);
	buf_str(&B, "bg");
	buf_u64(&B, 0);
	buf_u32(&B, 100);
	CHECK_INT(ask(AGENT_LOGS), 0);

	buf_str(&B, "s");
	buf_str(&B, "/");
	CHECK_INT(ask(AGENT_SESSION_NEW), 0);
	buf_str(&B, "s");
	CHECK_INT(ask(AGENT_SESSION_GET), 0);
	CHECK_INT(ask(AGENT_SESSION_LIST), 0);
	CHECK_INT(cur_u32(&G.c), 1);
	exec_fd = host_open(&H, AGENT_CONN_EXEC, &G);
	buf_str(&B, "s");
	buf_u32(&B, 0);
	buf_u64(&B, 0);
	buf_u32(&B, 0);
	CHECK_INT(ask_on(exec_fd, AGENT_SESSION_ATTACH), EINVAL); /* a terminal: agent_terminal */
	close(exec_fd);
	for (uint16_t t = AGENT_SESSION_DIFF; t <= AGENT_SESSION_COMMIT; t++) {
		buf_str(&B, "s");
		buf_str(&B, "");
		buf_u32(&B, 1);
		CHECK_INT(ask(t), ENOENT); /* an isolated one: agent_isolated */
	}
	buf_str(&B, "s");
	CHECK_INT(ask(AGENT_SESSION_DEL), 0);
}

static void one_path(const char *path)
{
	put_ids();
	buf_str(&B, path);
}

static void files(void)
{
	int fd = host_open(&H, AGENT_CONN_BULK, &G);

	one_path(path_of("d"));
	buf_str(&B, "");
	buf_str(&B, "");
	buf_u32(&B, 0755);
	CHECK_INT(ask(AGENT_MKDIR), 0);
	one_path(path_of("d/f"));
	buf_str(&B, "");
	buf_str(&B, "");
	buf_u32(&B, 0644);
	buf_u32(&B, AGENT_WR_ATOMIC);
	CHECK_INT(ask_on(fd, AGENT_WRITE), 0);
	buf_put(&B, "old text", 8);
	host_send(fd, AGENT_DATA, H.next_id, &B);
	host_send(fd, AGENT_DATA, H.next_id, NULL);
	buf_reset(&B);
	CHECK(host_recv(fd, &G) && G.h.type == AGENT_OK && cur_u64(&G.c) == 8);
	close(fd);
	put_ids();
	buf_u32(&B, 1);
	buf_str(&B, path_of("d/f"));
	CHECK_INT(ask(AGENT_STAT), 0);
	one_path(path_of("d"));
	buf_u32(&B, 1);
	buf_u32(&B, 10);
	CHECK_INT(ask(AGENT_LIST), 0);
	one_path(path_of("d"));
	buf_str(&B, "f*");
	buf_u32(&B, 10);
	CHECK_INT(ask(AGENT_SEARCH), 0);
	one_path(path_of("d/f"));
	buf_str(&B, "");
	buf_str(&B, "");
	buf_u32(&B, 0600);
	CHECK_INT(ask(AGENT_CHMOD), 0);
	one_path(path_of("d/f"));
	buf_str(&B, "old");
	buf_str(&B, "new");
	CHECK_INT(ask(AGENT_REPLACE), 0);
	CHECK_INT(cur_u64(&G.c), 1);
	one_path(path_of("d/f"));
	buf_str(&B, path_of("d/g"));
	CHECK_INT(ask(AGENT_MOVE), 0);
	one_path("~/x");
	CHECK_INT(ask(AGENT_EXPAND), 0);
	fd = host_open(&H, AGENT_CONN_BULK, &G);
	one_path(path_of("d/g"));
	buf_u64(&B, 0);
	buf_u64(&B, UINT64_MAX);
	buf_u32(&B, 0);
	CHECK_INT(ask_on(fd, AGENT_READ), 0);
	CHECK(host_recv(fd, &G) && G.h.type == AGENT_DATA && G.h.len == 8 &&
		!memcmp(G.p, "new text", 8));
	close(fd);
	put_ids();
	buf_u32(&B, AGENT_RM_TREE);
	buf_u32(&B, 1);
	buf_str(&B, path_of(""));
	CHECK_INT(ask(AGENT_REMOVE), 0);
}

/* Ours, for the agent to dial; it stays for the second one. */
static char listener_path[64];
static int listener = -1;

static void listener_open(void)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};

	snprintf(listener_path, sizeof(listener_path), "/tmp/agent-all-%d.sock", getpid());
	memcpy(sa.sun_path, listener_path, sizeof(listener_path));
	listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(bind(listener, (struct sockaddr *)&sa, sizeof(sa)) == 0 && listen(listener, 4) == 0);
}

static void dials(void)
{
	int fd = host_open(&H, AGENT_CONN_DIAL, &G), peer;
	char got[2];

	buf_u16(&B, 9);
	CHECK(ask_on(fd, AGENT_DIAL_TCP) > 0); /* a server that answers: agent_life */
	close(fd);
	fd = host_open(&H, AGENT_CONN_DIAL, &G);
	buf_u32(&B, 2);
	CHECK_INT(ask_on(fd, AGENT_DIAL_ACCEPT), EPROTO); /* one that waits: agent_life */
	close(fd);
	listener_open();
	fd = host_open(&H, AGENT_CONN_DIAL, &G);
	buf_str(&B, listener_path);
	CHECK_INT(ask_on(fd, AGENT_DIAL_UNIX), 0);
	peer = accept(listener, NULL, NULL);
	CHECK(peer >= 0 && write(peer, "hi", 2) == 2);
	CHECK(read_full(fd, got, 2) == 0 && !memcmp(got, "hi", 2));
	close(peer);
	close(fd);
}

static void none_was_left_out(void)
{
	asked[AGENT_SHUTDOWN] = true; /* stop */
	for (uint16_t t = 0; t < 256; t++)
		if (request_find(t) && !asked[t]) {
			printf("request %u was never asked\n", t);
			CHECK(asked[t]);
		}
}

static struct buf record;

static void stop_and_keep_the_record(void)
{
	char path[100], more[100];

	close(ctl);
	snprintf(path, sizeof(path), "%s/record", H.dir);
	snprintf(more, sizeof(more), "/tmp/agent-all-record-%d", getpid());
	/* the name goes with the agent's folder; its bytes come until the agent's end */
	CHECK_INT(link(path, more), 0);
	CHECK(host_stop(&H));
	buf_init(&record, MIB(4));
	{
		_cleanup_close_ int fd = open(more, O_RDONLY | O_CLOEXEC);
		struct stat st;
		uint8_t *to;

		REQUIRE(fd >= 0 && fstat(fd, &st) == 0 && st.st_size > 1000);
		to = buf_room(&record, (size_t)st.st_size);
		REQUIRE(to && read_full(fd, to, (size_t)st.st_size) == 0);
		record.len = (size_t)st.st_size;
	}
	unlink(more);
}

struct replay {
	int fd[CONNS];
	uint16_t kind[CONNS];
	unsigned said, heard;
};

/* Raw connection: its greeting is in the record. */
static int raw_connect(void)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	struct timeval t = {.tv_sec = 10};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", H.sock);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
	CHECK_INT(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	return fd;
}

static void say(struct replay *r, uint32_t conn, const uint8_t *p, size_t n)
{
	struct frame f;
	size_t used;

	CHECK_INT(frame_next(p, n, &f, &used), 1);
	CHECK_INT(used, n);
	if (r->fd[conn] < 0) {
		CHECK_INT(f.h.type, AGENT_HELLO);
		cur_u64(&f.body);
		r->kind[conn] = (uint16_t)cur_u32(&f.body);
		r->fd[conn] = raw_connect();
	}
	CHECK_INT(write_full(r->fd[conn], p, n), 0);
	/* contents of files, and what is said about them, are not recorded: none come, and it is
	 * waited for */
	if (f.h.type == AGENT_WRITE) {
		host_send(r->fd[conn], AGENT_DATA, f.h.id, NULL);
		CHECK(host_recv(r->fd[conn], &G) && G.h.type == AGENT_OK);
		CHECK(host_recv(r->fd[conn], &G) && G.h.type == AGENT_OK);
	}
	r->said++;
}

/* The same frame must come: its kind and number, the reason of a failure, the bytes of an output.
 */
static void hear(struct replay *r, uint32_t conn, const uint8_t *p, size_t n)
{
	size_t used;
	struct frame f;

	REQUIRE(frame_next(p, n, &f, &used) == 1 && r->fd[conn] >= 0);
	if (!host_recv(r->fd[conn], &G)) {
		printf("connection %u: no answer, wanted type %u of request %u\n", conn, f.h.type,
			f.h.id);
		CHECK(!"heard");
		return;
	}
	CHECK_INT(G.h.type, f.h.type);
	CHECK_INT(G.h.id, f.h.id);
	if (f.h.type == AGENT_ERR)
		CHECK_INT(G.code, cur_u32(&f.body));
	if (f.h.type == AGENT_OUT)
		CHECK(G.h.len == f.h.len && !memcmp(G.p, p + sizeof(f.h), f.h.len));
	r->heard++;
}

static void another_agent_answers_alike(void)
{
	struct cur c = cur_of(record.p, record.len);
	struct replay r = {.said = 0};
	int st = 0;

	H.with_record = false;
	REQUIRE(host_start(&H));
	for (size_t i = 0; i < CONNS; i++)
		r.fd[i] = -1;
	while (cur_left(&c) && test_failures == 0) {
		uint32_t conn;
		uint8_t dir;
		const uint8_t *p;
		size_t n;

		cur_u64(&c);
		conn = cur_u32(&c);
		dir = cur_u8(&c);
		n = cur_u32(&c);
		p = cur_bytes(&c, n);
		REQUIRE(p && conn < CONNS);
		if (dir == 0)
			say(&r, conn, p, n);
		else
			hear(&r, conn, p, n);
	}
	CHECK(!c.bad);
	printf("said %u, heard %u\n", r.said, r.heard);
	CHECK(r.said > 45 && r.heard > 45);
	for (size_t i = 0; i < CONNS; i++)
		close_fd(&r.fd[i]);
	/* its last request was the end */
	if (test_failures)
		kill(H.pid, SIGKILL);
	CHECK_INT(waitpid(H.pid, &st, 0), H.pid);
	CHECK(WIFEXITED(st) && WEXITSTATUS(st) == 0);
	{
		char cmd[200];

		snprintf(cmd, sizeof(cmd), "rm -rf %s", H.dir);
		(void)!system(cmd);
	}
	unlink(listener_path);
	close(listener);
	buf_fini(&record);
	buf_fini(&B);
}

static void start(void)
{
	buf_init(&B, AGENT_FRAME_MAX);
	REQUIRE(host_start(&H));
	ctl = host_open(&H, AGENT_CONN_CONTROL, &G);
	REQUIRE(ctl >= 0);
}

static const struct test tests[] = {
	{"start", start},
	{"life", life},
	{"processes", processes},
	{"files", files},
	{"dials", dials},
	{"none_was_left_out", none_was_left_out},
	{"stop_and_keep_the_record", stop_and_keep_the_record},
	{"another_agent_answers_alike", another_agent_answers_alike},
};
AGENT_TEST_MAIN(tests)
