/* SPDX-License-Identifier: Apache-2.0
 *
 * helper_client.c: requests to mayfly-priv by id; or, without a helper, the few of them that a developer's machine needs, done here. mayflyd's
 * loop. The helper is trusted more than we are; its messages are checked all the same, for their size and version.
 */
#include "api/links/helper_client.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "api/links/process_log.h"
#include "lib/fdpass.h"
#include "lib/log.h"
#include "lib/procfs.h"

struct pcall {
	struct pcall *next;
	uint32_t id;
	privctl_fn fn;
	void *arg;
};

struct child {
	struct privctl *p;
	uint32_t slot, kind;
	int pid, pidfd;
	uint64_t start_time;
	struct watch *watch;
	struct child *next;
};

struct privctl {
	struct loop *loop;
	int sock;
	const char *bin_dir, *state_dir;
	struct watch *watch;
	privctl_exit_fn exited;
	void *arg;
	uint32_t next_id, nslots, host_flags;
	struct pcall *calls;
	struct child *children;
	struct process_logs *logs;
};

static void on_log(void *arg, const struct priv_msg *m, int fd)
{
	struct privctl *p = arg;

	if (m->status == 0 && fd >= 0)
		process_log_follow(p->logs, m->slot, fd);
	else
		close_fd(&fd);
}

/* Asks for the log pipe of a process. on_log() gets ENOENT if a helper of an older build started the process, without a pipe: such a
 * process writes to the log itself. */
static void log_ask(struct privctl *p, const struct priv_msg *started)
{
	struct priv_msg m = {.op = PRIV_LOG, .slot = started->slot};

	if (p->logs && started->status == 0 && started->pid > 0)
		privctl_call(p, &m, NULL, 0, on_log, p);
}

static void call_done(struct privctl *p, const struct priv_msg *m, int fd)
{
	if (m->op == PRIV_SPAWN)
		log_ask(p, m);
	for (struct pcall **at = &p->calls; *at; at = &(*at)->next) {
		struct pcall *c = *at;

		if (c->id != m->id)
			continue;
		*at = c->next;
		if (c->fn)
			c->fn(c->arg, m, fd);
		else if (fd >= 0)
			close(fd);
		free(c);
		return;
	}
	if (fd >= 0)
		close(fd);
}

/* One message if there is one: 1, 0 = none now, -errno. */
static int receive(struct privctl *p, struct priv_msg *m, int *fd)
{
	int fds[FDPASS_MAX];
	size_t nfds = ARRAY_LEN(fds);
	ssize_t n = fdpass_recv(p->sock, m, sizeof(*m), fds, &nfds);

	*fd = -1;
	if (n == -EAGAIN)
		return 0;
	if (n <= 0)
		return n ? (int)n : -EPIPE;
	for (size_t i = 1; i < nfds; i++)
		close(fds[i]);
	if (nfds)
		*fd = fds[0];
	return n == sizeof(*m) && m->magic == PRIV_MAGIC && m->version == PRIV_VERSION ? 1
										       : -EPROTO;
}

static void on_helper(void *arg, uint32_t events)
{
	struct privctl *p = arg;
	struct priv_msg m;
	int fd, rc;

	while ((rc = receive(p, &m, &fd)) > 0) {
		if (m.op == PRIV_EV_EXITED) {
			close_fd(&fd);
			p->exited(p->arg, &m);
		} else {
			call_done(p, &m, fd);
		}
	}
	if (rc < 0) {
		/* without the helper nothing can be started or ended. The next helper starts a daemon,
		 * which adopts what runs */
		log_error("mayfly-priv is gone: %s", strerror(-rc));
		loop_stop(p->loop, 3);
		watch_remove(p->watch);
		p->watch = NULL;
	}
}

struct privctl *privctl_create(struct loop *l, int sock, const char *bin_dir,
	privctl_exit_fn exited, void *arg, struct err *e)
{
	struct privctl *p = calloc(1, sizeof(*p));
	struct priv_msg hello = {.op = PRIV_HELLO}, reply;
	int fd = -1, rc;

	if (!p) {
		err_set(e, ENOMEM, "privctl");
		return NULL;
	}
	*p = (struct privctl){.loop = l,
		.sock = sock,
		.bin_dir = bin_dir,
		.exited = exited,
		.arg = arg,
		.next_id = 1,
		.nslots = 1024};
	if (sock < 0) {
		p->host_flags = PRIV_H_NO_IO | PRIV_H_NO_QUOTA;
		return p;
	}
	fd_set_nonblock(sock, true);
	rc = privctl_wait(p, &hello, &reply, &fd);
	if (rc < 0) {
		err_set(e, -rc, "mayfly-priv does not answer");
		free(p);
		return NULL;
	}
	p->nslots = reply.nslots;
	p->host_flags = reply.flags;
	p->watch = loop_watch(l, sock, EPOLLIN, on_helper, p);
	p->logs = process_logs_create(l);
	return p;
}

