/* SPDX-License-Identifier: Apache-2.0
 *
 * agent_freeze: AGENT_PREPARE and AGENT_THAW fail closed: whatever part of a thaw fails, nothing
 * runs. As a process the agent has a folder of plain files for a cgroup; in a guest (AGENT_VSOCK)
 * the freezer, the frozen root, the pool of randomness and the clock are the real ones.
 */
#include "tests/agent_host.h"

#include <time.h>

static struct host H;
static struct got G;
static int ctl = -1;

struct ident {
	size_t entropy;
	uint64_t wall_ns;
	const char *name;
	uint64_t generation;
};

static bool thaw(const struct ident *i)
{
	struct buf b;
	bool ok;

	buf_init(&b, 4096);
	buf_u64(&b, i->generation);
	buf_u32(&b, (uint32_t)i->entropy);
	for (size_t k = 0; k < i->entropy; k++)
		buf_u8(&b, (uint8_t)(k * 37 + i->generation));
	buf_u64(&b, i->wall_ns);
	buf_str(&b, i->name);
	buf_str(&b, "00112233445566778899aabbccddeeff");
	buf_str(&b, "00112233-4455-6677-8899-aabbccddeeff");
	buf_u32(&b, 0);
	buf_str(&b, "");
	ok = host_ask(&H, ctl, AGENT_THAW, &b, &G);
	buf_fini(&b);
	return ok;
}

static bool prepare(uint32_t flags, uint32_t limit_ms)
{
	struct buf b;
	bool ok;

	buf_init(&b, 64);
	buf_u32(&b, flags);
	buf_u32(&b, limit_ms);
	ok = host_ask(&H, ctl, AGENT_PREPARE, &b, &G);
	buf_fini(&b);
	return ok;
}

/* A shell's text to its end; what it said. */
static void sh(const char *text, char *out, size_t cap)
{
	const char *argv[] = {text, NULL};
	int fd = host_open(&H, AGENT_CONN_EXEC, &G);
	struct ran r;
	struct buf b;

	ran_init(&r);
	buf_init(&b, AGENT_FRAME_MAX);
	host_exec_body(&b, "sh", AGENT_X_SHELL, "", 0, "", argv, NULL);
	host_send(fd, AGENT_EXEC, 1, &b);
	CHECK(ran_wait(&r, fd));
	snprintf(out, cap, "%s", buf_cstr(&r.out));
	close(fd);
	buf_reset(&b);
	buf_str(&b, "sh");
	CHECK(host_ask(&H, ctl, AGENT_FORGET, &b, &G));
	ran_fini(&r);
	buf_fini(&b);
}

/* Nothing may be started, no file be touched, no session be made. */
static void is_closed(void)
{
	static const char *const argv[] = {"true", NULL};
	struct buf b;

	buf_init(&b, 4096);
	host_exec_body(&b, "closed", AGENT_X_BACKGROUND, "", 0, "", argv, NULL);
	CHECK(!host_ask(&H, ctl, AGENT_EXEC, &b, &G));
	CHECK_INT(G.code, EBUSY);
	buf_str(&b, "s");
	buf_str(&b, "/");
	CHECK(!host_ask(&H, ctl, AGENT_SESSION_NEW, &b, &G));
	CHECK_INT(G.code, EBUSY);
	buf_u32(&b, AGENT_NO_ID);
	buf_u32(&b, AGENT_NO_ID);
	buf_u32(&b, 1);
	buf_str(&b, "/");
	CHECK(!host_ask(&H, ctl, AGENT_STAT, &b, &G));
	CHECK_INT(G.code, EBUSY);
	CHECK_INT(host_self(&H, ctl, "frozen", &G), 1);
	buf_fini(&b);
}

/* ---- as a process */

