/* SPDX-License-Identifier: Apache-2.0
 *
 * base.h: what every file of the project uses: cleanup attributes, ownership hand-over, ASSERT, small macros.
 * Any process, any thread. Nothing here allocates.
 */
#pragma once

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ARRAY_LEN(a)          (sizeof(a) / sizeof((a)[0]))
#define MIN(a, b)             ((a) < (b) ? (a) : (b))
#define MAX(a, b)             ((a) > (b) ? (a) : (b))
#define ALIGN_UP(x, n)        (((x) + ((n)-1)) & ~((n)-1))
#define ALIGN_DOWN(x, n)      ((x) & ~((n)-1))
#define KIB(n)                ((uint64_t)(n) << 10)
#define MIB(n)                ((uint64_t)(n) << 20)
#define GIB(n)                ((uint64_t)(n) << 30)
#define PAGE_BYTES            4096u
#define container_of(p, t, m) ((t *)(void *)((char *)(p)-offsetof(t, m)))
#define SWAP(a, b)                                                                                 \
	do {                                                                                       \
		__typeof__(a) swap_ = (a);                                                         \
		(a) = (b);                                                                         \
		(b) = swap_;                                                                       \
	} while (0)
#define _packed_        __attribute__((packed))
#define _printf_(f, a)  __attribute__((format(printf, f, a)))
#define _noreturn_      __attribute__((noreturn))
#define _cleanup_(f)    __attribute__((cleanup(f)))
#define _cleanup_free_  _cleanup_(cleanup_free)
#define _cleanup_close_ _cleanup_(cleanup_close)

/* One of our own invariants is broken: says so through write(2), which every seccomp list allows,
 * and aborts this process only. */
_noreturn_ void assert_failed(const char *expr, const char *file, int line);
#define ASSERT(x) ((x) ? (void)0 : assert_failed(#x, __FILE__, __LINE__))

static inline void cleanup_free(void *p)
{
	free(*(void **)p);
}

static inline void cleanup_close(const int *fd)
{
	int saved = errno;

	if (*fd >= 0)
		close(*fd);
	errno = saved;
}

/* Hands a local's descriptor or pointer over; the local's cleanup then has nothing to do. */
static inline int take_fd(int *fd)
{
	int v = *fd;

	*fd = -1;
	return v;
}
#define take_ptr(p)                                                                                \
	({                                                                                         \
		typeof(p) take_v_ = (p);                                                           \
		(p) = NULL;                                                                        \
		take_v_;                                                                           \
	})

/* Closes *fd if it is open, and forgets it. */
static inline void close_fd(int *fd)
{
	cleanup_close(fd);
	*fd = -1;
}

/* Copies a string that was measured before, NUL included: not fitting is our own mistake. */
static inline void str_copy(char *to, size_t cap, const char *from)
{
	size_t n = strlen(from) + 1;

	ASSERT(n <= cap);
	memcpy(to, from, n);
}

/* now on CLOCK_MONOTONIC / CLOCK_REALTIME */
uint64_t mono_ns(void);
uint64_t wall_ns(void);

/* Whole-buffer I/O: 0, or -errno; -EPIPE for an early end of file. EINTR is retried. For blocking
 * descriptors. */
int read_full(int fd, void *p, size_t n);
int write_full(int fd, const void *p, size_t n);
int pread_full(int fd, void *p, size_t n, uint64_t off);
int pwrite_full(int fd, const void *p, size_t n, uint64_t off);

int fd_set_nonblock(int fd, bool on);
/* Can anybody still write this file, of which fd is a read-only descriptor and we are the owner? 0: no descriptor, writable mapping, message or
 * io_uring operation can. -EBUSY: one can; -errno: the file system cannot tell. */
int fd_no_writer(int fd);
/* Raises the limit of open descriptors of this process and its children to `want`, or as far as the
 * host allows. */
void fd_limit_raise(unsigned long want);
/* n bytes from the kernel's generator; aborts if there are none, because every use is a security
 * property. */
void random_bytes(void *p, size_t n);
/* Compare secrets: the time depends on the length only, never on where they differ. Texts of different length differ at once; an empty text
 * equals nothing, so that a key that is not set opens nothing. */
bool secret_equal(const char *a, const char *b);
bool secret_bytes_equal(const void *a, const void *b, size_t n);
