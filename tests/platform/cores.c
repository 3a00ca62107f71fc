/* SPDX-License-Identifier: Apache-2.0
 *
 * cores: --core-scheduling of mayfly-priv gives each jailed process a core-scheduling cookie of its own. The requests to the kernel are seen on every
 * host, by a seccomp listener. The cookies are read where the kernel has them: CONFIG_SCHED_CORE, and a processor whose cores have threads.
 * Needs root (77 = skipped). This program is in the place of mayfly-vmm, too.
 */
#include "lib/test.h"

#include <fcntl.h>
#include <poll.h>
#include <seccomp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "lib/fdpass.h"
#include "priv/spawn.h"

#ifndef PR_SCHED_CORE /* Linux 5.14 */
#define PR_SCHED_CORE        62
#define PR_SCHED_CORE_GET    0
#define PR_SCHED_CORE_CREATE 1
#endif

#define WAIT_MS 30000
#define NBOXES  2

static char dir[64];

/* ---- two jailed processes, by the helper's own function */

struct boxes {
	int bin_fd, ctl[NBOXES];
	pid_t pid[NBOXES];
};

/* In the place of mayfly-vmm: it says that it runs, and ends with its socket. */
static int be_jailed(void)
{
	char c = 'r';

	if (write(3, &c, 1) != 1)
		return 1;
	return read(3, &c, 1) == 0 ? 0 : 1;
}

static int boxes_start(struct boxes *b, bool core_scheduling)
{
	struct slots t = {.n = 8,
		.uid_base = 64400,
		.uid_width = 8,
		.daemon_pidfd = -1,
		.dir_fd = -1,
		.core_scheduling = core_scheduling};
	struct priv_msg m = {.op = PRIV_SPAWN, .kind = PRIV_K_MONITOR};
	char c;

	b->bin_fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	for (unsigned int i = 0; i < NBOXES; i++) {
		struct pollfd p = {.events = POLLIN};
		struct spawned out = {.pidfd = -1};
		int s[2];

		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s) < 0)
			return -errno;
		m.slot = i;
		b->pid[i] = spawn_jailed(&t, b->bin_fd, &m, (struct place){0}, &s[1], 1, &out);
		close(s[1]);
		b->ctl[i] = s[0];
		if (b->pid[i] < 0)
			return b->pid[i];
		close(out.pidfd);
		close(out.log_fd);
		p.fd = s[0];
		if (poll(&p, 1, WAIT_MS) != 1 || read(s[0], &c, 1) != 1)
			return -EIO;
	}
	return 0;
}

static void boxes_end(struct boxes *b)
{
	for (unsigned int i = 0; i < NBOXES; i++) {
		close_fd(&b->ctl[i]);
		if (b->pid[i] > 0)
			waitpid(b->pid[i], NULL, 0);
	}
	close_fd(&b->bin_fd);
}

/* ---- what the kernel is asked */

/* A child that starts the two while its parent hears of each prctl(PR_SCHED_CORE). */
static pid_t watched(bool core_scheduling, int *listener)
{
	scmp_filter_ctx f = seccomp_init(SCMP_ACT_ALLOW);
	struct boxes b = {.ctl = {-1, -1}, .bin_fd = -1};
	int s[2], rc, fd;
	size_t n = 1;
	pid_t pid;
	char c;

	if (!f || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s) < 0)
		return -1;
	pid = fork();
	if (pid == 0) {
		rc = seccomp_rule_add(f, SCMP_ACT_NOTIFY, SCMP_SYS(prctl), 1,
			SCMP_A0(SCMP_CMP_EQ, PR_SCHED_CORE));
		fd = rc == 0 && seccomp_load(f) == 0 ? seccomp_notify_fd(f) : -1;
		if (fd < 0 || fdpass_send(s[1], "f", 1, &fd, 1) < 0)
			_exit(3);
		close(fd); /* else no end of the listener would be seen */
		rc = boxes_start(&b, core_scheduling);
		boxes_end(&b);
		_exit(rc < 0 ? 4 : 0);
	}
	seccomp_release(f);
	close(s[1]);
	if (fdpass_recv(s[0], &c, 1, listener, &n) != 1 || n != 1)
		pid = -1;
	close(s[0]);
	return pid;
}

