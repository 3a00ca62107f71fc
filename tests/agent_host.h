/* SPDX-License-Identifier: Apache-2.0
 *
 * agent_host.h: the host's side of a test of the agent. The agent runs as an ordinary child
 * process, first of its own user, mount, pid, UTS and network namespaces where that is allowed, and
 * listens on a Unix socket; the test talks blocking frames with it. With AGENT_VSOCK=PATH it is the
 * agent of a guest, behind the monitor's socket, instead: the same tests for the real thing.
 */
#pragma once

#include "lib/test.h"

#include <fcntl.h>
#include <poll.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "agent/agent.h"
#include "agent/frame.h"
#include "agent/isolate_conf.h"
#include "agent/session.h"
#include "lib/proto_vmm.h"

struct host {
	char dir[64], sock[100];
	pid_t pid;
	bool own_ns;
	bool guest; /* AGENT_VSOCK */
	bool with_cgroup,
		with_record; /* set before host_start(): use DIR/cg for cgroups; record to DIR/record */
	uint32_t next_id;
};

/* one answer or frame, terminated for printing */
struct got {
	struct agent_hdr h;
	uint8_t p[AGENT_FRAME_MAX + 1];
	struct cur c;
	int code; /* AGENT_ERR: errno */
	uint32_t step;
	char text[200];
};

static inline void host_put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd >= 0) {
		(void)!write(fd, text, strlen(text));
		close(fd);
	}
}

/* In a chroot "/" is no mount point, as it is in every guest: then the child gets a root that is one. */
static inline void host_root(const struct host *h)
{
	char root[80];
	struct statx st;

	if (statx(AT_FDCWD, "/", 0, STATX_BASIC_STATS, &st) < 0 ||
		(st.stx_attributes & STATX_ATTR_MOUNT_ROOT))
		return;
	snprintf(root, sizeof(root), "%s/root", h->dir);
	if (mkdir(root, 0755) < 0 || mount("/", root, NULL, MS_BIND | MS_REC, NULL) < 0 ||
		chroot(root) < 0 || chdir("/") < 0)
		fprintf(stderr, "a root that is a mount point: %s\n", strerror(errno));
}

/* The network namespace is new; no program is needed for it. */
static inline void host_loopback(void)
{
	struct ifreq r = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &r) < 0)
		fprintf(stderr, "loopback: %s\n", strerror(errno));
	close(fd);
}

static inline void host_child(struct host *h, int ready)
{
	struct agent_opts o = {.listen_path = h->sock,
		.run_dir = h->dir,
		.prod_ms = 20,
		.set_names = h->own_ns,
		.guarded = h->own_ns};
	char cgroup[80], rec[80], state[80];
	struct agent a;
	struct err e = {0};

	snprintf(cgroup, sizeof(cgroup), "%s/cg", h->dir);
	snprintf(rec, sizeof(rec), "%s/record", h->dir);
	snprintf(state, sizeof(state), "%s/state", h->dir);
	if (h->own_ns)
		o.state_dir = state;
	if (h->with_cgroup && mkdir(cgroup, 0755) == 0)
		o.cgroup_dir = cgroup;
	if (h->with_record)
		o.record_path = rec;

	if (h->own_ns) {
		host_root(h);
		host_loopback();
		mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
		mount("proc", "/proc", "proc", 0, NULL);
	}
	log_init("agent", 2, false);
	if (agent_init(&a, &o, &e) < 0) {
		fprintf(stderr, "%s\n", e.msg);
		_exit(1);
	}
	(void)!write(ready, h->own_ns ? "R" : "r", 1);
	agent_run(&a);
	agent_fini(&a);
	_exit(0);
}

/* Root needs no user namespace, and can then switch credentials; others get one in which they are
 * root. */
