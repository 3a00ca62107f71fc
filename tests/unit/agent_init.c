/* SPDX-License-Identifier: Apache-2.0
 *
 * agent_init: what a workload may expect of PID 1, and may not get from it: its name, signals for the entrypoint, the pre-script,
 * internal variables, and the walls around its memory. The agent is the first process of a namespace of its own.
 */
#include "tests/agent_host.h"

#include <sys/prctl.h>
#include <sys/ptrace.h>

static struct host H;
static struct got G;
static int ctl = -1;

static bool begin(void)
{
	ctl = host_begin(&H, &G);
	if (ctl >= 0 && H.own_ns && geteuid() == 0)
		return true;
	printf("needs root and namespaces\n");
	if (ctl >= 0)
		host_end(&H, ctl);
	return false;
}

/* Runs a text in a shell to its end; what it said, up to 4 KiB. */
static const char *say(const char *text)
{
	static char out[4096];
	const char *argv[] = {text, NULL};
	int fd = host_open(&H, AGENT_CONN_EXEC, &G);
	struct ran r;
	struct buf b;
	char id[32];
	static int n;

	snprintf(id, sizeof(id), "say%d", n++);
	ran_init(&r);
	buf_init(&b, AGENT_FRAME_MAX);
	host_exec_body(&b, id, AGENT_X_SHELL | AGENT_X_MERGE, "", 0, "", argv, NULL);
	host_send(fd, AGENT_EXEC, 1, &b);
	CHECK(ran_wait(&r, fd));
	snprintf(out, sizeof(out), "%s", buf_cstr(&r.out));
	close(fd);
	ran_fini(&r);
	buf_fini(&b);
	return out;
}

static void logs(const char *id, char to[2000])
{
	struct buf b;

	buf_init(&b, 256);
	buf_str(&b, id);
	buf_u64(&b, 0);
	buf_u32(&b, 1999);
	memset(to, 0, 2000);
	CHECK(host_ask(&H, ctl, AGENT_LOGS, &b, &G));
	cur_u64(&G.c);
	memcpy(to, G.c.p, MIN(cur_left(&G.c), 1999u));
	buf_fini(&b);
}

static void setup(const char *entry, const char *k, const char *v)
{
	struct buf b;

	buf_init(&b, 65536);
	host_put_identity(&b, 7, "box", k, v);
	buf_u32(&b, 1);
	buf_str(&b, "EXECD_ACCESS_TOKEN");
	buf_str(&b, "secret");
	buf_str(&b, "/");
	buf_str(&b, "");
	buf_u32(&b, 3);
	buf_str(&b, "/bin/sh");
	buf_str(&b, "-c");
	buf_str(&b, entry);
	buf_str(&b, "");
	CHECK(host_ask(&H, ctl, AGENT_SETUP, &b, &G));
	buf_fini(&b);
}

/* As a command, started with "ptrace PID": may it attach? */
static int try_ptrace(const char *pid)
{
	int n = atoi(pid);

	printf("%s\n", ptrace(PTRACE_ATTACH, n, NULL, NULL) == 0 ? "attached" : strerror(errno));
	return 0;
}

static void its_name_and_its_walls(void)
{
	char self[200], text[600];
	ssize_t k = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (!begin())
		return;
	self[k > 0 ? k : 0] = 0;
	CHECK_STR(say("cat /proc/1/comm"), "execd\n");
	/* each of them is root's, and each is refused */
	/* since Linux 6.15 CAP_SYS_ADMIN is enough to read these two; the guest's kernel is older, and its init empties its environment */
	CHECK_STR(say("id -u; case $(uname -r) in 6.1[5-9]*|6.[2-9][0-9]*|[7-9].*) ;; *) "
		      "MORE='environ maps' ;; esac; for f in mem $MORE; do (: < /proc/1/$f && dd "
		      "if=/proc/1/$f bs=1 count=1) >/dev/null 2>&1 "
		      "&& echo read $f; done; "
		      "readlink /proc/1/exe /proc/1/cwd /proc/1/root /proc/1/ns/mnt /proc/1/fd/0; "
		      "ls /proc/1/root/ 2>/dev/null | head -1; echo x 2>/dev/null > /proc/1/mem && "
		      "echo wrote; true"),
		"0\n");
	/* one that is attached before it is `sleep` dies of the trap of its execve, and the shell says so */
	snprintf(text, sizeof(text),
		"exec 2>/dev/null; %s ptrace 1; sleep 10 & %s ptrace $!; kill -9 $!", self, self);
	CHECK_STR(say(text), "Operation not permitted\nattached\n");
	/* an execve of root does not bring the capability back, nor does a set-id program */
	CHECK_STR(say("grep CapBnd /proc/self/status | tr -d '\\t' | cut -c8- | tail -c 7; sh -c "
		      "'cat /proc/1/environ' 2>&1 | grep -c denied"),
		say("printf '%06x\\n' $((0xf7ffff)) ; echo 1"));
	CHECK(host_end(&H, ctl));
}

