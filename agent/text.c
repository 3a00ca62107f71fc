/* SPDX-License-Identifier: Apache-2.0
 *
 * text.c: small files. Loop and job threads. The image is hostile: its /etc/passwd may be a FIFO that nobody writes to, a device,
 * or a file without end.
 */
#include "agent/text.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

char *text_load(const char *path, size_t max, size_t *len)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	_cleanup_free_ char *p = NULL;
	size_t n = 0, cap;
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return NULL;
	if (!S_ISREG(st.st_mode)) {
		errno = EINVAL;
		return NULL;
	}
	cap = (st.st_size > 0 && (uint64_t)st.st_size < max ? (size_t)st.st_size : 0) + 512;
	for (;;) {
		char *q = realloc(p, cap + 1);
		ssize_t k;

		if (!q)
			return NULL;
		p = q;
		k = read(fd, p + n, cap - n);
		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0)
			return NULL;
		if (k == 0)
			break;
		n += (size_t)k;
		if (n > max) {
			errno = EFBIG;
			return NULL;
		}
		if (n == cap)
			cap *= 2;
	}
	p[n] = 0;
	if (len)
		*len = n;
	return take_ptr(p);
}

int text_store(const char *path, const char *text, bool atomic)
{
	char tmp[512];
	_cleanup_close_ int fd = -1;
	int rc;

	if (snprintf(tmp, sizeof(tmp), atomic ? "%s.mayfly-new" : "%s", path) >= (int)sizeof(tmp))
		return -ENAMETOOLONG;
	if (atomic)
		unlink(tmp);
	fd = open(tmp, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | (atomic ? O_EXCL : O_TRUNC),
		0644);
	if (fd < 0)
		return -errno;
	rc = write_full(fd, text, strlen(text));
	if (rc == 0 && atomic && rename(tmp, path) < 0)
		rc = -errno;
	if (rc < 0 && atomic)
		unlink(tmp);
	return rc;
}

int text_poke_at(int dir, const char *name, const char *text)
{
	_cleanup_close_ int fd = openat(dir, name, O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	return write(fd, text, strlen(text)) < 0 ? -errno : 0;
}

int text_poke(const char *path, const char *text)
{
	return text_poke_at(AT_FDCWD, path, text);
}

bool text_u64(const char *s, uint64_t max, uint64_t *v)
{
	uint64_t n = 0;

	if (!*s)
		return false;
	for (; *s; s++) {
		unsigned d = (unsigned)(*s - '0');

		if (d > 9 || n > (max - d) / 10)
			return false;
		n = n * 10 + d;
	}
	*v = n;
	return n <= max;
}
