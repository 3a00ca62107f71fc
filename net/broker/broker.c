/* SPDX-License-Identifier: Apache-2.0
 *
 * broker.c: see broker.h. Making and ending a broker; its control socket.
 */
#include "net/broker/broker.h"

#include <sys/socket.h>

#include "lib/fdpass.h"
#include "lib/log.h"

static void control_close(struct broker *b)
{
	watch_remove(b->control_watch);
	b->control_watch = NULL;
	if (b->listen >= 0)
		close_fd(&b->control);
	b->control = -1;
}

/* The daemon closed its end. With a listening socket the broker keeps all sandboxes and their connections for the next daemon. Without
 * one it ends. */
static void control_lost(struct broker *b, int rc)
{
	log_info("the control socket closed: %s", rc ? strerror(-rc) : "end of file");
	control_close(b);
	if (b->listen < 0)
		loop_stop(b->loop, rc ? 1 : 0);
}

static void on_control(void *arg, uint32_t events)
{
	struct broker *b = arg;
	uint8_t p[NET_MSG_MAX];
	int fd[1] = {-1};
	size_t nfds = 1;
	ssize_t n = fdpass_recv(b->control, p, sizeof(p), fd, &nfds);

	if (n == -EAGAIN || n == -EINTR)
		return;
	if (n == -EMSGSIZE) { /* also: a descriptor came and there is no room for one more */
		log_limited(LOG_ERROR, "a request of the daemon was lost: too long, or too many "
				       "descriptors are open");
		return;
	}
	if (n <= 0) {
		control_lost(b, (int)n);
		return;
	}
	if (!nfds)
		fd[0] = -1;
	control_message(b, p, (size_t)n, &fd[0]);
	close_fd(&fd[0]);
}

/* A daemon connects. Only the daemon's user can reach the socket's folder. The newest connection counts: the earlier daemon has ended, or hangs. */
static void on_listen(void *arg, uint32_t events)
{
	struct broker *b = arg;
	int fd = accept4(b->listen, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd < 0)
		return;
	control_close(b);
	b->control = fd;
	b->control_watch = loop_watch(b->loop, fd, EPOLLIN, on_control, b);
	if (!b->control_watch)
		control_close(b);
}

static bool is_listening(int fd)
{
	int yes = 0;
	socklen_t n = sizeof(yes);

	return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &yes, &n) == 0 && yes;
}

struct broker *broker_create(struct loop *l, int control, uint32_t fds_max, struct err *e)
{
	struct broker *b = calloc(1, sizeof(*b));
	bool listening = is_listening(control);

	if (!b) {
		err_set(e, ENOMEM, "broker");
		return NULL;
	}
	b->loop = l;
	b->control = listening ? -1 : control;
	b->listen = listening ? control : -1;
	b->netlink = b->resolv_fd = -1;
	b->fds_max = fds_max;
	b->committed_max = BUFFERS_MAX;
	b->closing_max_ns = CLOSING_MAX_NS;
	buf_init(&b->world_parts, MIB(4));
	b->closing_timer = loop_timer(l, flows_closing, b);
	if (listening)
		b->listen_watch = loop_watch(l, control, EPOLLIN, on_listen, b);
	else
		b->control_watch = loop_watch(l, control, EPOLLIN, on_control, b);
	if (!b->closing_timer || (!b->control_watch && !b->listen_watch)) {
		err_set(e, errno, "broker: control socket");
		broker_destroy(b);
		return NULL;
	}
	if (host_watch(b, e) < 0) {
		broker_destroy(b);
		return NULL;
	}
	return b;
}

void broker_destroy(struct broker *b)
{
	if (!b)
		return;
	while (b->sandbox)
		net_sandbox_remove(b->sandbox);
	host_unwatch(b);
	control_close(b);
	watch_remove(b->listen_watch);
	timer_remove(b->closing_timer);
	close_fd(&b->resolv_fd);
	net_world_fini(&b->world);
	buf_fini(&b->world_parts);
	free(b);
}
