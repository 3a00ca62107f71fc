/* SPDX-License-Identifier: Apache-2.0
 *
 * agent_life: set-up, environment, hooks, prepare and thaw, ports and dials, metrics, what the
 * agent refuses, and that nothing is left behind.
 */
#include "tests/agent_host.h"

#include <dirent.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>

#include "agent/env.h"
#include "agent/hooks.h"
#include "agent/schedule.h"
#include "agent/users.h"

static struct host H;
static struct got G;
static int ctl = -1;

static void put_setup(struct buf *b, const char *entry, const char *lifecycle)
{
	host_put_identity(b, 7, "box", "SETUP_VAR", "from-setup");
	buf_u32(b, 2);
	buf_str(b, "IMAGE_VAR");
	buf_str(b, "from-image");
	buf_str(b, "SETUP_VAR");
	buf_str(b, "overridden");
	buf_str(b, "/usr");
	buf_str(b, "");
	buf_u32(b, entry ? 3 : 0);
	if (entry) {
		buf_str(b, "/bin/sh");
		buf_str(b, "-c");
		buf_str(b, entry);
	}
	buf_str(b, lifecycle);
}

static uint32_t wait_state(const char *id, uint32_t *code)
{
	return host_wait_state(&H, ctl, id, code, &G);
}

static void logs(const char *id, char *to, size_t cap)
{
	struct buf b;

	buf_init(&b, 256);
	buf_str(&b, id);
	buf_u64(&b, 0);
	buf_u32(&b, (uint32_t)cap - 1);
	memset(to, 0, cap);
	CHECK(host_ask(&H, ctl, AGENT_LOGS, &b, &G));
	cur_u64(&G.c);
	memcpy(to, G.c.p, MIN(cur_left(&G.c), cap - 1));
	buf_fini(&b);
}

static void setup_hooks_entrypoint(void)
{
	static const char life[] = "{\"preStart\":{\"command\":[\"/bin/sh\",\"-c\",\"echo pre "
				   "$IMAGE_VAR > $DIR/pre\"],\"timeoutSeconds\":5},"
				   "\"periodic\":[{\"name\":\"tick\",\"schedule\":\"@every "
				   "1s\",\"command\":[\"/bin/echo\",\"t\\u00fcck\"]}]}";
	char text[300], path[200];
	uint32_t code = 0;
	struct buf b;

	buf_init(&b, 65536);
	host_put_identity(&b, 7, "box", "SETUP_VAR", "x");
	CHECK(!host_ask(&H, ctl, AGENT_SETUP, &b, &G)); /* half of it */
	CHECK_INT(G.code, EPROTO);
	put_setup(&b, "true",
		"{\"periodic\":[{\"name\":\"x\",\"schedule\":\"61 * * * "
		"*\",\"command\":[\"a\"]}]}");
	CHECK(!host_ask(&H, ctl, AGENT_SETUP, &b, &G));
	CHECK_INT(G.code, EINVAL);
	snprintf(path, sizeof(path), "%s", H.dir);
	setenv("DIR", path, 1);
	buf_reset(&b);
	host_put_identity(&b, 7, "box", "DIR", H.dir);
	buf_u32(&b, 1);
	buf_str(&b, "IMAGE_VAR");
	buf_str(&b, "from-image");
	buf_str(&b, "/usr");
	buf_str(&b, "");
	buf_u32(&b, 3);
	buf_str(&b, "/bin/sh");
	buf_str(&b, "-c");
	buf_str(&b, "cat $DIR/pre; hostname; pwd; cat $DIR/generation $DIR/machine-id; echo "
		    "$IMAGE_VAR; exit 9");
	buf_str(&b, life);
	CHECK(host_ask(&H, ctl, AGENT_SETUP, &b, &G));
	CHECK_INT(wait_state("entrypoint", &code), AGENT_EXITED);
	CHECK_INT(code, 9);
	logs("entrypoint", text, sizeof(text));
	if (H.own_ns)
		CHECK_STR(text,
			"pre "
			"from-image\nbox\n/usr\n7\n0123456789abcdef0123456789abcdef\nfrom-image\n");
	CHECK_INT(wait_state("hook.tick", &code), AGENT_EXITED);
	logs("hook.tick", text, sizeof(text));
	CHECK_STR(text, "t\xc3\xbc"
			"ck\n");
	put_setup(&b, NULL, "");
	CHECK(!host_ask(&H, ctl, AGENT_SETUP, &b, &G));
	CHECK_INT(G.code, EALREADY);
	buf_fini(&b);
}

