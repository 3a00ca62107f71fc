/* SPDX-License-Identifier: Apache-2.0
 *
 * testinit_vsock.c: the guest's half of the stream test: listens on VT_PORT, one process per
 * connection that echoes, swallows and compares, or produces; and keeps a connection to the ready
 * port, which it dials again whenever the connection is lost (after a restore).
 */
#include "guest/initramfs/testinit_vsock.h"

#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <linux/vm_sockets.h>

#include "lib/base.h"
#include "lib/proto_vmm.h"
#include "tests/tools/vsock_test.h"

static uint8_t table[2 * VT_TABLE], buf[65536];

static int dial(uint32_t port)
{
	struct sockaddr_vm a = {
		.svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_HOST, .svm_port = port};
	int fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0)
		close_fd(&fd);
	return fd;
}

static void echo(int fd)
{
	ssize_t n;

	while ((n = read(fd, buf, sizeof(buf))) > 0)
		if (write_full(fd, buf, (size_t)n) < 0)
			break;
}

static void sink(int fd, const struct vt_request *r)
{
	uint64_t at = 0, bad = 0;

	while (at < r->bytes) {
		ssize_t n = read(fd, buf, MIN(sizeof(buf), r->bytes - at));

		if (n <= 0)
			break;
		bad += memcmp(buf, vt_at(table, r->seed, at), (size_t)MIN(n, VT_TABLE)) != 0;
		at += (uint64_t)n;
	}
	bad += at != r->bytes;
	write_full(fd, &bad, sizeof(bad));
}

static void source(int fd, const struct vt_request *r)
{
	for (uint64_t at = 0; at < r->bytes;) {
		size_t n = MIN(VT_TABLE, r->bytes - at);

		if (write_full(fd, vt_at(table, r->seed, at), n) < 0)
			return;
		at += n;
	}
}

static void serve(int fd)
{
	struct vt_request r;

	if (read_full(fd, &r, sizeof(r)) < 0)
		return;
	if (r.mode == VT_ECHO)
		echo(fd);
	else if (r.mode == VT_SINK)
		sink(fd, &r);
	else
		source(fd, &r);
}

static void keep_ready(void)
{
	char c;

	for (unsigned int n = 1;; n++) {
		uint64_t t = mono_ns();
		int fd = dial(VSOCK_PORT_READY);

		printf("VSOCK ready %u %s\n", n, fd < 0 ? "refused" : "connected");
		if (fd >= 0)
			(void)!read(fd, &c, 1);
		close_fd(&fd);
		/* if the host hangs up at once, wait before dialling again */
		if (mono_ns() - t < 1000000000)
			sleep(5);
	}
}

void testinit_vsock(void)
{
	struct sockaddr_vm a = {
		.svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_ANY, .svm_port = VT_PORT};
	int l = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0);

	vt_fill(table);
	signal(SIGCHLD, SIG_IGN);
	if (bind(l, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(l, 128) < 0) {
		printf("VSOCK listen failed: %m\n");
		return;
	}
	if (fork() == 0)
		keep_ready();
	for (;;) {
		int fd = accept4(l, NULL, NULL, SOCK_CLOEXEC);

		if (fd < 0) {
			printf("VSOCK accept: %m\n");
			continue;
		}
		if (fork() == 0) {
			serve(fd);
			_exit(0);
		}
		close(fd);
	}
}
