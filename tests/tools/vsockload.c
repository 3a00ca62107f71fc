/* SPDX-License-Identifier: Apache-2.0
 *
 * vsockload: the host's half of the stream test: many streams at once through a VM's vsock socket,
 * every byte compared. vsockload SOCKET echo|sink|source STREAMS BYTES_EACH [PORT]. Prints one line
 * and exits 0 if all was right. As long as a stream is refused (the guest does not listen yet) it
 * is tried again, for 20 seconds.
 */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "lib/base.h"
#include "lib/proto_vmm.h"
#include "tests/tools/vsock_test.h"

enum { MAX_STREAMS = 512 };

static uint8_t table[2 * VT_TABLE], buf[65536];

struct load {
	int fd;
	uint32_t seed;
	uint64_t sent, got, to_send, to_get;
	uint64_t verdict;
	bool shut, done, bad;
	uint64_t done_ns;
};

static struct load load[MAX_STREAMS];

static int open_once(const char *path, uint32_t port, uint32_t *status)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	struct vsock_open o = {.magic = VSOCK_OPEN_MAGIC, .port = port};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	*status = ECONNREFUSED;
	if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0 ||
		write_full(fd, &o, sizeof(o)) < 0 || read_full(fd, &o, sizeof(o)) < 0 || o.status) {
		*status = o.status ? o.status : (uint32_t)errno;
		close_fd(&fd);
	}
	return fd;
}

static int open_stream(const char *path, uint32_t port)
{
	uint64_t until = mono_ns() + 20000000000ull;
	uint32_t status;

	for (;;) {
		int fd = open_once(path, port, &status);

		if (fd >= 0)
			return fd;
		if (mono_ns() > until) {
			fprintf(stderr, "port %u: %s\n", port, strerror((int)status));
			return -1;
		}
		usleep(50000); /* a test's patience */
	}
}

static void push(struct load *l)
{
	while (l->sent < l->to_send) {
		ssize_t n = send(l->fd, vt_at(table, l->seed, l->sent),
			MIN(VT_TABLE, l->to_send - l->sent), MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0) {
			l->bad |= errno != EAGAIN;
			return;
		}
		l->sent += (uint64_t)n;
	}
	if (!l->shut)
		shutdown(l->fd, SHUT_WR);
	l->shut = true;
}

static void pull(struct load *l, int mode)
{
	ssize_t n = recv(l->fd, buf, sizeof(buf), MSG_DONTWAIT);

	if (n < 0 && errno == EAGAIN)
		return;
	if (n <= 0) {
		l->bad |= l->got != l->to_get || n < 0;
		l->done = true;
		l->done_ns = mono_ns();
		return;
	}
	if (l->got + (uint64_t)n > l->to_get)
		l->bad = true;
	else if (mode == VT_SINK)
		memcpy((char *)&l->verdict + l->got, buf, (size_t)n);
	else if (memcmp(buf, vt_at(table, l->seed, l->got), (size_t)MIN(n, VT_TABLE)) != 0)
		l->bad = true;
	l->got += (uint64_t)n;
}

static int run(unsigned int n, int mode)
{
	static struct pollfd p[MAX_STREAMS];
	unsigned int left = n;

	while (left > 0) {
		left = 0;
		for (unsigned int i = 0; i < n; i++) {
			p[i] = (struct pollfd){
				.fd = load[i].done ? -1 : load[i].fd, .events = POLLIN};
			if (!load[i].shut)
				p[i].events |= POLLOUT;
			left += !load[i].done;
		}
		if (left && poll(p, n, 60000) <= 0) {
			fprintf(stderr, "nothing moved for 60 s, %u streams open\n", left);
			return -1;
		}
		for (unsigned int i = 0; i < n; i++) {
			if (load[i].done)
				continue;
			if (p[i].revents & POLLOUT)
				push(&load[i]);
			if (p[i].revents & (POLLIN | POLLHUP | POLLERR))
				pull(&load[i], mode);
		}
	}
	return 0;
}

int main(int argc, char **argv)
{
	int mode = argc < 5                   ? 0
		   : !strcmp(argv[2], "echo") ? VT_ECHO
		   : !strcmp(argv[2], "sink") ? VT_SINK
					      : VT_SOURCE;
	unsigned int n = argc < 5 ? 0 : (unsigned int)strtoul(argv[3], NULL, 0), bad = 0;
	uint64_t bytes = argc < 5 ? 0 : strtoull(argv[4], NULL, 0), t0, t1, first = UINT64_MAX,
		 last = 0;
	uint32_t port = argc > 5 ? (uint32_t)strtoul(argv[5], NULL, 0) : VT_PORT;

	if (n == 0 || n > MAX_STREAMS) {
		fprintf(stderr, "vsockload SOCKET echo|sink|source STREAMS BYTES_EACH [PORT]\n");
		return 2;
	}
	vt_fill(table);
	t0 = mono_ns();
	for (unsigned int i = 0; i < n; i++) {
		struct vt_request r = {.mode = (uint32_t)mode, .seed = i, .bytes = bytes};

		load[i] = (struct load){.fd = open_stream(argv[1], port),
			.seed = i,
			.to_send = mode == VT_SOURCE ? 0 : bytes,
			.to_get = mode == VT_SINK ? 8 : bytes};
		if (load[i].fd < 0 || write_full(load[i].fd, &r, sizeof(r)) < 0)
			return 1;
	}
	t1 = mono_ns();
	if (run(n, mode) < 0)
		return 1;
	for (unsigned int i = 0; i < n; i++) {
		bad += load[i].bad || load[i].verdict;
		first = MIN(first, load[i].done_ns);
		last = MAX(last, load[i].done_ns);
	}
	printf("%s streams=%u bytes=%llu bad=%u open_ms=%.1f first_end_ms=%.1f last_end_ms=%.1f "
	       "MB/s=%.1f\n",
		argv[2], n, (unsigned long long)bytes * n, bad, (double)(t1 - t0) / 1e6,
		(double)(first - t1) / 1e6, (double)(last - t1) / 1e6,
		(double)bytes * n / 1e6 / ((double)(last - t1) / 1e9));
	return bad != 0;
}
