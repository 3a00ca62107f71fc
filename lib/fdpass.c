/* SPDX-License-Identifier: Apache-2.0
 *
 * fdpass.c: descriptors over Unix sockets. Every process. The peer may be hostile: it can send more than asked for, and nothing
 * of it may stay open unnoticed.
 */
#include "lib/fdpass.h"

#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>

int fdpass_send(int sock, const void *p, size_t n, const int *fds, size_t nfds)
{
	union {
		char b[CMSG_SPACE(FDPASS_MAX * sizeof(int))];
		struct cmsghdr align;
	} ctl;
	struct iovec io = {.iov_base = (void *)(uintptr_t)p, .iov_len = n};
	struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1};
	ssize_t k;

	if (nfds > FDPASS_MAX)
		return -E2BIG;
	if (nfds) {
		struct cmsghdr *h;

		memset(&ctl, 0, sizeof(ctl));
		m.msg_control = ctl.b;
		m.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
		h = CMSG_FIRSTHDR(&m);
		h->cmsg_level = SOL_SOCKET;
		h->cmsg_type = SCM_RIGHTS;
		h->cmsg_len = CMSG_LEN(nfds * sizeof(int));
		memcpy(CMSG_DATA(h), fds, nfds * sizeof(int));
	}
	do
		k = sendmsg(sock, &m, MSG_NOSIGNAL);
	while (k < 0 && errno == EINTR);
	if (k < 0)
		return -errno;
	return (size_t)k == n ? 0 : -EMSGSIZE;
}

static bool take_cmsg_fds(struct msghdr *m, int *fds, size_t cap, size_t *got)
{
	bool over = false;

	for (struct cmsghdr *h = CMSG_FIRSTHDR(m); h; h = CMSG_NXTHDR(m, h)) {
		size_t k;

		if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
			continue;
		k = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < k; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(h) + i * sizeof(int), sizeof(fd));
			if (*got < cap) {
				fds[(*got)++] = fd;
			} else {
				close(fd);
				over = true;
			}
		}
	}
	return !over;
}

ssize_t fdpass_recv(int sock, void *p, size_t n, int *fds, size_t *nfds)
{
	union {
		char b[CMSG_SPACE(FDPASS_MAX * sizeof(int))];
		struct cmsghdr align;
	} ctl;
	struct iovec io = {.iov_base = p, .iov_len = n};
	struct msghdr m = {.msg_iov = &io,
		.msg_iovlen = 1,
		.msg_control = ctl.b,
		.msg_controllen = sizeof(ctl.b)};
	size_t cap = nfds ? *nfds : 0, got = 0;
	bool reset = false, ok;
	ssize_t k;

	/* A peer that closes its socket with messages of ours unread makes the next call here fail once with ECONNRESET.
	 * The messages that the peer sent before that are still in the queue. */
	do
		k = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
	while (k < 0 && (errno == EINTR || (errno == ECONNRESET && !reset && (reset = true))));
	if (k < 0)
		return -errno;
	ok = take_cmsg_fds(&m, fds, cap, &got);
	if (!ok || (m.msg_flags & (MSG_TRUNC | MSG_CTRUNC))) {
		for (size_t i = 0; i < got; i++)
			close(fds[i]);
		if (nfds)
			*nfds = 0;
		return -EMSGSIZE;
	}
	if (nfds)
		*nfds = got;
	return k;
}

static int fd_order(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

int fd_keep_only(const int *keep, size_t n)
{
	int k[FD_KEEP_MAX];
	unsigned int from = 3;

	if (n > ARRAY_LEN(k))
		return -E2BIG;
	memcpy(k, keep, n * sizeof(*k));
	qsort(k, n, sizeof(*k), fd_order);
	for (size_t i = 0; i < n; i++) {
		unsigned int fd = (unsigned int)k[i];

		if (k[i] < (int)from) /* doubles, -1, the first three */
			continue;
		if (fd > from && syscall(SYS_close_range, from, fd - 1, 0) < 0)
			return -errno;
		from = fd + 1;
	}
	return syscall(SYS_close_range, from, ~0u, 0) < 0 ? -errno : 0;
}