/* One agent of its own for each: a sandbox is set up once. entry NULL: a program that is not there.
 */
static void watched_setup(
	const char *life, const char *entry, uint32_t want_state, const char *want_error)
{
	struct host own = {0};
	struct got *g = malloc(sizeof(*g));
	struct buf b;
	int c, fd;

	REQUIRE(host_start(&own));
	c = host_open(&own, AGENT_CONN_CONTROL, g);
	fd = host_open(&own, AGENT_CONN_EXEC, g);
	buf_init(&b, 65536);
	host_put_identity(&b, 1, "", NULL, NULL);
	buf_u32(&b, 0);
	buf_str(&b, "/");
	buf_str(&b, "");
	buf_u32(&b, 1);
	buf_str(&b, entry);
	buf_str(&b, life);
	CHECK(host_ask(&own, c, AGENT_SETUP, &b, g));
	/* at once, as the daemon does */
	buf_str(&b, "entrypoint");
	buf_u64(&b, 0);
	buf_u64(&b, 0);
	host_send(fd, AGENT_ATTACH, 9, &b);
	CHECK(host_recv(fd, g) && g->h.type == AGENT_OK);
	CHECK(host_recv(fd, g) && g->h.type == AGENT_EXIT);
	CHECK_INT(cur_u32(&g->c), want_state);
	cur_u32(&g->c);
	cur_str(&g->c, g->text, sizeof(g->text));
	CHECK_STR(g->text, want_error);
	buf_fini(&b);
	close(fd);
	close(c);
	free(g);
	CHECK(host_stop(&own));
}

static void the_entrypoint_s_end_is_told(void)
{
	static const char slow[] = "{\"preStart\":{\"command\":[\"/bin/sleep\",\"0.2\"]}}";
	static const char bad[] = "{\"preStart\":{\"command\":[\"/bin/sh\",\"-c\",\"exit 3\"]}}";
	static const char late[] =
		"{\"preStart\":{\"command\":[\"/bin/sleep\",\"30\"],\"timeoutSeconds\":1}}";
	static const char none[] = "{\"preStart\":{\"command\":[\"/no/such\"]}}";

	watched_setup("", "/bin/true", AGENT_EXITED, "");
	watched_setup("", "/no/such/program", AGENT_NOT_STARTED,
		"/no/such/program: No such file or directory");
	watched_setup(slow, "/bin/true", AGENT_EXITED, "");
	watched_setup(slow, "/no/such/program", AGENT_NOT_STARTED,
		"/no/such/program: No such file or directory");
	watched_setup(bad, "/bin/true", AGENT_NOT_STARTED, "preStart failed with 3");
	watched_setup(late, "/bin/true", AGENT_NOT_STARTED, "preStart took too long: signal 9");
	watched_setup(none, "/bin/true", AGENT_NOT_STARTED, "/no/such: No such file or directory");
}

