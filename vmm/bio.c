/* SPDX-License-Identifier: Apache-2.0
 *
 * bio.c: see bio.h. mayfly-vmm. Nothing hostile is read here; a guest can only decide how many
 * operations there are, and depth bounds them.
 *
 * The jail's seccomp list does not see what goes through a ring, so the ring itself is restricted:
 * created disabled, limited to four kinds of operations, closed for registrations, then enabled.
 */
#include "vmm/bio.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>

#include <liburing.h>

#include "lib/log.h"

#define MAX_WORKERS 4 /* kernel threads of each kind for operations that block */

struct bio {
	struct loop *loop;
	struct watch *watch;
	bool uring;
	unsigned int depth, inflight;
	struct bio_op *wait, **wait_tail; /* beyond depth */
	/* io_uring */
	struct io_uring ring;
	/* worker: requests in, completions out, under the lock */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t work;
	struct bio_op *in, **in_tail, *out, **out_tail;
	struct bio_op *queued, **queued_tail; /* not yet handed over by bio_go */
	int event_fd;
	bool stop, thread_runs;
};

static void list_init(struct bio_op **head, struct bio_op ***tail)
{
	*head = NULL;
	*tail = head;
}

static void list_add(struct bio_op ***tail, struct bio_op *op)
{
	op->next = NULL;
	**tail = op;
	*tail = &op->next;
}

/* ---- io_uring */

static void sqe_fill(struct io_uring_sqe *s, struct bio_op *op)
{
	switch (op->kind) {
	case BIO_READ:
		io_uring_prep_readv(s, op->fd, op->iov, op->niov, op->off);
		break;
	case BIO_WRITE:
		io_uring_prep_writev(s, op->fd, op->iov, op->niov, op->off);
		break;
	case BIO_SYNC:
		io_uring_prep_fsync(s, op->fd, IORING_FSYNC_DATASYNC);
		break;
	case BIO_PUNCH:
		io_uring_prep_fallocate(s, op->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			(off_t)op->off, (off_t)op->len);
		break;
	}
	io_uring_sqe_set_data(s, op);
}

static void ring_put(struct bio *b, struct bio_op *op)
{
	struct io_uring_sqe *s = io_uring_get_sqe(&b->ring);

	if (!s) {
		io_uring_submit(&b->ring);
		s = io_uring_get_sqe(&b->ring);
	}
	ASSERT(s); /* the ring has depth entries, and we never put in more */
	sqe_fill(s, op);
	b->inflight++;
}

int bio_ring_open(struct io_uring *ring, unsigned int depth)
{
	static const uint8_t ops[] = {
		IORING_OP_READV, IORING_OP_WRITEV, IORING_OP_FSYNC, IORING_OP_FALLOCATE};
	struct io_uring_restriction res[ARRAY_LEN(ops) + 1] = {{0}};
	unsigned int workers[2] = {MAX_WORKERS, MAX_WORKERS};
	int r = io_uring_queue_init(depth, ring, IORING_SETUP_R_DISABLED);

	if (r < 0)
		return r;
	for (size_t i = 0; i < ARRAY_LEN(ops); i++)
		res[i] = (struct io_uring_restriction){
			.opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = ops[i]};
	res[ARRAY_LEN(ops)] =
		(struct io_uring_restriction){.opcode = IORING_RESTRICTION_REGISTER_OP,
			.register_op = IORING_REGISTER_ENABLE_RINGS};
	/* Linux 5.15 and later; before that only the monitor's cgroup limits the workers */
	(void)io_uring_register_iowq_max_workers(ring, workers);
	/* by hand: liburing 2.3 declares these two and does not export them */
	if (syscall(SYS_io_uring_register, ring->ring_fd, IORING_REGISTER_RESTRICTIONS, res,
		    ARRAY_LEN(res)) < 0 ||
		syscall(SYS_io_uring_register, ring->ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL,
			0) < 0) {
		r = -errno;
		io_uring_queue_exit(ring);
	}
	return r;
}

/* ---- the worker thread */

