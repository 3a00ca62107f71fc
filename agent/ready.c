/* SPDX-License-Identifier: Apache-2.0
 *
 * ready.c: readiness as an event. The loop's thread. The connection to the host's ready port is kept open and never carries a second frame: a
 * restore resets the transport, which ends it with ECONNRESET, and that is how the agent knows, without asking, that it
 * lives in another machine now. Its listener survives the reset.
 */
#include "agent/ready.h"

#include <linux/vm_sockets.h>
#include <string.h>
#include <sys/socket.h>

#include "agent/frame.h"
#include "lib/proto_vmm.h"

int ready_listen(struct err *e)
{
	struct sockaddr_vm sa = {
		.svm_family = AF_VSOCK, .svm_port = VSOCK_PORT_AGENT, .svm_cid = VMADDR_CID_ANY};
	_cleanup_close_ int fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0 || listen(fd, 64) < 0)
		return err_set(e, errno, "vsock port %u", VSOCK_PORT_AGENT);
	return take_fd(&fd);
}

static void ready_again(void *arg)
{
	ready_announce(arg);
}

static void ready_drop(struct agent *a, bool at_once)
{
	watch_remove(a->ready_w);
	a->ready_w = NULL;
	close_fd(&a->ready_fd);
	if (at_once && a->ready_tries == 0) {
		ready_announce(a);
		return;
	}
	if (!a->ready_timer)
		a->ready_timer = loop_timer(a->loop, ready_again, a);
	/* nobody listens (yet): 10 ms, doubled up to 2.5 s */
	if (a->ready_timer)
		timer_after(a->ready_timer, 10000000ull << MIN(a->ready_tries, 8u));
	a->ready_tries++;
}

static bool say_ready(struct agent *a)
{
	struct buf p, f;
	bool ok;

	buf_init(&p, 64);
	buf_init(&f, 128);
	buf_u32(&p, AGENT_MAGIC);
	buf_u32(&p, AGENT_VERSION);
	buf_u64(&p, a->generation);
	buf_u32(&p, a->frozen ? 1 : 0);
	frame_put(&f, AGENT_READY, 0, 0, p.p, p.len);
	ok = send(a->ready_fd, f.p, f.len, MSG_NOSIGNAL) == (ssize_t)f.len;
	buf_fini(&p);
	buf_fini(&f);
	return ok;
}

static void ready_event(void *arg, uint32_t events)
{
	struct agent *a = arg;
	int code = 0;
	socklen_t n = sizeof(code);
	char c[16];
	ssize_t k;

	if (events & EPOLLOUT) {
		/* connected, or refused */
		if (getsockopt(a->ready_fd, SOL_SOCKET, SO_ERROR, &code, &n) < 0 || code ||
			!say_ready(a)) {
			ready_drop(a, false);
			return;
		}
		a->ready_since_ns = mono_ns();
		watch_events(a->ready_w, EPOLLIN);
		return;
	}
	k = recv(a->ready_fd, c, sizeof(c), MSG_DONTWAIT);
	if (k > 0 || (k < 0 && (errno == EAGAIN || errno == EINTR)))
		return;
	/* A reset: this is a restored machine, connect at once. An orderly end: the host's daemon
	 * ended. If that happens again and again, wait longer each time. */
	if (k < 0 || mono_ns() - a->ready_since_ns > 5000000000u)
		a->ready_tries = 0;
	ready_drop(a, k < 0);
}

void ready_announce(struct agent *a)
{
	struct sockaddr_vm sa = {
		.svm_family = AF_VSOCK, .svm_port = VSOCK_PORT_READY, .svm_cid = VSOCK_HOST_CID};

	if (a->ready_fd >= 0)
		return;
	a->ready_fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (a->ready_fd < 0)
		return;
	if (connect(a->ready_fd, (struct sockaddr *)&sa, sizeof(sa)) < 0 && errno != EINPROGRESS) {
		a->ready_tries++;
		ready_drop(a, false);
		return;
	}
	a->ready_w = loop_watch(a->loop, a->ready_fd, EPOLLOUT, ready_event, a);
	if (!a->ready_w)
		ready_drop(a, false);
}

void ready_fini(struct agent *a)
{
	watch_remove(a->ready_w);
	timer_remove(a->ready_timer);
	close_fd(&a->ready_fd);
}
