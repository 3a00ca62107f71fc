/* SPDX-License-Identifier: Apache-2.0
 *
 * priv: the real mayfly-priv with this program in the place of mayflyd, of mayfly-vmm and of mayfly-image (it looks at the name it was started with).
 * Kills the daemon, then the helper, and looks whether what ran goes on and is found again. Needs root (77 = skipped). Where the host
 * delegates cgroup controllers the limits are tried too. The control channel to the false daemon is a Unix socket in the test's folder.
 */
#include "lib/test.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "lib/fdpass.h"
#include "lib/proto_priv.h"
#include "priv/slots.h"

#define DAEMON_UID 64321
/* of this run's own: no helper starts with users that another one has */
#define UID_COUNT (PRIV_UID_RANGES * 4096)
#define UID_BASE  (400000u + UID_COUNT * ((unsigned int)getpid() % 1000))
/* 65,536 for each of 8 slots, and for claims. Above the eight ranges that helpers have by themselves, and those of platform/daemon. */
#define VOLUME_COUNT (65536u * 10)
#define VOLUME_BASE  (4132000000u + VOLUME_COUNT * 2 * (UID_BASE / UID_COUNT % 120))

static char dir[64];
static char cgroup[64]; /* of this test's own: another helper may run here */

/* ---- in the place of mayfly-vmm and mayfly-image: what it is told through its first descriptor */
static int be_jailed(int argc, char **argv)
{
	char c;
	long n = 0;

	while (read(3, &c, 1) == 1) {
		if (c == 'q')
			return 7;
		if (c == 'f') /* a fork bomb */
			for (n = 0; n < 500; n++) {
				pid_t p = fork();

				if (p < 0)
					break;
				if (p == 0)
					pause();
			}
		if (c == 'w') { /* a file of the jail's user in the staging folder */
			int fd = openat(4, "of-the-job", O_CREAT | O_WRONLY, 0600);
			uid_t uid = argc > 2 ? (uid_t)atoi(argv[2]) : 0;

			n = fd >= 0 && fchown(fd, uid, uid) == 0;
		}
		if (c == 'm') { /* 256 MiB, touched */
			char *m = mmap(NULL, MIB(256), PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

			for (size_t i = 0; i < MIB(256); i += 4096)
				m[i] = 1;
		}
		if (c == 'l') { /* more than a pipe holds, then what the test looks for */
			char line[512];

			memset(line, 'x', sizeof(line));
			line[sizeof(line) - 1] = '\n';
			for (n = 0; n < 1000 && write(2, line, sizeof(line)) > 0; n++)
				;
		}
		if (c == 'c') /* can the shared log be cut, or is it a pipe? */
			n = ftruncate(2, 0) < 0 && lseek(2, 0, SEEK_CUR) < 0 && errno == ESPIPE;
		if (write(3, &n, sizeof(n)) != sizeof(n))
			return 8;
	}
	pause();
	return 0;
}

/* ---- in the place of mayflyd: passes messages between the test and the helper */
static int be_daemon(const char *path)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	struct pollfd pf[2];

	signal(SIGHUP, SIG_IGN);
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	if (connect(s, (struct sockaddr *)&a, sizeof(a)) < 0)
		return 3;
	pf[0] = (struct pollfd){.fd = s, .events = POLLIN};
	pf[1] = (struct pollfd){.fd = PRIV_FD, .events = POLLIN};
	for (;;) {
		poll(pf, 2, -1);
		for (int i = 0; i < 2; i++) {
			char buf[512];
			int fds[FDPASS_MAX];
			size_t nfds = FDPASS_MAX;
			ssize_t n;

			if (!(pf[i].revents))
				continue;
			n = fdpass_recv(pf[i].fd, buf, sizeof(buf), fds, &nfds);
			if (n <= 0)
				return 4;
			fdpass_send(pf[1 - i].fd, buf, (size_t)n, fds, nfds);
			for (size_t k = 0; k < nfds; k++)
				close(fds[k]);
		}
	}
}

/* ---- the test */
static struct {
	int listen_fd, sock;
	pid_t priv, daemon;
	uint32_t id;
} G = {.sock = -1};

static pid_t peer_pid(int s)
{
	struct ucred c = {0};
	socklen_t n = sizeof(c);

	getsockopt(s, SOL_SOCKET, SO_PEERCRED, &c, &n);
	CHECK_INT(c.uid, DAEMON_UID);
	return c.pid;
}

static bool wait_daemon(void)
{
	struct pollfd p = {.fd = G.listen_fd, .events = POLLIN};

	close_fd(&G.sock);
	if (poll(&p, 1, 10000) != 1)
		return false;
	G.sock = accept4(G.listen_fd, NULL, NULL, SOCK_CLOEXEC);
	G.daemon = peer_pid(G.sock);
	return G.sock >= 0;
}