static int op_run(const struct bio_op *op)
{
	ssize_t n = 0;

	do {
		switch (op->kind) {
		case BIO_READ:
			n = preadv(op->fd, op->iov, (int)op->niov, (off_t)op->off);
			break;
		case BIO_WRITE:
			n = pwritev(op->fd, op->iov, (int)op->niov, (off_t)op->off);
			break;
		case BIO_SYNC:
			n = fdatasync(op->fd);
			break;
		case BIO_PUNCH:
			n = fallocate(op->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				(off_t)op->off, (off_t)op->len);
			break;
		}
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : (int)n;
}

static void *worker(void *arg)
{
	struct bio *b = arg;
	uint64_t one = 1;

	pthread_setname_np(pthread_self(), "disk");
	pthread_mutex_lock(&b->lock);
	for (;;) {
		struct bio_op *op = b->in;

		if (!op) {
			if (b->stop)
				break;
			pthread_cond_wait(&b->work, &b->lock);
			continue;
		}
		b->in = op->next;
		if (!b->in)
			b->in_tail = &b->in;
		pthread_mutex_unlock(&b->lock);
		op->res = op_run(op);
		pthread_mutex_lock(&b->lock);
		list_add(&b->out_tail, op);
		(void)!write(b->event_fd, &one, sizeof(one));
	}
	pthread_mutex_unlock(&b->lock);
	return NULL;
}

static int worker_open(struct bio *b)
{
	b->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (b->event_fd < 0)
		return -errno;
	pthread_mutex_init(&b->lock, NULL);
	pthread_cond_init(&b->work, NULL);
	return 0;
}

/* With the first operation, not in bio_create(): a thread that starts before the seccomp list
 * is set would not have the list. */
static bool worker_start(struct bio *b)
{
	if (!b->thread_runs)
		b->thread_runs = pthread_create(&b->thread, NULL, worker, b) == 0;
	return b->thread_runs;
}

/* No thread could be started: every queued operation ends with -ENOMEM. */
static void fail_queued(struct bio *b)
{
	uint64_t one = 1;

	for (struct bio_op *op = b->queued; op; op = op->next)
		op->res = -ENOMEM;
	pthread_mutex_lock(&b->lock);
	*b->out_tail = b->queued;
	b->out_tail = b->queued_tail;
	pthread_mutex_unlock(&b->lock);
	list_init(&b->queued, &b->queued_tail);
	(void)!write(b->event_fd, &one, sizeof(one));
}

/* ---- both */

static void put(struct bio *b, struct bio_op *op)
{
	if (b->uring) {
		ring_put(b, op);
		return;
	}
	list_add(&b->queued_tail, op);
	b->inflight++;
}

static void completed(struct bio *b, struct bio_op *op, int res)
{
	b->inflight--;
	op->done(op, res);
}

static void refill(struct bio *b)
{
	while (b->wait && b->inflight < b->depth) {
		struct bio_op *op = b->wait;

		b->wait = op->next;
		if (!b->wait)
			b->wait_tail = &b->wait;
		put(b, op);
	}
	bio_go(b);
}

static void on_ring(void *arg, uint32_t events)
{
	struct bio *b = arg;
	struct io_uring_cqe *cqe;

	/* one at a time: done() may submit operations and use the memory of this one again */
	while (io_uring_peek_cqe(&b->ring, &cqe) == 0) {
		struct bio_op *op = io_uring_cqe_get_data(cqe);
		int res = cqe->res;

		io_uring_cqe_seen(&b->ring, cqe);
		if (res == -EINTR || res == -EAGAIN) {
			b->inflight--;
			ring_put(b, op);
			continue;
		}
		completed(b, op, res);
	}
	refill(b);
}

static void on_worker(void *arg, uint32_t events)
{
	struct bio *b = arg;
	struct bio_op *op, *next;
	uint64_t n;

	(void)!read(b->event_fd, &n, sizeof(n));
	pthread_mutex_lock(&b->lock);
	op = b->out;
	list_init(&b->out, &b->out_tail);
	pthread_mutex_unlock(&b->lock);
	for (; op; op = next) {
		next = op->next;
		completed(b, op, op->res);
	}
	refill(b);
}

int bio_create(
	struct bio **out, struct loop *l, unsigned int depth, unsigned int flags, struct err *e)
{
	struct bio *b = calloc(1, sizeof(*b));
	int r = -EPERM;

	if (!b)
		return err_set(e, ENOMEM, "block I/O");
	b->loop = l;
	b->depth = depth;
	b->event_fd = -1;
	list_init(&b->wait, &b->wait_tail);
	list_init(&b->in, &b->in_tail);
	list_init(&b->out, &b->out_tail);
	list_init(&b->queued, &b->queued_tail);
	if (!(flags & BIO_NO_URING))
		r = bio_ring_open(&b->ring, b->depth);
	b->uring = r == 0;
	if (!b->uring) {
		if (!(flags & BIO_NO_URING))
			log_info("disks: no io_uring here (%s): a thread instead", strerror(-r));
		r = worker_open(b);
	}
	if (r == 0) {
		b->watch = b->uring ? loop_watch(l, b->ring.ring_fd, EPOLLIN, on_ring, b)
				    : loop_watch(l, b->event_fd, EPOLLIN, on_worker, b);
		if (!b->watch)
			r = -errno;
	}
	if (r < 0) {
		bio_destroy(b);
		return err_set(e, -r, "block I/O: neither io_uring nor a thread");
	}
	*out = b;
	return 0;
}

void bio_destroy(struct bio *b)
{
	if (!b)
		return;
	watch_remove(b->watch);
	if (b->uring)
		io_uring_queue_exit(&b->ring);
	if (b->thread_runs) {
		pthread_mutex_lock(&b->lock);
		b->stop = true;
		pthread_cond_signal(&b->work);
		pthread_mutex_unlock(&b->lock);
		pthread_join(b->thread, NULL);
	}
	close_fd(&b->event_fd);
	free(b);
}

void bio_submit(struct bio *b, struct bio_op *op)
{
	if (b->inflight >= b->depth)
		list_add(&b->wait_tail, op);
	else
		put(b, op);
}

void bio_go(struct bio *b)
{
	if (b->uring) {
		/* -EBUSY or -EAGAIN: what the kernel did not take stays in the ring. The next
		 * completion calls again (refill). */
		if (io_uring_sq_ready(&b->ring))
			io_uring_submit(&b->ring);
		return;
	}
	if (!b->queued)
		return;
	if (!worker_start(b)) {
		fail_queued(b);
		return;
	}
	pthread_mutex_lock(&b->lock);
	*b->in_tail = b->queued;
	b->in_tail = b->queued_tail;
	pthread_cond_signal(&b->work);
	pthread_mutex_unlock(&b->lock);
	list_init(&b->queued, &b->queued_tail);
}

unsigned int bio_inflight(const struct bio *b)
{
	return b->inflight;
}

void bio_forget(struct bio *b)
{
	if (b && b->uring)
		io_uring_queue_exit(&b->ring);
}