static void freezer_says(const char *want)
{
	char path[120], got[8] = "";
	int fd;

	snprintf(path, sizeof(path), "%s/cg/sandbox/cgroup.freeze", H.dir);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0 && read(fd, got, sizeof(got) - 1) == 1);
	CHECK_STR(got, want);
	close_fd(&fd);
}

/* The kernel's files are plain ones here, which nobody can wait for: a prepare must undo what it
 * had begun. */
static void a_freezer_that_cannot_be_watched(void)
{
	char path[120];

	if (H.guest)
		return;
	snprintf(path, sizeof(path), "%s/cg/sandbox/cgroup.freeze", H.dir);
	CHECK(!prepare(AGENT_PREP_FREEZE, 1000));
	CHECK_INT(G.step, AGENT_STEP_FREEZE);
	CHECK_INT(G.code, ENOENT); /* cgroup.freeze itself */
	close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
	CHECK(!prepare(AGENT_PREP_FREEZE, 1000));
	CHECK_INT(G.code, ENOENT); /* cgroup.events */
	freezer_says("0");
	snprintf(path, sizeof(path), "%s/cg/sandbox/cgroup.events", H.dir);
	close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
	CHECK(!prepare(AGENT_PREP_FREEZE, 1000));
	CHECK_INT(G.code, EPERM); /* epoll's word for a plain file */
	freezer_says("0");
	CHECK_INT(host_self(&H, ctl, "frozen", &G), 0);
}

static void a_name_that_cannot_be_written(void)
{
	static const struct ident next = {.entropy = 64, .name = "next", .generation = 3};
	char path[120], out[100];

	if (H.guest)
		return;
	snprintf(path, sizeof(path), "%s/generation", H.dir);
	unlink(path);
	CHECK_INT(mkdir(path, 0755), 0);
	CHECK(prepare(0, 0));
	CHECK(!thaw(&next));
	CHECK_INT(G.step, AGENT_STEP_IDENTITY);
	CHECK_INT(G.code, EISDIR);
	is_closed();
	rmdir(path);
	CHECK(thaw(&next));
	snprintf(path, sizeof(path), "cat %s/generation", H.dir);
	sh(path, out, sizeof(out));
	CHECK_STR(out, "3\n");
}

/* ---- in a guest */

static int ticker = -1;
static struct ran ticks;

static void ticker_start(void)
{
	static const char *const argv[] = {
		"i=0; while :; do i=$((i+1)); echo $i >/tick; echo $i; sleep 0.01; done", NULL};
	struct buf b;

	ticker = host_open(&H, AGENT_CONN_EXEC, &G);
	ran_init(&ticks);
	buf_init(&b, AGENT_FRAME_MAX);
	host_exec_body(&b, "tick", AGENT_X_SHELL, "/", 0, "", argv, NULL);
	host_send(ticker, AGENT_EXEC, 1, &b);
	buf_fini(&b);
	while (!ticks.out.len && ran_step(&ticks, ticker, true))
		;
}

/* Takes what is there; true if more came within ms. */
static bool ticked_within(int ms)
{
	struct pollfd p = {.fd = ticker, .events = POLLIN};
	bool any = false;

	while (poll(&p, 1, ms) > 0) {
		if (!ran_step(&ticks, ticker, true))
			return any;
		any = true;
		ms = 0;
	}
	return any;
}

static void stands_still(void)
{
	for (int i = 0; i < 50 && ticked_within(200); i++)
		; /* what was on its way */
	CHECK(!ticked_within(500));
}

