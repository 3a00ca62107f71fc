/* SPDX-License-Identifier: Apache-2.0
 *
 * main.c: mayfly-net. Started as `mayfly-net [--jail UID]` with descriptor 3 the channel to the broker and 4 the socket of frames.
 *
 * socket(), connect() and shutdown() are this program's: the dynamic linker binds the calls of the packaged libslirp to them, because a program's
 * symbols come before a library's. They are here and not in the archive, which tests link too.
 */
#include "net/stack/stack.h"

#include <signal.h>
#include <string.h>
#include <sys/socket.h>

#include "lib/log.h"
#include "net/stack/seal.h"

static struct stack *stack;

int socket(int domain, int type, int protocol)
{
	if (!stack || (domain != AF_INET && domain != AF_INET6) || (type & 0xf) != SOCK_STREAM) {
		errno = EACCES;
		return -1;
	}
	return tcp_socket(stack);
}

int connect(int fd, const struct sockaddr *to, socklen_t len)
{
	return tcp_connect(stack, fd, to, len);
}

int shutdown(int fd, int how)
{
	return tcp_shutdown(stack, fd, how);
}

static int usage(void)
{
	log_error("mayfly-net is started by mayflyd: mayfly-net [--jail UID], descriptor 3 the "
		  "broker, 4 the frames");
	return 2;
}

int main(int argc, char **argv)
{
	unsigned long uid = 0;
	struct err e = {0};
	int rc;

	log_init("mayfly-net", 2, false);
	for (int i = 1; i < argc; i++) {
		char *end = NULL;

		if (strcmp(argv[i], "--jail") != 0 || i + 1 == argc)
			return usage();
		uid = strtoul(argv[++i], &end, 10);
		if (*end || uid == 0 || uid >= UINT32_MAX)
			return usage();
	}
	if (fd_set_nonblock(NET_FD_BROKER, true) < 0 || fd_set_nonblock(NET_FD_FRAMES, true) < 0)
		return usage();
	signal(SIGPIPE, SIG_IGN); /* libslirp writes without MSG_NOSIGNAL */
	if (stack_jail((uid_t)uid, &e) < 0) {
		log_error("%s", e.msg);
		return 1;
	}
	stack = stack_create(NET_FD_FRAMES, NET_FD_BROKER, &e);
	if (!stack || stack_seal(&e) < 0) {
		log_error("%s", e.msg);
		return 1;
	}
	rc = stack_run(stack);
	if (rc < 0)
		log_error("the loop failed: %s", strerror(-rc));
	return rc < 0;
}