static pid_t run_priv(const char *bin, const char *run, const char *state, const char *uid,
	const char *base, const char *group, const char *sock)
{
	char path[512], volume_base[16], *slash;
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 40);
	pid_t p;

	/* no two helpers have the same: not those of this run, whose other users are then what is compared, nor those of another run */
	snprintf(volume_base, sizeof(volume_base), "%u",
		VOLUME_BASE + (strcmp(sock, "/nowhere") ? 0 : VOLUME_COUNT));
	p = fork();

	if (p)
		return p;
	path[n > 0 ? n : 0] = 0;
	/* build/platform/priv -> build/bin/mayfly-priv */
	slash = strrchr(path, '/');
	*slash = 0;
	slash = strrchr(path, '/');
	strncpy(slash, "/bin/mayfly-priv", 30);
	execl(path, "mayfly-priv", "--bin-dir", bin, "--run-dir", run, "--state-dir", state,
		"--user", uid, "--uid-base", base, "--volume-uid-base", volume_base, "--slots", "8",
		"--cgroup", group, "--", sock, NULL);
	_exit(127);
}

static void start_priv(void)
{
	char bin[80], run[80], state[80], sock[80], uid[16], base[16];

	snprintf(bin, sizeof(bin), "%s/bin", dir);
	snprintf(run, sizeof(run), "%s/run", dir);
	snprintf(state, sizeof(state), "%s/state", dir);
	snprintf(sock, sizeof(sock), "%s/run/sock", dir);
	snprintf(uid, sizeof(uid), "%d", DAEMON_UID);
	snprintf(base, sizeof(base), "%u", UID_BASE);
	cgroup[0] = 0; /* none to make on a host of the first cgroup version */
	if (access("/sys/fs/cgroup/cgroup.controllers", F_OK) == 0)
		snprintf(cgroup, sizeof(cgroup), "/sys/fs/cgroup/priv-test-%d", getpid());
	G.priv = run_priv(bin, run, state, uid, base, cgroup, sock);
}

static int next_msg(struct priv_msg *m, int *fd, int ms)
{
	struct pollfd p = {.fd = G.sock, .events = POLLIN};
	int fds[4];
	size_t nfds = 4;
	ssize_t n;

	*fd = -1;
	if (poll(&p, 1, ms) != 1)
		return -ETIMEDOUT;
	n = fdpass_recv(G.sock, m, sizeof(*m), fds, &nfds);
	if (n != sizeof(*m))
		return n < 0 ? (int)n : -EPIPE;
	if (nfds)
		*fd = fds[0];
	return 0;
}

static int ask(struct priv_msg m, const int *fds, size_t nfds, struct priv_msg *out, int *fd)
{
	struct priv_msg o = {0};
	int got, rc;

	m.magic = PRIV_MAGIC;
	m.version = PRIV_VERSION;
	m.id = ++G.id;
	if (fdpass_send(G.sock, &m, sizeof(m), fds, nfds) < 0)
		return -EPIPE;
	rc = next_msg(&o, &got, 10000);
	if (fd)
		*fd = got;
	else if (got >= 0)
		close(got);
	if (out)
		*out = o;
	return rc < 0 ? rc : o.id == m.id ? o.status : -EBADMSG;
}

/* stage: the folder of an image job, or -1 */
static int start_in(uint32_t kind, uint32_t slot, uint32_t group, struct priv_limits l, int stage,
	int *ctl, struct priv_msg *out)
{
	int s[2], null = open("/dev/null", O_RDONLY | O_CLOEXEC), rc;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s) < 0)
		return -errno;
	rc = ask(
		(struct priv_msg){
			.op = PRIV_SPAWN, .kind = kind, .slot = slot, .group = group, .limits = l},
		(int[]){s[1], stage >= 0 ? stage : null, null, null}, stage >= 0 ? 2 : 4, out,
		NULL);
	close(s[1]);
	close(null);
	*ctl = s[0];
	return rc;
}

static int start(uint32_t kind, uint32_t slot, struct priv_limits l, int stage, int *ctl,
	struct priv_msg *out)
{
	return start_in(kind, slot, 0, l, stage, ctl, out);
}

static int vmm_start(uint32_t slot, struct priv_limits l, int *ctl, struct priv_msg *out)
{
	return start(PRIV_K_MONITOR, slot, l, -1, ctl, out);
}

/* A folder of the daemon's, as only the daemon has it: through its own mounts. */
static int make_stage(char *path, size_t cap)
{
	char there[160];

	snprintf(path, cap, "%s/run/stage", dir);
	snprintf(there, sizeof(there), "/proc/%d/root%s", G.daemon, path);
	if (mkdir(path, 0777) < 0 || chmod(path, 0777) < 0)
		return -1;
	return open(there, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static int tell(int ctl, char what)
{
	long n = -1;

	return write(ctl, &what, 1) == 1 && read(ctl, &n, sizeof(n)) == sizeof(n) ? (int)n : -1;
}

static int status_field(pid_t pid, const char *key, char *to, size_t cap)
{
	char path[40], line[256];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	f = fopen(path, "r");
	*to = 0;
	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, key, strlen(key)))
			snprintf(to, cap, "%.*s", (int)strcspn(line + strlen(key) + 1, "\n"),
				line + strlen(key) + 1);
	if (f)
		fclose(f);
	return *to ? 0 : -1;
}

