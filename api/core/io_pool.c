/* SPDX-License-Identifier: Apache-2.0
 *
 * io_pool.c: the pool of threads for disk work. The queue is under one lock; everything else of a
 * job belongs to whoever has it: a thread between io_pool_run() and the end of work(), the loop
 * otherwise.
 */
#include "api/core/io_pool.h"

#include <pthread.h>
#include <sys/eventfd.h>

#include "lib/loop.h"

/* The first takes quick jobs only, so that no long one holds them up. More would only compete for the disk. */
#define IO_THREADS 3u

struct io_queue {
	struct io_job *first, **last;
};

struct io_pool {
	struct loop *loop;
	pthread_mutex_t lock;
	pthread_cond_t work, quick_work;
	pthread_t thread[IO_THREADS];
	unsigned int nthreads;
	bool ending;
	struct io_queue quick, todo, done;
	unsigned int busy; /* the loop's */
	int wake_fd;
	struct watch *wake;
};

static void queue_init(struct io_queue *q)
{
	q->last = &q->first;
}

static struct io_job *queue_take(struct io_queue *q)
{
	struct io_job *j = q->first;

	if (j)
		q->first = j->next;
	if (!q->first)
		q->last = &q->first;
	return j;
}

static void queue_add(struct io_queue *q, struct io_job *j)
{
	j->next = NULL;
	*q->last = j;
	q->last = &j->next;
}

static void io_thread(struct io_pool *p, bool only_quick)
{
	uint64_t one = 1;

	pthread_mutex_lock(&p->lock);
	while (!p->ending) {
		struct io_job *j = queue_take(&p->quick);

		if (!j && !only_quick)
			j = queue_take(&p->todo);
		if (!j) {
			pthread_cond_wait(only_quick ? &p->quick_work : &p->work, &p->lock);
			continue;
		}
		pthread_mutex_unlock(&p->lock);
		j->work(j);
		pthread_mutex_lock(&p->lock);
		queue_add(&p->done, j);
		(void)!write(p->wake_fd, &one, sizeof(one));
	}
	pthread_mutex_unlock(&p->lock);
}

static void *io_main(void *arg)
{
	io_thread(arg, false);
	return NULL;
}

static void *io_quick_main(void *arg)
{
	io_thread(arg, true);
	return NULL;
}

static void jobs_done(void *arg, uint32_t events)
{
	struct io_pool *p = arg;
	struct io_job *j;
	uint64_t n;

	(void)!read(p->wake_fd, &n, sizeof(n));
	do {
		pthread_mutex_lock(&p->lock);
		j = queue_take(&p->done);
		pthread_mutex_unlock(&p->lock);
		if (j) {
			p->busy--;
			j->done(j);
		}
	} while (j);
}

void io_pool_run(struct io_pool *p, struct io_job *j)
{
	p->busy++;
	pthread_mutex_lock(&p->lock);
	queue_add(&p->todo, j);
	pthread_cond_signal(&p->work);
	pthread_mutex_unlock(&p->lock);
}

void io_pool_run_quick(struct io_pool *p, struct io_job *j)
{
	p->busy++;
	pthread_mutex_lock(&p->lock);
	queue_add(&p->quick, j);
	pthread_cond_signal(&p->quick_work);
	pthread_cond_signal(&p->work);
	pthread_mutex_unlock(&p->lock);
}

unsigned int io_pool_busy(const struct io_pool *p)
{
	return p->busy;
}

struct io_pool *io_pool_create(struct loop *l, struct err *e)
{
	struct io_pool *p = calloc(1, sizeof(*p));

	if (!p) {
		err_set(e, ENOMEM, "the I/O pool");
		return NULL;
	}
	p->loop = l;
	queue_init(&p->quick);
	queue_init(&p->todo);
	queue_init(&p->done);
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->work, NULL);
	pthread_cond_init(&p->quick_work, NULL);
	p->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	p->wake = p->wake_fd < 0 ? NULL : loop_watch(l, p->wake_fd, EPOLLIN, jobs_done, p);
	if (p->wake)
		return p;
	err_set(e, errno, "the I/O pool");
	io_pool_destroy(p);
	return NULL;
}

int io_pool_start(struct io_pool *p, struct err *e)
{
	while (p->nthreads < IO_THREADS) {
		int rc = pthread_create(
			&p->thread[p->nthreads], NULL, p->nthreads ? io_main : io_quick_main, p);

		if (rc)
			return err_set(e, rc, "a thread of the I/O pool");
		p->nthreads++;
	}
	return 0;
}

void io_pool_destroy(struct io_pool *p)
{
	if (!p)
		return;
	pthread_mutex_lock(&p->lock);
	p->ending = true;
	pthread_cond_broadcast(&p->work);
	pthread_cond_broadcast(&p->quick_work);
	pthread_mutex_unlock(&p->lock);
	while (p->nthreads > 0)
		pthread_join(p->thread[--p->nthreads], NULL);
	watch_remove(p->wake);
	close_fd(&p->wake_fd);
	pthread_cond_destroy(&p->work);
	pthread_cond_destroy(&p->quick_work);
	pthread_mutex_destroy(&p->lock);
	free(p);
}
