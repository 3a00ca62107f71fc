/* SPDX-License-Identifier: Apache-2.0
 *
 * agent_isolated: isolated sessions through the real agent, as root in namespaces of its own (or in a guest): the persistent shell, runs in
 * the foreground and background, the view with its workspace modes, the environment's filter, limits, and every way out of a session that
 * its programs can try.
 */
#include "tests/agent_host.h"

#include <inttypes.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>

static struct host H;
static struct got G;
static int ctl = -1;
static uint64_t procs_before, mounts_before, stores_before;

/* on a machine with others: ours only */
#define MOUNTS "grep -c -e agent-test -e mayfly-sessions /proc/self/mounts; true"

struct mnt {
	uint32_t mode, flags;
	const char *source, *dest;
};

/* What a session is asked for. */
struct want {
	const char *id, *cwd;
	uint32_t profile, flags, uid;
	uint64_t idle_ms, memory, upper;
	uint32_t pids, env_mode;
	const char *allowed[4], *names[4];
	struct mnt mounts[6];
};

static void put_list(struct buf *b, const char *const *v, size_t max)
{
	uint32_t n = 0;

	while (n < max && v[n])
		n++;
	buf_u32(b, n);
	for (uint32_t i = 0; i < n; i++)
		buf_str(b, v[i]);
}