static bool begin(void)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	char path[512], to[80];
	static const char *const names[] = {"mayflyd", "mayfly-vmm", "mayfly-image"};
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);

	if (n < 0 || G.priv)
		return G.priv != 0;
	path[n] = 0;
	snprintf(dir, sizeof(dir), "/tmp/priv-test.XXXXXX");
	if (!mkdtemp(dir) || chmod(dir, 0755))
		return false;
	snprintf(to, sizeof(to), "%s/bin", dir);
	mkdir(to, 0755);
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		snprintf(to, sizeof(to), "%s/bin/%s", dir, names[i]);
		if (link(path, to) < 0) {
			/* another file system: a copy does as well */
			int in = open(path, O_RDONLY), out = open(to, O_CREAT | O_WRONLY, 0755);
			char buf[65536];
			ssize_t k;

			while ((k = read(in, buf, sizeof(buf))) > 0)
				if (write(out, buf, (size_t)k) != k)
					return false;
			close(in);
			close(out);
		}
	}
	/* in the run folder, of which the daemon sees more than of any other */
	snprintf(to, sizeof(to), "%s/run", dir);
	mkdir(to, 0755);
	snprintf(a.sun_path, sizeof(a.sun_path), "%s/run/sock", dir);
	G.listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (bind(G.listen_fd, (struct sockaddr *)&a, sizeof(a)) || chmod(a.sun_path, 0777) ||
		listen(G.listen_fd, 4))
		return false;
	start_priv();
	return wait_daemon();
}

/* the end of a process is known a moment before its cgroup is empty */
static void until_free(uint32_t slot)
{
	int rc = -EBUSY;

	for (int i = 0; rc == -EBUSY && i < 2000; i++) {
		rc = ask((struct priv_msg){.op = PRIV_FREE, .slot = slot}, NULL, 0, NULL, NULL);
		if (rc == -EBUSY)
			usleep(5000);
	}
	CHECK_INT(rc, 0);
}

static int ctl2;
static struct priv_msg vm2;

static void the_daemon_has_no_privilege(void)
{
	char v[100];
	struct priv_msg o;

	REQUIRE(begin());
	CHECK_INT(ask((struct priv_msg){.op = PRIV_HELLO}, NULL, 0, &o, NULL), 0);
	CHECK_INT(o.nslots, 8);
	CHECK_INT(o.uid, DAEMON_UID);
	static const char *const caps[] = {"CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"};

	for (size_t i = 0; i < ARRAY_LEN(caps); i++) {
		REQUIRE(status_field(G.daemon, caps[i], v, sizeof(v)) == 0);
		CHECK_STR(v, "0000000000000000");
	}
	REQUIRE(status_field(G.daemon, "NoNewPrivs:", v, sizeof(v)) == 0);
	CHECK_STR(v, "1");
	REQUIRE(status_field(G.daemon, "Groups:", v, sizeof(v)) == 0);
	CHECK_STR(v, " ");
}

/* its root is its own: nothing of the host but what it was shown */
static void the_daemon_sees_nothing_else_of_the_host(void)
{
	static const struct {
		const char *path;
		bool seen;
	} rows[] = {{"/etc/passwd", false}, {"/etc/shadow", false}, {"/root", false},
		{"/home", false}, {"/mnt", false}, {"/boot", false}, {"/dev/kvm", false},
		{"/usr", true}, {"/proc/self", true}};
	char path[96];
	struct stat host, its;

	REQUIRE(begin());
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		snprintf(path, sizeof(path), "/proc/%d/root%s", G.daemon, rows[i].path);
		CHECK_INT(access(path, F_OK) == 0, rows[i].seen);
	}
	snprintf(path, sizeof(path), "/proc/%d/root/", G.daemon);
	REQUIRE(stat("/", &host) == 0 && stat(path, &its) == 0);
	CHECK(host.st_dev != its.st_dev);
}

/* what a daemon that was taken over would send: each is refused, and the next good one is answered
 */