static void environment_layers(void)
{
	char file[200], text[300];
	uint32_t code;
	struct buf b;
	int fd;

	snprintf(file, sizeof(file), "%s/envs", H.dir);
	fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	dprintf(fd, "# comment\nFILE_A='two\nlines'\nexport "
		    "FILE_B=\"q\\\"$IMAGE_VAR\\n\"\nPATH=$PATH:/extra\nMALFORMED\nREQ=file\n");
	close(fd);
	buf_init(&b, 4096);
	buf_u32(&b, 1);
	buf_str(&b, "EXECD_ENVS");
	buf_str(&b, file);
	CHECK(host_ask(&H, ctl, AGENT_SET_ENV, &b, &G));
	{
		static const char *const argv[] = {
			"echo \"$FILE_A|$FILE_B|${PATH##*:}|$REQ|$EXECD_ENVS\"", NULL};
		static const char *const env[] = {"REQ", "request", NULL};

		host_exec_body(
			&b, "env1", AGENT_X_SHELL | AGENT_X_BACKGROUND, "", 0, "", argv, env);
	}
	CHECK(host_ask(&H, ctl, AGENT_EXEC, &b, &G));
	CHECK_INT(wait_state("env1", &code), AGENT_EXITED);
	logs("env1", text, sizeof(text));
	{
		char want[400];

		snprintf(
			want, sizeof(want), "two\nlines|q\"from-image\n|/extra|request|%s\n", file);
		CHECK_STR(text, want);
	}
	buf_fini(&b);
}

static void users_of_the_image(void)
{
	struct userdb db = {.passwd = (char *)(uintptr_t) "root:x:0:0:root:/root:/bin/sh\nbad "
							  "line\nu:x:1000:1001::/home/u:/bin/"
							  "sh\nhuge:x:99999999999:0::/:\n",
		.group = (char *)(uintptr_t) "root:x:0:\ngu:x:1001:\nextra:x:44:a,u,b\nnou:x:45:"
					     "uu\n"};
	struct user u;
	char name[64];

	CHECK_INT(user_by_spec(&db, "u", &u), 0);
	CHECK_INT(u.uid, 1000);
	CHECK_INT(u.gid, 1001);
	CHECK_STR(u.home, "/home/u");
	CHECK_INT(u.ngroups, 2);
	CHECK_INT(u.groups[1], 44);
	CHECK_INT(user_by_spec(&db, "u:extra", &u), 0);
	CHECK_INT(u.gid, 44);
	CHECK_INT(user_by_spec(&db, "1234", &u), 0);
	CHECK_INT(u.gid, 0);
	CHECK_INT(user_by_spec(&db, "nobody-here", &u), -ENOENT);
	CHECK_INT(user_by_spec(&db, "huge", &u), -ENOENT);
	CHECK_INT(user_by_spec(&db, "u:none", &u), -ENOENT);
	name_of_gid(&db, 1001, name);
	CHECK_STR(name, "gu");
	name_of_uid(&db, 77, name);
	CHECK_STR(name, "77");
}

static void schedules(void)
{
	struct schedule s;

	/* 2026-01-01 00:00:00 UTC, a Thursday */
	CHECK_INT(schedule_parse("*/15 3 * * *", &s), 0);
	CHECK_INT(schedule_next(&s, 1767225600), 1767225600 + 3 * 3600);
	CHECK_INT(schedule_next(&s, 1767225600 + 3 * 3600), 1767225600 + 3 * 3600 + 900);
	CHECK_INT(schedule_parse("0 0 * * mon", &s), 0);
	CHECK_INT(schedule_next(&s, 1767225600), 1767225600 + 4 * 86400);
	CHECK_INT(schedule_parse("0 0 13 * 5", &s), 0); /* a 13th or a Friday */
	CHECK_INT(schedule_next(&s, 1767225600), 1767225600 + 86400);
	CHECK_INT(schedule_parse("0 0 30 2 *", &s), 0);
	CHECK_INT(schedule_next(&s, 1767225600), 0);
	CHECK_INT(schedule_parse("@every 1h30m", &s), 0);
	CHECK_INT(schedule_next(&s, 10), 5410);
	CHECK_INT(schedule_parse("@hourly", &s), 0);
	CHECK_INT(schedule_parse("@every 0s", &s), -EINVAL);
	CHECK_INT(schedule_parse("@every 100ms", &s), -EINVAL);
	CHECK_INT(schedule_parse("* * * *", &s), -EINVAL);
	CHECK_INT(schedule_parse("* * * * * *", &s), -EINVAL);
	CHECK_INT(schedule_parse("60 * * * *", &s), -EINVAL);
	CHECK_INT(schedule_parse("5-1 * * * *", &s), -EINVAL);
	CHECK_INT(schedule_parse("", &s), -EINVAL);
}