static inline bool host_unshare(void)
{
	int flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWNET | CLONE_NEWIPC;
	unsigned uid = geteuid(), gid = getegid();
	char map[64];

	if (unshare(uid ? flags | CLONE_NEWUSER : flags) < 0)
		return false;
	if (!uid)
		return true;
	host_put("/proc/self/setgroups", "deny");
	snprintf(map, sizeof(map), "0 %u 1\n", uid);
	host_put("/proc/self/uid_map", map);
	snprintf(map, sizeof(map), "0 %u 1\n", gid);
	host_put("/proc/self/gid_map", map);
	return true;
}

static inline bool host_start(struct host *h)
{
	int pi[2];
	char c = 0;

	*h = (struct host){.with_cgroup = h->with_cgroup, .with_record = h->with_record};
	if (getenv("AGENT_VSOCK")) {
		h->guest = h->own_ns = true;
		snprintf(h->sock, sizeof(h->sock), "%s", getenv("AGENT_VSOCK"));
		return true;
	}
	snprintf(h->dir, sizeof(h->dir), "/tmp/agent-test-XXXXXX");
	if (!mkdtemp(h->dir) || pipe2(pi, O_CLOEXEC) < 0)
		return false;
	chmod(h->dir, 0755);
	snprintf(h->sock, sizeof(h->sock), "%s/sock", h->dir);
	fflush(stdout);
	h->pid = fork();
	if (h->pid == 0) {
		pid_t inner;
		int st;

		close(pi[0]);
		h->own_ns = host_unshare();
		inner = h->own_ns ? fork() : 0;
		if (inner == 0)
			host_child(h, pi[1]);
		close(pi[1]);
		/* the namespace's first process answers for all of them */
		while (waitpid(inner, &st, 0) < 0 && errno == EINTR)
			;
		_exit(WIFEXITED(st) ? WEXITSTATUS(st) : 99);
	}
	close(pi[1]);
	(void)!read(pi[0], &c, 1);
	close(pi[0]);
	h->own_ns = c == 'R';
	return h->own_ns || c == 'r';
}

static inline int host_connect_as(struct host *h, enum agent_conn kind, uint32_t version)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	struct timeval t = {.tv_sec = 60};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct buf b;

	snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", h->sock);
	if (connect(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0) {
		close(fd);
		return -1;
	}
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
	if (h->guest) {
		struct vsock_open o = {.magic = VSOCK_OPEN_MAGIC, .port = VSOCK_PORT_AGENT};

		if (write_full(fd, &o, sizeof(o)) < 0 || read_full(fd, &o, sizeof(o)) < 0 ||
			o.status) {
			close(fd);
			return -1;
		}
	}
	buf_init(&b, 256);
	buf_u32(&b, AGENT_MAGIC);
	buf_u32(&b, version);
	buf_u32(&b, kind);
	{
		struct buf f;

		buf_init(&f, 256);
		frame_put(&f, AGENT_HELLO, 0, 1, b.p, b.len);
		(void)!write(fd, f.p, f.len);
		buf_fini(&f);
	}
	buf_fini(&b);
	return fd;
}

static inline int host_connect(struct host *h, enum agent_conn kind)
{
	return host_connect_as(h, kind, AGENT_VERSION);
}

/* The next frame; false at the end of the stream (or after 60 s). */
static inline bool host_recv(int fd, struct got *g)
{
	uint8_t head[12];

	memset(&g->h, 0, sizeof(g->h));
	g->code = 0;
	if (read_full(fd, head, sizeof(head)) < 0 || frame_header(head, &g->h) < 0)
		return false;
	if (read_full(fd, g->p, g->h.len) < 0)
		return false;
	g->p[g->h.len] = 0;
	g->c = cur_of(g->p, g->h.len);
	if (g->h.type == AGENT_ERR) {
		g->code = (int)cur_u32(&g->c);
		g->step = cur_u32(&g->c);
		cur_str(&g->c, g->text, sizeof(g->text));
	}
	return true;
}