/* 0 or the error's errno. */
static int make(const struct want *w)
{
	struct buf b;
	uint32_t n = 0;
	bool ok;

	buf_init(&b, AGENT_FRAME_MAX);
	buf_str(&b, w->id);
	buf_str(&b, w->cwd ? w->cwd : "/");
	buf_u32(&b, AGENT_SE_ISOLATED);
	buf_u32(&b, w->profile ? w->profile : AGENT_STRICT);
	buf_u32(&b, w->flags);
	buf_u32(&b, w->uid);
	buf_u32(&b, w->uid);
	buf_str(&b, "");
	buf_u64(&b, w->idle_ms);
	buf_u64(&b, w->memory);
	buf_u32(&b, w->pids);
	buf_u64(&b, w->upper);
	put_list(&b, w->allowed, 4);
	while (n < 6 && w->mounts[n].mode)
		n++;
	buf_u32(&b, n);
	for (uint32_t i = 0; i < n; i++) {
		buf_u32(&b, w->mounts[i].mode);
		buf_u32(&b, w->mounts[i].flags);
		buf_str(&b, w->mounts[i].source);
		buf_str(&b, w->mounts[i].dest ? w->mounts[i].dest : "");
	}
	buf_u32(&b, w->env_mode);
	put_list(&b, w->names, 4);
	buf_u32(&b, 1);
	buf_str(&b, "MINE");
	buf_str(&b, "it's");
	buf_str(&b, "a note");
	ok = host_ask(&H, ctl, AGENT_SESSION_NEW, &b, &G);
	buf_fini(&b);
	return ok ? 0 : G.code ? G.code : -1;
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

struct result {
	int err; /* AGENT_ERR */
	uint32_t state, code;
	char out[8192];
};

static int next_id;

static int begin_run(const char *session, const char *id, const char *text, uint64_t limit_ms,
	const char *const *env)
{
	const char *argv[] = {text, NULL};
	int fd = host_open(&H, AGENT_CONN_EXEC, &G);
	struct buf b;

	buf_init(&b, AGENT_FRAME_MAX);
	host_exec_body(&b, id, AGENT_X_SHELL | AGENT_X_MERGE, "", limit_ms, session, argv, env);
	host_send(fd, AGENT_EXEC, 5, &b);
	buf_fini(&b);
	return fd;
}

static struct result *run_in(
	const char *session, const char *text, uint64_t limit_ms, const char *const *env)
{
	static struct result r;
	struct ran ran;
	char id[40];
	int fd;

	memset(&r, 0, sizeof(r));
	snprintf(id, sizeof(id), "run%d", next_id++);
	fd = begin_run(session, id, text, limit_ms, env);
	ran_init(&ran);
	if (!host_recv(fd, &ran.g))
		r.err = -1;
	else if (ran.g.h.type != AGENT_OK)
		r.err = ran.g.code;
	else
		CHECK(ran_wait(&ran, fd));
	snprintf(r.out, sizeof(r.out), "%s", buf_cstr(&ran.out));
	r.state = ran.state;
	r.code = ran.code;
	close(fd);
	ran_fini(&ran);
	return &r;
}

static const char *say(const char *session, const char *text)
{
	struct result *r = run_in(session, text, 0, NULL);

	CHECK_INT(r->err, 0);
	CHECK_INT(r->state, AGENT_EXITED);
	return r->out;
}

/* An ordinary command of the sandbox. */
static const char *outside(const char *text)
{
	static char out[8192];
	struct result *r = run_in("", text, 0, NULL);

	CHECK_INT(r->err, 0);
	snprintf(out, sizeof(out), "%s", r->out);
	return out;
}

static uint32_t state_of(const char *id, uint32_t *runs)
{
	char name[64];
	struct buf b;
	uint32_t state = 0;

	buf_init(&b, 128);
	buf_str(&b, id);
	if (host_ask(&H, ctl, AGENT_SESSION_GET, &b, &G)) {
		cur_str(&G.c, name, sizeof(name));
		CHECK_INT(cur_u32(&G.c), AGENT_SE_ISOLATED);
		state = cur_u32(&G.c);
		*runs = cur_u32(&G.c);
	}
	buf_fini(&b);
	return state;
}

static uint64_t count_of(const char *text)
{
	return strtoull(outside(text), NULL, 10);
}

static void start(void)
{
	ctl = host_begin(&H, &G);
	REQUIRE(ctl >= 0);
	if (!H.own_ns || geteuid() != 0) {
		printf("needs root and namespaces\n");
		exit(77);
	}
	/* several of these tests at a time: the mount is in the agent's own namespace. A guest may have no such program, and is alone */
	outside("mkdir -p /tmp/iso; mount -t tmpfs none /tmp/iso 2>/dev/null; mkdir -p "
		"/tmp/iso/ws/sub /tmp/iso/data /tmp/iso/other; echo low > "
		"/tmp/iso/ws/file; echo keep > /tmp/iso/ws/sub/keep; "
		"ln -s /etc /tmp/iso/data/out; echo d > /tmp/iso/data/d; chmod 755 /tmp/iso "
		"/tmp/iso/ws");
	procs_before = host_self(&H, ctl, "procs", &G);
	stores_before = host_self(&H, ctl, "session_stores", &G);
	mounts_before = count_of(MOUNTS);
}

/* A snapshot of the disk alone was made while sessions lived: the next boot finds their
 * directories, and counts from 1 again. The first test with a session. */
static void directories_of_an_earlier_boot(void)
{
	struct want w = {.id = "s0"};
	const char *dir = H.guest ? "/var/lib/mayfly-sessions" : H.dir,
		   *below = H.guest ? "" : "/state";
	char cmd[600];

	snprintf(cmd, sizeof(cmd), "mkdir -p %s%s/1 %s%s/2 && echo made", dir, below, dir, below);
	CHECK_STR(outside(cmd), "made\n");
	CHECK_INT(make(&w), 0);
	CHECK_INT(drop("s0"), 0);
	snprintf(cmd, sizeof(cmd), "rmdir %s%s/1 %s%s/2 && echo gone", dir, below, dir, below);
	CHECK_STR(outside(cmd), "gone\n");
}

#define WS                                                                                         \
	{                                                                                          \
		AGENT_IM_OVERLAY, 0, "/tmp/iso/ws", "/ws"                                          \
	}

static void one_shell_for_all_runs(void)
{
	static const char *const env[] = {"A", "x'y", NULL};
	struct want w = {
		.id = "s1", .cwd = "/tmp", .mounts = {{AGENT_IM_RW, 0, "/tmp/iso/ws", "/tmp/ws"}}};
	struct result *r;
	uint32_t runs = 9;

	REQUIRE(make(&w) == 0);
	CHECK_STR(say("s1", "echo $$; pwd; hostname; echo out; echo err >&2; echo $MINE"),
		"2\n/tmp\nsandbox\nout\nerr\nit's\n");
	CHECK_STR(say("s1", "plain=1; export EXP=2; f() { echo in f $plain; }; cd /usr"), "");
	CHECK_STR(say("s1", "f; echo $EXP; pwd"), "in f 1\n2\n/usr\n");
	r = run_in("s1", "(exit 7)", 0, NULL);
	CHECK_INT(r->code, 7);
	r = run_in("s1", "return 5; echo never", 0, NULL);
	CHECK_INT(r->code, 5);
	CHECK_STR(r->out, "");
	/* with variables of its own a run is in a subshell */
	r = run_in("s1", "echo \"$A $plain\"; plain=changed", 0, env);
	CHECK_STR(r->out, "x'y 1\n");
	CHECK_STR(say("s1", "echo \"$plain|${A-unset}\""), "1|unset\n");
	/* an error of syntax ends the run only */
	r = run_in("s1", "if then ( ", 0, NULL);
	CHECK(r->code != 0);
	CHECK_STR(say("s1", "echo on"), "on\n");
	/* the code's end is not the shell's: neither input nor descriptors are to be had */
	CHECK_STR(say("s1", "cat; read x; echo r$?; for f in /proc/self/fd/*; do case $f in "
			    "*/0|*/1|*/2|*/3) ;; *) readlink $f | grep pipe: ;; esac; done; true"),
		"r1\n");
	CHECK_INT(state_of("s1", &runs), AGENT_SE_ACTIVE);
	CHECK_INT(runs, 0);
	/* what others write later is not the next run's */
	CHECK_STR(say("s1", "(sleep 0.1; echo late; : > /tmp/ws/late) & echo now"), "now\n");
	for (int i = 0; i < 5000 && strcmp(outside("ls /tmp/iso/ws/late 2>/dev/null"), "") == 0;
		i++)
		poll(NULL, 0, 10);
	outside("rm -f /tmp/iso/ws/late");
	CHECK_STR(say("s1", "echo next"), "next\n");
	/* nor does somebody who never stops writing hold the run's end up (not as fast as it can: this test keeps 64 MiB) */
	CHECK(strncmp(say("s1", "echo begun; while :; do echo y; done & sleep 0.1"), "begun\n",
		      6) == 0);
	say("s1", "kill $!; wait $! 2>/dev/null");
	/* its end is the session's */
	r = run_in("s1", "echo bye; exit 3", 0, NULL);
	CHECK_STR(r->out, "bye\n");
	CHECK_INT(r->state, AGENT_EXITED);
	CHECK_INT(r->code, 3);
	CHECK_INT(state_of("s1", &runs), AGENT_SE_DEAD);
	CHECK_INT(run_in("s1", "true", 0, NULL)->err, ESRCH);
	CHECK_INT(drop("s1"), 0);
	CHECK_INT(drop("s1"), ENOENT);
}

static void busy_timeouts_and_interrupts(void)
{
	struct want w = {.id = "s2"};
	struct result *r;
	struct ran ran;
	struct buf b;
	uint32_t runs = 0;
	bool bash; /* other shells go on behind a function that was interrupted */
	int fd;

	REQUIRE(make(&w) == 0);
	buf_init(&b, 256);
	ran_init(&ran);
	bash = !strcmp(say("s2", "kept=yes; echo ${BASH_VERSION:+bash}"), "bash\n");
	fd = begin_run("s2", "long", "echo on; sleep 100; echo never", 0, NULL);
	CHECK(host_recv(fd, &ran.g) && ran.g.h.type == AGENT_OK);
	while (!ran.out.len && ran_step(&ran, fd, true))
		;
	CHECK_INT(run_in("s2", "true", 0, NULL)->err, EBUSY);
	CHECK_INT(state_of("s2", &runs), AGENT_SE_ACTIVE);
	CHECK_INT(runs, 1);
	buf_str(&b, "long");
	buf_u32(&b, SIGINT);
	buf_u32(&b, 0);
	CHECK(host_ask(&H, ctl, AGENT_SIGNAL, &b, &G));
	CHECK(ran_wait(&ran, fd));
	CHECK_STR(buf_cstr(&ran.out), "on\n");
	CHECK_INT(ran.code, 130);
	close(fd);
	ran_fini(&ran);
	CHECK_STR(say("s2", "echo $kept"), "yes\n");
	r = run_in("s2",
		"f() { while :; do sleep 0.01; done; }; g() { f; f; }; echo a; g; echo never", 3000,
		NULL);
	CHECK_INT(r->state, AGENT_TIMED_OUT);
	if (bash)
		CHECK_STR(r->out, "a\n");
	/* deaf to everything but SIGKILL */
	r = run_in(
		"s2", "(trap '' INT TERM; while :; do sleep 0.05; done); echo never", 2000, NULL);
	CHECK_INT(r->state, AGENT_TIMED_OUT);
	CHECK(!strstr(r->out, "never"));
	CHECK_STR(say("s2", "echo $kept"), "yes\n");
	/* the shell itself does not leave: it is lost, and says so */
	r = run_in("s2", "trap '' INT; while :; do :; done", 3000, NULL);
	CHECK_INT(r->state, AGENT_TIMED_OUT);
	CHECK_INT(state_of("s2", &runs), AGENT_SE_DEAD);
	CHECK_INT(drop("s2"), 0);
	/* deleted while it runs */
	REQUIRE(make(&w) == 0);
	ran_init(&ran);
	fd = begin_run("s2", "last", "echo on; sleep 100", 0, NULL);
	CHECK(host_recv(fd, &ran.g) && ran.g.h.type == AGENT_OK);
	while (!ran.out.len && ran_step(&ran, fd, true))
		;
	CHECK_INT(drop("s2"), 0);
	CHECK(ran_wait(&ran, fd));
	CHECK_INT(ran.state, AGENT_SIGNALED);
	close(fd);
	ran_fini(&ran);
	buf_fini(&b);
}

/* A run in the background of session s3l, at most four in a second. */
static void begin_another(void)
{
	static const char *const argv[] = {"true", NULL};
	static unsigned int number;
	static uint64_t next_ns;
	char id[16];
	struct buf b;

	if (mono_ns() < next_ns)
		return;
	next_ns = mono_ns() + 250000000;
	buf_init(&b, AGENT_FRAME_MAX);
	snprintf(id, sizeof(id), "bgl%u", number++);
	host_exec_body(&b, id, AGENT_X_SHELL | AGENT_X_BACKGROUND, "", 0, "s3l", argv, NULL);
	CHECK(host_ask(&H, ctl, AGENT_EXEC, &b, &G));
	buf_fini(&b);
}

/* More than is kept, of a run that goes on, whatever else begins. In a session of its own: guests have small disks. */
static void a_long_log_takes_no_room(void)
{
	static const char *const argv[] = {
		"head -c 19000000 /dev/zero; echo end >&2; sleep 1000", NULL};
	struct want w = {.id = "s3l"};
	char cmd[300];
	uint64_t kib = 0;
	struct buf b;

	snprintf(cmd, sizeof(cmd), "du -sk %s%s/*/run/l1 2>/dev/null | cut -f 1",
		H.guest ? "/var/lib/mayfly-sessions" : H.dir, H.guest ? "" : "/state");
	REQUIRE(make(&w) == 0);
	buf_init(&b, AGENT_FRAME_MAX);
	host_exec_body(&b, "bgl", AGENT_X_SHELL | AGENT_X_BACKGROUND, "", 0, "s3l", argv, NULL);
	CHECK(host_ask(&H, ctl, AGENT_EXEC, &b, &G));
	/* all of it was written: the last line has its byte behind */
	for (int i = 0; i < 3000; i++) {
		begin_another();
		buf_str(&b, "bgl");
		CHECK(host_ask(&H, ctl, AGENT_STATUS, &b, &G));
		cur_u32(&G.c);
		cur_u32(&G.c);
		cur_u64(&G.c);
		cur_u64(&G.c);
		if (cur_u64(&G.c) >= 19000004)
			break;
		poll(NULL, 0, 10);
	}
	for (int i = 0; i < 3000; i++) {
		begin_another();
		kib = count_of(cmd);
		if (kib && kib < 17500)
			break;
		poll(NULL, 0, 10);
	}
	CHECK(kib > 16000 && kib < 17500);
	buf_str(&b, "bgl");
	buf_u64(&b, MIB(16) - 3);
	buf_u32(&b, 1000);
	CHECK(host_ask(&H, ctl, AGENT_LOGS, &b, &G));
	CHECK_INT(cur_u64(&G.c), MIB(16));
	CHECK_INT(drop("s3l"), 0);
	buf_fini(&b);
}

static void background_runs(void)
{
	static const char *const
		argv[] = {"echo out; echo err >&2; sleep 0.3; echo \"$EXP $(pwd)\"; exit 4", NULL},
		*const much[] = {"head -c 17000000 /dev/zero", NULL},
		*const forever[] = {
			"trap 'echo got; exit 9' TERM; echo up; while :; do sleep 0.05; done",
			NULL};
	struct want w = {.id = "s3"};
	uint32_t code = 0;
	struct buf b;

	REQUIRE(make(&w) == 0);
	buf_init(&b, AGENT_FRAME_MAX);
	CHECK_STR(say("s3", "export EXP=seen; cd /usr"), "");
	host_exec_body(&b, "bg1", AGENT_X_SHELL | AGENT_X_BACKGROUND, "", 0, "s3", argv, NULL);
	CHECK(host_ask(&H, ctl, AGENT_EXEC, &b, &G));
	/* the shell is free meanwhile */
	CHECK_STR(say("s3", "echo free"), "free\n");
	CHECK_INT(host_wait_state(&H, ctl, "bg1", &code, &G), AGENT_EXITED);
	CHECK_INT(code, 4);
	/* more than is kept: cut off at the end */
	host_exec_body(&b, "bg0", AGENT_X_SHELL | AGENT_X_BACKGROUND, "", 0, "s3", much, NULL);
	CHECK(host_ask(&H, ctl, AGENT_EXEC, &b, &G));
	CHECK_INT(host_wait_state(&H, ctl, "bg0", &code, &G), AGENT_EXITED);
	buf_str(&b, "bg0");
	buf_u64(&b, MIB(16) - 3);
	buf_u32(&b, 1000);
	CHECK(host_ask(&H, ctl, AGENT_LOGS, &b, &G));
	CHECK_INT(cur_u64(&G.c), MIB(16));
	buf_str(&b, "bg1");
	buf_u64(&b, 4);
	buf_u32(&b, 1000);
	CHECK(host_ask(&H, ctl, AGENT_LOGS, &b, &G));
	CHECK_INT(cur_u64(&G.c), 8 + 10);
	CHECK(!memcmp(G.c.p, "err\nseen /usr\n", 14));
	host_exec_body(&b, "bg2", AGENT_X_SHELL | AGENT_X_BACKGROUND, "", 0, "s3", forever, NULL);
	CHECK(host_ask(&H, ctl, AGENT_EXEC, &b, &G));
	for (int i = 0; i < 10000; i++) {
		buf_str(&b, "bg2");
		buf_u64(&b, 0);
		buf_u32(&b, 1000);
		CHECK(host_ask(&H, ctl, AGENT_LOGS, &b, &G));
		if (cur_u64(&G.c) >= 3)
			break;
		poll(NULL, 0, 5);
	}
	buf_str(&b, "bg2");
	buf_u32(&b, SIGTERM);
	buf_u32(&b, 0);
	CHECK(host_ask(&H, ctl, AGENT_SIGNAL, &b, &G));
	CHECK_INT(host_wait_state(&H, ctl, "bg2", &code, &G), AGENT_EXITED);
	CHECK_INT(code, 9);
	/* one that lives as long as its session */
	host_exec_body(&b, "bg3", AGENT_X_SHELL | AGENT_X_BACKGROUND, "", 0, "s3", forever, NULL);
	CHECK(host_ask(&H, ctl, AGENT_EXEC, &b, &G));
	CHECK_INT(drop("s3"), 0);
	/* and so do the records of runs */
	for (int i = 1; i <= 3; i++) {
		char id[16];

		snprintf(id, sizeof(id), "bg%d", i);
		buf_str(&b, id);
		CHECK(!host_ask(&H, ctl, AGENT_STATUS, &b, &G));
		CHECK_INT(G.code, ENOENT);
	}
	buf_fini(&b);
}

static void the_view(void)
{
	struct want w = {.id = "s4",
		.cwd = "/tmp/iso/ws",
		.allowed = {"/tmp/iso/data", "/tmp/iso/other"},
		.mounts = {{AGENT_IM_OVERLAY, 0, "/tmp/iso/ws", NULL},
			{AGENT_IM_RW, AGENT_IM_CHECKED, "/tmp/iso/other", NULL},
			{AGENT_IM_RO, AGENT_IM_CHECKED, "/tmp/iso/data", "/tmp/ro"}}};

	REQUIRE(make(&w) == 0);
	/* / is read-only, its mounts too; /tmp is new, with what was mounted into it */
	CHECK_STR(
		say("s4", "for d in / /etc /usr /opt /var; do touch $d/x 2>/dev/null && echo wrote "
			  "$d; done; ls /tmp | sort | tr '\\n' ' '; cat file; cat /tmp/ro/d; echo"),
		"iso ro low\nd\n\n");
	CHECK_STR(say("s4", "echo new > file; echo a > added; rm sub/keep; mkdir dir; cat file"),
		"new\n");
	CHECK_STR(say("s4", "echo x > /tmp/ro/x; echo y > /tmp/iso/other/y; echo z > /run/z; echo "
			    "q > /tmp/q; cat /run/z /tmp/q") == NULL
			  ? ""
			  : "ok",
		"ok");
	CHECK_STR(outside("cat /tmp/iso/ws/file; ls /tmp/iso/ws /tmp/iso/data /tmp/iso/other | tr "
			  "'\\n' ' '; ls /tmp/q 2>&1 | grep -c No"),
		"low\n/tmp/iso/data: d out  /tmp/iso/other: y  /tmp/iso/ws: file sub 1\n");
	/* nothing of the sandbox's processes, names, devices, variables file, storage */
	CHECK_STR(say("s4", "set -- /proc/[0-9]*; [ $# -lt 8 ] && echo few; cat /proc/1/comm; ls "
			    "/dev | "
			    "tr '\\n' ' '; echo; "
			    "ls /dev/shm | wc -l; test -s /opt/opensandbox/.env && echo shown; ls "
			    "/var/lib/mayfly-sessions 2>/dev/null"),
		"few\nexecd-session\nfd full null ptmx pts random shm stderr stdin stdout tty "
		"urandom zero \n0\n");
	CHECK_INT(drop("s4"), 0);
	CHECK_STR(outside("cat /tmp/iso/ws/file; ls /tmp/iso/ws; rm -f /tmp/iso/other/y"),
		"low\nfile\nsub\n");
}

static void paths_are_checked(void)
{
	static const struct {
		struct mnt m;
		const char *allowed;
		int err;
	} rows[] = {
		{{AGENT_IM_RW, AGENT_IM_CHECKED, "/etc", NULL}, "/tmp/iso", EACCES},
		{{AGENT_IM_RW, AGENT_IM_CHECKED, "/tmp/iso/data/out", "/tmp/x"}, "/tmp/iso",
			EACCES},
		{{AGENT_IM_RW, AGENT_IM_CHECKED, "/tmp/iso/data/../../../etc", "/tmp/x"},
			"/tmp/iso", EACCES},
		{{AGENT_IM_RW, AGENT_IM_CHECKED, "/tmp/isolated", "/tmp/x"}, "/tmp/iso", ENOENT},
		{{AGENT_IM_RW, AGENT_IM_CHECKED, "/tmp/iso", "/tmp/x"}, "/tmp/iso/data", EACCES},
		{{AGENT_IM_RW, 0, "/proc/self/root", "/tmp/x"}, NULL, ELOOP},
		{{AGENT_IM_RW, 0, "/proc", "/tmp/x"}, NULL, EACCES},
		{{AGENT_IM_RO, 0, "/dev", "/tmp/x"}, NULL, EACCES},
		{{AGENT_IM_RW, 0, "/", "/tmp/x"}, NULL, EACCES},
		{{AGENT_IM_OVERLAY, 0, "/", NULL}, NULL, EACCES},
		{{AGENT_IM_RW, 0, "/tmp/iso/data", "/"}, NULL, EINVAL},
		{{AGENT_IM_RW, 0, "/tmp/iso/data", "/proc/sys"}, NULL, EINVAL},
		{{AGENT_IM_RW, 0, "/tmp/iso/data", "/no/such/place"}, NULL, EROFS},
		{{AGENT_IM_RW, 0, "/dev/null", "/tmp/x"}, NULL, EACCES},
		{{AGENT_IM_OVERLAY, 0, "/tmp/iso/data/d", "/tmp/x"}, NULL, ENOTDIR},
		{{AGENT_IM_RW, 0, "relative", "/tmp/x"}, NULL, EPROTO},
	};
	uint32_t runs;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct want w = {.id = "s5", .allowed = {rows[i].allowed}, .mounts = {rows[i].m}};
		int rc = make(&w);

		if (rc != rows[i].err)
			printf("row %zu: %s\n", i, G.text);
		CHECK_INT(rc, rows[i].err);
		CHECK_INT(state_of("s5", &runs), 0);
	}
	{
		/* a directory that is missing, wanted; a cwd that is not there */
		struct want w = {.id = "s5",
			.cwd = "/tmp/iso/made/x",
			.mounts = {{AGENT_IM_RW, AGENT_IM_MAKE, "/tmp/iso/made/x", NULL}}};

		CHECK_INT(make(&w), 0);
		CHECK_STR(say("s5", "pwd"), "/tmp/iso/made/x\n");
		CHECK_INT(drop("s5"), 0);
		w = (struct want){.id = "s5", .cwd = "/no/such/dir"};
		CHECK_INT(make(&w), ENOENT);
	}
}