static void signals_are_the_entrypoint_s(void)
{
	char text[2000];
	uint32_t code = 0;

	if (!begin())
		return;
	setup("exec 2>/dev/null; for s in HUP USR1 USR2 WINCH; do trap \"echo $s\" $s; done; trap "
	      "'echo TERM; exit "
	      "5' TERM; echo up; "
	      "while :; do sleep 0.05; done",
		"A", "b");
	do
		logs("entrypoint", text);
	while (!strstr(text, "up\n"));
	for (const char *const *s = (const char *const[]){"HUP", "USR1", "USR2", "WINCH", NULL}; *s;
		s++) {
		char cmd[64];

		snprintf(cmd, sizeof(cmd), "kill -%s 1", *s);
		say(cmd);
		do
			logs("entrypoint", text);
		while (!strstr(text, *s) && !test_failures);
	}
	CHECK_STR(text, "up\nHUP\nUSR1\nUSR2\nWINCH\n");
	/* others mean nothing to it */
	say("for s in INT QUIT ILL ABRT SEGV PIPE ALRM STOP KILL; do [ $s = INT ] || kill -$s 1; "
	    "done");
	CHECK_STR(say("echo alive"), "alive\n");
	say("kill -TERM 1");
	CHECK_INT(host_wait_state(&H, ctl, "entrypoint", &code, &G), AGENT_EXITED);
	CHECK_INT(code, 5);
	/* the agent still answers: the host reads the entrypoint's end, and ends the machine */
	CHECK_STR(say("echo alive"), "alive\n");
	CHECK(host_end(&H, ctl));
}

static void term_without_an_entrypoint_ends_it(void)
{
	const char *argv[] = {"kill -TERM 1; sleep 100", NULL};
	struct buf b;
	int st = 0;

	if (!begin())
		return;
	buf_init(&b, 4096);
	host_exec_body(&b, "k", AGENT_X_SHELL | AGENT_X_BACKGROUND, "", 0, "", argv, NULL);
	CHECK(host_ask(&H, ctl, AGENT_EXEC, &b, &G));
	CHECK(waitpid(H.pid, &st, 0) == H.pid && WIFEXITED(st) && WEXITSTATUS(st) == 0);
	CHECK(!host_recv(ctl, &G));
	close(ctl);
	buf_fini(&b);
}

static void script(const char *name, const char *text, char path[160])
{
	FILE *f;

	snprintf(path, 160, "%s/%s", H.dir, name);
	f = fopen(path, "w");
	REQUIRE(f);
	fputs(text, f);
	fclose(f);
}

static void the_pre_script_is_sourced(void)
{
	char path[160], text[2000];
	uint32_t code = 0;

	if (!begin())
		return;
	script("pre it",
		"export FROM_SCRIPT='one two'; export CHANGED=new\nlost=1; unset EXECD_ENVS\ncd "
		"/tmp; false",
		path);
	setup("echo \"$FROM_SCRIPT|$CHANGED|$lost|$EXECD_BOOTSTRAP_PRE_SCRIPT\"; pwd",
		"EXECD_BOOTSTRAP_PRE_SCRIPT", path);
	CHECK_INT(host_wait_state(&H, ctl, "entrypoint", &code, &G), AGENT_EXITED);
	logs("entrypoint", text);
	CHECK_STR(text, "one two|new||\n/\n");
	CHECK_STR(say("echo "
		      "\"$FROM_SCRIPT|$CHANGED|$lost|$EXECD_BOOTSTRAP_PRE_SCRIPT|$EXECD_ACCESS_"
		      "TOKEN\"; env | grep -c secret"),
		"one two|new|||\n0\n");
	CHECK(host_ask(&H, ctl, AGENT_SESSION_LIST, NULL, &G));
	CHECK_INT(cur_u32(&G.c), 0);
	CHECK(host_end(&H, ctl));
}

static void a_pre_script_that_exits_fails_the_start(void)
{
	char path[160], text[2000];
	uint32_t code = 0;

	if (!begin())
		return;
	script("pre", "echo why; exit 4", path);
	setup("echo never", "EXECD_BOOTSTRAP_PRE_SCRIPT", path);
	CHECK_INT(host_wait_state(&H, ctl, "entrypoint", &code, &G), AGENT_NOT_STARTED);
	logs("hook.preScript", text);
	CHECK_STR(text, "why\n");
	CHECK(host_end(&H, ctl));
	/* one that is not there is passed over */
	if (!begin())
		return;
	setup("echo started", "EXECD_BOOTSTRAP_PRE_SCRIPT", "/no/such/script");
	CHECK_INT(host_wait_state(&H, ctl, "entrypoint", &code, &G), AGENT_EXITED);
	logs("entrypoint", text);
	CHECK_STR(text, "started\n");
	logs("hook.preScript", text);
	CHECK_STR(text, "/no/such/script: not found or not readable\n");
	CHECK(host_end(&H, ctl));
}