static void prepare_and_thaw(void)
{
	static const char *const argv[] = {"true", NULL};
	struct buf b;

	buf_init(&b, 4096);
	buf_u32(&b, AGENT_PREP_FREEZE);
	buf_u32(&b, 1000);
	CHECK(host_ask(&H, ctl, AGENT_PREPARE, &b, &G));
	host_exec_body(&b, "frozen", AGENT_X_BACKGROUND, "", 0, "", argv, NULL);
	CHECK(!host_ask(&H, ctl, AGENT_EXEC, &b, &G));
	CHECK_INT(G.code, EBUSY);
	buf_u32(&b, 0);
	buf_u32(&b, 1000);
	CHECK(!host_ask(&H, ctl, AGENT_PREPARE, &b, &G));
	CHECK_INT(G.code, EALREADY);
	buf_reset(&b);
	host_put_identity(&b, 8, "box2", NULL, NULL);
	buf_u8(&b, 1); /* something left over: not thawed */
	CHECK(!host_ask(&H, ctl, AGENT_THAW, &b, &G));
	host_exec_body(&b, "frozen", AGENT_X_BACKGROUND, "", 0, "", argv, NULL);
	CHECK(!host_ask(&H, ctl, AGENT_EXEC, &b, &G));
	buf_reset(&b);
	host_put_identity(&b, 8, "box2", NULL, NULL);
	CHECK(host_ask(&H, ctl, AGENT_THAW, &b, &G));
	host_exec_body(&b, "thawed", AGENT_X_BACKGROUND, "", 0, "", argv, NULL);
	CHECK(host_ask(&H, ctl, AGENT_EXEC, &b, &G));
	{
		struct got *g = malloc(sizeof(*g));
		int fd = host_open(&H, AGENT_CONN_CONTROL, g);

		CHECK_INT(cur_u32(&g->c), AGENT_VERSION);
		CHECK_INT(cur_u64(&g->c), 8);
		close(fd);
		free(g);
	}
	buf_fini(&b);
}

static uint64_t self(const char *name)
{
	return host_self(&H, ctl, name, &G);
}

/* The frames in one write: the agent takes them one after the other without looking at what its
 * threads did meanwhile. */
static void put_frame(struct buf *f, uint16_t type, uint32_t id, struct buf *b)
{
	frame_put(f, type, 0, id, b->p, b->len);
	buf_reset(b);
}

/* In place of libc's, in the agent's process too: a disk that is busy until the test says
 * otherwise. A test that failed says nothing: then it is through on its own, before host_recv()
 * gives up. */
static int disk[2] = {-1, -1};

void sync(void)
{
	struct pollfd p = {.fd = disk[0], .events = POLLIN};
	char c;

	if (poll(&p, 1, 8000) > 0)
		(void)!read(disk[0], &c, 1);
}

/* The host gave up on a template: its set-up or thaw comes while the agent still prepares, and is
 * not refused for it. */
