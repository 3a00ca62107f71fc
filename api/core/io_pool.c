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

/* Two, so that a long job does not hold up a short one. More would only compete for the disk. */
#define IO_THREADS 2u

struct io_pool {
	struct loop *loop;
	pthread_mutex_t lock;
	pthread_cond_t work;
	pthread_t thread[IO_THREADS];
	unsigned int nthreads;
	bool ending;
	struct io_job *todo, **todo_last;
	struct io_job *done, **done_last;
	unsigned int busy; /* the loop's */
	int wake_fd;
	struct watch *wake;
};

static struct io_job *list_take(struct io_job **list, struct io_job ***last)
{
	struct io_job *j = *list;

	if (j)
		*list = j->next;
	if (!*list)
		*last = list;
	return j;
}

static void list_add(struct io_job ***last, struct io_job *j)
{
	j->next = NULL;
	**last = j;
	*last = &j->next;
}

static void *io_main(void *arg)
{
	struct io_pool *p = arg;
	uint64_t one = 1;

	pthread_mutex_lock(&p->lock);
	while (!p->ending) {
		struct io_job *j = list_take(&p->todo, &p->todo_last);

		if (!j) {
			pthread_cond_wait(&p->work, &p->lock);
			continue;
		}
		pthread_mutex_unlock(&p->lock);
		j->work(j);
		pthread_mutex_lock(&p->lock);
		list_add(&p->done_last, j);
		(void)!write(p->wake_fd, &one, sizeof(one));
	}
	pthread_mutex_unlock(&p->lock);
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
		j = list_take(&p->done, &p->done_last);
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
	list_add(&p->todo_last, j);
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
	p->todo_last = &p->todo;
	p->done_last = &p->done;
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->work, NULL);
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
		int rc = pthread_create(&p->thread[p->nthreads], NULL, io_main, p);

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
	pthread_mutex_unlock(&p->lock);
	while (p->nthreads > 0)
		pthread_join(p->thread[--p->nthreads], NULL);
	watch_remove(p->wake);
	close_fd(&p->wake_fd);
	pthread_cond_destroy(&p->work);
	pthread_mutex_destroy(&p->lock);
	free(p);
}
