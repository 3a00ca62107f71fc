/* SPDX-License-Identifier: Apache-2.0
 *
 * monitor_client.c: requests to a VMM by id, its events, over one SOCK_SEQPACKET connection. mayflyd's
 * loop. What the VMM sends is hostile. Messages are whole; when the socket is full they wait here
 * with duplicates of their descriptors.
 */
#include "api/links/monitor_client.h"

#include <ctype.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "lib/fdpass.h"
#include "lib/log.h"

#define READ_BUDGET  16   /* messages in one turn of the loop */
#define DRAIN_BUDGET 1024 /* more than a socket's queue holds (net.unix.max_dgram_qlen) */

struct call {
	struct call *next;
	uint32_t id;
	uint16_t type;
	vmmctl_fn fn;
	void *arg;
};

struct waiting {
	struct waiting *next;
	size_t len, nfds;
	int fds[FDPASS_MAX];
	uint8_t msg[];
};

struct vmmctl {
	struct loop *loop;
	int fd;
	struct watch *watch;
	const struct vmmctl_ops *ops;
	void *arg;
	uint32_t next_id;
	struct call *calls;
	struct waiting *out, **out_end;
	bool reading,
		destroyed; /* destroyed by a callback while it is read: freed when that returns */
};

static void waiting_free(struct waiting *w)
{
	for (size_t i = 0; i < w->nfds; i++)
		close(w->fds[i]);
	free(w);
}

static void answer(struct vmmctl *v, struct call *c, int err, const char *text, struct cur body)
{
	struct vmm_answer a = {.err = err, .text = text, .body = body};

	if (c->fn)
		c->fn(c->arg, &a);
	free(c);
}

void vmmctl_destroy(struct vmmctl *v)
{
	if (!v)
		return;
	watch_remove(v->watch);
	v->watch = NULL;
	close_fd(&v->fd);
	while (v->calls) {
		struct call *c = v->calls;

		v->calls = c->next;
		answer(v, c, ECONNRESET, "the VMM's connection ended", cur_of("", 0));
	}
	while (v->out) {
		struct waiting *w = v->out;

		v->out = w->next;
		waiting_free(w);
	}
	v->destroyed = true;
	if (!v->reading)
		free(v);
}

static void nobody(void *arg, const struct vmm_answer *a)
{
}

void vmmctl_forget(struct vmmctl *v, const void *arg)
{
	for (struct call *c = v ? v->calls : NULL; c; c = c->next)
		if (c->arg == arg)
			c->fn = nobody;
}

static void lost(struct vmmctl *v)
{
	watch_remove(v->watch);
	v->watch = NULL;
	close_fd(&v->fd);
	v->ops->closed(v->arg);
}

static const char *printable(struct cur *body, char *to, size_t cap)
{
	size_t n = MIN((size_t)(body->end - body->p), cap - 1);

	/* the text may come as a string with its length before it, or bare */
	if (n >= 4) {
		struct cur c = *body;
		uint32_t len = cur_u32(&c);

		if (len == cur_left(&c)) {
			*body = c;
			n = MIN((size_t)len, cap - 1);
		}
	}
	for (size_t i = 0; i < n; i++)
		to[i] = isprint(body->p[i]) ? (char)body->p[i] : '?';
	to[n] = 0;
	return to;
}

static bool take_message(struct vmmctl *v, const uint8_t *msg, size_t n, int *fds, size_t nfds)
{
	struct vmm_hdr h;
	struct cur body;
	char text[400];

	if (n < sizeof(h))
		return false;
	memcpy(&h, msg, sizeof(h));
	if (h.magic != VMM_MAGIC || h.version != VMM_VERSION || h.len != n - sizeof(h) ||
		h.nfds != nfds)
		return false;
	body = cur_of(msg + sizeof(h), h.len);
	if (h.id == 0) {
		int fd = nfds ? take_fd(&fds[0]) : -1;

		v->ops->event(v->arg, h.type, &body, fd);
		return true;
	}
	for (struct call **at = &v->calls; *at; at = &(*at)->next) {
		struct call *c = *at;

		if (c->id != h.id)
			continue;
		if (h.type != (c->type | VMM_REPLY) || h.status > 0 || h.status < -4095)
			return false;
		*at = c->next;
		answer(v, c, -h.status, h.status ? printable(&body, text, sizeof(text)) : "", body);
		return true;
	}
	return false;
}