static void bad_requests_are_refused_one_by_one(void)
{
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC),
	    fds[] = {null, null, null, null, null, null, null, null}, ctl;
	struct priv_msg m = {.magic = PRIV_MAGIC, .version = PRIV_VERSION, .op = PRIV_HELLO}, o;
	const struct {
		struct priv_msg m;
		size_t nfds;
		int want;
	} rows[] = {
		{{.op = 77}, 0, -ENOSYS},
		{{.op = PRIV_EV_EXITED}, 0, -ENOSYS},
		{{.op = PRIV_SPAWN, .kind = PRIV_K_MONITOR, .slot = 8}, 4, -EINVAL},
		{{.op = PRIV_SPAWN, .kind = PRIV_K_MONITOR, .slot = UINT32_MAX}, 4, -EINVAL},
		{{.op = PRIV_SPAWN, .kind = 0, .slot = 4}, 4, -EINVAL},
		{{.op = PRIV_SPAWN, .kind = UINT32_MAX, .slot = 4}, 4, -EINVAL},
		{{.op = PRIV_SPAWN, .kind = PRIV_K_MONITOR, .slot = 4}, 0, -EINVAL},
		{{.op = PRIV_SPAWN, .kind = PRIV_K_FILES, .slot = 4}, 2, -EINVAL},
		{{.op = PRIV_SPAWN, .kind = PRIV_K_FILES, .slot = 4, .what = 2}, 4, -EINVAL},
		{{.op = PRIV_VOLUME, .what = PRIV_V_HOST, .slot = 4}, 0, -EINVAL},
		{{.op = PRIV_SPAWN, .kind = PRIV_K_MONITOR, .slot = 4, .limits = {.memory_max = 1}},
			4, -EINVAL},
		{{.op = PRIV_SPAWN,
			 .kind = PRIV_K_MONITOR,
			 .slot = 4,
			 .limits = {.cpu_max_us = UINT64_MAX}},
			4, -EINVAL},
		{{.op = PRIV_SPAWN,
			 .kind = PRIV_K_MONITOR,
			 .slot = 4,
			 .limits = {.pids_max = 100000}},
			4, -EINVAL},
		{{.op = PRIV_SPAWN, .kind = PRIV_K_MONITOR, .slot = 5}, 4, -EBUSY}, /* twice */
		{{.op = PRIV_FREE, .slot = 5}, 0, -EBUSY},  /* while it runs */
		{{.op = PRIV_KILL, .slot = 6}, 0, -ENOENT}, /* nobody's */
		{{.op = PRIV_FREE, .slot = 6}, 0, -ENOENT},
		{{.op = PRIV_USAGE, .slot = 4000}, 0, -EINVAL},
		{{.op = PRIV_LIMITS, .slot = 6}, 0, -ENOENT},
		{{.op = PRIV_OPEN, .what = 99}, 0, -EINVAL},
		/* a descriptor that it does not take */
		{{.op = PRIV_OPEN, .what = PRIV_F_KVM}, 1, -EINVAL},
		/* /dev/null is no file of a job's */
		{{.op = PRIV_ADOPT}, 1, -EPERM},
		{{.op = PRIV_ADOPT}, 2, -EINVAL},
	};
	int got;

	REQUIRE(begin());
	REQUIRE(vmm_start(5, (struct priv_limits){0}, &ctl, &o) == 0);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		CHECK_INT(ask(rows[i].m, fds, rows[i].nfds, NULL, NULL), rows[i].want);
	/* halves, and more than one */
	for (size_t n = 1; n < sizeof(m); n += 41) {
		REQUIRE(fdpass_send(G.sock, &m, n, NULL, 0) >= 0 && next_msg(&o, &got, 10000) == 0);
		CHECK_INT(o.status, -EMSGSIZE);
	}
	m.version = PRIV_VERSION + 1;
	REQUIRE(fdpass_send(G.sock, &m, sizeof(m), NULL, 0) >= 0 && next_msg(&o, &got, 10000) == 0);
	CHECK_INT(o.status, -EPROTO);
	/* a flood, answered one by one: nothing is kept for who does not read */
	for (int i = 0; i < 1000; i++)
		CHECK_INT(ask((struct priv_msg){.op = (uint32_t)(1000 + i), .slot = (uint32_t)i},
				  NULL, 0, NULL, NULL),
			-ENOSYS);
	CHECK_INT(ask((struct priv_msg){.op = PRIV_HELLO}, NULL, 0, &o, NULL), 0);
	CHECK_INT(ask((struct priv_msg){.op = PRIV_KILL, .slot = 5}, NULL, 0, NULL, NULL), 0);
	REQUIRE(next_msg(&o, &got, 10000) == 0);
	CHECK_INT(o.op, PRIV_EV_EXITED);
	until_free(5);
	close(ctl);
	close(null);
}

static void a_process_is_started_ends_and_is_reported(void)
{
	struct priv_msg o = {0};
	int ctl, fd;

	REQUIRE(begin());
	CHECK_INT(vmm_start(1, (struct priv_limits){0}, &ctl, &o), 0);
	CHECK(o.pid > 0 && o.start_time > 0);
	CHECK_INT(o.uid, UID_BASE + 1);
	CHECK_INT(write(ctl, "q", 1), 1);
	REQUIRE(next_msg(&o, &fd, 10000) == 0);
	CHECK_INT(o.op, PRIV_EV_EXITED);
	CHECK_INT(o.slot, 1);
	CHECK(WIFEXITED(o.wait_status) && WEXITSTATUS(o.wait_status) == 7);
	until_free(1);
	close(ctl);
}

static void it_outlives_the_daemon(void)
{
	struct priv_msg o = {0};
	pid_t old = G.daemon;
	char answer[8];

	REQUIRE(begin());
	REQUIRE(vmm_start(2, (struct priv_limits){0}, &ctl2, &vm2) == 0);
	kill(old, SIGKILL);
	/* a reload when there is nobody to tell: the next one reads it anyway */
	for (int i = 0; i < 2000 && kill(old, 0) == 0; i++)
		usleep(1000);
	kill(G.priv, SIGHUP);
	REQUIRE(wait_daemon());
	CHECK(G.daemon != old);
	CHECK_INT(ask((struct priv_msg){.op = PRIV_LIST}, NULL, 0, &o, NULL), 0);
	CHECK_INT(o.slot, 2);
	CHECK_INT(o.pid, vm2.pid);
	CHECK_INT(o.start_time, vm2.start_time);
	CHECK_INT(write(ctl2, "x", 1), 1);
	CHECK_INT(read(ctl2, answer, sizeof(answer)), sizeof(long));
}