void privctl_destroy(struct privctl *p)
{
	if (!p)
		return;
	watch_remove(p->watch);
	process_logs_destroy(p->logs);
	while (p->calls) {
		struct pcall *c = p->calls;

		p->calls = c->next;
		free(c);
	}
	while (p->children) {
		struct child *c = p->children;

		p->children = c->next;
		watch_remove(c->watch);
		close_fd(&c->pidfd);
		free(c);
	}
	free(p);
}

bool privctl_is_direct(const struct privctl *p)
{
	return p->sock < 0;
}

uint32_t privctl_host_flags(const struct privctl *p)
{
	return p->host_flags;
}

uint32_t privctl_slots(const struct privctl *p)
{
	return p->nslots;
}

/* ---- direct: developer mode */

static void child_ended(void *arg, uint32_t events)
{
	struct child *c = arg, **at;
	struct privctl *p = c->p;
	struct priv_msg ev = {.op = PRIV_EV_EXITED,
		.slot = c->slot,
		.kind = c->kind,
		.pid = c->pid,
		.start_time = c->start_time};
	int status = -1;

	if (waitpid(c->pid, &status, WNOHANG) == c->pid)
		ev.wait_status = status;
	else
		ev.wait_status = -1;
	for (at = &p->children; *at != c; at = &(*at)->next)
		;
	*at = c->next;
	watch_remove(c->watch);
	close(c->pidfd);
	free(c);
	p->exited(p->arg, &ev);
}

static struct child *child_track(struct privctl *p, uint32_t slot, uint32_t kind, int pid)
{
	struct child *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	*c = (struct child){.p = p, .slot = slot, .kind = kind, .pid = pid};
	c->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	c->start_time = process_start_time(pid);
	if (c->pidfd >= 0)
		c->watch = loop_watch(p->loop, c->pidfd, EPOLLIN, child_ended, c);
	if (!c->watch) {
		close_fd(&c->pidfd);
		free(c);
		return NULL;
	}
	c->next = p->children;
	p->children = c;
	return c;
}

/* The options of mayfly-fs, as priv/spawn.c makes them, but for the jail. */
static void direct_volumes(const struct priv_msg *req, size_t nfds,
	char rules[PRIV_VOLUMES][PRIV_RULES_MAX], char **argv)
{
	int n = 0;

	argv[n++] = (char *)(uintptr_t) "mayfly-fs";
	if (req->what)
		argv[n++] = (char *)(uintptr_t) "--purge";
	for (size_t i = 0; i + 2 < nfds; i++) {
		priv_volume_rules(req, i, rules[i]);
		argv[n++] = (char *)(uintptr_t) "--volume";
		argv[n++] = rules[i];
	}
	argv[n] = NULL;
}

static int direct_spawn(struct privctl *p, const struct priv_msg *req, const int *fds, size_t nfds,
	struct priv_msg *out, int *out_fd)
{
	static const char *const programs[PRIV_K_COUNT] = {
		[PRIV_K_MONITOR] = "mayfly-vmm",
		[PRIV_K_NETWORK] = "mayfly-net",
		[PRIV_K_BROKER] = "mayfly-broker",
		[PRIV_K_FILES] = "mayfly-fs",
	};
	const char *name = req->kind < PRIV_K_COUNT ? programs[req->kind] : NULL;
	bool monitor = req->kind == PRIV_K_MONITOR;
	char prog[512];
	int high[PRIV_SPAWN_FDS], pid;
	char *files[4 + 2 * PRIV_SPAWN_FDS], rules[PRIV_VOLUMES][PRIV_RULES_MAX];
	struct child *c;

	if (!name || nfds > PRIV_SPAWN_FDS)
		return -EINVAL;
	snprintf(prog, sizeof(prog), "%s/%s", p->bin_dir, name);
	for (size_t i = 0; i < nfds; i++)
		high[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 64);
	pid = fork();
	if (pid == 0) {
		sigset_t none;

		setsid(); /* Ctrl-C in a terminal must end the daemon only */
		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		signal(SIGPIPE, SIG_DFL);
		for (size_t i = 0; i < nfds; i++)
			dup2(high[i], 3 + (int)i);
		syscall(SYS_close_range, 3 + nfds, ~0u, 0);
		if (req->kind == PRIV_K_FILES) {
			direct_volumes(req, nfds, rules, files);
			execv(prog, files);
		}
		execl(prog, name, monitor ? "--no-jail" : NULL, "--no-jail", NULL);
		_exit(127);
	}
	for (size_t i = 0; i < nfds; i++)
		close(high[i]);
	if (pid < 0)
		return -errno;
	c = child_track(p, req->slot, req->kind, pid);
	if (!c)
		return -ENOMEM;
	out->pid = pid;
	out->start_time = c->start_time;
	*out_fd = fcntl(c->pidfd, F_DUPFD_CLOEXEC, 3);
	return 0;
}