static void variables_are_filtered(void)
{
	static const uint32_t modes[] = {AGENT_EM_FILTER, AGENT_EM_ALLOW, AGENT_EM_DENY};
	static const char *const want[] = {"one|||\n", "|two|tok|\n", "one|||\n"};
	struct buf b;

	buf_init(&b, 4096);
	buf_u32(&b, 4);
	buf_str(&b, "ONE");
	buf_str(&b, "one");
	buf_str(&b, "TWO");
	buf_str(&b, "two");
	buf_str(&b, "GITHUB_TOKEN");
	buf_str(&b, "tok");
	buf_str(&b, "AWS_REGION");
	buf_str(&b, "aws");
	CHECK(host_ask(&H, ctl, AGENT_SET_ENV, &b, &G));
	for (size_t i = 0; i < ARRAY_LEN(modes); i++) {
		struct want w = {.id = "s6",
			.env_mode = modes[i],
			.names = {"TWO", modes[i] == AGENT_EM_ALLOW ? "GITHUB_TOKEN" : NULL}};

		REQUIRE(make(&w) == 0);
		CHECK_STR(say("s6", "echo \"$ONE|$TWO|$GITHUB_TOKEN|$AWS_REGION\""), want[i]);
		CHECK_STR(say("s6", "env | grep -c EXECD_ENVS"), "0\n");
		CHECK_STR(say("s6", "echo $MINE"), "it's\n");
		CHECK_INT(drop("s6"), 0);
	}
	buf_u32(&b, 0);
	CHECK(host_ask(&H, ctl, AGENT_SET_ENV, &b, &G));
	buf_fini(&b);
}