static void it_outlives_the_helper(void)
{
	struct priv_msg o = {0};
	char answer[8];
	int fd = -1;

	REQUIRE(vm2.pid > 0);
	kill(G.priv, SIGKILL);
	waitpid(G.priv, NULL, 0);
	start_priv();
	REQUIRE(wait_daemon());
	CHECK_INT(ask((struct priv_msg){.op = PRIV_LIST}, NULL, 0, &o, &fd), 0);
	CHECK_INT(o.pid, vm2.pid);
	CHECK(fd >= 0);
	CHECK_INT(write(ctl2, "x", 1), 1);
	CHECK_INT(read(ctl2, answer, sizeof(answer)), sizeof(long));
	CHECK_INT(ask((struct priv_msg){.op = PRIV_KILL, .slot = 2}, NULL, 0, NULL, NULL), 0);
	close(fd);
	REQUIRE(next_msg(&o, &fd, 10000) == 0);
	CHECK_INT(o.op, PRIV_EV_EXITED);
	CHECK_INT(o.slot, 2);
	CHECK_INT(o.wait_status, -1); /* the new helper is not its parent */
	until_free(2);
	close(ctl2);
}

/* No reader, a reader, a new daemon, a new helper: the process writes, and neither waits nor dies. */
static void its_log_is_a_pipe_of_its_own(void)
{
	static char text[1 << 17];
	struct priv_msg o;
	int ctl, log = -1;
	ssize_t n;

	REQUIRE(begin());
	REQUIRE(vmm_start(3, (struct priv_limits){0}, &ctl, &o) == 0);
	CHECK_INT(tell(ctl, 'c'), 1);
	n = tell(ctl, 'l'); /* nobody reads */
	CHECK(n > 100 && n < 1000);
	CHECK_INT(ask((struct priv_msg){.op = PRIV_LOG, .slot = 4}, NULL, 0, NULL, NULL), -ENOENT);
	REQUIRE(ask((struct priv_msg){.op = PRIV_LOG, .slot = 3}, NULL, 0, NULL, &log) == 0);
	CHECK_INT(read(log, text, sizeof(text)), n * 512);
	close(log);
	kill(G.priv, SIGKILL);
	waitpid(G.priv, NULL, 0);
	CHECK(tell(ctl, 'l') >= 0); /* nobody has the other end */
	start_priv();
	REQUIRE(wait_daemon());
	CHECK(tell(ctl, 'l') >= 0); /* the old daemon may have had it still, and then it was full */
	REQUIRE(ask((struct priv_msg){.op = PRIV_LOG, .slot = 3}, NULL, 0, NULL, &log) == 0);
	CHECK(read(log, text, sizeof(text)) > 512 * 100);
	close(log);
	CHECK_INT(ask((struct priv_msg){.op = PRIV_KILL, .slot = 3}, NULL, 0, NULL, NULL), 0);
	REQUIRE(next_msg(&o, &log, 10000) == 0 && o.op == PRIV_EV_EXITED);
	until_free(3);
	close(ctl);
}

static bool has_cgroups(void)
{
	struct priv_msg o;
	bool has = ask((struct priv_msg){.op = PRIV_HELLO}, NULL, 0, &o, NULL) == 0 &&
		   !(o.flags & PRIV_H_NO_CGROUP);

	if (!has)
		printf("(no cgroup controllers are delegated here: what needs them is not "
		       "tried)\n");
	return has;
}

static void group_of(pid_t pid, char *to, size_t cap)
{
	char path[40];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/cgroup", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? 0 : read(fd, to, cap - 1);
	to[n > 0 ? n : 0] = 0;
	close(fd);
}

/* Its kill of a slot would be the other's, too. */
static void a_second_helper_is_kept_out(void)
{
	struct slots *t = calloc(1, sizeof(*t));
	struct priv_limits none = {0};
	struct err e;

	REQUIRE(begin() && t);
	if (has_cgroups()) {
		CHECK_INT(leases_add(&t->leases, cgroup, &none, &e), -EWOULDBLOCK);
		CHECK(strstr(e.msg, "another mayfly-priv"));
	}
	free(t);
}

