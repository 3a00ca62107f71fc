/* SPDX-License-Identifier: Apache-2.0
 *
 * priv_serve: every request that is not in the table is refused, and every other one does what it
 * says. No real process is started.
 */
#include "lib/test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "lib/log.h"
#include "lib/procfs.h"
#include "priv/serve.h"
#include "priv/spawn.h"

static struct slots T;
static struct serve S;
static int spawned, watched;

static int fake_spawn(struct slots *t, int bin_fd, const struct priv_msg *req, struct place at,
	const int *fds, size_t nfds, struct spawned *out)
{
	spawned++;
	out->pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	return getpid();
}

static void fake_started(struct serve *s, uint32_t slot)
{
	watched++;
}

static char dir[] = "/tmp/priv_serve.XXXXXX";

static bool set_up(void)
{
	if (T.dir_fd)
		return true;
	if (!mkdtemp(dir))
		return false;
	log_level = LOG_ERROR;
	if (slots_alloc(&T, 8, 500000, 4096) < 0)
		return false;
	T.dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	S = (struct serve){.slots = &T,
		.bin_fd = -1,
		.daemon_uid = 777,
		.spawn = fake_spawn,
		.started = fake_started};
	return T.dir_fd >= 0;
}

static int ask(struct priv_msg m, size_t nfds, struct priv_msg *out)
{
	struct priv_msg o;
	int fds[PRIV_SPAWN_FDS] = {0}, fd;

	m.magic = m.magic ? m.magic : PRIV_MAGIC;
	m.version = m.version ? m.version : PRIV_VERSION;
	serve_request(&S, &m, sizeof(m), fds, nfds, &o, &fd);
	if (fd >= 0)
		close(fd);
	if (out)
		*out = o;
	CHECK_INT(o.id, m.id);
	return o.status;
}

static const struct priv_msg spawn_ok = {.op = PRIV_SPAWN,
	.id = 9,
	.kind = PRIV_K_MONITOR,
	.slot = 2,
	.limits = {.cpu_max_us = 50000, .memory_max = MIB(300)}};

static void what_is_not_in_the_table_is_refused(void)
{
	struct priv_msg m;

	REQUIRE(set_up());
	for (uint32_t op = 0; op < 0x5000; op += op < 40 ? 1 : 97) {
		if (op >= PRIV_HELLO && op <= PRIV_QUOTA)
			continue;
		CHECK_INT(ask((struct priv_msg){.op = op}, 0, NULL), -ENOSYS);
	}
	CHECK_INT(ask((struct priv_msg){.op = PRIV_HELLO, .magic = 1}, 0, NULL), -EPROTO);
	CHECK_INT(ask((struct priv_msg){.op = PRIV_HELLO, .version = 99}, 0, NULL), -EPROTO);
	/* 2 was a userfaultfd of the helper's own memory */
	for (uint32_t what = PRIV_F_COUNT; what < 80; what += 7)
		CHECK_INT(ask((struct priv_msg){.op = PRIV_OPEN, .what = what}, 0, NULL), -EINVAL);
	CHECK_INT(ask((struct priv_msg){.op = PRIV_OPEN, .what = 2}, 0, NULL), -EINVAL);
	CHECK_INT(ask((struct priv_msg){.op = PRIV_OPEN, .what = PRIV_F_RESOLV}, 0, NULL),
		access("/etc/resolv.conf", R_OK) ? -ENOENT : 0);
	CHECK_INT(ask((struct priv_msg){.op = PRIV_OPEN, .what = PRIV_F_CONFIG}, 0, NULL), -EINVAL);
	S.config = "/proc/self/status";
	CHECK_INT(ask((struct priv_msg){.op = PRIV_OPEN, .what = PRIV_F_CONFIG}, 0, NULL), 0);
	S.config = "/no/such";
	CHECK_INT(ask((struct priv_msg){.op = PRIV_OPEN, .what = PRIV_F_CONFIG}, 0, NULL), -ENOENT);
	S.config = NULL;
	m = spawn_ok;
	m.slot = 8;
	CHECK_INT(ask(m, 4, NULL), -EINVAL);
	m = spawn_ok;
	m.kind = PRIV_K_COUNT;
	CHECK_INT(ask(m, 4, NULL), -EINVAL);
	m = spawn_ok;
	m.limits.memory_max = 4096;
	CHECK_INT(ask(m, 4, NULL), -EINVAL);
	CHECK_INT(ask(spawn_ok, 3, NULL), -EINVAL);
	CHECK_INT(ask((struct priv_msg){.op = PRIV_KILL, .slot = 3}, 0, NULL), -ENOENT);
	CHECK_INT(ask((struct priv_msg){.op = PRIV_HELLO}, 1, NULL), -EINVAL);
	CHECK_INT(spawned, 0);
	CHECK(S.refused > 40);
}

