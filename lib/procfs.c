/* SPDX-License-Identifier: Apache-2.0
 *
 * procfs.c: see procfs.h.
 */
#include "lib/procfs.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t process_start_time(int32_t pid)
{
	char path[40], text[1024], *p;
	uint64_t v = 0;
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || (n = read(fd, text, sizeof(text) - 1)) <= 0)
		return 0;
	text[n] = 0;
	/* the name in field 2 may hold anything, so count from its last ')' */
	p = strrchr(text, ')');
	for (int field = 2; p && field < 22; field++)
		p = strchr(p + 1, ' ');
	if (p)
		v = strtoull(p + 1, NULL, 10);
	return v;
}

int file_put(int dir, const char *name, const char *text)
{
	_cleanup_close_ int fd = openat(dir, name, O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	return write(fd, text, strlen(text)) < 0 ? -errno : 0;
}
