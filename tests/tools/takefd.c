/* SPDX-License-Identifier: Apache-2.0
 *
 * takefd.c: an attacker who already is in a monitor, played from outside: takes copies of a process's descriptors with
 * pidfd_getfd(2) and keeps them. takefd PID PART: all that can write and whose path contains PART. It prints
 * the paths, one a line, then "held" and its own process id, and keeps them until it is killed. Root.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>

#include "lib/base.h"

#define FDS_MAX 4096

int main(int argc, char **argv)
{
	char path[300], link[64];
	int pidfd;

	if (argc != 3)
		return 2;
	pidfd = (int)syscall(SYS_pidfd_open, atoi(argv[1]), 0);
	if (pidfd < 0) {
		perror("pidfd_open");
		return 1;
	}
	for (int i = 0; i < FDS_MAX; i++) {
		int fd = (int)syscall(SYS_pidfd_getfd, pidfd, i, 0);
		ssize_t n;

		if (fd < 0)
			continue;
		snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		n = readlink(link, path, sizeof(path) - 1);
		path[MAX(n, 0)] = 0;
		if (strstr(path, argv[2]) && (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY)
			puts(path);
		else
			close(fd);
	}
	printf("held %d\n", getpid());
	fflush(stdout);
	for (;;)
		pause();
}
