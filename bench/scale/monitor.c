/* SPDX-License-Identifier: Apache-2.0
 *
 * monitor.c: a monitor without a machine, small enough to run four thousand times, for measuring the
 * daemon. It answers the control protocol and the agent's on the descriptors that a daemon gives its
 * mayfly-vmm, and does nothing. It uses none of the tree's headers: the same program serves daemons
 * of other commits. Everything from the daemon is believed; this is for the bench only.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { CTL = 3, VSOCK = 4, CONNS = 64 };
/* control: requests and events */
enum {
	PREPARE = 2,
	BOOT = 3,
	RESTORE = 4,
	SHUTDOWN = 8,
	WORKSET = 10,
	REPLY = 0x8000,
	GUEST_CONN = 0x4006
};
/* agent */
enum {
	HELLO = 1,
	OK = 2,
	READY = 20,
	EXEC = 30,
	ATTACH = 31,
	ACK = 32,
	DETACH = 34,
	OUT = 50,
	EXIT = 51,
	DIAL_ACCEPT = 92
};

struct control {
	uint32_t magic;
	uint16_t version, type;
	uint32_t id, len;
	int32_t status;
	uint32_t nfds;
};

struct frame {
	uint32_t len;
	uint16_t type, flags;
	uint32_t id;
};

struct conn {
	int fd;
	int greeted; /* an agent stream: its first 12 bytes name the port */
	size_t n;
	uint8_t *in;
};

#define IN_BYTES 65536u
static struct pollfd polled[2 + CONNS];
static struct conn conns[CONNS];
static int control_fd = -1, ready_fd = -1;

static void put(int fd, const void *p, size_t n)
{
	const uint8_t *at = p;

	while (n > 0) {
		ssize_t k = send(fd, at, n, MSG_NOSIGNAL);

		if (k < 0 && errno == EINTR)
			continue;
		if (k <= 0)
			return;
		at += k;
		n -= (size_t)k;
	}
}

/* ---- control */

static void control_send(struct control h, const void *body, uint32_t n, int fd)
{
	struct iovec iov[2] = {{&h, sizeof(h)}, {(void *)(uintptr_t)body, n}};
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} u = {{0}};
	struct msghdr m = {.msg_iov = iov, .msg_iovlen = n ? 2 : 1};

	h.len = n;
	h.nfds = fd >= 0;
	if (fd >= 0) {
		m.msg_control = u.bytes;
		m.msg_controllen = sizeof(u.bytes);
		CMSG_FIRSTHDR(&m)->cmsg_level = SOL_SOCKET;
		CMSG_FIRSTHDR(&m)->cmsg_type = SCM_RIGHTS;
		CMSG_FIRSTHDR(&m)->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), &fd, sizeof(fd));
	}
	sendmsg(control_fd, &m, MSG_NOSIGNAL);
}

/* Announces the guest's agent: a stream from the guest with a ready message. */
static void agent_ready(const struct control *as)
{
	struct {
		struct frame f;
		uint32_t magic, version;
		uint64_t generation;
		uint32_t prepared;
	} __attribute__((packed)) hello = {{20, READY, 0, 0}, 0x3147414d, 1, 1, 0};
	uint32_t ports[2] = {1023, 1};
	struct control h = {.magic = as->magic, .version = as->version, .type = GUEST_CONN};
	int sv[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv) < 0)
		return;
	put(sv[0], &hello, sizeof(hello));
	control_send(h, ports, sizeof(ports), sv[1]);
	close(sv[1]);
	close(ready_fd);
	ready_fd = sv[0];
}

static void control_answer(const struct control *h)
{
	static const uint64_t numbers[2] = {1000, 60};
	struct control r = *h;
	uint32_t n = h->type == BOOT ? 8 : h->type == RESTORE ? 2 : h->type == WORKSET ? 16 : 0;
	uint16_t phases = 0;

	r.type |= REPLY;
	r.status = 0;
	control_send(r, h->type == RESTORE ? (const void *)&phases : numbers, n, -1);
	if (h->type == BOOT || h->type == RESTORE)
		agent_ready(h);
	if (h->type == SHUTDOWN)
		_exit(0);
}

/* false: the connection has ended */
static int control_read(int fd)
{
	static uint8_t buf[70000];
	union {
		char bytes[CMSG_SPACE(64 * sizeof(int))];
		struct cmsghdr align;
	} u;
	struct iovec iov = {buf, sizeof(buf)};
	struct msghdr m = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = u.bytes,
		.msg_controllen = sizeof(u.bytes)};
	ssize_t n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC);
	struct control h;

	if (n <= 0)
		return 0;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c))
		for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
			int got;

			memcpy(&got, CMSG_DATA(c) + i * sizeof(int), sizeof(got));
			close(got);
		}
	if ((size_t)n < sizeof(h))
		return 1;
	memcpy(&h, buf, sizeof(h));
	control_fd = fd;
	control_answer(&h);
	return 1;
}