/* Each part of a thaw fails once: and no process runs, no command is taken, until one is whole. */
static void a_thaw_that_fails_thaws_nothing(void)
{
	static const struct {
		struct ident i;
		uint32_t step;
	} bad[] = {
		{{.entropy = 31, .name = "a", .generation = 5}, AGENT_STEP_ENTROPY},
		{{.entropy = 0, .name = "a", .generation = 5}, AGENT_STEP_ENTROPY},
		{{.entropy = 64, .wall_ns = UINT64_MAX, .name = "a", .generation = 5},
			AGENT_STEP_CLOCK},
		{{.entropy = 64, .name = "not a name", .generation = 5}, AGENT_STEP_NONE},
	};
	uint64_t tomorrow = wall_ns() + 86400000000000ull;
	const struct ident good = {
		.entropy = 64, .wall_ns = tomorrow, .name = "woken", .generation = 6};
	char out[300], was[100];

	if (!H.guest)
		return;
	sh("cat /proc/sys/kernel/random/boot_id", was, sizeof(was));
	ticker_start();
	CHECK(prepare(AGENT_PREP_FREEZE | AGENT_PREP_FSFREEZE | AGENT_PREP_DROP, 60000));
	stands_still();
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		CHECK(!thaw(&bad[i].i));
		CHECK_INT(G.step, bad[i].step);
		is_closed();
		stands_still();
	}
	CHECK(thaw(&good));
	CHECK(ticked_within(20000));
	sh("cat /proc/sys/kernel/hostname /run/mayfly/generation /etc/machine-id "
	   "/proc/sys/kernel/random/boot_id /etc/hostname",
		out, sizeof(out));
	CHECK_STR(out, "woken\n6\n00112233445566778899aabbccddeeff\n00112233-4455-6677-8899-"
		       "aabbccddeeff\nwoken\n");
	CHECK(strcmp(was, "00112233-4455-6677-8899-aabbccddeeff\n") != 0);
	sh("date +%s", out, sizeof(out));
	CHECK(strtoull(out, NULL, 10) >= tomorrow / 1000000000 &&
		strtoull(out, NULL, 10) < tomorrow / 1000000000 + 3600);
}

/* Nobody thaws: processes that were not frozen, but wrote, go on by themselves when the time is
 * over. */
static void the_root_s_freeze_ends_by_itself(void)
{
	static const struct ident after = {.entropy = 64, .name = "woken", .generation = 7};
	uint64_t t;

	if (!H.guest)
		return;
	CHECK(prepare(AGENT_PREP_FSFREEZE, 8000));
	t = mono_ns();
	stands_still();
	CHECK(ticked_within(60000));
	CHECK(mono_ns() - t >= 1000000000u);
	/* the agent does not know which of two machines it is in: it is still for the host to say
	 */
	is_closed();
	CHECK(thaw(&after));
}

/* The last one in a guest: its identity cannot be written any more, so it never wakes. */
static void a_guest_that_broke_its_names_stays_closed(void)
{
	static const struct ident i = {.entropy = 64, .name = "b", .generation = 8};
	char out[100];

	if (!H.guest)
		return;
	sh("rm /run/mayfly/generation && mkdir /run/mayfly/generation && echo done", out,
		sizeof(out));
	CHECK_STR(out, "done\n");
	CHECK(prepare(AGENT_PREP_FREEZE, 1000));
	CHECK(!thaw(&i));
	CHECK_INT(G.step, AGENT_STEP_IDENTITY);
	is_closed();
	stands_still();
}

static void start(void)
{
	H.with_cgroup = true;
	ctl = host_begin(&H, &G);
	REQUIRE(ctl >= 0);
}

static void stop(void)
{
	close_fd(&ticker);
	ran_fini(&ticks);
	CHECK(host_end(&H, ctl));
}

static const struct test tests[] = {
	{"start", start},
	{"a_freezer_that_cannot_be_watched", a_freezer_that_cannot_be_watched},
	{"a_name_that_cannot_be_written", a_name_that_cannot_be_written},
	{"a_thaw_that_fails_thaws_nothing", a_thaw_that_fails_thaws_nothing},
	{"the_root_s_freeze_ends_by_itself", the_root_s_freeze_ends_by_itself},
	{"a_guest_that_broke_its_names_stays_closed", a_guest_that_broke_its_names_stays_closed},
	{"stop", stop},
};
AGENT_TEST_MAIN(tests)