static void short_and_long_messages_are_refused(void)
{
	static uint8_t big[sizeof(struct priv_msg) + PRIV_TEXT_MAX + 3];
	struct priv_msg out, m = {.magic = PRIV_MAGIC, .version = PRIV_VERSION, .op = PRIV_HELLO};
	int fd;

	REQUIRE(set_up());
	memcpy(big, &m, sizeof(m));
	for (size_t n = 0; n < sizeof(big); n++) {
		if (n == sizeof(struct priv_msg))
			continue;
		serve_request(&S, big, n, NULL, 0, &out, &fd);
		CHECK_INT(out.status, -EMSGSIZE);
	}
}

static void a_slot_is_used_once_and_freed_when_empty(void)
{
	struct priv_msg out;

	REQUIRE(set_up());
	CHECK_INT(ask(spawn_ok, 4, &out), 0);
	CHECK_INT(spawned, 1);
	CHECK_INT(watched, 1);
	CHECK_INT(out.uid, 500002);
	CHECK_INT(out.pid, getpid());
	CHECK_INT(out.start_time, process_start_time(getpid()));
	CHECK(out.start_time > 0);
	CHECK_INT(ask(spawn_ok, 4, NULL), -EBUSY);
	CHECK_INT(ask((struct priv_msg){.op = PRIV_FREE, .slot = 2}, 0, NULL), -EBUSY);
	CHECK_INT(ask((struct priv_msg){.op = PRIV_LIST, .slot = 0}, 0, &out), 0);
	CHECK_INT(out.slot, 2);
	CHECK_INT(ask((struct priv_msg){.op = PRIV_LIST, .slot = 3}, 0, NULL), -ENOENT);
	slot_ended(&T, 2, 9);
	CHECK_INT(ask((struct priv_msg){.op = PRIV_LIST, .slot = 0}, 0, &out), 0);
	CHECK_INT(out.pid, 0);
	CHECK_INT(out.wait_status, 9);
	CHECK_INT(faccessat(T.dir_fd, "s2", F_OK, 0), 0);
	CHECK_INT(ask((struct priv_msg){.op = PRIV_FREE, .slot = 2}, 0, NULL), 0);
	CHECK_INT(faccessat(T.dir_fd, "s2", F_OK, 0), -1);
	CHECK_INT(ask((struct priv_msg){.op = PRIV_FREE, .slot = 2}, 0, NULL), -ENOENT);
}

