/* SPDX-License-Identifier: Apache-2.0
 *
 * agent_bad: bad input gets an error that says what was wrong, from which the daemon makes the
 * documented one; and the agent goes on. Names that are too long, folders and users that are not
 * there, files that are no programs, a full disk, files that may not be read.
 */
#include "tests/agent_host.h"

static struct host H;
static struct got G;
static struct buf B;
static int ctl = -1;
static char dir[64];
static char longest[AGENT_PATH_MAX + 100], name_256[300];

struct command {
	const char *id, *user, *cwd, *session;
	uint32_t uid, gid, flags;
	const char *argv[3];
	int code;
	uint32_t step;
};

static int start_command(const struct command *c)
{
	int fd = host_open(&H, AGENT_CONN_EXEC, &G), n = 0;

	buf_reset(&B);
	buf_str(&B, c->id ? c->id : "c");
	buf_u32(&B, c->flags);
	buf_u32(&B, c->uid);
	buf_u32(&B, c->gid);
	buf_str(&B, c->user ? c->user : "");
	buf_str(&B, c->cwd ? c->cwd : "");
	buf_u64(&B, 0);
	buf_u32(&B, 0);
	buf_str(&B, c->session ? c->session : "");
	while (n < 3 && c->argv[n])
		n++;
	buf_u32(&B, (uint32_t)n);
	for (int i = 0; i < n; i++)
		buf_str(&B, c->argv[i]);
	buf_u32(&B, 0);
	buf_u32(&B, 0);
	host_send(fd, AGENT_EXEC, 2, &B);
	buf_reset(&B);
	CHECK(host_recv(fd, &G));
	close(fd);
	return G.code;
}

#define AS_IMAGE AGENT_NO_ID, AGENT_NO_ID

static void commands(void)
{
	char script[100], plain[100], dir_as_program[64];
	const struct command t[] = {
		{name_256, NULL, NULL, NULL, AS_IMAGE, 0, {"true"}, EPROTO, 0},
		{NULL, name_256, NULL, NULL, AS_IMAGE, 0, {"true"}, EPROTO, 0},
		{NULL, NULL, longest, NULL, AS_IMAGE, 0, {"true"}, EPROTO, 0},
		{NULL, NULL, NULL, name_256, AS_IMAGE, AGENT_X_SHELL, {"true"}, EPROTO, 0},
		{"", NULL, NULL, NULL, AS_IMAGE, 0, {"true"}, EPROTO, 0},
		{NULL, NULL, NULL, NULL, AS_IMAGE, 0, {NULL}, EINVAL, 0},
		{NULL, NULL, NULL, "s", AS_IMAGE, AGENT_X_BACKGROUND | AGENT_X_SHELL, {"true"},
			EINVAL, 0},
		{NULL, "nobody-of-this-image", NULL, NULL, AS_IMAGE, 0, {"true"}, ENOENT,
			AGENT_STEP_USER},
		{NULL, "root:no-such-group", NULL, NULL, AS_IMAGE, 0, {"true"}, ENOENT,
			AGENT_STEP_USER},
		{NULL, NULL, NULL, NULL, AGENT_NO_ID, 7, 0, {"true"}, EINVAL, AGENT_STEP_USER},
		{NULL, NULL, "/no/such/folder", NULL, AS_IMAGE, 0, {"true"}, ENOENT,
			AGENT_STEP_CWD},
		{NULL, NULL, "/etc/passwd", NULL, AS_IMAGE, 0, {"true"}, ENOTDIR, AGENT_STEP_CWD},
		{NULL, NULL, "$NOT_SET/x", NULL, AS_IMAGE, AGENT_X_EXPAND_CWD, {"true"}, EINVAL,
			AGENT_STEP_CWD},
		{NULL, NULL, NULL, NULL, AS_IMAGE, 0, {"no-such-program"}, ENOENT,
			AGENT_STEP_START},
		{NULL, NULL, NULL, NULL, AS_IMAGE, 0, {"/no/such/program"}, ENOENT,
			AGENT_STEP_START},
		{NULL, NULL, NULL, NULL, AS_IMAGE, 0, {""}, ENOENT, AGENT_STEP_START},
		{NULL, NULL, NULL, NULL, AS_IMAGE, 0, {"/etc/passwd"}, EACCES, AGENT_STEP_START},
		{NULL, NULL, NULL, NULL, AS_IMAGE, 0, {plain}, ENOEXEC, AGENT_STEP_START},
		{NULL, NULL, NULL, NULL, AS_IMAGE, 0, {script}, ENOENT, AGENT_STEP_START},
		{NULL, NULL, NULL, NULL, AS_IMAGE, 0, {dir_as_program}, EACCES, AGENT_STEP_START},
		{NULL, NULL, NULL, "no-such-session", AS_IMAGE, AGENT_X_SHELL, {"true"}, ENOENT,
			AGENT_STEP_SESSION},
	};

	snprintf(plain, sizeof(plain), "%s/plain", dir);
	snprintf(script, sizeof(script), "%s/script", dir);
	snprintf(dir_as_program, sizeof(dir_as_program), "%s", dir);
	close(open(plain, O_WRONLY | O_CREAT | O_CLOEXEC, 0755));
	host_put(plain, "this is no program\n");
	close(open(script, O_WRONLY | O_CREAT | O_CLOEXEC, 0755));
	host_put(script, "#!/no/such/interpreter\n");
	for (size_t i = 0; i < ARRAY_LEN(t); i++) {
		int code = start_command(&t[i]);

		if (code != t[i].code || G.step != t[i].step)
			printf("row %zu (%.30s): %s, step %u\n", i,
				t[i].argv[0] ? t[i].argv[0] : "", G.text, G.step);
		CHECK_INT(code, t[i].code);
		CHECK_INT(G.step, t[i].step);
		CHECK(G.text[0]);
	}
}

