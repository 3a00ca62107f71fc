/* SPDX-License-Identifier: Apache-2.0
 *
 * base.c: clocks, whole-buffer I/O, the failed assertion. Every process. Handles no hostile bytes.
 */
#include "lib/base.h"

#include <fcntl.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>

void assert_failed(const char *expr, const char *file, int line)
{
	char num[12];
	size_t n = sizeof(num);
	const char *part[] = {"ASSERT failed: ", expr, " at ", file, ":"};

	/* no stdio: its locks may be held by the thread that got us here */
	for (size_t i = 0; i < ARRAY_LEN(part); i++)
		(void)!write(2, part[i], strlen(part[i]));
	num[--n] = '\n';
	do {
		num[--n] = (char)('0' + line % 10);
		line /= 10;
	} while (line > 0 && n > 0);
	(void)!write(2, num + n, sizeof(num) - n);
	abort();
}

static uint64_t clock_ns(clockid_t c)
{
	struct timespec t;

	clock_gettime(c, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t mono_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

uint64_t wall_ns(void)
{
	return clock_ns(CLOCK_REALTIME);
}

enum transfer { READ, WRITE, PREAD, PWRITE };

static ssize_t once(enum transfer how, int fd, char *p, size_t n, uint64_t off)
{
	switch (how) {
	case READ:
		return read(fd, p, n);
	case WRITE:
		return write(fd, p, n);
	case PREAD:
		return pread(fd, p, n, (off_t)off);
	case PWRITE:
		break;
	}
	return pwrite(fd, p, n, (off_t)off);
}

static int all_of(enum transfer how, int fd, char *p, size_t n, uint64_t off)
{
	while (n > 0) {
		ssize_t k = once(how, fd, p, n, off);

		if (k < 0 && errno == EINTR)
			continue;
		if (k <= 0) /* end of file, or a write that makes no progress */
			return k < 0 ? -errno : -EPIPE;
		p += k;
		off += (uint64_t)k;
		n -= (size_t)k;
	}
	return 0;
}

int read_full(int fd, void *p, size_t n)
{
	return all_of(READ, fd, p, n, 0);
}

int write_full(int fd, const void *p, size_t n)
{
	return all_of(WRITE, fd, (char *)(uintptr_t)p, n, 0);
}

int pread_full(int fd, void *p, size_t n, uint64_t off)
{
	return all_of(PREAD, fd, p, n, off);
}

int pwrite_full(int fd, const void *p, size_t n, uint64_t off)
{
	return all_of(PWRITE, fd, (char *)(uintptr_t)p, n, off);
}

int fd_no_writer(int fd)
{
	/* the kernel grants a read lease only while no open file of the inode can write */
	if (fcntl(fd, F_SETLEASE, F_RDLCK) < 0)
		return errno == EAGAIN ? -EBUSY : -errno;
	return fcntl(fd, F_SETLEASE, F_UNLCK) < 0 ? -errno : 0;
}

void fd_limit_raise(unsigned long want)
{
	struct rlimit l = {want, want};

	/* beyond the hard limit only the kernel's CAP_SYS_RESOURCE helps */
	if (setrlimit(RLIMIT_NOFILE, &l) == 0 || getrlimit(RLIMIT_NOFILE, &l) < 0)
		return;
	l.rlim_cur = l.rlim_max;
	setrlimit(RLIMIT_NOFILE, &l);
}

int fd_set_nonblock(int fd, bool on)
{
	int fl = fcntl(fd, F_GETFL);

	if (fl < 0)
		return -errno;
	fl = on ? fl | O_NONBLOCK : fl & ~O_NONBLOCK;
	return fcntl(fd, F_SETFL, fl) < 0 ? -errno : 0;
}

bool secret_bytes_equal(const void *a, const void *b, size_t n)
{
	const uint8_t *x = a, *y = b;
	volatile uint8_t differs = 0; /* else a compiler may stop at the first difference */

	for (size_t i = 0; i < n; i++)
		differs |= x[i] ^ y[i];
	return !differs;
}

bool secret_equal(const char *a, const char *b)
{
	size_t n = strlen(a);

	return n && n == strlen(b) && secret_bytes_equal(a, b, n);
}

void random_bytes(void *p, size_t n)
{
	char *at = p;

	while (n > 0) {
		ssize_t k = getrandom(at, n, 0);

		if (k < 0 && errno == EINTR)
			continue;
		ASSERT(k > 0);
		at += k;
		n -= (size_t)k;
	}
}