/* a job's files keep its user taken, whatever the daemon says */
static void a_user_is_not_used_again_while_it_owns_a_file(void)
{
	static const struct priv_msg give_back = {.op = PRIV_FREE, .slot = 3};
	struct priv_msg m = {.magic = PRIV_MAGIC,
				.version = PRIV_VERSION,
				.op = PRIV_SPAWN,
				.kind = PRIV_K_IMAGE_BUILD,
				.slot = 3},
			out;
	char stage[] = "/tmp/priv_serve-stage.XXXXXX";
	int fds[2] = {0, -1}, fd;

	REQUIRE(set_up() && mkdtemp(stage));
	fds[1] = open(stage, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	serve_request(&S, &m, sizeof(m), fds, 2, &out, &fd);
	CHECK_INT(out.status, 0);
	close_fd(&fd);
	close(openat(fds[1], "of-the-job", O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	slot_ended(&T, 3, 0);
	/* who runs this test stands for the job's user, which needs no root */
	T.s[3].uid = getuid();
	CHECK_INT(ask(give_back, 0, NULL), -EBUSY);
	serve_request(&S, &m, sizeof(m), fds, 2, &out, &fd);
	CHECK_INT(out.status, -EBUSY);
	CHECK_INT(unlinkat(fds[1], "of-the-job", 0), 0);
	CHECK_INT(rmdir(stage), 0);
	CHECK_INT(ask(give_back, 0, NULL), 0);
	CHECK_INT(T.s[3].stage_fd, 0);
	close(fds[1]);
}

static struct volume_ask volume_asked;

static int fake_volume(struct serve *s, const struct volume_ask *a, const struct priv_msg *m)
{
	volume_asked = *a;
	return 0;
}

/* -EINPROGRESS: it was taken, and the answer comes later. */
static int ask_volume(uint32_t op, uint32_t what, uint32_t flags, const char *text, size_t n)
{
	struct priv_msg m = {.magic = PRIV_MAGIC,
		.version = PRIV_VERSION,
		.op = op,
		.what = what,
		.flags = flags,
		.slot = 3};
	struct priv_msg out;
	uint8_t msg[sizeof(m) + 200];
	int fd;

	memcpy(msg, &m, sizeof(m));
	memcpy(msg + sizeof(m), text, n);
	if (serve_request(&S, msg, sizeof(m) + n, NULL, 0, &out, &fd))
		return out.status;
	return -EINPROGRESS;
}
#define TEXT(s) s, sizeof(s)

static void a_volume_is_named_by_a_plain_path(void)
{
	static const char *const bad[] = {
		"relative", "", "/a/../b", "/a/./b", "/a//b", "/a/", "/..", "//a"};
	const uint32_t op = PRIV_VOLUME;
	static char claim[34] = "0123456789abcdef0123456789abcdef";

	REQUIRE(set_up());
	S.volume = fake_volume;
	T.ids_base = 1000000;
	CHECK_INT(ask_volume(op, PRIV_V_HOST, PRIV_V_RO, TEXT("/srv/data\0sub/x")), -EINPROGRESS);
	CHECK_STR(volume_asked.path, "/srv/data");
	CHECK_STR(volume_asked.sub, "sub/x");
	CHECK_INT(volume_asked.slot_ids, 1000000 + 4 * 65536);
	CHECK_INT(ask_volume(op, PRIV_V_HOST, 0, TEXT("/srv/data\0")), -EINPROGRESS);
	CHECK_INT(ask_volume(op, PRIV_V_HOST, 0, TEXT("/\0")), -EINPROGRESS);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		char text[40];
		int n = snprintf(text, sizeof(text), "%s%c", bad[i], 0);

		CHECK_INT(ask_volume(op, PRIV_V_HOST, 0, text, (size_t)n + 1), -EINVAL);
	}
	CHECK_INT(ask_volume(op, PRIV_V_HOST, 0, TEXT("/a\0../b")), -EINVAL);
	CHECK_INT(ask_volume(op, PRIV_V_HOST, 0, TEXT("/a\0/b")), -EINVAL);
	/* bytes that are missing, or too many */
	CHECK_INT(ask_volume(op, PRIV_V_HOST, 0, "", 0), -EINVAL);
	CHECK_INT(ask_volume(op, PRIV_V_HOST, 0, "/a", 2), -EINVAL);
	CHECK_INT(ask_volume(op, PRIV_V_HOST, 0, "/a", 3), -EINVAL);
	CHECK_INT(ask_volume(op, PRIV_V_HOST, 0, "/a\0b", 4), -EINVAL);
	CHECK_INT(ask_volume(op, PRIV_V_HOST, 0, TEXT("/a\0b\0")), -EINVAL);
	CHECK_INT(ask_volume(op, PRIV_V_HOST, 64, TEXT("/a\0")), -EINVAL);
	CHECK_INT(ask_volume(op, 3, 0, TEXT("/a\0")), -EINVAL);
	/* claims */
	CHECK_INT(ask_volume(op, PRIV_V_CLAIM, 0, claim, 34), -EINPROGRESS);
	CHECK_INT(ask_volume(PRIV_VOLUME_REMOVE, PRIV_V_CLAIM, 0, claim, 34), -EINPROGRESS);
	claim[0] = '.';
	CHECK_INT(ask_volume(op, PRIV_V_CLAIM, 0, claim, 34), -EINVAL);
	CHECK_INT(ask_volume(op, PRIV_V_CLAIM, 0, TEXT("0123\0")), -EINVAL);
	/* only these requests have bytes behind them */
	CHECK_INT(ask_volume(PRIV_HELLO, 0, 0, TEXT("/a\0")), -EMSGSIZE);
}

static void users_of_kinds_never_meet(void)
{
	static const uint32_t apart[] = {
		PRIV_K_MONITOR, PRIV_K_NETWORK, PRIV_K_IMAGE_PULL, PRIV_K_BROKER};

	REQUIRE(set_up());
	for (size_t i = 1; i < ARRAY_LEN(apart); i++)
		CHECK_INT(
			slot_uid(&T, apart[i], 0), slot_uid(&T, apart[i - 1], T.uid_width - 1) + 1);
	/* a file server has 65,536 of them; the first are those of claims on disk, and no process's */
	T.ids_base = 2000000;
	CHECK_INT(slot_uid(&T, PRIV_K_FILES, 0), 2000000 + 65536);
	CHECK_INT(slot_uid(&T, PRIV_K_FILES, 7), 2000000 + 8 * 65536);
	CHECK_INT(slot_uid(&T, PRIV_K_IMAGE_BUILD, 3), slot_uid(&T, PRIV_K_IMAGE_PULL, 3));
}

/* One that a helper of protocol 1 wrote: its leaf has no group. */
static void a_new_helper_finds_what_an_older_one_started(void)
{
	struct {
		uint32_t magic, kind;
		int32_t pid;
		uint32_t uid;
		uint64_t start_time;
	} old = {0x31544c53u, 1, getpid(), 500006, process_start_time(getpid())};
	char folder[] = "/tmp/priv_serve-old.XXXXXX";
	struct slots again = {0};
	struct priv_limits none = {0};
	struct err e;
	int fd;

	REQUIRE(mkdtemp(folder) && slots_alloc(&again, 8, 500000, 4096) == 0);
	fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	close_fd(&fd);
	{
		char path[64];

		snprintf(path, sizeof(path), "%s/s6", folder);
		fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
		REQUIRE(fd >= 0 && write_full(fd, &old, sizeof(old)) == 0);
		close_fd(&fd);
		snprintf(path, sizeof(path), "%s/s7", folder);
		fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
		/* half a file: nobody can tell what was started */
		REQUIRE(fd >= 0 && write_full(fd, &old, 20) == 0);
		close_fd(&fd);
	}
	CHECK_INT(leases_add(&again.leases, "/dev/null/none", &none, &e), 0);
	CHECK_INT(slots_take_over(&again, folder, &e), 0);
	CHECK_INT(again.s[6].pid, getpid());
	CHECK(again.s[6].at.flat && again.s[6].at.group == 6);
	CHECK_INT(again.s[7].kind, 0);
	CHECK_INT(unlinkat(again.dir_fd, "s6", 0), 0);
	CHECK_INT(rmdir(folder), 0);
	close(again.s[6].pidfd);
	close(again.dir_fd);
	free(again.s);
}

/* A folder that cannot be read may hold files of the job's: its user stays taken. */
static void a_user_is_not_used_again_while_its_folder_cannot_be_read(void)
{
	int pipe_fds[2];

	REQUIRE(set_up() && pipe2(pipe_fds, O_CLOEXEC) == 0);
	T.s[3] = (struct slot){.kind = PRIV_K_IMAGE_PULL, .pidfd = -1, .told = true};
	/* stands for a folder on a file system that went away: it cannot be opened any more */
	T.s[3].stage_fd = pipe_fds[0];
	CHECK_INT(ask((struct priv_msg){.op = PRIV_FREE, .slot = 3}, 0, NULL), -EBUSY);
	T.s[3].stage_fd = 0;
	CHECK_INT(ask((struct priv_msg){.op = PRIV_FREE, .slot = 3}, 0, NULL), 0);
	close(pipe_fds[0]);
	close(pipe_fds[1]);
}

static void a_group_is_of_one_lease(void)
{
	struct priv_msg m = spawn_ok;
	struct priv_msg out;

	REQUIRE(set_up());
	m.slot = 4;
	m.group = 8; /* not below nslots */
	CHECK_INT(ask(m, 4, NULL), -EINVAL);
	m.group = 1;
	m.lease = 1; /* there is one: 0 */
	CHECK_INT(ask(m, 4, NULL), -EINVAL);
	T.leases.n = 2;
	T.leases.l[0].cgroup_fd = T.leases.l[1].cgroup_fd = -1;
	CHECK_INT(ask(m, 4, NULL), 0);
	m.slot = 5;
	m.lease = 0;
	CHECK_INT(ask(m, 4, NULL), -EXDEV);
	CHECK_INT(ask((struct priv_msg){.op = PRIV_LIST, .slot = 0}, 0, &out), 0);
	CHECK(out.slot == 4 && out.group == 1 && out.lease == 1);
	CHECK_INT(ask((struct priv_msg){.op = PRIV_GROUP_LIMITS, .group = 2}, 0, NULL), -ENOENT);
	CHECK_INT(ask((struct priv_msg){.op = PRIV_GROUP_KILL, .group = 8}, 0, NULL), -ENOENT);
	m = (struct priv_msg){.op = PRIV_GROUP_LIMITS, .group = 1, .limits = {.memory_max = 1}};
	CHECK_INT(ask(m, 0, NULL), -EINVAL);
	slot_ended(&T, 4, 0);
	CHECK_INT(ask((struct priv_msg){.op = PRIV_FREE, .slot = 4}, 0, NULL), 0);
	T.leases.n = 0;
}

static void leases_are_read_from_the_command_line(void)
{
	static const struct {
		const char *text, *path;
		uint64_t memory, cpu;
	} rows[] = {{"/sys/fs/cgroup/a", "/sys/fs/cgroup/a", 0, 0},
		{"/a,memory=4294967296,cpu=2500", "/a", 4294967296, 250000},
		{"/a,cpu=100", "/a", 0, 10000}, {"a", NULL, 0, 0}, {"", NULL, 0, 0},
		{"/a,memory=", NULL, 0, 0}, {"/a,memory=-1", NULL, 0, 0},
		{"/a,memory=4G", NULL, 0, 0}, {"/a,disk=1", NULL, 0, 0}};
	struct priv_limits l;
	char path[64];
	struct err e;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		int rc = lease_parse(rows[i].text, path, sizeof(path), &l, &e);

		CHECK_INT(rc, rows[i].path ? 0 : -EINVAL);
		if (rc < 0)
			continue;
		CHECK_STR(path, rows[i].path);
		CHECK_INT(l.memory_max, rows[i].memory);
		CHECK_INT(l.cpu_max_us, rows[i].cpu);
	}
}

static void only_files_of_jobs_are_adopted(void)
{
	REQUIRE(set_up());
	/* descriptor 0 of this process is not a regular file of a job's user, whoever runs the test
	 */
	CHECK_INT(ask((struct priv_msg){.op = PRIV_ADOPT}, 1, NULL), -EPERM);
	CHECK_INT(ask((struct priv_msg){.op = PRIV_ADOPT}, 0, NULL), -EINVAL);
}

static void put(int at, const char *name, const char *text)
{
	int fd = openat(at, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	CHECK_INT(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

static long long number(int at, const char *name)
{
	char text[32] = "";
	int fd = openat(at, name, O_RDONLY | O_CLOEXEC);

	CHECK(read(fd, text, sizeof(text) - 1) > 0);
	close(fd);
	return strtoll(text, NULL, 10);
}

/* Files in place of cgroupfs: what is written where, and what is refused. */
static void room_for_a_snapshot_is_taken_and_given_back(void)
{
	struct priv_msg m = spawn_ok,
			room = {.op = PRIV_ROOM, .slot = 2, .what = 1, .pid = getpid()};
	struct priv_msg out;
	pid_t child = fork();
	char path[64], procs[64];
	char cg[] = "/tmp/priv-room.XXXXXX";
	int leaf, group;

	if (child == 0) {
		pause();
		_exit(0);
	}
	REQUIRE(set_up() && mkdtemp(cg));
	T.leases.n = 1;
	T.leases.l[0].cgroup_fd = open(cg, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	mkdirat(T.leases.l[0].cgroup_fd, "g0", 0700);
	mkdirat(T.leases.l[0].cgroup_fd, "g0/s2", 0700);
	group = openat(T.leases.l[0].cgroup_fd, "g0", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	leaf = openat(T.leases.l[0].cgroup_fd, "g0/s2", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	REQUIRE(leaf >= 0);
	for (int i = 0; i < 2; i++) {
		put(i ? leaf : group, "memory.max", "300000000\n");
		put(i ? leaf : group, "memory.oom.group", "1\n");
		put(i ? leaf : group, "memory.stat", "anon 250000000\nfile 1\n");
		put(i ? leaf : group, "cpu.max", "");
		put(i ? leaf : group, "pids.max", "");
	}
	CHECK_INT(ask(m, 4, NULL), 0);
	CHECK_INT(ask(room, 0, NULL), -EINVAL); /* no ceiling */
	room.limits.memory_max = MIB(1024);
	room.what = 3;
	CHECK_INT(ask(room, 0, NULL), -EINVAL);
	room.what = 1;
	/* the slot has another process by now */
	room.pid++;
	CHECK_INT(ask(room, 0, NULL), -ENOENT);
	room.pid--;
	CHECK_INT(ask(room, 0, &out), 0);
	CHECK_INT(out.usage.memory_bytes, 250000000);
	for (int i = 0; i < 2; i++) {
		CHECK_INT(number(i ? leaf : group, "memory.max"), 550000000);
		CHECK_INT(number(i ? leaf : group, "memory.oom.group"), 0);
	}
	/* a second one does not raise it again */
	CHECK_INT(ask(room, 0, &out), 0);
	CHECK_INT(out.usage.memory_bytes, 250000000);
	CHECK_INT(number(leaf, "memory.max"), 550000000);
	/* nor does a limit of 0 lift it */
	CHECK_INT(ask((struct priv_msg){.op = PRIV_GROUP_LIMITS, .group = 0}, 0, NULL), 0);
	CHECK_INT(ask((struct priv_msg){.op = PRIV_LIMITS, .slot = 2}, 0, NULL), 0);
	CHECK_INT(number(leaf, "memory.max"), 550000000);
	CHECK_INT(number(group, "memory.max"), 550000000);
	put(leaf, "memory.oom.group", "0\n");
	put(group, "memory.oom.group", "0\n");
	/* the writer dies first: all of the leaf but the monitor */
	snprintf(procs, sizeof(procs), "%d\n%d\n", getpid(), child);
	put(leaf, "cgroup.procs", procs);
	room.what = 2;
	CHECK_INT(ask(room, 0, NULL), 0);
	snprintf(path, sizeof(path), "/proc/%d/oom_score_adj", child);
	CHECK_INT(number(AT_FDCWD, path), 1000);
	CHECK(number(AT_FDCWD, "/proc/self/oom_score_adj") < 1000);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	unlinkat(leaf, "cgroup.procs", 0);
	/* the copies are still there */
	put(leaf, "memory.stat", "anon 300000001\n");
	room.what = 0;
	room.limits.memory_max = out.usage.memory_bytes;
	CHECK_INT(ask(room, 0, NULL), -EBUSY);
	CHECK_INT(number(leaf, "memory.max"), 550000000);
	/* those of another process of the group, too */
	put(leaf, "memory.stat", "anon 250000000\n");
	put(group, "memory.stat", "anon 300000001\n");
	CHECK_INT(ask(room, 0, NULL), -EBUSY);
	CHECK_INT(number(leaf, "memory.max"), 550000000);
	CHECK_INT(number(leaf, "memory.oom.group"), 0);
	put(group, "memory.stat", "anon 260000000\n");
	CHECK_INT(ask(room, 0, NULL), 0);
	for (int i = 0; i < 2; i++) {
		CHECK_INT(number(i ? leaf : group, "memory.max"), 300000000);
		CHECK_INT(number(i ? leaf : group, "memory.oom.group"), 1);
	}
	/* never below nothing */
	room.limits.memory_max = MIB(300);
	CHECK_INT(ask(room, 0, NULL), -EINVAL);
	/* the ceiling holds */
	room.what = 1;
	room.limits.memory_max = MIB(32);
	CHECK_INT(ask(room, 0, &out), 0);
	CHECK_INT(out.usage.memory_bytes, MIB(32));
	for (int i = 0; i < 2; i++) {
		unlinkat(i ? group : leaf, "memory.max", 0);
		unlinkat(i ? group : leaf, "memory.stat", 0);
		unlinkat(i ? group : leaf, "cpu.max", 0);
		unlinkat(i ? group : leaf, "pids.max", 0);
		unlinkat(i ? group : leaf, "memory.oom.group", 0);
		unlinkat(T.leases.l[0].cgroup_fd, i ? "g0" : "g0/s2", AT_REMOVEDIR);
	}
	close(leaf);
	close(group);
	close(T.leases.l[0].cgroup_fd);
	T.leases.l[0].cgroup_fd = -1;
	CHECK_INT(rmdir(cg), 0);
	slot_ended(&T, 2, 0);
	CHECK_INT(slot_free(&T, 2), 0);
	T.leases.n = 0;
}

static void a_new_helper_finds_what_runs(void)
{
	struct slots *again = calloc(1, sizeof(*again));
	struct priv_limits none = {0};
	struct priv_msg m = spawn_ok;
	struct err e;

	REQUIRE(set_up() && again);
	m.group = 5;
	CHECK_INT(ask(m, 4, NULL), 0);
	/* without cgroups: a path that cannot be one */
	CHECK_INT(slots_alloc(again, 8, 500000, 4096), 0);
	CHECK_INT(leases_add(&again->leases, "/dev/null/none", &none, &e), 0);
	CHECK_INT(slots_take_over(again, dir, &e), 0);
	CHECK_INT(again->s[2].at.group, 5);
	CHECK_INT(again->s[2].pid, getpid());
	CHECK_INT(again->s[2].kind, PRIV_K_MONITOR);
	CHECK_INT(again->s[2].start_time, process_start_time(getpid()));
	close(again->s[2].pidfd);
	close(again->dir_fd);
	free(again->s);
	free(again);
	slot_ended(&T, 2, 0);
	CHECK_INT(slot_free(&T, 2), 0);
	CHECK_INT(rmdir(dir), 0);
	close(T.dir_fd);
}

static void text_is(int at, const char *name, const char *want)
{
	char text[200];
	int fd = openat(at, name, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

	text[MAX(n, 0)] = 0;
	CHECK_STR(text, want);
	close(fd);
}

/* What is written into a group's files; a plain folder stands for the group. */
static void io_limits_are_in_the_kernels_words(void)
{
	static const struct priv_limits some = {.io_bytes_max = MIB(5), .io_ops_max = 700};
	static const struct priv_limits none = {0}, heavy = {.io_weight = 900};
	char at[] = "/tmp/priv_serve-io.XXXXXX";
	int fd;

	REQUIRE(mkdtemp(at));
	fd = open(at, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	REQUIRE(fd >= 0);
	/* no such files: nothing to lift is fine, a limit that cannot hold is an error */
	CHECK_INT(cgroup_io_limits(fd, "8:0", &none), 0);
	CHECK_INT(cgroup_io_limits(fd, "8:0", &some), -ENOENT);
	close(openat(fd, "io.max", O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	close(openat(fd, "io.weight", O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	CHECK_INT(cgroup_io_limits(fd, "8:0", &some), 0);
	text_is(fd, "io.max", "8:0 rbps=5242880 wbps=5242880 riops=700 wiops=700");
	text_is(fd, "io.weight", "default 100");
	unlinkat(fd, "io.max", 0);
	close(openat(fd, "io.max", O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	CHECK_INT(cgroup_io_limits(fd, "8:0", &heavy), 0);
	text_is(fd, "io.max", "8:0 rbps=max wbps=max riops=max wiops=max");
	text_is(fd, "io.weight", "default 900");
	unlinkat(fd, "io.max", 0);
	unlinkat(fd, "io.weight", 0);
	close(openat(fd, "io.bfq.weight", O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	CHECK_INT(cgroup_io_limits(fd, "8:0", &heavy), 0);
	text_is(fd, "io.bfq.weight", "default 900");
	unlinkat(fd, "io.bfq.weight", 0);
	close(fd);
	CHECK_INT(rmdir(at), 0);
}

/* The controller's name among others in a lease's list. */
static void a_lease_says_whether_it_has_io(void)
{
	static const struct {
		const char *list;
		bool has;
	} lists[] = {{"cpu io memory pids\n", true}, {"io\n", true}, {"cpu memory io", true},
		{"cpu cpuio iox\n", false}, {"", false}};
	char at[] = "/tmp/priv_serve-io.XXXXXX";
	int fd, f;

	REQUIRE(mkdtemp(at));
	fd = open(at, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(!cgroup_has_io(fd));
	for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
		f = openat(fd, "cgroup.subtree_control", O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC,
			0600);
		CHECK_INT(write(f, lists[i].list, strlen(lists[i].list)), strlen(lists[i].list));
		close(f);
		CHECK_INT(cgroup_has_io(fd), lists[i].has);
	}
	unlinkat(fd, "cgroup.subtree_control", 0);
	close(fd);
	CHECK_INT(rmdir(at), 0);
}

/* A file of the daemon's in a folder of its own, opened. */
static int file_of_daemon(char *path)
{
	int fd = mkstemp(path);

	S.daemon_uid = getuid();
	return fd;
}

static int ask_quota(struct priv_msg m, const int *fds, size_t nfds, const char *text, size_t n)
{
	uint8_t all[sizeof(m) + 64];
	struct priv_msg out;
	int fd;

	m.op = PRIV_QUOTA;
	m.magic = PRIV_MAGIC;
	m.version = PRIV_VERSION;
	memcpy(all, &m, sizeof(m));
	memcpy(all + sizeof(m), text, n);
	serve_request(&S, all, sizeof(m) + n, fds, nfds, &out, &fd);
	CHECK_INT(fd, -1);
	return out.status;
}

/* The daemon may be taken over: it can give only its own files to projects, and only to those of sandboxes and claims. */
static void a_quota_is_for_the_daemons_files(void)
{
	static const char name[] = "0123456789abcdef0123456789abcdef";
	char path[] = "/tmp/priv_serve-quota.XXXXXX";
	int own, null = open("/dev/null", O_RDWR | O_CLOEXEC), fds[5];
	struct priv_msg ok = {.what = PRIV_Q_SANDBOX, .project = 1}, m = ok;

	REQUIRE(set_up());
	own = file_of_daemon(path);
	REQUIRE(own >= 0 && null >= 0);
	for (size_t i = 0; i < ARRAY_LEN(fds); i++)
		fds[i] = own;
	CHECK_INT(ask_quota(ok, fds, 0, "", 0), -EINVAL);
	CHECK_INT(ask_quota(ok, fds, 5, "", 0), -EINVAL);
	CHECK_INT(ask_quota(ok, fds, 1, "x", 2), -EINVAL);
	CHECK_INT(ask_quota(ok, &null, 1, "", 0), -EPERM);
	m.project = 0;
	CHECK_INT(ask_quota(m, fds, 1, "", 0), -EINVAL);
	m.project = PRIV_PROJECT_MAX + 1;
	CHECK_INT(ask_quota(m, fds, 1, "", 0), -EINVAL);
	m = ok;
	m.what = 3;
	CHECK_INT(ask_quota(m, fds, 1, "", 0), -EINVAL);
	m = ok;
	m.quota.bytes = UINT64_MAX;
	CHECK_INT(ask_quota(m, fds, 1, "", 0), -EINVAL);
	S.daemon_uid = getuid() + 1;
	CHECK_INT(ask_quota(ok, fds, 1, "", 0), -EPERM);
	m = ok;
	m.what = PRIV_Q_CLAIM;
	CHECK_INT(ask_quota(m, fds, 1, name, sizeof(name)), -EINVAL);
	CHECK_INT(ask_quota(m, NULL, 0, name, sizeof(name)), -ENOTDIR);
	CHECK_INT(ask_quota(m, NULL, 0, name, sizeof(name) - 1), -EINVAL);
	CHECK_INT(ask_quota(m, NULL, 0, "a\0b", 4), -EINVAL);
	S.daemon_uid = 777;
	close(null);
	close(own);
	unlink(path);
}

static const struct test tests[] = {
	{"what_is_not_in_the_table_is_refused", what_is_not_in_the_table_is_refused},
	{"short_and_long_messages_are_refused", short_and_long_messages_are_refused},
	{"a_slot_is_used_once_and_freed_when_empty", a_slot_is_used_once_and_freed_when_empty},
	{"a_user_is_not_used_again_while_it_owns_a_file",
		a_user_is_not_used_again_while_it_owns_a_file},
	{"a_volume_is_named_by_a_plain_path", a_volume_is_named_by_a_plain_path},
	{"users_of_kinds_never_meet", users_of_kinds_never_meet},
	{"a_new_helper_finds_what_an_older_one_started",
		a_new_helper_finds_what_an_older_one_started},
	{"a_user_is_not_used_again_while_its_folder_cannot_be_read",
		a_user_is_not_used_again_while_its_folder_cannot_be_read},
	{"a_group_is_of_one_lease", a_group_is_of_one_lease},
	{"leases_are_read_from_the_command_line", leases_are_read_from_the_command_line},
	{"only_files_of_jobs_are_adopted", only_files_of_jobs_are_adopted},
	{"room_for_a_snapshot_is_taken_and_given_back",
		room_for_a_snapshot_is_taken_and_given_back},
	{"io_limits_are_in_the_kernels_words", io_limits_are_in_the_kernels_words},
	{"a_lease_says_whether_it_has_io", a_lease_says_whether_it_has_io},
	{"a_quota_is_for_the_daemons_files", a_quota_is_for_the_daemons_files},
	{"a_new_helper_finds_what_runs", a_new_helper_finds_what_runs},
};
TEST_MAIN(tests)