/* AGENT_WRITE of n bytes and its end: the errno. */
static int write_file(const char *path, const char *owner, uint32_t uid, uint32_t flags, size_t n)
{
	static const uint8_t zeros[AGENT_FRAME_MAX];
	int fd = host_open(&H, AGENT_CONN_BULK, &G);
	bool more = true;

	buf_reset(&B);
	buf_u32(&B, uid);
	buf_u32(&B, uid);
	buf_str(&B, path);
	buf_str(&B, owner);
	buf_str(&B, "");
	buf_u32(&B, AGENT_NO_MODE);
	buf_u32(&B, flags);
	host_send(fd, AGENT_WRITE, 3, &B);
	buf_reset(&B);
	more = host_recv(fd, &G) && G.h.type == AGENT_OK;
	while (more && n) {
		size_t k = MIN(n, sizeof(zeros));

		buf_put(&B, zeros, k);
		host_send(fd, AGENT_DATA, 3, &B);
		buf_reset(&B);
		n -= k;
	}
	if (more) {
		host_send(fd, AGENT_DATA, 3, NULL);
		CHECK(host_recv(fd, &G));
	}
	close(fd);
	return G.code;
}

static int read_file(const char *path, uint32_t uid)
{
	int fd = host_open(&H, AGENT_CONN_BULK, &G);

	buf_reset(&B);
	buf_u32(&B, uid);
	buf_u32(&B, uid);
	buf_str(&B, path);
	buf_u64(&B, 0);
	buf_u64(&B, UINT64_MAX);
	buf_u32(&B, 0);
	host_send(fd, AGENT_READ, 3, &B);
	buf_reset(&B);
	CHECK(host_recv(fd, &G));
	close(fd);
	return G.code;
}

