/* SPDX-License-Identifier: Apache-2.0
 *
 * guestflood: a hostile program in a guest, for test_neighbour.py. Static, because an image need not have its libraries. Never ends by itself.
 *
 *   guestflood vsock   streams to the host's ports (also the one on which the agent reports) and to the agent's own, with rubbish in them
 *   guestflood net     UDP packets and connections to addresses where nobody is, questions to a name server that is none
 */
#include <errno.h>
#include <linux/vm_sockets.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/proto_vmm.h"

enum { OPEN = 64 };

static uint8_t rubbish[4096];

static int vsock_open(unsigned int n)
{
	static const unsigned int ports[] = {
		VSOCK_PORT_READY, VSOCK_PORT_AGENT, 1, 22, 1025, 0xfffffffe};
	static const unsigned int cids[] = {
		VMADDR_CID_HOST, VMADDR_CID_LOCAL, VMADDR_CID_HYPERVISOR, 77};
	struct sockaddr_vm a = {.svm_family = AF_VSOCK,
		.svm_port = ports[n % 6],
		.svm_cid = cids[n % 8 < 5 ? 0 : n % 8 - 4]};
	int fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0 && errno != EINPROGRESS) {
		close(fd);
		return -1;
	}
	return fd;
}

static int net_open(unsigned int n)
{
	struct sockaddr_in a = {.sin_family = AF_INET,
		.sin_port = htons(n % 3 ? 9 : 53),
		.sin_addr.s_addr = htonl(0xc0000201u + n % 200)};
	int type = n % 2 ? SOCK_STREAM : SOCK_DGRAM;
	int fd = socket(AF_INET, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0 && errno != EINPROGRESS) {
		close(fd);
		return -1;
	}
	for (int i = 0; fd >= 0 && type == SOCK_DGRAM && i < 64; i++)
		(void)!write(fd, rubbish, 1400);
	return fd;
}

int main(int argc, char **argv)
{
	int (*flood)(unsigned int) = argc == 2 && !strcmp(argv[1], "vsock") ? vsock_open
				     : argc == 2 && !strcmp(argv[1], "net") ? net_open
									    : NULL;
	int open_fds[OPEN];

	if (!flood) {
		fprintf(stderr, "guestflood vsock|net\n");
		return 2;
	}
	memset(open_fds, -1, sizeof(open_fds));
	memset(rubbish, 0xa5, sizeof(rubbish));
	for (unsigned int n = 0;; n++) {
		int *at = &open_fds[n % OPEN];

		if (*at >= 0) {
			(void)!write(*at, rubbish, sizeof(rubbish));
			close(*at);
		}
		*at = flood(n);
	}
}