static void thaw_takes_a_preparation_back(void)
{
	static const char *const argv[] = {"true", NULL};
	/* a thread that a sync holds up, or that is not even there yet; and one that may win or
	 * lose */
	static const struct {
		uint32_t flags, rounds;
	} tries[] = {{AGENT_PREP_FREEZE | AGENT_PREP_DROP, 1}, {AGENT_PREP_FREEZE, 50}};
	struct buf b, f;

	buf_init(&b, 4096);
	buf_init(&f, KIB(64));
	for (size_t t = 0; t < ARRAY_LEN(tries); t++)
		for (uint32_t r = 0; r < tries[t].rounds; r++) {
			uint32_t prepare = H.next_id + 1, thaw = prepare + 1;
			bool held = tries[t].flags & AGENT_PREP_DROP && !H.guest;
			int thaw_at = -1, prepare_at = -1, prepare_code = -1;

			buf_u32(&b, tries[t].flags);
			buf_u32(&b, 1000);
			put_frame(&f, AGENT_PREPARE, prepare, &b);
			host_put_identity(&b, 8, "box2", NULL, NULL);
			put_frame(&f, AGENT_THAW, thaw, &b);
			CHECK_INT(write_full(ctl, f.p, f.len), 0);
			buf_reset(&f);
			H.next_id = thaw;
			for (int n = 0; n < 2; n++) {
				REQUIRE(host_recv(ctl, &G));
				if (G.h.id == thaw) {
					thaw_at = n;
					CHECK_INT(G.code, 0);
				} else if (G.h.id == prepare) {
					prepare_at = n;
					prepare_code = G.code;
				}
				if (held && n == 0)
					CHECK_INT(write_full(disk[1], "", 1), 0);
			}
			CHECK(thaw_at >= 0 && prepare_at >= 0);
			CHECK(prepare_code == 0 || prepare_code == EINTR);
			if (held) {
				CHECK(thaw_at < prepare_at);
				CHECK_INT(prepare_code, EINTR);
			}
		}
	CHECK_INT(self("frozen"), 0);
	host_exec_body(&b, "after", AGENT_X_BACKGROUND, "", 0, "", argv, NULL);
	CHECK(host_ask(&H, ctl, AGENT_EXEC, &b, &G));
	/* and the next snapshot is prepared as ever */
	buf_reset(&b);
	buf_u32(&b, AGENT_PREP_FREEZE);
	buf_u32(&b, 1000);
	CHECK(host_ask(&H, ctl, AGENT_PREPARE, &b, &G));
	host_put_identity(&b, 8, "box2", NULL, NULL);
	CHECK(host_ask(&H, ctl, AGENT_THAW, &b, &G));
	buf_fini(&f);
	buf_fini(&b);
}

/* A server inside the agent's network: a shell cannot listen, so this program does, as a command.
 */