static void files(void)
{
	char p[400];

	CHECK_INT(read_file(longest, AGENT_NO_ID), EPROTO);
	snprintf(p, sizeof(p), "%s/%s", dir, name_256);
	CHECK_INT(read_file(p, AGENT_NO_ID), ENAMETOOLONG);
	CHECK_INT(write_file(p, "", AGENT_NO_ID, 0, 1), ENAMETOOLONG);
	CHECK_INT(read_file("/no/such/file", AGENT_NO_ID), ENOENT);
	CHECK_INT(read_file("/etc", AGENT_NO_ID), EISDIR);
	CHECK_INT(read_file("/dev/zero", AGENT_NO_ID), EINVAL);
	CHECK_INT(read_file("/etc/passwd/x", AGENT_NO_ID), ENOTDIR);
	CHECK_INT(G.step, AGENT_STEP_PATH);
	snprintf(p, sizeof(p), "%s/loop", dir);
	CHECK_INT(symlink("loop", p), 0);
	CHECK_INT(read_file(p, AGENT_NO_ID), ELOOP);
	snprintf(p, sizeof(p), "%s/f", dir);
	CHECK_INT(write_file(p, "nobody-of-this-image", AGENT_NO_ID, 0, 1), EINVAL);
	CHECK_INT(G.step, AGENT_STEP_USER);
	if (geteuid() == 0) {
		snprintf(p, sizeof(p), "%s/secret", dir);
		close(open(p, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
		CHECK_INT(read_file(p, 12345), EACCES);
		CHECK_INT(write_file(p, "", 12345, 0, 1), EACCES);
	}
}

/* A disk of 1 MiB: it says so, keeps what was there, and has room again for what fits. */
static void full_disk(void)
{
	char p[100], out[8] = "";
	int fd;

	snprintf(p, sizeof(p), "%s/small", dir);
	mkdir(p, 0755);
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
		mount("none", p, "tmpfs", 0, "size=1m") < 0) {
		printf("no mount of our own: left out\n");
		return;
	}
	/* an agent that sees it: mounts of our namespace from before its start */
	CHECK(host_stop(&H));
	REQUIRE(host_start(&H));
	snprintf(p, sizeof(p), "%s/small/f", dir);
	CHECK_INT(write_file(p, "", AGENT_NO_ID, 0, 5), 0);
	CHECK_INT(write_file(p, "", AGENT_NO_ID, AGENT_WR_ATOMIC, MIB(3)), ENOSPC);
	CHECK_INT(G.step, AGENT_STEP_PATH);
	fd = open(p, O_RDONLY | O_CLOEXEC);
	CHECK_INT(read(fd, out, sizeof(out)), 5);
	close(fd);
	/* nothing of the failed one is left there */
	CHECK_INT(write_file(p, "", AGENT_NO_ID, AGENT_WR_ATOMIC, KIB(900)), 0);
	snprintf(p, sizeof(p), "%s/small/g", dir);
	CHECK_INT(write_file(p, "", AGENT_NO_ID, 0, MIB(3)), ENOSPC);
	CHECK_INT(read_file(p, AGENT_NO_ID), 0);
	snprintf(p, sizeof(p), "%s/small", dir);
	umount2(p, MNT_DETACH);
}

static void start(void)
{
	buf_init(&B, 2 * AGENT_FRAME_MAX);
	memset(longest, 'x', sizeof(longest) - 1);
	longest[0] = '/';
	memset(name_256, 'n', 256);
	snprintf(dir, sizeof(dir), "/tmp/agent-bad-XXXXXX");
	REQUIRE(mkdtemp(dir) != NULL);
	chmod(dir, 0755);
	REQUIRE(host_start(&H));
	ctl = host_open(&H, AGENT_CONN_CONTROL, &G);
	buf_str(&B, "s");
	buf_str(&B, "/");
	REQUIRE(host_ask(&H, ctl, AGENT_SESSION_NEW, &B, &G));
	close(ctl);
}

static void stop(void)
{
	char cmd[100];

	CHECK(host_stop(&H));
	snprintf(cmd, sizeof(cmd), "rm -rf %s", dir);
	(void)!system(cmd);
	buf_fini(&B);
}

static const struct test tests[] = {
	{"start", start},
	{"commands", commands},
	{"files", files},
	{"full_disk", full_disk},
	{"stop", stop},
};
AGENT_TEST_MAIN(tests)
