/* SPDX-License-Identifier: Apache-2.0
 *
 * warm.c: see warm.h.
 */
#include "agent/warm.h"

#include <fcntl.h>
#include <sys/stat.h>

#define FILE_MAX MIB(8)

static const char *const paths[] = {
	"/bin/sh",
	"/bin/bash",
	"/usr/bin/env",
	"/usr/bin/tail",
	"/bin/cat",
	"/bin/sleep",
	"/lib64/ld-linux-x86-64.so.2",
	"/lib/ld-musl-x86_64.so.1",
	"/lib/x86_64-linux-gnu/libc.so.6",
	"/lib64/libc.so.6",
	"/usr/lib/libc.so.6",
	"/lib/x86_64-linux-gnu/libtinfo.so.6",
	"/lib64/libtinfo.so.6",
	"/etc/ld.so.cache",
	"/etc/passwd",
	"/etc/group",
	"/etc/nsswitch.conf",
};

static size_t warm_one(const char *path, uint8_t *room, size_t n)
{
	/* whatever the image has there: a pipe is not waited for, a device not read */
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	size_t all = 0;
	struct stat st;
	ssize_t k;

	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > (off_t)FILE_MAX)
		return 0;
	while (all < FILE_MAX && (k = read(fd, room, n)) > 0)
		all += (size_t)k;
	return all;
}

size_t warm_files(void)
{
	_cleanup_free_ uint8_t *room = malloc(KIB(64));
	size_t all = 0;

	for (size_t i = 0; room && i < ARRAY_LEN(paths) && all < WARM_MAX; i++)
		all += warm_one(paths[i], room, KIB(64));
	return all;
}
