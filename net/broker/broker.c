/* SPDX-License-Identifier: Apache-2.0
 *
 * broker.c: see broker.h. Making and ending a broker; its control socket.
 */
#include "net/broker/broker.h"

#include "lib/fdpass.h"
#include "lib/log.h"

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
		/* Without the daemon nobody can change a policy. Whoever starts us gives the next daemon the same socket. */
		log_info("the control socket closed: %s", n ? strerror((int)-n) : "end");
		loop_stop(b->loop, n ? 1 : 0);
		return;
	}
	if (!nfds)
		fd[0] = -1;
	control_message(b, p, (size_t)n, &fd[0]);
	close_fd(&fd[0]);
}

struct broker *broker_create(
	struct loop *l, int control, uint32_t flows_max, const char *resolv_conf, struct err *e)
{
	struct broker *b = calloc(1, sizeof(*b));

	if (!b) {
		err_set(e, ENOMEM, "broker");
		return NULL;
	}
	b->loop = l;
	b->control = control;
	b->netlink = -1;
	b->flows_max = flows_max;
	b->resolv_conf = resolv_conf;
	buf_init(&b->world_parts, MIB(4));
	b->control_watch = loop_watch(l, control, EPOLLIN, on_control, b);
	if (!b->control_watch) {
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
	watch_remove(b->control_watch);
	net_world_fini(&b->world);
	buf_fini(&b->world_parts);
	free(b);
}