/* nor may a user be one's and the other's, whatever their groups and folders are */
static void a_second_helper_has_users_of_its_own(void)
{
	char bin[80], run[80], state[80], uid[16], base[16], group[80] = "";
	int st;

	REQUIRE(begin());
	snprintf(bin, sizeof(bin), "%s/bin", dir);
	snprintf(run, sizeof(run), "%s/run2", dir);
	snprintf(state, sizeof(state), "%s/state2", dir);
	snprintf(uid, sizeof(uid), "%d", DAEMON_UID);
	if (cgroup[0])
		snprintf(group, sizeof(group), "%s-2", cgroup);
	static const int apart[] = {0, 5, UID_COUNT - 1, 1 - (int)UID_COUNT};

	for (size_t i = 0; i < ARRAY_LEN(apart); i++) {
		snprintf(base, sizeof(base), "%u", UID_BASE + (unsigned int)apart[i]);
		waitpid(run_priv(bin, run, state, uid, base, group, "/nowhere"), &st, 0);
		CHECK(WIFEXITED(st) && WEXITSTATUS(st) == 1);
		CHECK(access(run, F_OK) < 0); /* before it made anything */
	}
}

/* A group that hands controllers down takes no process: a service manager could not start the next
 * helper in one that we had moved to. */
static void the_helper_stays_in_the_group_it_was_started_in(void)
{
	char its[512], ours[512], jail[64];

	REQUIRE(begin());
	if (!has_cgroups())
		return;
	group_of(G.priv, its, sizeof(its));
	group_of(getpid(), ours, sizeof(ours));
	snprintf(jail, sizeof(jail), "/priv-test-%d", getpid());
	CHECK_STR(its, ours);
	CHECK(!strstr(its, jail) && its[0]);
}

/* a process that got out of its parent's sight, but not out of its cgroup */
static void a_slot_is_taken_while_a_process_is_left(void)
{
	struct priv_msg o;
	char path[128], pid[16];
	pid_t left;
	int ctl, fd;

	REQUIRE(begin());
	if (!has_cgroups())
		return;
	REQUIRE(vmm_start(6, (struct priv_limits){0}, &ctl, &o) == 0);
	left = fork();
	if (left == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pause();
		_exit(0);
	}
	snprintf(path, sizeof(path), "%s/g0/s6/cgroup.procs", cgroup);
	snprintf(pid, sizeof(pid), "%d", left);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	REQUIRE(fd >= 0 && write(fd, pid, strlen(pid)) > 0);
	close(fd);
	CHECK_INT(write(ctl, "q", 1), 1);
	REQUIRE(next_msg(&o, &fd, 10000) == 0 && o.op == PRIV_EV_EXITED && o.slot == 6);
	for (int i = 0; i < 20; i++)
		CHECK_INT(ask((struct priv_msg){.op = PRIV_FREE, .slot = 6}, NULL, 0, NULL, NULL),
			-EBUSY);
	close(ctl);
	CHECK_INT(vmm_start(6, (struct priv_limits){0}, &ctl, NULL), -EBUSY);
	/* the daemon's way out: all of the group is killed */
	CHECK_INT(ask((struct priv_msg){.op = PRIV_KILL, .slot = 6}, NULL, 0, NULL, NULL), 0);
	CHECK_INT(waitpid(left, NULL, 0), left);
	until_free(6);
	close(ctl);
}

/* killed between the start of a process and the file that says so: the next helper has only the
 * group to know it by */
static void a_slot_is_taken_whose_start_nobody_wrote_down(void)
{
	struct priv_msg o;
	char path[80];
	int ctl, c2;

	REQUIRE(begin());
	if (!has_cgroups())
		return;
	REQUIRE(vmm_start(6, (struct priv_limits){0}, &ctl, &o) == 0);
	kill(G.priv, SIGKILL);
	waitpid(G.priv, NULL, 0);
	snprintf(path, sizeof(path), "%s/run-priv/s6", dir);
	CHECK_INT(unlink(path), 0);
	start_priv();
	REQUIRE(wait_daemon());
	CHECK_INT(vmm_start(6, (struct priv_limits){0}, &c2, NULL), -EBUSY);
	close(c2);
	CHECK_INT(ask((struct priv_msg){.op = PRIV_LIST}, NULL, 0, &o, NULL), 0);
	CHECK(o.slot == 6 && o.pid == 0);
	until_free(6);
	CHECK_INT(read(ctl, &o, sizeof(o)), 0); /* it is gone */
	close(ctl);
}

static void a_user_is_taken_while_a_file_of_its_is_left(void)
{
	struct priv_msg o;
	char path[128], file[160];
	int ctl, fd, stage;
	struct stat st;

	REQUIRE(begin());
	stage = make_stage(path, sizeof(path));
	REQUIRE(stage >= 0 &&
		start(PRIV_K_IMAGE_BUILD, 6, (struct priv_limits){0}, stage, &ctl, &o) == 0);
	CHECK_INT(tell(ctl, 'w'), 1);
	CHECK_INT(write(ctl, "q", 1), 1);
	REQUIRE(next_msg(&o, &fd, 10000) == 0 && o.op == PRIV_EV_EXITED && o.slot == 6);
	for (int i = 0; i < 20; i++)
		CHECK_INT(ask((struct priv_msg){.op = PRIV_FREE, .slot = 6}, NULL, 0, NULL, NULL),
			-EBUSY);
	close(ctl);
	CHECK_INT(start(PRIV_K_IMAGE_BUILD, 6, (struct priv_limits){0}, stage, &ctl, NULL), -EBUSY);
	close(ctl);
	/* taken over by the daemon it is no longer that user's */
	snprintf(file, sizeof(file), "%s/of-the-job", path);
	fd = open(file, O_RDONLY | O_CLOEXEC);
	REQUIRE(fd >= 0);
	CHECK_INT(ask((struct priv_msg){.op = PRIV_ADOPT}, &fd, 1, NULL, NULL), 0);
	CHECK(fstat(fd, &st) == 0 && st.st_uid == DAEMON_UID && (st.st_mode & 07777) == 0444);
	close(fd);
	until_free(6);
	CHECK_INT(unlink(file), 0);
	close(stage);
	CHECK_INT(rmdir(path), 0);
}

