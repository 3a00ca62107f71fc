/* SPDX-License-Identifier: Apache-2.0
 *
 * agent_soak: many commands, one in ten killed midway, one left by its client, one that
 * double-forks: nothing may be left, by the agent's own counters, and in a guest (AGENT_VSOCK) by
 * its /proc, too. SOAK=N runs N of them (60).
 */
#include "tests/agent_host.h"

#include <inttypes.h>

static struct host H;
static struct got G;
static int ctl = -1;

static uint64_t self(const char *name)
{
	return host_self(&H, ctl, name, &G);
}

/* Until nothing moves any more: threads go after a second without work. */
static void wait_idle(void)
{
	for (int i = 0; i < 1200; i++) {
		if (self("procs_running") == 0 && self("sinks") == 0 && self("conns") == 1 &&
			self("threads") == 1)
			return;
		poll(NULL, 0, 10);
	}
}

/* One command to its end; `bad`: killed midway, or left by its client and then killed. */
static void one(const char *id, const char *text, bool kill_it, bool leave)
{
	const char *argv[] = {text, NULL};
	int fd = host_open(&H, AGENT_CONN_EXEC, &G);
	struct ran r;
	struct buf b;

	buf_init(&b, AGENT_FRAME_MAX);
	ran_init(&r);
	host_exec_body(&b, id, AGENT_X_SHELL, "", 0, "", argv, NULL);
	host_send(fd, AGENT_EXEC, 1, &b);
	buf_reset(&b);
	while (!r.out.len && ran_step(&r, fd, true))
		;
	if (leave) {
		close(fd);
		fd = -1;
	}
	if (kill_it || leave) {
		buf_str(&b, id);
		buf_u32(&b, SIGKILL);
		buf_u32(&b, 0);
		CHECK(host_ask(&H, ctl, AGENT_SIGNAL, &b, &G));
	}
	if (fd >= 0) {
		CHECK(ran_wait(&r, fd));
		CHECK_INT(r.state, kill_it ? AGENT_SIGNALED : AGENT_EXITED);
		close(fd);
	} else {
		uint32_t code;

		CHECK_INT(host_wait_state(&H, ctl, id, &code, &G), AGENT_SIGNALED);
	}
	buf_str(&b, id);
	CHECK(host_ask(&H, ctl, AGENT_FORGET, &b, &G));
	ran_fini(&r);
	buf_fini(&b);
}

/* What /proc says, from inside: processes (the kernel's own threads come and go: children of number
 * 2). And the agent's own count of its descriptors. */
static void look(uint64_t *procs, uint64_t *fds)
{
	const char *argv[] = {"n=0; for p in /proc/[0-9]*; do read -r pid name state parent rest "
			      "<$p/stat 2>/dev/null || continue; "
			      "[ $pid = 2 ] || [ $parent = 2 ] || n=$((n+1)); done; echo $n",
		NULL};
	int fd = host_open(&H, AGENT_CONN_EXEC, &G);
	struct ran r;
	struct buf b;

	ran_init(&r);
	buf_init(&b, AGENT_FRAME_MAX);
	host_exec_body(&b, "look", AGENT_X_SHELL, "", 0, "", argv, NULL);
	host_send(fd, AGENT_EXEC, 1, &b);
	CHECK(ran_wait(&r, fd));
	CHECK_INT(sscanf(buf_cstr(&r.out), "%" SCNu64, procs), 1);
	*fds = self("descriptors");
	close(fd);
	buf_reset(&b);
	buf_str(&b, "look");
	CHECK(host_ask(&H, ctl, AGENT_FORGET, &b, &G));
	ran_fini(&r);
	buf_fini(&b);
}

static void nothing_is_left(void)
{
	const char *e = getenv("SOAK");
	uint64_t fds, rss = 0, cgroups, kept, procs[2] = {0}, inside[2] = {0};
	int n = e ? atoi(e) : 60, killed = 0;

	/* the first ones leave a thread's arena and a spare cgroup behind, which is once */
	for (int i = 0; i < 3; i++)
		one("warm", "echo a", false, false);
	look(&procs[0], &inside[0]);
	wait_idle();
	/* the look itself may be seen beginning: the least of a few is what stays */
	for (int i = 0; i < 4; i++) {
		uint64_t p, f;

		look(&p, &f);
		procs[0] = MIN(procs[0], p);
		inside[0] = MIN(inside[0], f);
	}
	fds = self("descriptors");
	cgroups = self("cgroups");
	kept = self("procs"); /* of others, before us */
	for (int i = 0; i < n; i++) {
		bool kill_it = i % 10 == 3, leave = i % 10 == 7, twice = i % 10 == 5;
		char id[32];

		snprintf(id, sizeof(id), "soak%d", i);
		one(id,
			kill_it || leave ? "echo a; exec sleep 100"
			: twice          ? "(setsid sleep 0.2 >/dev/null 2>&1 &) ; echo b"
					 : "echo a; echo b >&2",
			kill_it, leave);
		killed += kill_it;
		if (i == n / 3)
			rss = self("resident_bytes");
		if (test_failures)
			break;
	}
	wait_idle();
	/* orphans are nobody's: their time is not waited for above */
	for (int i = 0; i < 200; i++) {
		look(&procs[1], &inside[1]);
		if (procs[1] <= procs[0] && inside[1] <= inside[0])
			break;
		poll(NULL, 0, 50);
	}
	printf("%d commands, %d killed midway, %d left: processes %" PRIu64 " -> %" PRIu64
	       ", init's descriptors %" PRIu64 " -> %" PRIu64 ", resident %" PRIu64 " -> %" PRIu64
	       " KiB\n",
		n, killed, n / 10, procs[0], procs[1], inside[0], inside[1], rss / 1024,
		self("resident_bytes") / 1024);
	CHECK_INT(self("procs_running"), 0);
	CHECK_INT(self("procs"), kept);
	CHECK_INT(self("sinks"), 0);
	CHECK_INT(self("conns"), 1);
	CHECK_INT(self("output_kept_bytes"), 0);
	CHECK_INT(self("descriptors"), fds);
	CHECK_INT(self("cgroups"), cgroups);
	if (H.guest || H.own_ns) {
		CHECK(procs[1] <= procs[0]);
		CHECK(inside[1] <= inside[0]);
	}
#ifdef __SANITIZE_ADDRESS__
	rss += MIB(64); /* it keeps freed memory for a while */
#endif
	CHECK(self("resident_bytes") <= rss + 256 * 1024);
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
	{"start", start},
	{"nothing_is_left", nothing_is_left},
	{"stop", stop},
};
AGENT_TEST_MAIN(tests)