static void one_stat(const char *session, const char *path, uint32_t *err, uint64_t *size)
{
	char got[AGENT_PATH_MAX];
	struct buf b;

	buf_init(&b, 8192);
	buf_str(&b, session);
	buf_u32(&b, AGENT_NO_ID);
	buf_u32(&b, AGENT_NO_ID);
	buf_u32(&b, 1);
	buf_str(&b, path);
	{
		struct buf f;
		uint32_t id = ++H.next_id;

		buf_init(&f, 16384);
		frame_put(&f, AGENT_STAT, AGENT_FL_SESSION, id, b.p, b.len);
		(void)!write_full(ctl, f.p, f.len);
		buf_fini(&f);
		CHECK(host_recv(ctl, &G) && G.h.id == id);
	}
	*err = G.h.type == AGENT_OK ? cur_u32(&G.c) : (uint32_t)G.code;
	*size = 0;
	if (G.h.type == AGENT_OK) {
		cur_str(&G.c, got, sizeof(got));
		cur_u8(&G.c);
		*size = cur_u64(&G.c);
	}
	buf_fini(&b);
}

static void files_are_the_session_s(void)
{
	struct want w = {.id = "s7", .mounts = {{AGENT_IM_OVERLAY, 0, "/tmp/iso/ws", NULL}}};
	uint32_t err;
	uint64_t size;

	REQUIRE(make(&w) == 0);
	CHECK_STR(say("s7", "printf 12345 > /tmp/iso/ws/file; rm -r /tmp/iso/ws/sub; ln -s "
			    "/run/mine /tmp/iso/ws/link; printf 123 > /run/mine"),
		"");
	one_stat("s7", "/tmp/iso/ws/file", &err, &size);
	CHECK_INT(err, 0);
	CHECK_INT(size, 5);
	one_stat("s7", "/tmp/iso/ws/sub/keep", &err, &size);
	CHECK_INT(err, ENOENT);
	/* an absolute link is the session's */
	one_stat("s7", "/tmp/iso/ws/link/../mine", &err, &size);
	one_stat("s7", "/run/mine", &err, &size);
	CHECK_INT(err, 0);
	CHECK_INT(size, 3);
	one_stat("none", "/", &err, &size);
	CHECK_INT(err, ENOENT);
	CHECK_INT(drop("s7"), 0);
	one_stat("s7", "/", &err, &size);
	CHECK_INT(err, ENOENT);
	CHECK_STR(outside("cat /tmp/iso/ws/file"), "low\n");
}

/* "A added" and the like, sorted as they come. */
static int diff(const char *session, char to[2000])
{
	struct buf b;
	uint32_t n;

	buf_init(&b, 256);
	buf_str(&b, session);
	buf_str(&b, "");
	buf_u32(&b, 1000);
	to[0] = 0;
	if (!host_ask(&H, ctl, AGENT_SESSION_DIFF, &b, &G)) {
		buf_fini(&b);
		return G.code;
	}
	CHECK_INT(cur_u32(&G.c), 0);
	n = cur_u32(&G.c);
	for (uint32_t i = 0; i < n; i++) {
		char path[AGENT_PATH_MAX], text[100];
		uint8_t change = cur_u8(&G.c);

		cur_str(&G.c, path, sizeof(path));
		cur_u8(&G.c);
		for (int k = 0; k < 3; k++)
			cur_u64(&G.c);
		for (int k = 0; k < 2; k++)
			cur_str(&G.c, text, sizeof(text));
		for (int k = 0; k < 3; k++)
			cur_u32(&G.c);
		cur_str(&G.c, text, sizeof(text));
		snprintf(to + strlen(to), 2000 - strlen(to), "%c %s\n", change, path);
	}
	CHECK(cur_done(&G.c));
	buf_fini(&b);
	return 0;
}

static bool has(const char *text, const char *line)
{
	const char *p = strstr(text, line);

	if (!p)
		printf("no \"%s\" in:\n%s", line, text);
	return p != NULL;
}

static void changes_are_listed_and_committed(void)
{
	struct want w = {.id = "s7c",
		.mounts = {{AGENT_IM_OVERLAY, 0, "/tmp/iso/ws", NULL},
			{AGENT_IM_OVERLAY, AGENT_IM_EPHEMERAL, "/tmp/iso/data", NULL}}};
	char text[2000];
	struct buf b;

	buf_init(&b, 256);
	outside("cd /tmp/iso/ws; mkdir -p gone/deep repl same; echo a > gone/deep/a; echo old > "
		"repl/old; echo s > same/s; echo f > tofile; mkdir todir; "
		"ln -s nowhere lnk; echo outside > /tmp/iso/other/target; chmod 755 "
		"/tmp/iso/ws/same");
	REQUIRE(make(&w) == 0);
	CHECK_INT(diff("s7c", text), 0);
	CHECK_STR(text, "");
	CHECK_STR(
		say("s7c", "cd /tmp/iso/ws; rm -r gone; rm -r repl; mkdir repl; echo new > "
			   "repl/new; echo t > same/t; rm tofile; mkdir tofile; echo x > tofile/x; "
			   "rmdir todir; echo y > todir; rm lnk; ln -s /tmp/iso/other/target lnk; "
			   "echo z > file; printf '#!' > suid; chmod 4755 suid; mkfifo fifo "
			   "2>/dev/null; echo e > /tmp/iso/data/e; echo head > sparse; truncate -s "
			   "100000000 sparse"),
		"");
	CHECK_INT(diff("s7c", text), 0);
	CHECK(has(text, "D gone\n") && has(text, "M repl\n") && has(text, "A repl/new\n") &&
		has(text, "A same/t\n"));
	CHECK(has(text, "M tofile\n") && has(text, "A tofile/x\n") && has(text, "M todir\n") &&
		has(text, "M lnk\n") && has(text, "M file\n") && has(text, "A suid\n"));
	CHECK(!strstr(text, "same\n") && !strstr(text, "deep"));
	CHECK_STR(outside("cat /tmp/iso/ws/file"), "low\n");
	buf_str(&b, "s7c");
	buf_str(&b, "/tmp/iso/ws");
	CHECK(host_ask(&H, ctl, AGENT_SESSION_COMMIT, &b, &G));
	CHECK(cur_u64(&G.c) >= 10);
	CHECK_STR(outside("cd /tmp/iso/ws; ls gone 2>/dev/null; ls repl same tofile; cat todir "
			  "file; readlink lnk; test -u suid && echo set-id; ls -l suid | cut "
			  "-c1-10; cat /tmp/iso/other/target; ls /tmp/iso/data"),
		"repl:\nnew\n\nsame:\ns\nt\n\ntofile:\nx\ny\nz\n/tmp/iso/other/"
		"target\n-rwxr-xr-x\noutside\nd\nout\n");
	/* a hole stays a hole */
	CHECK_STR(outside("cd /tmp/iso/ws; head -n 1 sparse; wc -c < sparse; [ $(du -k sparse | "
			  "cut -f 1) -lt 1000 ] && echo sparse; rm sparse"),
		"head\n100000000\nsparse\n");
	say("s7c", "rm -f /tmp/iso/ws/sparse");
	/* the session sees the same as before */
	CHECK_STR(say("s7c", "cat file todir; ls repl gone 2>/dev/null"), "z\ny\nrepl:\nnew\n");
	buf_str(&b, "s7c");
	buf_str(&b, "/tmp/iso/data");
	CHECK(!host_ask(&H, ctl, AGENT_SESSION_COMMIT, &b, &G));
	CHECK_INT(G.code, EINVAL);
	/* another directory has the name by now: nothing is written there */
	outside("cd /tmp/iso; mv ws ws.old; ln -s other ws");
	buf_str(&b, "s7c");
	buf_str(&b, "");
	CHECK(!host_ask(&H, ctl, AGENT_SESSION_COMMIT, &b, &G));
	CHECK_INT(G.code, ESTALE);
	CHECK_STR(outside("cd /tmp/iso; ls other; rm ws; mv ws.old ws"), "target\n");
	CHECK_INT(drop("s7c"), 0);
	CHECK_INT(diff("s7c", text), ENOENT);
	outside("cd /tmp/iso/ws; rm -rf repl same tofile todir lnk suid; echo low > file");
	buf_fini(&b);
}