static int oom_score(pid_t pid)
{
	char path[48], text[16] = "";
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/oom_score_adj", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || read(fd, text, sizeof(text) - 1) <= 0)
		return 9999;
	close(fd);
	return atoi(text);
}

static void when_memory_ends_monitors_go_first_and_the_helper_last(void)
{
	struct priv_msg vmm, job, o;
	int c1, c2, fd, stage;
	char path[128];

	REQUIRE(begin());
	stage = make_stage(path, sizeof(path));
	REQUIRE(stage >= 0 && vmm_start(6, (struct priv_limits){0}, &c1, &vmm) == 0);
	REQUIRE(start(PRIV_K_IMAGE_PULL, 7, (struct priv_limits){0}, stage, &c2, &job) == 0);
	/* they answer: the score was set before the program began */
	CHECK_INT(tell(c1, 'x'), 0);
	CHECK_INT(tell(c2, 'x'), 0);
	CHECK(oom_score(vmm.pid) > oom_score(job.pid));
	CHECK(oom_score(job.pid) > oom_score(getpid()));
	if (oom_score(G.priv) == oom_score(getpid()))
		printf("(nobody may lower a score here: the daemon's and the helper's are not "
		       "tried)\n");
	else
		CHECK(oom_score(getpid()) > oom_score(G.daemon) &&
			oom_score(G.daemon) > oom_score(G.priv));
	for (uint32_t slot = 6; slot < 8; slot++) {
		CHECK_INT(
			ask((struct priv_msg){.op = PRIV_KILL, .slot = slot}, NULL, 0, NULL, NULL),
			0);
		REQUIRE(next_msg(&o, &fd, 10000) == 0);
		until_free(slot);
	}
	close(c1);
	close(c2);
	close(stage);
	CHECK_INT(rmdir(path), 0);
}

static void limits_hold(uint32_t kind, uint32_t slot, int stage)
{
	struct priv_msg o;
	int ctl, fd, n;

	REQUIRE(start(kind, slot, (struct priv_limits){.pids_max = 20, .memory_max = MIB(64)},
			stage, &ctl, &o) == 0);
	n = tell(ctl, 'f');
	CHECK(n > 0 && n < 20);
	CHECK_INT(ask((struct priv_msg){.op = PRIV_USAGE, .slot = slot}, NULL, 0, &o, NULL), 0);
	CHECK(o.usage.pids == 20 && o.usage.memory_bytes > 0);
	CHECK_INT(write(ctl, "m", 1), 1);
	REQUIRE(next_msg(&o, &fd, 20000) == 0);
	CHECK_INT(o.op, PRIV_EV_EXITED);
	CHECK(WIFSIGNALED(o.wait_status) && WTERMSIG(o.wait_status) == SIGKILL);
	CHECK(o.usage.oom_kills > 0);
	close(ctl);
}

static void limits_hold_for_each_kind(void)
{
	char path[128];
	int stage;

	REQUIRE(begin());
	if (!has_cgroups())
		return;
	stage = make_stage(path, sizeof(path));
	REQUIRE(stage >= 0);
	limits_hold(PRIV_K_IMAGE_BUILD, 6, stage);
	until_free(6);
	limits_hold(PRIV_K_MONITOR, 3, -1); /* its slot stays taken: the end must do without */
	close(stage);
	CHECK_INT(rmdir(path), 0);
}