/* Finds a VM again after the daemon's restart, without a helper: by the process id and start time in its
 * record. */
static int direct_list(
	struct privctl *p, const struct priv_msg *req, struct priv_msg *out, int *out_fd)
{
	struct child *c;

	if (req->pid <= 0 || process_start_time(req->pid) != req->start_time || !req->start_time)
		return -ENOENT;
	c = child_track(p, req->slot, PRIV_K_MONITOR, req->pid);
	if (!c)
		return -ENOENT;
	out->pid = req->pid;
	out->start_time = req->start_time;
	*out_fd = fcntl(c->pidfd, F_DUPFD_CLOEXEC, 3);
	return 0;
}

static int direct_kill(struct privctl *p, uint32_t slot)
{
	for (struct child *c = p->children; c; c = c->next)
		if (c->slot == slot)
			return syscall(SYS_pidfd_send_signal, c->pidfd, SIGKILL, NULL, 0) < 0
				       ? -errno
				       : 0;
	return -ENOENT;
}

static int direct_call(struct privctl *p, const struct priv_msg *req, const int *fds, size_t nfds,
	struct priv_msg *out, int *out_fd)
{
	*out = *req;
	*out_fd = -1;
	switch ((enum priv_op)req->op) {
	case PRIV_SPAWN:
		return direct_spawn(p, req, fds, nfds, out, out_fd);
	case PRIV_KILL:
		return direct_kill(p, req->slot);
	case PRIV_GROUP_KILL:
		return direct_kill(p, req->group); /* a group's monitor has its number */
	case PRIV_OPEN:
		*out_fd = req->what == PRIV_F_KVM ? open("/dev/kvm", O_RDWR | O_CLOEXEC)
			  : req->what == PRIV_F_RESOLV
				  ? open("/etc/resolv.conf", O_RDONLY | O_CLOEXEC | O_NONBLOCK)
				  : -1;
		return *out_fd < 0 ? -errno : 0;
	case PRIV_LIST:
		return direct_list(p, req, out, out_fd);
	case PRIV_HELLO:
	case PRIV_LIMITS:
	case PRIV_GROUP_LIMITS:
	case PRIV_ROOM: /* no limit, so no room to make */
	case PRIV_FREE:
	case PRIV_ADOPT:
		return 0;
	case PRIV_VOLUME:
	case PRIV_VOLUME_REMOVE: /* privctl_volume() */
	case PRIV_USAGE:
	case PRIV_GROUP_USAGE:
	case PRIV_QUOTA:
	case PRIV_LOG: /* a developer's monitors write to the daemon's own log */
	case PRIV_EV_EXITED:
		break;
	}
	return -ENOSYS;
}

/* Sends a request whose answer goes to fn: 0 or -errno. */
static int call_send(struct privctl *p, const void *msg, size_t n, uint32_t id, const int *fds,
	size_t nfds, privctl_fn fn, void *arg)
{
	struct pcall *c = calloc(1, sizeof(*c));
	int rc;

	if (!c)
		return -ENOMEM;
	*c = (struct pcall){.id = id, .fn = fn, .arg = arg, .next = p->calls};
	/* the helper soon reads again, so a full socket lasts microseconds; waiting here keeps
	 * requests in order */
	while ((rc = fdpass_send(p->sock, msg, n, fds, nfds)) == -EAGAIN) {
		struct pollfd pf = {.fd = p->sock, .events = POLLOUT};

		if (poll(&pf, 1, 5000) <= 0)
			break;
	}
	if (rc < 0) {
		free(c);
		return rc;
	}
	p->calls = c;
	return 0;
}

int privctl_call(struct privctl *p, const struct priv_msg *req, const int *fds, size_t nfds,
	privctl_fn fn, void *arg)
{
	struct priv_msg m = *req;
	int rc;

	m.magic = PRIV_MAGIC;
	m.version = PRIV_VERSION;
	m.id = p->next_id++;
	if (p->sock < 0) {
		struct priv_msg out;
		int fd;

		out.status = 0;
		rc = direct_call(p, &m, fds, nfds, &out, &fd);
		out.status = rc;
		if (fn)
			fn(arg, &out, fd);
		else if (fd >= 0)
			close(fd);
		return 0;
	}
	return call_send(p, &m, sizeof(m), m.id, fds, nfds, fn, arg);
}

/* ---- volumes */

void privctl_state_dir(struct privctl *p, const char *dir)
{
	p->state_dir = dir;
}