/* Started in a session with "escape WHAT": tries it, and says how that went. */
static int escape(const char *what)
{
	char line[64];
	int rc = -1;

	errno = 0;
	if (!strcmp(what, "mount"))
		rc = mount("none", "/tmp", "tmpfs", 0, NULL);
	else if (!strcmp(what, "remount"))
		rc = mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND, NULL);
	else if (!strcmp(what, "umount"))
		rc = umount2("/proc/sys", MNT_DETACH);
	else if (!strcmp(what, "pivot"))
		rc = (int)syscall(SYS_pivot_root, ".", ".");
	else if (!strcmp(what, "chroot"))
		rc = chroot("/tmp");
	else if (!strcmp(what, "unshare"))
		rc = unshare(CLONE_NEWUSER | CLONE_NEWNS);
	else if (!strcmp(what, "clone"))
		rc = (int)syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
	else if (!strcmp(what, "clone3"))
		rc = (int)syscall(SYS_clone3, NULL, 0);
	else if (!strcmp(what, "setns"))
		rc = setns(open("/proc/1/ns/mnt", O_RDONLY), 0);
	else if (!strcmp(what, "mknod"))
		rc = mknod("/tmp/sda", S_IFBLK | 0600, 0xfe00);
	else if (!strcmp(what, "whiteout"))
		rc = mknod("/tmp/white", S_IFCHR, 0);
	else if (!strcmp(what, "vsock"))
		rc = socket(40, SOCK_STREAM, 0);
	else if (!strcmp(what, "ptrace1"))
		rc = (int)ptrace(PTRACE_ATTACH, 1, NULL, NULL);
	else if (!strcmp(what, "read1"))
		rc = (int)syscall(SYS_process_vm_readv, 1, &(struct iovec){line, sizeof(line)}, 1,
			&(struct iovec){line, sizeof(line)}, 1, 0);
	else if (!strcmp(what, "getfd1"))
		rc = (int)syscall(
			438 /* pidfd_getfd */, (int)syscall(434 /* pidfd_open */, 1, 0), 0, 0);
	else if (!strcmp(what, "bpf"))
		rc = (int)syscall(SYS_bpf, 0, NULL, 0);
	else if (!strcmp(what, "uring"))
		rc = (int)syscall(SYS_io_uring_setup, 1, NULL);
	else if (!strcmp(what, "keyctl"))
		rc = (int)syscall(SYS_keyctl, 0, -3, 1);
	else if (!strcmp(what, "handle"))
		rc = (int)syscall(SYS_open_by_handle_at, -1, NULL, 0);
	else if (!strcmp(what, "kill"))
		rc = kill(-1, 0) == 0 && kill(1, SIGKILL) == 0 ? -1 : -1;
	else if (!strcmp(what, "opentree"))
		rc = (int)syscall(428, AT_FDCWD, "/", 1);
	else if (!strcmp(what, "hostname"))
		rc = sethostname("x", 1);
	printf("%s %s\n", what, rc < 0 ? strerror(errno) : "WORKED");
	return 0;
}

static void escapes_are_refused(void)
{
	static const char *const tries[] = {"mount", "remount", "umount", "pivot", "chroot",
		"unshare", "clone", "setns", "mknod", "whiteout", "vsock", "ptrace1", "read1",
		"getfd1", "bpf", "uring", "keyctl", "handle", "opentree", "hostname"};
	struct want w = {.id = "s8", .mounts = {{AGENT_IM_OVERLAY, 0, "/tmp/iso/ws", NULL}}};
	char self[200], cmd[400], line[100];
	ssize_t k;

	/* A copy of this program, because the checkout may be below a home that only root enters. */
	k = readlink("/proc/self/exe", self, sizeof(self) - 1);
	self[k > 0 ? k : 0] = 0;
	snprintf(cmd, sizeof(cmd), "cp '%s' /tmp/iso/ws/try", self);
	if (!H.guest)
		outside(cmd);
	for (uint32_t uid = 0; uid <= 1000; uid += 1000) {
		w.uid = uid;
		REQUIRE(make(&w) == 0);
		if (!H.guest)
			for (size_t i = 0; i < ARRAY_LEN(tries); i++) {
				snprintf(cmd, sizeof(cmd), "/tmp/iso/ws/try escape %s", tries[i]);
				snprintf(line, sizeof(line), "%s Operation not permitted\n",
					tries[i]);
				CHECK_STR(say("s8", cmd), line);
			}
		CHECK_STR(say("s8", "grep -E 'CapEff|CapBnd|CapPrm|NoNewPrivs|Seccomp:' "
				    "/proc/self/status | tr -d '\\t\\n'"),
			"CapPrm:0000000000000000CapEff:0000000000000000CapBnd:"
			"0000000000000000NoNewPrivs:1Seccomp:2");
		/* files of the kernel that uid 0 may write without a capability; another process's root; the agent */
		CHECK_STR(say("s8", "exec 2>/dev/null; for f in /proc/sys/kernel/core_pattern "
				    "/proc/sysrq-trigger /sys/kernel/uevent_helper "
				    "/sys/fs/cgroup/cgroup.procs /proc/1/mem /proc/1/environ; do "
				    "(echo x > $f) && echo wrote $f; done; readlink /proc/1/root "
				    "/proc/1/exe; cat /proc/1/environ; "
				    "ls /proc/1/fd/ | wc -l > /dev/null; cat /proc/kcore | head -c "
				    "1 | wc -c | tr -d ' '; "
				    "mkdir /sys/fs/cgroup/x && echo made; echo end"),
			"0\nend\n");
		/* No set-id program gives anything. Where the host's /tmp is a mount as well (Debian 13), the session's is the last one. None of
		 * the devices of the disk is there. */
		CHECK_STR(
			say("s8",
				"cp /bin/cat /tmp/c 2>/dev/null; chmod u+s /tmp/c; grep ' /tmp "
				"' /proc/mounts | tail -n 1 | grep -c nosuid; ls /dev/vda /dev/kvm "
				"/dev/mem 2>/dev/null | wc -l | tr -d ' '"),
			"1\n0\n");
		/* the shell survives what is sent to everybody */
		CHECK_STR(say("s8", "kill -9 1; kill -TERM 1; echo alive"), "alive\n");
		CHECK_INT(drop("s8"), 0);
	}
	outside("rm -f /tmp/iso/ws/try");
}

/* A device that root made outside, in every kind of mount that a session has: it is a name without
 * a device. And descriptors: a program has its three. */
static void no_devices_and_no_descriptors(void)
{
	struct want w = {.id = "s16",
		.mounts = {{AGENT_IM_OVERLAY, 0, "/tmp/iso/ws", NULL},
			{AGENT_IM_RW, 0, "/tmp/iso/other", NULL},
			{AGENT_IM_RO, 0, "/tmp/iso/data", NULL}}};

	/* a null and a disk; in a user namespace of its own the test cannot make any */
	outside("for d in ws other data; do mknod /tmp/iso/$d/null c 1 3 && mknod "
		"/tmp/iso/$d/disk b 254 0; done 2>/dev/null");
	REQUIRE(make(&w) == 0);
	CHECK_STR(say("s16", "exec 2>/dev/null; for d in ws other data; do for n in null disk; do "
			     "(: < /tmp/iso/$d/$n) && echo opened $d/$n; (echo x > "
			     "/tmp/iso/$d/$n) && echo wrote $d/$n; done; done; echo end"),
		"end\n");
	/* the fourth is that of the folder that ls reads */
	CHECK_STR(say("s16", "ls /proc/self/fd | tr '\\n' ' '; readlink /proc/self/fd/0"),
		"0 1 2 3 /dev/null\n");
	CHECK_INT(drop("s16"), 0);
	outside("rm -f /tmp/iso/*/null /tmp/iso/*/disk");
}