/* A sandbox is one group: its limit and its kill are for all of its processes, its slots are freed one by one. */
static void a_group_is_limited_and_killed_as_one(void)
{
	static const struct priv_limits some = {.pids_max = 30, .memory_max = MIB(512)};
	struct priv_msg a, b, o;
	int c1, c2, fd;
	char group[160];

	REQUIRE(begin());
	if (!has_cgroups())
		return;
	REQUIRE(start_in(PRIV_K_MONITOR, 4, 4, some, -1, &c1, &a) == 0);
	REQUIRE(start_in(PRIV_K_MONITOR, 5, 4, some, -1, &c2, &b) == 0);
	snprintf(group, sizeof(group), "%s/g4", cgroup);
	CHECK_INT(access(group, F_OK), 0);
	CHECK_INT(ask((struct priv_msg){.op = PRIV_GROUP_LIMITS,
			      .group = 4,
			      .limits = {.pids_max = 10, .memory_max = MIB(64)}},
			  NULL, 0, NULL, NULL),
		0);
	/* the two together */
	CHECK(tell(c1, 'f') < 10);
	CHECK_INT(ask((struct priv_msg){.op = PRIV_GROUP_USAGE, .group = 4}, NULL, 0, &o, NULL), 0);
	CHECK_INT(o.usage.pids, 10);
	/* one of them exceeds the memory of the group: both end */
	CHECK_INT(write(c2, "m", 1), 1);
	for (int i = 0; i < 2; i++) {
		REQUIRE(next_msg(&o, &fd, 20000) == 0);
		CHECK_INT(o.op, PRIV_EV_EXITED);
		CHECK_INT(o.group, 4);
	}
	until_free(4);
	CHECK_INT(access(group, F_OK), 0);
	until_free(5);
	CHECK(access(group, F_OK) < 0);
	close(c1);
	close(c2);
	REQUIRE(start_in(PRIV_K_MONITOR, 4, 4, some, -1, &c1, &a) == 0);
	REQUIRE(start_in(PRIV_K_MONITOR, 5, 4, some, -1, &c2, &b) == 0);
	CHECK_INT(
		ask((struct priv_msg){.op = PRIV_GROUP_KILL, .group = 4}, NULL, 0, NULL, NULL), 0);
	for (int i = 0; i < 2; i++)
		REQUIRE(next_msg(&o, &fd, 10000) == 0);
	until_free(5);
	until_free(4);
	CHECK(access(group, F_OK) < 0);
	close(c1);
	close(c2);
}

static void the_end_leaves_nothing(void)
{
	char path[128];
	static const char *const files[] = {"bin/mayflyd", "bin/mayfly-vmm", "bin/mayfly-image",
		"bin", "run/sock", "run", "state/volumes", "state", "run-priv/lock", "run-priv/s3",
		"run-priv"};
	int st;

	REQUIRE(G.priv > 0);
	kill(G.priv, SIGTERM);
	CHECK_INT(waitpid(G.priv, &st, 0), G.priv);
	CHECK(WIFEXITED(st) && WEXITSTATUS(st) == 0);
	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		snprintf(path, sizeof(path), "%s/%s", dir, files[i]);
		if (remove(path) < 0 && i != 9)
			printf("%s: %s\n", path, strerror(errno));
	}
	CHECK_INT(rmdir(dir), 0);
	for (int slot = -1; cgroup[0] && slot < 8; slot++) {
		if (slot < 0)
			snprintf(path, sizeof(path), "%s/priv", cgroup);
		else
			snprintf(path, sizeof(path), "%s/g0/s%d", cgroup, slot);
		(void)!rmdir(path);
	}
	snprintf(path, sizeof(path), "%s/g0", cgroup);
	if (cgroup[0])
		(void)!rmdir(path);
	CHECK_INT(cgroup[0] ? rmdir(cgroup) : 0, 0);
}

static const struct test tests[] = {
	{"the_daemon_has_no_privilege", the_daemon_has_no_privilege},
	{"the_daemon_sees_nothing_else_of_the_host", the_daemon_sees_nothing_else_of_the_host},
	{"bad_requests_are_refused_one_by_one", bad_requests_are_refused_one_by_one},
	{"a_process_is_started_ends_and_is_reported", a_process_is_started_ends_and_is_reported},
	{"it_outlives_the_daemon", it_outlives_the_daemon},
	{"it_outlives_the_helper", it_outlives_the_helper},
	{"its_log_is_a_pipe_of_its_own", its_log_is_a_pipe_of_its_own},
	{"a_second_helper_is_kept_out", a_second_helper_is_kept_out},
	{"a_second_helper_has_users_of_its_own", a_second_helper_has_users_of_its_own},
	{"the_helper_stays_in_the_group_it_was_started_in",
		the_helper_stays_in_the_group_it_was_started_in},
	{"a_slot_is_taken_while_a_process_is_left", a_slot_is_taken_while_a_process_is_left},
	{"a_slot_is_taken_whose_start_nobody_wrote_down",
		a_slot_is_taken_whose_start_nobody_wrote_down},
	{"a_user_is_taken_while_a_file_of_its_is_left",
		a_user_is_taken_while_a_file_of_its_is_left},
	{"when_memory_ends_monitors_go_first_and_the_helper_last",
		when_memory_ends_monitors_go_first_and_the_helper_last},
	{"limits_hold_for_each_kind", limits_hold_for_each_kind},
	{"a_group_is_limited_and_killed_as_one", a_group_is_limited_and_killed_as_one},
	{"the_end_leaves_nothing", the_end_leaves_nothing},
};

int main(int argc, char **argv)
{
	if (!strcmp(argv[0], "mayflyd"))
		return be_daemon(argc > 1 ? argv[1] : "");
	if (!strcmp(argv[0], "mayfly-vmm") || !strcmp(argv[0], "mayfly-image"))
		return be_jailed(argc, argv);
	if (geteuid() != 0) {
		printf("needs root\n");
		return 77;
	}
	signal(SIGPIPE, SIG_IGN);
	return test_main(argc, argv, tests, ARRAY_LEN(tests));
}