/* A developer's volume: the folder itself, opened with this user's rights. */
static int direct_volume(struct privctl *p, const struct priv_msg *m, const char *path,
	const char *sub, struct priv_msg *out, int *fd)
{
	char at[PATH_MAX];
	struct stat st;

	if (m->what == PRIV_V_CLAIM) {
		snprintf(at, sizeof(at), "%s/volumes", p->state_dir);
		(void)!mkdir(at, 0700);
		snprintf(at, sizeof(at), "%s/volumes/%s", p->state_dir, path);
	} else {
		snprintf(at, sizeof(at), "%s", path);
	}
	if (m->op == PRIV_VOLUME_REMOVE)
		return rmdir(at) < 0 && errno != ENOENT ? -errno : 0;
	if (m->flags & PRIV_V_MAKE)
		(void)!mkdir(at, 0755);
	if (*sub) {
		size_t n = strlen(at);

		snprintf(at + n, sizeof(at) - n, "/%s", sub);
		if (m->flags & PRIV_V_MAKE)
			(void)!mkdir(at, 0755);
	}
	*fd = open(at, O_PATH | O_CLOEXEC);
	if (*fd < 0 || fstat(*fd, &st) < 0)
		return -errno;
	out->flags = S_ISDIR(st.st_mode) ? PRIV_V_FOLDER : 0;
	if (S_ISDIR(st.st_mode) || S_ISREG(st.st_mode))
		return 0;
	close_fd(fd);
	return -EMEDIUMTYPE;
}

int privctl_volume(struct privctl *p, const struct priv_msg *req, const char *path, const char *sub,
	const char *within, privctl_fn fn, void *arg)
{
	uint8_t msg[sizeof(struct priv_msg) + PRIV_TEXT_MAX];
	size_t a = strlen(path) + 1, b = strlen(sub) + 1, c = *within ? strlen(within) + 1 : 0;
	struct priv_msg m = *req;

	if (a + b + c > PRIV_TEXT_MAX)
		return -ENAMETOOLONG;
	m.magic = PRIV_MAGIC;
	m.version = PRIV_VERSION;
	m.id = p->next_id++;
	if (p->sock < 0) {
		struct priv_msg out = m;
		int fd = -1;

		out.status = direct_volume(p, &m, path, sub, &out, &fd);
		fn(arg, &out, fd);
		return 0;
	}
	memcpy(msg, &m, sizeof(m));
	memcpy(msg + sizeof(m), path, a);
	memcpy(msg + sizeof(m) + a, sub, b);
	memcpy(msg + sizeof(m) + a + b, within, c);
	return call_send(p, msg, sizeof(m) + a + b + c, m.id, NULL, 0, fn, arg);
}

int privctl_text(
	struct privctl *p, const struct priv_msg *req, const char *text, privctl_fn fn, void *arg)
{
	uint8_t msg[sizeof(struct priv_msg) + PRIV_TEXT_MAX];
	size_t n = strlen(text) + 1;
	struct priv_msg m = *req;

	if (n > PRIV_TEXT_MAX)
		return -ENAMETOOLONG;
	if (p->sock < 0)
		return -EOPNOTSUPP;
	m.magic = PRIV_MAGIC;
	m.version = PRIV_VERSION;
	m.id = p->next_id++;
	memcpy(msg, &m, sizeof(m));
	memcpy(msg + sizeof(m), text, n);
	return call_send(p, msg, sizeof(m) + n, m.id, NULL, 0, fn, arg);
}

int privctl_wait(struct privctl *p, const struct priv_msg *req, struct priv_msg *reply, int *fd)
{
	struct priv_msg m = *req;
	int rc;

	*fd = -1;
	m.magic = PRIV_MAGIC;
	m.version = PRIV_VERSION;
	m.id = p->next_id++;
	if (p->sock < 0)
		return direct_call(p, &m, NULL, 0, reply, fd);
	rc = fdpass_send(p->sock, &m, sizeof(m), NULL, 0);
	while (rc >= 0) {
		struct pollfd pf = {.fd = p->sock, .events = POLLIN};

		rc = receive(p, reply, fd);
		if (rc > 0 && reply->op == PRIV_EV_EXITED) {
			p->exited(p->arg, reply);
			continue;
		}
		if (rc > 0 && reply->id == m.id) {
			/* at the start a process is listed more than once: ask for its log once */
			if (m.op == PRIV_LIST && p->logs &&
				!process_log_is_followed(p->logs, reply->slot))
				log_ask(p, reply);
			return reply->status;
		}
		if (rc > 0) { /* of a request that somebody else waits for */
			call_done(p, reply, *fd);
			*fd = -1;
			continue;
		}
		if (rc == 0 && poll(&pf, 1, 5000) <= 0)
			rc = -ETIMEDOUT;
	}
	return rc;
}