static void flush_out(struct vmmctl *v)
{
	while (v->out) {
		struct waiting *w = v->out;

		if (fdpass_send(v->fd, w->msg, w->len, w->fds, w->nfds) == -EAGAIN)
			break;
		v->out = w->next;
		if (!v->out)
			v->out_end = &v->out;
		waiting_free(w);
	}
	watch_events(v->watch, v->out ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

/* Reads one message. false: there was none, or the connection is closed. */
static bool read_message(struct vmmctl *v)
{
	static uint8_t msg[sizeof(struct vmm_hdr) + VMM_MSG_MAX];
	int fds[FDPASS_MAX];
	size_t nfds = ARRAY_LEN(fds);
	ssize_t n = fdpass_recv(v->fd, msg, sizeof(msg), fds, &nfds);
	bool ok;

	if (n == -EAGAIN)
		return false;
	ok = n > 0 && take_message(v, msg, (size_t)n, fds, nfds);
	for (size_t i = 0; n > 0 && i < nfds; i++)
		close_fd(&fds[i]);
	if (v->destroyed || ok)
		return !v->destroyed;
	if (n > 0)
		log_limited(LOG_WARN, "a VMM sent a message that is not in the protocol");
	lost(v);
	return false;
}

/* true: the connection is still there. */
static bool read_messages(struct vmmctl *v, int budget)
{
	bool there;

	v->reading = true;
	while (budget-- > 0 && read_message(v))
		;
	v->reading = false;
	there = !v->destroyed && v->fd >= 0;
	if (v->destroyed)
		free(v);
	return there;
}

static void on_socket(void *arg, uint32_t events)
{
	struct vmmctl *v = arg;

	if (read_messages(v, READ_BUDGET) && (events & EPOLLOUT))
		flush_out(v);
}

void vmmctl_drain(struct vmmctl *v)
{
	if (v && v->fd >= 0 && !v->reading)
		read_messages(v, DRAIN_BUDGET);
}

struct vmmctl *vmmctl_create(struct loop *l, int fd, const struct vmmctl_ops *ops, void *arg)
{
	struct vmmctl *v = calloc(1, sizeof(*v));

	if (!v)
		return NULL;
	*v = (struct vmmctl){.loop = l, .fd = fd, .ops = ops, .arg = arg, .next_id = 1};
	v->out_end = &v->out;
	if (fd_set_nonblock(fd, true) < 0 ||
		!(v->watch = loop_watch(l, fd, EPOLLIN, on_socket, v))) {
		free(v);
		return NULL;
	}
	return v;
}

struct vmmctl *vmmctl_connect(
	struct loop *l, const char *path, const struct vmmctl_ops *ops, void *arg)
{
	_cleanup_close_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	struct vmmctl *v;

	if (fd < 0)
		return NULL;
	if (strlen(path) >= sizeof(a.sun_path)) {
		errno = ENAMETOOLONG;
		return NULL;
	}
	str_copy(a.sun_path, sizeof(a.sun_path), path);
	if (connect(fd, (void *)&a, sizeof(a)) < 0)
		return NULL;
	v = vmmctl_create(l, fd, ops, arg);
	if (v)
		take_fd(&fd);
	return v;
}

static int enqueue(struct vmmctl *v, const uint8_t *msg, size_t len, const int *fds, size_t nfds)
{
	struct waiting *w = calloc(1, sizeof(*w) + len);

	if (!w)
		return -ENOMEM;
	w->len = len;
	memcpy(w->msg, msg, len);
	for (; w->nfds < nfds; w->nfds++) {
		w->fds[w->nfds] = fcntl(fds[w->nfds], F_DUPFD_CLOEXEC, 3);
		if (w->fds[w->nfds] < 0) {
			int err = -errno;

			waiting_free(w);
			return err;
		}
	}
	*v->out_end = w;
	v->out_end = &w->next;
	watch_events(v->watch, EPOLLIN | EPOLLOUT);
	return 0;
}

int vmmctl_call(struct vmmctl *v, uint16_t type, const struct buf *payload, const int *fds,
	size_t nfds, vmmctl_fn fn, void *arg)
{
	size_t plen = payload ? payload->len : 0;
	struct vmm_hdr h = {.magic = VMM_MAGIC,
		.version = VMM_VERSION,
		.type = type,
		.len = (uint32_t)plen,
		.nfds = (uint32_t)nfds};
	struct call *c;
	uint8_t *msg;
	int rc;

	if (v->fd < 0)
		return -ENOTCONN;
	if (plen > VMM_MSG_MAX || nfds > FDPASS_MAX || (payload && payload->bad))
		return -EMSGSIZE;
	c = calloc(1, sizeof(*c));
	msg = malloc(sizeof(h) + plen);
	if (!c || !msg) {
		free(c);
		free(msg);
		return -ENOMEM;
	}
	*c = (struct call){
		.id = v->next_id++, .type = type, .fn = fn, .arg = arg, .next = v->calls};
	if (!v->next_id)
		v->next_id = 1;
	h.id = c->id;
	memcpy(msg, &h, sizeof(h));
	if (plen)
		memcpy(msg + sizeof(h), payload->p, plen);
	rc = v->out ? -EAGAIN : fdpass_send(v->fd, msg, sizeof(h) + plen, fds, nfds);
	if (rc == -EAGAIN)
		rc = enqueue(v, msg, sizeof(h) + plen, fds, nfds);
	free(msg);
	if (rc < 0) {
		free(c);
		return rc;
	}
	v->calls = c;
	return 0;
}