static uint32_t layer(const char *name, char message[200])
{
	uint32_t state = 0;

	G.c = cur_of(G.p, G.h.len);
	for (uint32_t n = cur_u32(&G.c); n > 0 && !state; n--) {
		char k[64];
		uint32_t s;

		cur_str(&G.c, k, sizeof(k));
		s = cur_u32(&G.c);
		cur_str(&G.c, message, 200);
		if (!strcmp(k, name))
			state = s;
	}
	return state;
}

static bool harden(uint32_t flags, uint64_t keep, const char *more)
{
	static const char *const read[] = {"/usr", "/bin", "/lib", "/lib64", "/etc", "/proc"};
	struct buf b;
	bool ok;

	buf_init(&b, 4096);
	buf_u32(&b, flags);
	buf_u64(&b, keep);
	buf_u32(&b, ARRAY_LEN(read));
	for (size_t i = 0; i < ARRAY_LEN(read); i++)
		buf_str(&b, read[i]);
	buf_u32(&b, 3);
	buf_str(&b, "/dev/null");
	buf_str(&b, "/tmp");
	buf_str(&b, more);
	ok = host_ask(&H, ctl, AGENT_HARDEN, &b, &G);
	buf_fini(&b);
	return ok;
}

static void the_floor(void)
{
	char text[200];

	if (!begin())
		return;
	CHECK(host_ask(&H, ctl, AGENT_HARDEN, NULL, &G));
	CHECK_INT(layer("cap_drop", text), AGENT_LAYER_DISABLED);
	CHECK_INT(layer("signal_shield", text), AGENT_LAYER_ACTIVE);
	CHECK_STR(say("grep NoNewPrivs /proc/self/status | tr -d '\\t'; unshare -m true && echo "
		      "unshared"),
		"NoNewPrivs:0\nunshared\n");
	/* CAP_CHOWN and CAP_SETUID are kept */
	REQUIRE(harden(AGENT_H_CAPS, 1u << 0 | 1u << 7, "/tmp"));
	CHECK_INT(layer("cap_drop", text), AGENT_LAYER_ACTIVE);
	CHECK_INT(layer("seccomp", text), AGENT_LAYER_DISABLED);
	CHECK_STR(say("grep -E 'CapBnd|CapEff' /proc/self/status | tr -d '\\t'"),
		"CapEff:0000000000000081\nCapBnd:0000000000000081\n");
	REQUIRE(harden(AGENT_H_SECCOMP, 0, "/tmp"));
	CHECK_STR(say("grep Seccomp: /proc/self/status | tr -d '\\t'; unshare -m true 2>/dev/null "
		      "|| echo refused"),
		"Seccomp:2\nrefused\n");
	REQUIRE(harden(AGENT_H_CAPS | AGENT_H_SECCOMP | AGENT_H_LANDLOCK | AGENT_H_NO_NEW_PRIVS, 0,
		"/no/such/dir"));
	CHECK_INT(layer("seccomp", text), AGENT_LAYER_ACTIVE);
	if (layer("landlock", text) == AGENT_LAYER_UNSUPPORTED) {
		printf("this host's kernel has no Landlock\n");
	} else {
		CHECK_INT(layer("landlock", text), AGENT_LAYER_DEGRADED);
		CHECK_STR(text, "/no/such/dir: No such file or directory");
		CHECK_STR(say("echo a > /tmp/floor.$$ && rm /tmp/floor.$$ && echo tmp; (echo b > "
			      "/etc/floor) 2>/dev/null || echo etc; ls / >/dev/null 2>&1 || echo "
			      "root"),
			"tmp\netc\nroot\n");
		REQUIRE(harden(AGENT_H_LANDLOCK, 0, "/tmp"));
		CHECK_INT(layer("landlock", text), AGENT_LAYER_ACTIVE);
	}
	REQUIRE(harden(0, 0, "/tmp"));
	CHECK_STR(say("ls / >/dev/null && echo free"), "free\n");
	CHECK(host_end(&H, ctl));
}

static const struct test tests[] = {
	{"the_floor", the_floor},
	{"its_name_and_its_walls", its_name_and_its_walls},
	{"signals_are_the_entrypoint_s", signals_are_the_entrypoint_s},
	{"term_without_an_entrypoint_ends_it", term_without_an_entrypoint_ends_it},
	{"the_pre_script_is_sourced", the_pre_script_is_sourced},
	{"a_pre_script_that_exits_fails_the_start", a_pre_script_that_exits_fails_the_start},
};

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "--dump-env"))
		return session_helper(argv[2]);
	if (argc == 3 && !strcmp(argv[1], "ptrace"))
		return try_ptrace(argv[2]);
	signal(SIGPIPE, SIG_IGN);
	return test_main(argc, argv, tests, ARRAY_LEN(tests));
}