static void requests(bool core_scheduling, unsigned int want)
{
	struct seccomp_notif *req = NULL;
	struct seccomp_notif_resp *resp = NULL;
	unsigned int made = 0, other = 0;
	uint32_t last = 0;
	struct pollfd p = {.fd = -1, .events = POLLIN};
	pid_t pid = watched(core_scheduling, &p.fd);
	int st = -1;

	REQUIRE(pid > 0 && seccomp_notify_alloc(&req, &resp) == 0);
	/* until no process with this filter is left */
	while (poll(&p, 1, WAIT_MS) == 1 && p.revents & POLLIN) {
		memset(req, 0, sizeof(*req));
		if (seccomp_notify_receive(p.fd, req) < 0)
			continue; /* it has ended meanwhile */
		/* of the whole process, by the process itself */
		if (req->data.args[1] == PR_SCHED_CORE_CREATE && req->data.args[2] == 0 &&
			req->data.args[3] == 1 && req->pid != last)
			made++;
		else
			other++;
		last = req->pid;
		memset(resp, 0, sizeof(*resp));
		resp->id = req->id;
		resp->flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
		seccomp_notify_respond(p.fd, resp);
	}
	CHECK(p.revents & POLLHUP);
	CHECK(waitpid(pid, &st, 0) == pid && WIFEXITED(st) && WEXITSTATUS(st) == 0);
	CHECK_INT(made, want);
	CHECK_INT(other, 0);
	seccomp_notify_free(req, resp);
	close(p.fd);
}

static void each_process_asks_for_cores_of_its_own(void)
{
	requests(true, NBOXES);
}

static void nobody_asks_without_the_option(void)
{
	requests(false, 0);
}

/* ---- what the kernel gave */

/* 0, or -errno: ENODEV: no core has threads, EINVAL: no CONFIG_SCHED_CORE */
static int cookie_of(pid_t pid, unsigned long *cookie)
{
	return prctl(PR_SCHED_CORE, PR_SCHED_CORE_GET, pid, 0 /* PIDTYPE_PID */, cookie) < 0
		       ? -errno
		       : 0;
}

static void two_processes_have_two_cookies(void)
{
	struct boxes b = {.ctl = {-1, -1}, .bin_fd = -1};
	unsigned long mine = 1, of[NBOXES] = {0};

	if (cookie_of(0, &mine) < 0)
		return; /* main() says so */
	CHECK_INT(boxes_start(&b, true), 0);
	for (unsigned int i = 0; i < NBOXES; i++)
		CHECK_INT(cookie_of(b.pid[i], &of[i]), 0);
	CHECK(of[0] && of[1] && of[0] != of[1] && of[0] != mine && of[1] != mine);
	boxes_end(&b);
	CHECK_INT(boxes_start(&b, false), 0);
	for (unsigned int i = 0; i < NBOXES; i++) {
		CHECK_INT(cookie_of(b.pid[i], &of[i]), 0);
		CHECK(of[i] == mine);
	}
	boxes_end(&b);
}

/* ---- */

static bool copy_self(const char *to)
{
	_cleanup_close_ int in = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	_cleanup_close_ int out = open(to, O_CREAT | O_WRONLY | O_CLOEXEC, 0755);
	char buf[65536];
	ssize_t n = -1;

	while (in >= 0 && out >= 0 && (n = read(in, buf, sizeof(buf))) > 0)
		if (write(out, buf, (size_t)n) != n)
			return false;
	return n == 0;
}

static const struct test tests[] = {
	{"each_process_asks_for_cores_of_its_own", each_process_asks_for_cores_of_its_own},
	{"nobody_asks_without_the_option", nobody_asks_without_the_option},
	{"two_processes_have_two_cookies", two_processes_have_two_cookies},
};

int main(int argc, char **argv)
{
	const char *name = strrchr(argv[0], '/');
	unsigned long cookie;
	char path[96];
	int rc, err;

	if (!strcmp(name ? name + 1 : argv[0], "mayfly-vmm"))
		return be_jailed();
	snprintf(dir, sizeof(dir), "/tmp/cores.XXXXXX");
	if (geteuid() != 0 || !mkdtemp(dir)) {
		puts("root and a folder for the program are needed");
		return 77;
	}
	snprintf(path, sizeof(path), "%s/mayfly-vmm", dir);
	if (!copy_self(path)) {
		perror(path);
		return 1;
	}
	rc = test_main(argc, argv, tests, ARRAY_LEN(tests));
	unlink(path);
	rmdir(dir);
	err = cookie_of(0, &cookie);
	if (rc == 0 && err < 0) {
		printf("the requests are as they must be, no cookie was read: %s\n",
			err == -ENODEV ? "no core of this processor has threads"
				       : "this kernel has no core scheduling");
		return 77;
	}
	return rc;
}