/* Opens a stream and takes the greeting's answer. */
static inline int host_open(struct host *h, enum agent_conn kind, struct got *g)
{
	int fd = host_connect(h, kind);

	if (fd >= 0 && (!host_recv(fd, g) || g->h.type != AGENT_OK)) {
		close(fd);
		return -1;
	}
	return fd;
}

static inline void host_send(int fd, uint16_t type, uint32_t id, const struct buf *b)
{
	struct buf f;

	buf_init(&f, 2 * AGENT_FRAME_MAX);
	frame_put(&f, type, 0, id, b ? b->p : NULL, b ? b->len : 0);
	(void)!write_full(fd, f.p, f.len);
	buf_fini(&f);
}

/* One request on a CONTROL stream and its answer. b is emptied. */
static inline bool host_ask(struct host *h, int fd, uint16_t type, struct buf *b, struct got *g)
{
	uint32_t id = ++h->next_id;

	host_send(fd, type, id, b);
	if (b)
		buf_reset(b);
	do {
		if (!host_recv(fd, g))
			return false;
	} while (g->h.id != id);
	return g->h.type == AGENT_OK;
}

/* An AGENT_EXEC payload with the usual rest. */
static inline void host_exec_body(struct buf *b, const char *id, uint32_t flags, const char *cwd,
	uint64_t timeout_ms, const char *session, const char *const *argv, const char *const *env)
{
	uint32_t n = 0, e = 0;

	while (argv && argv[n])
		n++;
	while (env && env[e])
		e += 2;
	buf_str(b, id);
	buf_u32(b, flags);
	buf_u32(b, AGENT_NO_ID);
	buf_u32(b, AGENT_NO_ID);
	buf_str(b, "");
	buf_str(b, cwd);
	buf_u64(b, timeout_ms);
	buf_u16(b, 80);
	buf_u16(b, 24);
	buf_str(b, session);
	buf_u32(b, n);
	for (uint32_t i = 0; i < n; i++)
		buf_str(b, argv[i]);
	buf_u32(b, e / 2);
	for (uint32_t i = 0; env && i < e; i++)
		buf_str(b, env[i]);
	buf_u32(b, 0); /* limits */
}

/* What a command said and how it ended, from an EXEC stream on which AGENT_EXEC or AGENT_ATTACH was
 * sent. Acknowledges everything. */
struct ran {
	struct buf out, err;
	uint64_t off[2];
	uint32_t state, code;
	bool exited;
	struct got g;
};

static inline void ran_init(struct ran *r)
{
	memset(r, 0, sizeof(*r));
	buf_init(&r->out, 64u << 20);
	buf_init(&r->err, 64u << 20);
}

static inline void ran_fini(struct ran *r)
{
	buf_fini(&r->out);
	buf_fini(&r->err);
}

static inline void host_ack(int fd, const struct ran *r)
{
	struct buf b;

	buf_init(&b, 64);
	buf_u64(&b, r->off[0]);
	buf_u64(&b, r->off[1]);
	host_send(fd, AGENT_ACK, 0, &b);
	buf_fini(&b);
}

/* One frame of output; false at the end of the stream. */
static inline bool ran_step(struct ran *r, int fd, bool ack)
{
	if (!host_recv(fd, &r->g))
		return false;
	if (r->g.h.type == AGENT_OUT) {
		uint8_t s = cur_u8(&r->g.c);
		uint64_t off = cur_u64(&r->g.c);
		size_t n = cur_left(&r->g.c);
		int i = s == 2;

		/* nothing twice, nothing left out */
		CHECK_INT(off, r->off[i]);
		buf_put(i ? &r->err : &r->out, r->g.c.p, n);
		r->off[i] = off + n;
		if (ack)
			host_ack(fd, r);
	} else if (r->g.h.type == AGENT_EXIT) {
		r->state = cur_u32(&r->g.c);
		r->code = cur_u32(&r->g.c);
		r->exited = true;
	}
	return true;
}

static inline bool ran_wait(struct ran *r, int fd)
{
	while (!r->exited && ran_step(r, fd, true))
		;
	return r->exited;
}