/* What a session changed is nobody else's: not by the path of its storage, not by a bind of it. */
static void another_session_s_changes_are_out_of_reach(void)
{
	struct want one = {.id = "s17", .mounts = {{AGENT_IM_OVERLAY, 0, "/tmp/iso/ws", NULL}}};
	struct want two = {.id = "s18", .mounts = {{AGENT_IM_OVERLAY, 0, "/tmp/iso/ws", NULL}}};
	char state[80] = "/var/lib/mayfly-sessions", cmd[600];

	if (!H.guest)
		snprintf(state, sizeof(state), "%s/state", H.dir);
	REQUIRE(make(&one) == 0);
	CHECK_STR(say("s17", "echo mine > /tmp/iso/ws/mine"), "");
	snprintf(cmd, sizeof(cmd), "cat %s/*/u0/mine", state);
	CHECK_STR(outside(cmd), "mine\n");
	REQUIRE(make(&two) == 0);
	snprintf(cmd, sizeof(cmd),
		"exec 2>/dev/null; ls -A %s; cat %s/*/u0/mine /tmp/iso/ws/mine; echo x > %s/x; "
		"mkdir %s/y; echo end",
		state, state, state, state);
	CHECK_STR(say("s18", cmd), "end\n");
	CHECK_INT(drop("s18"), 0);
	two.mounts[1] = (struct mnt){AGENT_IM_RO, 0, state, "/tmp/store"};
	CHECK_INT(make(&two), EACCES);
	CHECK_STR(say("s17", "cat /tmp/iso/ws/mine"), "mine\n");
	CHECK_INT(drop("s17"), 0);
}