/* ---- the agent */

static void reply(int fd, uint16_t type, uint32_t id, const void *body, uint32_t n)
{
	uint8_t out[64];
	struct frame f = {n, type, 0, id};

	memcpy(out, &f, sizeof(f));
	if (n)
		memcpy(out + sizeof(f), body, n);
	put(fd, out, sizeof(f) + n);
}

static void agent_answer(int fd, const struct frame *f, const uint8_t *body)
{
	static const uint8_t out[13] = {1, 0, 0, 0, 0, 0, 0, 0, 0, 'o', 'k', '!', '\n'};
	static const uint32_t ended[3] = {2, 0, 0}, pid = 4242, one = 1;
	uint32_t hello[3] = {1, 1, 0};

	switch (f->type) {
	case HELLO: /* whatever version is asked for */
		if (f->len >= 8)
			memcpy(hello, body + 4, 4);
		reply(fd, OK, f->id, hello, sizeof(hello));
		break;
	case EXEC:
		reply(fd, OK, f->id, &pid, sizeof(pid));
		reply(fd, OUT, 0, out, sizeof(out));
		reply(fd, EXIT, 0, ended, sizeof(ended));
		break;
	case ATTACH: /* the entrypoint, which runs for ever */
		reply(fd, OK, f->id, &one, sizeof(one));
		break;
	case ACK:
	case DETACH:
	case DIAL_ACCEPT: /* nobody in this guest calls */
		break;
	default:
		reply(fd, OK, f->id, NULL, 0);
	}
}

static int agent_read(struct conn *c)
{
	size_t at = 0;
	ssize_t n = recv(c->fd, c->in + c->n, IN_BYTES - c->n, 0);

	if (n <= 0)
		return 0;
	c->n += (size_t)n;
	if (!c->greeted && c->n >= 12) {
		memset(c->in + 8, 0, 4);
		put(c->fd, c->in, 12);
		c->greeted = 1;
		at = 12;
	}
	while (c->greeted && c->n - at >= sizeof(struct frame)) {
		struct frame f;

		memcpy(&f, c->in + at, sizeof(f));
		if (f.len > IN_BYTES - sizeof(f))
			return 0;
		if (c->n - at < sizeof(f) + f.len)
			break;
		agent_answer(c->fd, &f, c->in + at + sizeof(f));
		at += sizeof(f) + f.len;
	}
	memmove(c->in, c->in + at, c->n - at);
	c->n -= at;
	return 1;
}

/* ---- */

static void conn_add(int listener, int is_agent)
{
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

	for (int i = 0; i < CONNS && fd >= 0; i++) {
		if (polled[2 + i].fd >= 0)
			continue;
		conns[i] = (struct conn){.fd = fd, .in = is_agent ? malloc(IN_BYTES) : NULL};
		polled[2 + i] = (struct pollfd){.fd = fd, .events = POLLIN};
		if (!is_agent)
			control_fd = fd;
		return;
	}
	close(fd);
}

static void conn_end(int i)
{
	if (conns[i].fd == control_fd)
		control_fd = -1;
	close(conns[i].fd);
	free(conns[i].in);
	polled[2 + i].fd = -1;
}

/* Is there a file "stay" beside this program? A test that looks at monitors whose parent ended makes it. */
static int stays(void)
{
	char path[4096];
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 8);

	while (n > 0 && path[n - 1] != '/')
		n--;
	if (n <= 0)
		return 0;
	memcpy(path + n, "stay", 5);
	return access(path, F_OK) == 0;
}

int main(void)
{
	if (!stays())
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* a bench that is killed leaves nothing */
	polled[0] = (struct pollfd){.fd = CTL, .events = POLLIN};
	polled[1] = (struct pollfd){.fd = VSOCK, .events = POLLIN};
	for (int i = 0; i < CONNS; i++)
		polled[2 + i].fd = -1;
	for (;;) {
		if (poll(polled, 2 + CONNS, -1) < 0 && errno != EINTR)
			return 1;
		for (int i = 0; i < CONNS; i++) {
			struct conn *c = &conns[i];

			if (polled[2 + i].fd >= 0 && polled[2 + i].revents &&
				!(c->in ? agent_read(c) : control_read(c->fd)))
				conn_end(i);
		}
		if (polled[0].revents)
			conn_add(CTL, 0);
		if (polled[1].revents)
			conn_add(VSOCK, 1);
	}
}