/* An identity with good random bytes, ids and no clock; k NULL: no environment. */
static inline void host_put_identity(
	struct buf *b, uint64_t generation, const char *name, const char *k, const char *v)
{
	char entropy[65];

	memset(entropy, 'e', 64);
	entropy[64] = 0;
	buf_u64(b, generation);
	buf_str(b, entropy);
	buf_u64(b, 0);
	buf_str(b, name);
	buf_str(b, "0123456789abcdef0123456789abcdef");
	buf_str(b, "01234567-89ab-cdef-0123-456789abcdef");
	buf_u32(b, k ? 1 : 0);
	if (k) {
		buf_str(b, k);
		buf_str(b, v);
	}
	buf_str(b, "");
}

/* AGENT_STATUS until it has ended: its state. */
static inline uint32_t host_wait_state(
	struct host *h, int ctl, const char *id, uint32_t *code, struct got *g)
{
	uint32_t state = AGENT_RUNNING;
	struct buf b;

	buf_init(&b, 256);
	for (int i = 0; i < 4000 && state == AGENT_RUNNING; i++) {
		buf_reset(&b);
		buf_str(&b, id);
		if (host_ask(h, ctl, AGENT_STATUS, &b, g)) {
			state = cur_u32(&g->c);
			*code = cur_u32(&g->c);
		}
		poll(NULL, 0, 5);
	}
	buf_fini(&b);
	return state;
}

/* One of the agent's own counters; UINT64_MAX: there is none of that name. */
static inline uint64_t host_self(struct host *h, int ctl, const char *name, struct got *g)
{
	uint32_t n;

	if (!host_ask(h, ctl, AGENT_SELF, NULL, g))
		return UINT64_MAX;
	n = cur_u32(&g->c);
	for (uint32_t i = 0; i < n; i++) {
		char k[64];
		uint64_t v;

		cur_str(&g->c, k, sizeof(k));
		v = cur_u64(&g->c);
		if (!strcmp(k, name))
			return v;
	}
	return UINT64_MAX;
}

/* Stops the agent; true if it ended by itself with status 0. */
static inline bool host_stop(struct host *h)
{
	struct buf b;
	struct got *g;
	int fd, st = 0;
	char cmd[200];

	if (h->guest)
		return true;
	g = malloc(sizeof(*g));
	fd = host_open(h, AGENT_CONN_CONTROL, g);
	buf_init(&b, 64);
	buf_u32(&b, 0);
	if (fd >= 0)
		host_ask(h, fd, AGENT_SHUTDOWN, &b, g);
	else
		kill(h->pid, SIGKILL);
	buf_fini(&b);
	waitpid(h->pid, &st, 0);
	if (fd >= 0)
		close(fd);
	free(g);
	snprintf(cmd, sizeof(cmd), "rm -rf %s", h->dir);
	(void)!system(cmd);
	return WIFEXITED(st) && WEXITSTATUS(st) == 0;
}

/* The first and the last test of most files: an agent, and one control connection to it. */
static inline int host_begin(struct host *h, struct got *g)
{
	return host_start(h) ? host_open(h, AGENT_CONN_CONTROL, g) : -1;
}

static inline bool host_end(struct host *h, int ctl)
{
	close(ctl);
	return host_stop(h);
}

/* The agent starts /proc/self/exe for what shell and isolated sessions need. Here that is the test program. */
#define AGENT_TEST_MAIN(table)                                                                     \
	int main(int argc, char **argv)                                                            \
	{                                                                                          \
		if (argc == 3 && !strcmp(argv[1], "--dump-env"))                                   \
			return session_helper(argv[2]);                                            \
		if (argc == 2 && !strcmp(argv[1], "--isolate"))                                    \
			return isolate_main();                                                     \
		signal(SIGPIPE, SIG_IGN);                                                          \
		return test_main(argc, argv, table, ARRAY_LEN(table));                             \
	}