/* The source of a bind is exchanged for a link while sessions are made: each has the directory that was allowed, or is refused. */
static void a_bind_is_exchanged_meanwhile(void)
{
	struct want w = {.id = "s19",
		.allowed = {"/tmp/iso/data"},
		.mounts = {{AGENT_IM_RW, AGENT_IM_CHECKED, "/tmp/iso/data/swap", "/tmp/x"}}};
	int made = 0, rounds = H.guest ? 10 : 40;

	outside("cd /tmp/iso/data; (until [ -e /tmp/iso/stop ]; do mkdir swap; : > swap/own; rm -r "
		"swap; ln -s /etc swap; rm swap; done; : > /tmp/iso/stopped) >/dev/null 2>&1 &");
	for (int i = 0; i < rounds; i++) {
		if (make(&w) == 0) {
			made++;
			CHECK_STR(say("s19", "ls /tmp/x/passwd 2>/dev/null"), "");
			CHECK_INT(drop("s19"), 0);
		} else if (G.code != EACCES && G.code != ENOENT) {
			printf("refused: %s\n", G.text);
		}
	}
	printf("%d of %d sessions were made\n", made, rounds);
	outside(": > /tmp/iso/stop; until [ -e /tmp/iso/stopped ]; do sleep 0.05; done; rm "
		"/tmp/iso/stop /tmp/iso/stopped; mkdir /tmp/iso/data/swap");
	REQUIRE(make(&w) == 0);
	CHECK_INT(drop("s19"), 0);
	outside("rmdir /tmp/iso/data/swap");
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

/* The sandbox's execution API would let a session's program out: it is refused there, and served to others. */
static void no_way_out_through_the_api(void)
{
	static const char ask[] = "exec 3<>/dev/tcp/127.0.0.1/44772 && echo hello >&3 && cat <&3";
	struct want w = {.id = "s12"};
	int fd = wait_for_a_program();
	char cmd[200], got[6];

	REQUIRE(make(&w) == 0);
	snprintf(cmd, sizeof(cmd), "(%s) 2>&1", ask);
	if (!strcmp(say("s12", "echo ${BASH_VERSION:+bash}"), "bash\n"))
		CHECK(has(run_in("s12", cmd, 5000, NULL)->out, "403 Forbidden"));
	else
		printf("this shell opens no connections\n");
	/* a cgroup tells the two apart; where the agent has none, sessions close the way for all */
	if (H.guest && outside("command -v bash")[0]) {
		snprintf(cmd, sizeof(cmd), "bash -c '%s' >/dev/null 2>&1 &", ask);
		outside(cmd);
		CHECK(host_recv(fd, &G) && G.h.type == AGENT_OK);
		CHECK(read_full(fd, got, 6) == 0 && !memcmp(got, "hello\n", 6));
	}
	close(fd);
	CHECK_INT(drop("s12"), 0);
}

static void wait_for_the_stores_of(uint64_t n)
{
	for (int i = 0; i < 3000; i++) {
		if (host_self(&H, ctl, "session_stores", &G) == stores_before + n)
			return;
		poll(NULL, 0, 10);
	}
	CHECK(!"the storage of a session stays");
}

static void wait_for_the_stores(void)
{
	wait_for_the_stores_of(0);
}

/* The agent's process, outside of a guest: the child of the one that made its namespaces. 0: this kernel does not tell. */
static pid_t agent_pid(void)
{
	char path[64], text[32] = "";
	int fd;

	if (H.guest)
		return 0;
	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", H.pid, H.pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0)
		(void)!read(fd, text, sizeof(text) - 1);
	close(fd);
	return atoi(text);
}

/* A file of the agent's mounts, which are not this program's. */
static const char *at_agent(pid_t agent, const char *path)
{
	static char text[200];

	snprintf(text, sizeof(text), "/proc/%d/root%s", agent, path);
	return text;
}

/* More connections wait than the agent accepts in one turn, and the request to delete their session
 * beside them: the agent, which stood still, accepts some before the deletion and the others after
 * it. */
static void queue_connections(pid_t agent)
{
	int fd, waits = 3000;

	kill(agent, SIGSTOP);
	fd = open(at_agent(agent, "/tmp/iso/other/go"), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	CHECK(fd >= 0);
	close(fd);
	while (access(at_agent(agent, "/tmp/iso/other/done"), F_OK) < 0 && waits--)
		poll(NULL, 0, 10);
	CHECK(waits > 0);
}

/* A session is deleted while its programs connect, each with a whole request written. */
static void no_way_out_through_the_api_at_the_end(void)
{
	static const char queued[] =
		"(until [ -e /tmp/x/go ]; do sleep 0.02; done; for i in 1 2 3 4 5 6 7 8 9 10 11 12 "
		"13 14 15 16 17 18 19 20; do exec {fd}<>/dev/tcp/127.0.0.1/44772 && echo 'POST "
		"/command' >&$fd; done; : > /tmp/x/done; sleep 1000) >/dev/null 2>&1 &";
	/* where the agent cannot be stopped: again and again */
	static const char loops[] =
		"for i in 1 2 3 4; do (while :; do exec 3<>/dev/tcp/127.0.0.1/44772 && echo 'POST "
		"/command' >&3; done) 2>/dev/null >/dev/null & done; sleep 0.05";
	struct want w = {.id = "s13", .mounts = {{AGENT_IM_RW, 0, "/tmp/iso/other", "/tmp/x"}}};
	pid_t agent = agent_pid();
	int n = agent > 0 ? 1 : 3;

	for (int k = 0; k < n && !test_failures; k++) {
		struct pollfd p = {.fd = wait_for_a_program(), .events = POLLIN};
		struct buf b;

		REQUIRE(make(&w) == 0);
		if (strcmp(say("s13", "echo ${BASH_VERSION:+bash}"), "bash\n") != 0) {
			printf("this shell opens no connections\n");
			n = 0;
		} else {
			CHECK_STR(say("s13", agent > 0 ? queued : loops), "");
			if (agent > 0)
				queue_connections(agent);
		}
		buf_init(&b, 128);
		buf_str(&b, "s13");
		host_send(ctl, AGENT_SESSION_DEL, ++H.next_id, &b);
		buf_fini(&b);
		if (agent > 0)
			kill(agent, SIGCONT);
		do
			REQUIRE(host_recv(ctl, &G));
		while (G.h.id != H.next_id);
		CHECK_INT(G.h.type, AGENT_OK);
		wait_for_the_stores();
		/* more turns of the agent's loop than its queue can fill */
		for (int i = 0; i < 20; i++)
			host_self(&H, ctl, "procs", &G);
		CHECK_INT(poll(&p, 1, 0), 0);
		close(p.fd);
	}
	outside("rm -f /tmp/iso/other/go /tmp/iso/other/done");
}

static void wait_for_ahead(uint64_t n)
{
	for (int i = 0; i < 3000 && host_self(&H, ctl, "sessions_ahead", &G) != n; i++)
		poll(NULL, 0, 10);
	CHECK_INT(host_self(&H, ctl, "sessions_ahead", &G), n);
}

#define FIRST "grep -l execd-session /proc/[0-9]*/comm 2>/dev/null | wc -l | tr -d ' '"

/* Beside so many sessions the next one has its name: its storage is made, and it can be taken. It
 * goes after 5 s, which a busy machine may need to see it; then another session has one begun
 * again. */
static void wait_for_first(uint64_t others)
{
	struct want w = {.id = "s2a"};

	for (int i = 0; i < 3000; i++) {
		if (count_of(FIRST) == others + 1)
			return;
		if (!host_self(&H, ctl, "sessions_ahead", &G)) {
			REQUIRE(make(&w) == 0);
			CHECK_INT(drop("s2a"), 0);
		}
		poll(NULL, 0, 10);
	}
	CHECK(!"it never has its name");
}

/* Makes w, which takes the one that was begun ahead. It may go just before: then w is made once more. */
static void make_of_the_first(const struct want *w, uint64_t others)
{
	uint64_t taken;

	for (int i = 0; i < 10; i++) {
		wait_for_first(others);
		taken = host_self(&H, ctl, "sessions_taken_ahead", &G);
		REQUIRE(make(w) == 0);
		if (host_self(&H, ctl, "sessions_taken_ahead", &G) == taken + 1)
			return;
		CHECK_INT(drop(w->id), 0);
	}
	CHECK(!"it is never taken");
}

/* The next session is begun before it is asked for. It is the same session as one that was not. */
static void the_next_one_is_begun_ahead(void)
{
	struct want w = {.id = "s20", .mounts = {{AGENT_IM_OVERLAY, 0, "/tmp/iso/ws", NULL}}};
	struct want user = {.id = "s21", .uid = 1000, .cwd = "/run", .profile = AGENT_BALANCED};
	struct want all = {.id = "s22", .cwd = "/tmp", .mounts = {{AGENT_IM_RW, 0, "/tmp", NULL}}};
	uint64_t taken;

	REQUIRE(make(&w) == 0);
	/* another user, who has /run; the sandbox's /tmp */
	make_of_the_first(&user, 1);
	CHECK_STR(say("s21", "grep -c ^Uid:.1000 /proc/self/status; pwd; echo x > /run/mine && cat "
			     "/run/mine; ls -d /tmp/iso; "
			     "echo $MINE; echo $$"),
		"1\n/run\nx\n/tmp/iso\nit's\n2\n");
	CHECK_INT(drop("s21"), 0);
	/* outside of a guest the storage of sessions is below /tmp */
	if (H.guest) {
		make_of_the_first(&all, 1);
		CHECK_STR(say("s22", "pwd; ls -d iso; touch /tmp/by-s22"), "/tmp\niso\n");
		CHECK_STR(outside("ls /tmp/by-s22; rm /tmp/by-s22"), "/tmp/by-s22\n");
		CHECK_INT(drop("s22"), 0);
	}
	/* A mount of the sandbox came after the session was begun ahead. That session lacks it, and is not used. */
	wait_for_first(1);
	taken = host_self(&H, ctl, "sessions_taken_ahead", &G);
	if (outside("command -v mount")[0]) {
		outside("mkdir -p /opt/late; mount -t tmpfs none /opt/late; echo late > "
			"/opt/late/f");
		REQUIRE(make(&user) == 0);
		CHECK_INT(host_self(&H, ctl, "sessions_taken_ahead", &G), taken);
		CHECK_STR(say("s21", "cat /opt/late/f"), "late\n");
		CHECK_INT(drop("s21"), 0);
		outside("umount /opt/late; rmdir /opt/late");
	} else {
		printf("nothing mounts here\n");
	}
	/* killed by root of the sandbox */
	REQUIRE(make(&user) == 0);
	wait_for_first(2);
	outside("for f in $(grep -l execd-session /proc/[0-9]*/comm); do p=${f%/comm}; "
		"p=${p#/proc/}; "
		"grep -q \"^PPid:[[:space:]]*$p\\$\" /proc/[0-9]*/status 2>/dev/null || kill -9 "
		"$p; "
		"done; true");
	CHECK_STR(say("s21", "echo on"), "on\n");
	for (int i = 0; i < 3000 && host_self(&H, ctl, "sessions_ahead", &G); i++)
		poll(NULL, 0, 10);
	CHECK_INT(drop("s21"), 0);
	REQUIRE(make(&user) == 0);
	CHECK_INT(drop("s21"), 0);
	/* it goes by itself: an idle session is two processes */
	wait_for_ahead(0);
	CHECK_STR(say("s20", "echo on"), "on\n");
	wait_for_the_stores_of(1);
	CHECK_STR(outside("grep -h NSpid: /proc/[0-9]*/status 2>/dev/null | grep -c "
			  "'[0-9][[:space:]][0-9]'"),
		"2\n");
	CHECK_INT(drop("s20"), 0);
}

/* What a session with a workspace leaves in it does not choose the workspace of the next one, nor where directories are made. */
static void links_of_a_session_lead_nowhere(void)
{
	struct want w = {.id = "s14", .mounts = {{AGENT_IM_RW, 0, "/tmp/iso/ws", NULL}}};
	static const struct {
		struct mnt m;
		const char *allowed;
		int err;
	} rows[] = {
		{{AGENT_IM_RW, 0, "/tmp/iso/ws/a", NULL}, NULL, EACCES},
		{{AGENT_IM_RW, AGENT_IM_MAKE, "/tmp/iso/ws/a/new", NULL}, NULL, EACCES},
		{{AGENT_IM_OVERLAY, AGENT_IM_MAKE, "/tmp/iso/ws/b/planted", NULL}, NULL, EACCES},
		{{AGENT_IM_RW, AGENT_IM_MAKE, "/tmp/iso/ws/b/planted/deep", NULL}, NULL, EACCES},
		{{AGENT_IM_RO, 0, "/tmp/iso/ws/etc", NULL}, NULL, EACCES},
		{{AGENT_IM_RW, 0, "/tmp/iso/ws/store", NULL}, NULL, EACCES},
		{{AGENT_IM_RW, AGENT_IM_MAKE, "/tmp/iso/ws/loop/x", NULL}, NULL, ELOOP},
		{{AGENT_IM_RW, AGENT_IM_MAKE, "/tmp/iso/ws/proc/x", NULL}, NULL, EACCES},
		{{AGENT_IM_RW, AGENT_IM_MAKE, "/tmp/iso/ws/file/x", NULL}, NULL, ENOTDIR},
		/* an image's own link, to a directory that may be shared */
		{{AGENT_IM_RW, AGENT_IM_MAKE, "/tmp/iso/ws/a/new", NULL}, "/tmp/iso/other", 0},
		{{AGENT_IM_RW, AGENT_IM_MAKE, "/tmp/iso/ws/new/er", NULL}, NULL, 0},
	};

	outside("mkdir -p /tmp/iso/other");
	REQUIRE(make(&w) == 0);
	CHECK_STR(say("s14", "cd /tmp/iso/ws; ln -s /tmp/iso/other a; ln -s /tmp/iso b; ln -s /etc "
			     "etc; ln -s /var/lib/mayfly-sessions store; ln -s loop loop; ln -s "
			     "/proc proc"),
		"");
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct want next = {
			.id = "s15", .allowed = {rows[i].allowed}, .mounts = {rows[i].m}};
		int rc = make(&next);

		/* there is no such place where the test has one of its own */
		if (rc == ENOENT && strstr(rows[i].m.source, "store"))
			rc = rows[i].err;
		if (rc != rows[i].err)
			printf("row %zu: %s\n", i, G.text);
		CHECK_INT(rc, rows[i].err);
		if (!rc)
			CHECK_INT(drop("s15"), 0);
	}
	CHECK_STR(
		outside("ls -d /tmp/iso/other/new /tmp/iso/ws/new/er /tmp/iso/planted 2>/dev/null"),
		"/tmp/iso/other/new\n/tmp/iso/ws/new/er\n");
	CHECK_INT(drop("s14"), 0);
	outside("cd /tmp/iso/ws; rm -r a b etc store loop proc new ../other/new");
}

static void a_session_has_bounds(void)
{
	struct want w = {.id = "s9",
		.upper = MIB(2),
		.mounts = {{AGENT_IM_OVERLAY, 0, "/tmp/iso/ws", NULL}}};
	struct want w2 = {.id = "s10", .idle_ms = 500};
	uint32_t runs;

	REQUIRE(make(&w) == 0);
	CHECK_STR(say("s9", "head -c 5000000 /dev/zero > /tmp/iso/ws/big 2>/dev/null && echo fits; "
			    "ls /tmp/iso/ws/file; rm /tmp/iso/ws/big; echo again > "
			    "/tmp/iso/ws/small; cat /tmp/iso/ws/small"),
		"/tmp/iso/ws/file\nagain\n");
	CHECK_INT(drop("s9"), 0);
	/* idle: gone by itself; a run holds it */
	REQUIRE(make(&w2) == 0);
	CHECK_STR(say("s10", "sleep 0.8; echo done"), "done\n");
	for (int i = 0; i < 4000 && state_of("s10", &runs); i++)
		poll(NULL, 0, 10);
	CHECK_INT(state_of("s10", &runs), 0);
	w2 = (struct want){.id = "s11", .pids = 10, .memory = MIB(32)};
	if (H.guest) {
		REQUIRE(make(&w2) == 0);
		CHECK_STR(say("s11", "cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/memory.max"),
			"10\n33554432\n");
		/* more than it may have, of both: the sandbox goes on, whatever becomes of the session */
		run_in("s11", "( while :; do sleep 3 & done ) 2>/dev/null", 3000, NULL);
		CHECK_STR(outside("echo fine"), "fine\n");
		/* or nothing is left of the session that could be counted */
		CHECK(count_of("cat /sys/fs/cgroup/sandbox/x*/pids.events | grep -c 'max [1-9]'") >=
				1 ||
			state_of("s11", &runs) == AGENT_SE_DEAD);
		CHECK_INT(drop("s11"), 0);
		REQUIRE(make(&w2) == 0);
		run_in("s11", "( x=$(head -c 100000000 /dev/zero | tr '\\000' a); echo ${#x} )",
			60000, NULL);
		CHECK_STR(outside("echo fine"), "fine\n");
		CHECK(count_of("cat /sys/fs/cgroup/sandbox/x*/memory.events | grep -c '^oom_kill "
			       "[1-9]'") >= 1 ||
			state_of("s11", &runs) == AGENT_SE_DEAD);
		CHECK_INT(drop("s11"), 0);
	} else {
		/* this host's cgroups are not the agent's: a bound that cannot be kept is not promised */
		CHECK_INT(make(&w2), ENOTSUP);
	}
}

static int by_time(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

#define ROUNDS_MAX 1000
static int rounds = 15;

/* the quarter's: on a busy machine the middle one says how busy it is */
static double quarter_ms(uint64_t v[ROUNDS_MAX])
{
	int quarter = rounds / 4;

	qsort(v, (size_t)rounds, sizeof(*v), by_time);
	return (double)v[quarter] / 1e6;
}

/* Says what things take beside each other; no time is demanded. */
static void times(void)
{
	static uint64_t plain[ROUNDS_MAX], shell[ROUNDS_MAX], run[ROUNDS_MAX], made[ROUNDS_MAX],
		gone[ROUNDS_MAX];
	uint64_t ahead = host_self(&H, ctl, "sessions_taken_ahead", &G), t;
	struct want w = {.id = "t", .mounts = {{AGENT_IM_OVERLAY, 0, "/tmp/iso/ws", NULL}}};
	struct buf b;

	buf_init(&b, 256);
	buf_str(&b, "plain");
	buf_str(&b, "/");
	CHECK(host_ask(&H, ctl, AGENT_SESSION_NEW, &b, &G));
	for (int i = 0; i < rounds; i++) {
		t = mono_ns();
		outside("true");
		plain[i] = mono_ns() - t;
		t = mono_ns();
		CHECK_INT(run_in("plain", "true", 0, NULL)->code, 0);
		shell[i] = mono_ns() - t;
		t = mono_ns();
		REQUIRE(make(&w) == 0);
		made[i] = mono_ns() - t;
		t = mono_ns();
		CHECK_STR(say("t", "true"), "");
		run[i] = mono_ns() - t;
		t = mono_ns();
		CHECK_INT(drop("t"), 0);
		gone[i] = mono_ns() - t;
	}
	CHECK_INT(drop("plain"), 0);
	buf_fini(&b);
	printf("command %.2f ms, in a shell session %.2f, in an isolated one %.2f, made in %.2f, "
	       "deleted in %.2f (the quarter's of %d); made: %.2f x a command; run: %.2f x one in "
	       "a shell session; %" PRIu64 " were begun ahead\n",
		quarter_ms(plain), quarter_ms(shell), quarter_ms(run), quarter_ms(made),
		quarter_ms(gone), rounds, quarter_ms(made) / quarter_ms(plain),
		quarter_ms(run) / quarter_ms(shell),
		host_self(&H, ctl, "sessions_taken_ahead", &G) - ahead);
}

static void wait_for_nothing_left(void)
{
	for (int i = 0; i < 3000; i++) {
		if (host_self(&H, ctl, "session_stores", &G) == stores_before &&
			/* the next session, begun ahead, goes when none comes */
			host_self(&H, ctl, "sessions_ahead", &G) == 0 &&
			host_self(&H, ctl, "procs_running", &G) == 0 &&
			host_self(&H, ctl, "jobs_running", &G) == 0)
			break;
		poll(NULL, 0, 10);
	}
	CHECK_INT(host_self(&H, ctl, "session_stores", &G), stores_before);
	CHECK_INT(host_self(&H, ctl, "procs_running", &G), 0);
}

static void end(void)
{
	outside("rm -rf /tmp/iso 2>/dev/null");
	CHECK(host_end(&H, ctl));
}

static void many_leave_nothing(void)
{
	const char *e = getenv("SESSIONS");
	int n = e ? atoi(e) : 40;
	uint64_t fds, records, rss = 0, began;

	wait_for_nothing_left();
	records = host_self(&H, ctl, "procs", &G);
	fds = host_self(&H, ctl, "descriptors", &G);
	began = mono_ns();
	for (int i = 0; i < n && !test_failures; i++) {
		struct want w = {.id = "m",
			.mounts = {{AGENT_IM_OVERLAY, 0, "/tmp/iso/ws", NULL}},
			.upper = i % 4 == 1 ? MIB(1) : 0};

		CHECK_INT(make(&w), 0);
		if (i % 3 == 0)
			CHECK_STR(say("m", "echo x > /tmp/iso/ws/file; cat /tmp/iso/ws/file; sleep "
					   "100 &"),
				"x\n");
		CHECK_INT(drop("m"), 0);
		if (i == n / 3)
			rss = host_self(&H, ctl, "resident_bytes", &G);
	}
	printf("%d sessions: %.2f ms each, resident %" PRIu64 " -> %" PRIu64 " KiB\n", n,
		(double)(mono_ns() - began) / 1e6 / n, rss / 1024,
		host_self(&H, ctl, "resident_bytes", &G) / 1024);
	wait_for_nothing_left();
	/* no records of runs either (each question to the sandbox leaves one) */
	CHECK_INT(host_self(&H, ctl, "procs", &G), records);
	CHECK_INT(host_self(&H, ctl, "descriptors", &G), fds);
	CHECK_INT(count_of(MOUNTS), mounts_before);
	if (!H.guest) {
		char cmd[200];

		snprintf(cmd, sizeof(cmd), "ls %s/state | wc -l", H.dir);
		CHECK_INT(count_of(cmd), 0);
	}
	CHECK_INT(count_of("ls /var/lib/mayfly-sessions 2>/dev/null | wc -l"), 0);
	CHECK_INT(count_of("grep -l execd-session /proc/[0-9]*/comm 2>/dev/null | wc -l"), 0);
	end();
}

static const struct test tests[] = {
	{"start", start},
	{"directories_of_an_earlier_boot", directories_of_an_earlier_boot},
	{"one_shell_for_all_runs", one_shell_for_all_runs},
	{"busy_timeouts_and_interrupts", busy_timeouts_and_interrupts},
	{"a_long_log_takes_no_room", a_long_log_takes_no_room},
	{"background_runs", background_runs},
	{"the_view", the_view},
	{"paths_are_checked", paths_are_checked},
	{"variables_are_filtered", variables_are_filtered},
	{"files_are_the_session_s", files_are_the_session_s},
	{"changes_are_listed_and_committed", changes_are_listed_and_committed},
	{"escapes_are_refused", escapes_are_refused},
	{"no_devices_and_no_descriptors", no_devices_and_no_descriptors},
	{"another_session_s_changes_are_out_of_reach", another_session_s_changes_are_out_of_reach},
	{"a_bind_is_exchanged_meanwhile", a_bind_is_exchanged_meanwhile},
	{"no_way_out_through_the_api", no_way_out_through_the_api},
	{"no_way_out_through_the_api_at_the_end", no_way_out_through_the_api_at_the_end},
	{"the_next_one_is_begun_ahead", the_next_one_is_begun_ahead},
	{"links_of_a_session_lead_nowhere", links_of_a_session_lead_nowhere},
	{"a_session_has_bounds", a_session_has_bounds},
	{"times", times},
	{"many_leave_nothing", many_leave_nothing},
};

/* `agent_isolated bench [ROUNDS]`: the times alone. */
static const struct test bench[] = {{"start", start}, {"times", times}, {"end", end}};

int main(int argc, char **argv)
{
	if (argc >= 2 && !strcmp(argv[1], "bench")) {
		rounds = MAX(1, MIN(argc > 2 ? atoi(argv[2]) : 200, ROUNDS_MAX));
		return test_main(1, argv, bench, ARRAY_LEN(bench));
	}
	if (argc == 3 && !strcmp(argv[1], "--dump-env"))
		return session_helper(argv[2]);
	if (argc == 2 && !strcmp(argv[1], "--isolate"))
		return isolate_main();
	if (argc == 3 && !strcmp(argv[1], "escape"))
		return escape(argv[2]);
	signal(SIGPIPE, SIG_IGN);
	return test_main(argc, argv, tests, ARRAY_LEN(tests));
}
