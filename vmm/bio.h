/* SPDX-License-Identifier: Apache-2.0
 *
 * bio.h: file I/O that does not block the device thread: by io_uring, or by one worker thread on a
 * host that forbids io_uring. mayfly-vmm; every call and every completion on the device thread.
 * Carries offsets and lengths that were checked; buffers may be guest memory, which is never
 * registered (that would pin it and end its sharing).
 */
#pragma once

#include <sys/uio.h>

#include "lib/base.h"
#include "lib/err.h"
#include "lib/loop.h"

enum bio_kind { BIO_READ, BIO_WRITE, BIO_SYNC, BIO_PUNCH };

/* Lives in the caller's struct, untouched from bio_submit until done. */
struct bio_op {
	enum bio_kind kind;
	int fd;
	const struct iovec *iov; /* read, write */
	unsigned int niov;
	uint64_t off;
	uint64_t len; /* punch */
	void (*done)(
		struct bio_op *op, int res); /* bytes (may be fewer than asked), 0, or -errno */
	struct bio_op *next;                 /* ours */
	int res;
};

struct bio;

enum { BIO_NO_URING = 1 }; /* the worker thread even where io_uring is there (tests) */

/* depth: most operations in flight; more wait in a list. Call it before the seccomp list is set,
 * which forbids to make a ring. The worker thread is made with the first operation. */
int bio_create(
	struct bio **out, struct loop *l, unsigned int depth, unsigned int flags, struct err *e);
/* Nothing may be in flight. NULL is fine. */
void bio_destroy(struct bio *b);
/* bio_submit() queues an operation; bio_go() hands all queued ones to the kernel at once. */
void bio_submit(struct bio *b, struct bio_op *op);
void bio_go(struct bio *b);
/* The ring itself: four kinds of operations, and nothing can be registered. 0 or -errno. */
struct io_uring;
int bio_ring_open(struct io_uring *ring, unsigned int depth);
unsigned int bio_inflight(const struct bio *b);
/* In a forked child: closes and unmaps the ring, which belongs to the parent. */
void bio_forget(struct bio *b);