static int serve(const char *port)
{
	struct sockaddr_in sa = {.sin_family = AF_INET,
		.sin_port = htons((uint16_t)atoi(port)),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int s = socket(AF_INET, SOCK_STREAM, 0), c, lo = socket(AF_INET, SOCK_DGRAM, 0);
	struct ifreq r = {.ifr_name = "lo", .ifr_flags = IFF_UP};
	char buf[4096];
	ssize_t n;

	ioctl(lo, SIOCSIFFLAGS, &r);
	poll(NULL, 0, 30);
	if (bind(s, (struct sockaddr *)&sa, sizeof(sa)) < 0 || listen(s, 5) < 0)
		return 1;
	c = accept(s, NULL, NULL);
	while ((n = read(c, buf, sizeof(buf))) > 0) {
		for (ssize_t i = 0; i < n; i++)
			buf[i] ^= 0x20;
		if (write_full(c, buf, (size_t)n) < 0)
			return 1;
	}
	(void)!write(c, "END", 3);
	return 0;
}

static void dial_and_wait(void)
{
	static uint8_t big[300000], back[300003];
	int fd = host_open(&H, AGENT_CONN_DIAL, &G);
	const char *argv[] = {"/proc/self/exe", "serve", "18081", NULL};
	char self[200];
	struct buf b;
	ssize_t k = readlink("/proc/self/exe", self, sizeof(self) - 1);
	size_t got = 0;

	self[k > 0 ? k : 0] = 0;
	argv[0] = self;
	buf_init(&b, 4096);
	buf_u16(&b, 18081);
	host_send(fd, AGENT_DIAL_TCP, 3, &b);
	CHECK(host_recv(fd, &G));
	CHECK(G.code == ECONNREFUSED || G.code == ENETUNREACH);
	close(fd);
	buf_reset(&b);
	buf_u16(&b, 18081);
	buf_u32(&b, 20);
	CHECK(!host_ask(&H, ctl, AGENT_WAIT_PORT, &b, &G));
	CHECK_INT(G.code, ETIMEDOUT);
	host_exec_body(&b, "srv", AGENT_X_BACKGROUND, "", 0, "", argv, NULL);
	CHECK(host_ask(&H, ctl, AGENT_EXEC, &b, &G));
	buf_u16(&b, 18081);
	buf_u32(&b, 5000);
	CHECK(host_ask(&H, ctl, AGENT_WAIT_PORT, &b, &G));
	fd = host_open(&H, AGENT_CONN_DIAL, &G);
	buf_u16(&b, 18081);
	host_send(fd, AGENT_DIAL_TCP, 3, &b);
	REQUIRE(host_recv(fd, &G) && G.h.type == AGENT_OK);
	for (size_t i = 0; i < sizeof(big); i++)
		big[i] = (uint8_t)(i * 13);
	if (fork() == 0) {
		(void)!write_full(fd, big, sizeof(big));
		shutdown(fd, SHUT_WR);
		_exit(0);
	}
	while (got < sizeof(back) && (k = read(fd, back + got, sizeof(back) - got)) > 0)
		got += (size_t)k;
	wait(NULL);
	CHECK_INT(got, sizeof(big) + 3); /* the half-close went through, and what came after it */
	for (size_t i = 0; i < sizeof(big); i++)
		if (back[i] != (big[i] ^ 0x20)) {
			CHECK_INT(i, -1);
			break;
		}
	CHECK(!memcmp(back + sizeof(big), "END", 3));
	close(fd);
	buf_fini(&b);
}

static int wait_for_a_program(void)
{
	int fd = host_open(&H, AGENT_CONN_DIAL, &G);
	struct buf b;

	buf_init(&b, 16);
	buf_u32(&b, AGENT_AC_API);
	host_send(fd, AGENT_DIAL_ACCEPT, 3, &b);
	buf_fini(&b);
	return fd;
}

/* bash's own way to a port */
#define ASK_API "exec 3<>/dev/tcp/127.0.0.1/44772 && echo 'GET /ping' >&3 && cat <&3"

static void start_program(const char *id)
{
	static const char *const argv[] = {"/bin/bash", "-c", ASK_API, NULL};
	struct buf b;

	buf_init(&b, 4096);
	host_exec_body(&b, id, AGENT_X_BACKGROUND, "", 0, "", argv, NULL);
	CHECK(host_ask(&H, ctl, AGENT_EXEC, &b, &G));
	buf_fini(&b);
}

/* Two questions and their answers: the agent's loop has then seen what was on its other streams before. */
static void agent_has_caught_up(void)
{
	host_self(&H, ctl, "procs", &G);
	host_self(&H, ctl, "procs", &G);
}

/* 127.0.0.1:44772 of the guest leads to a stream that the host has waiting. */
static void programs_reach_their_own_api(void)
{
	int first = wait_for_a_program(), second = wait_for_a_program();
	char text[600];
	uint32_t code;

	if (!H.own_ns)
		return;
	agent_has_caught_up();
	start_program("api1");
	REQUIRE(host_recv(first, &G) && G.h.type == AGENT_OK);
	CHECK(read_full(first, text, 10) == 0 && !memcmp(text, "GET /ping\n", 10));
	CHECK_INT(write_full(first, "pong\n", 5), 0);
	close(first);
	CHECK_INT(wait_state("api1", &code), AGENT_EXITED);
	logs("api1", text, sizeof(text));
	CHECK_STR(text, "pong\n");
	/* one that went does not wait any more, and then nobody does */
	close(second);
	agent_has_caught_up();
	start_program("api2");
	CHECK_INT(wait_state("api2", &code), AGENT_EXITED);
	logs("api2", text, sizeof(text));
	CHECK(strstr(text, "503 Service Unavailable") && strstr(text, "SERVICE_UNAVAILABLE"));
}

static void metrics(void)
{
	uint32_t cpus;
	uint64_t busy, total, mem, used;

	CHECK(host_ask(&H, ctl, AGENT_METRICS, NULL, &G));
	cpus = cur_u32(&G.c);
	busy = cur_u64(&G.c);
	total = cur_u64(&G.c);
	mem = cur_u64(&G.c);
	used = cur_u64(&G.c);
	CHECK(cpus > 0 && total > 0 && busy <= total && mem > 0 && used <= mem && used > 0);
	CHECK(cur_u64(&G.c) > 0);
}

static void nonsense_is_refused(void)
{
	uint8_t junk[64];
	struct buf b;
	int fd;

	buf_init(&b, AGENT_FRAME_MAX);
	CHECK(!host_ask(&H, ctl, 999, NULL, &G));
	CHECK_INT(G.code, ENOSYS);
	CHECK(!host_ask(&H, ctl, AGENT_READ, NULL, &G));
	CHECK_INT(G.code, EINVAL);
	/* every known request with nothing, and with noise */
	memset(junk, 0xff, sizeof(junk));
	for (uint16_t t = 10; t < 95; t++) {
		if (t == AGENT_SHUTDOWN || t == AGENT_PING || t == AGENT_METRICS ||
			t == AGENT_SELF || t == AGENT_EXECS || t == AGENT_SESSION_LIST ||
			t == AGENT_HARDEN)
			continue;
		CHECK(!host_ask(&H, ctl, t, NULL, &G));
		buf_put(&b, junk, sizeof(junk));
		CHECK(!host_ask(&H, ctl, t, &b, &G));
	}
	CHECK(host_ask(&H, ctl, AGENT_PING, NULL, &G));
	/* a frame that is too long ends its connection, and no other */
	fd = host_open(&H, AGENT_CONN_CONTROL, &G);
	CHECK_INT(write_full(fd, junk, sizeof(junk)), 0);
	CHECK(host_recv(fd, &G) && G.code == EPROTO);
	CHECK(!host_recv(fd, &G));
	close(fd);
	/* no greeting, no service */
	fd = host_connect(&H, 99);
	CHECK(host_recv(fd, &G) && G.code == EPROTO);
	close(fd);
	CHECK(host_ask(&H, ctl, AGENT_PING, NULL, &G));
	buf_fini(&b);
}

static void start(void)
{
	ctl = host_begin(&H, &G);
	REQUIRE(ctl >= 0);
}

static void stop(void)
{
	CHECK(host_end(&H, ctl));
}

static const struct test tests[] = {
	{"users_of_the_image", users_of_the_image},
	{"schedules", schedules},
	{"the_entrypoint_s_end_is_told", the_entrypoint_s_end_is_told},
	{"start", start},
	{"metrics", metrics},
	{"setup_hooks_entrypoint", setup_hooks_entrypoint},
	{"environment_layers", environment_layers},
	{"prepare_and_thaw", prepare_and_thaw},
	{"thaw_takes_a_preparation_back", thaw_takes_a_preparation_back},
	{"dial_and_wait", dial_and_wait},
	{"programs_reach_their_own_api", programs_reach_their_own_api},
	{"nonsense_is_refused", nonsense_is_refused},
	{"stop", stop},
};

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "--dump-env"))
		return session_helper(argv[2]);
	if (argc == 3 && !strcmp(argv[1], "serve"))
		return serve(argv[2]);
	signal(SIGPIPE, SIG_IGN);
	if (pipe2(disk, O_CLOEXEC) < 0)
		return 1;
	return test_main(argc, argv, tests, ARRAY_LEN(tests));
}
