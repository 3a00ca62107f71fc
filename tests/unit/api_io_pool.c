/* SPDX-License-Identifier: Apache-2.0
 *
 * api_io_pool: jobs run in threads, call back on the loop, and wait until the threads are started.
 */
#include "lib/test.h"

#include <pthread.h>

#include "api/core/io_pool.h"
#include "lib/loop.h"

#define JOBS 200

struct numbered {
	struct io_job job;
	int n;
	pthread_t ran;
};

static int done_jobs, sum;

static void work(struct io_job *j)
{
	struct numbered *x = container_of(j, struct numbered, job);

	x->n *= 2;
	x->ran = pthread_self();
}

static void done(struct io_job *j)
{
	const struct numbered *x = container_of(j, struct numbered, job);

	done_jobs++;
	sum += x->n;
	CHECK(!pthread_equal(x->ran, pthread_self()));
}

static void jobs_run_and_call_back(void)
{
	static struct numbered x[JOBS];
	struct loop *l = loop_create();
	struct err e;
	struct io_pool *p = io_pool_create(l, &e);

	REQUIRE(p);
	done_jobs = sum = 0;
	for (int i = 0; i < JOBS; i++) {
		x[i] = (struct numbered){.job = {work, done, NULL}, .n = i};
		io_pool_run(p, &x[i].job);
	}
	loop_turn(l, 0);
	CHECK_INT(done_jobs, 0);
	CHECK_INT(io_pool_busy(p), JOBS);
	REQUIRE(io_pool_start(p, &e) == 0);
	for (int i = 0; i < 500 && done_jobs < JOBS; i++)
		loop_turn(l, 20);
	CHECK_INT(done_jobs, JOBS);
	CHECK_INT(sum, JOBS * (JOBS - 1));
	CHECK_INT(io_pool_busy(p), 0);
	io_pool_destroy(p);
	loop_destroy(l);
}

/* ---- a quick job does not wait for long ones */

static pthread_barrier_t held;

static void long_work(struct io_job *j)
{
	pthread_barrier_wait(&held);
}

static void nothing(struct io_job *j)
{
}

static void a_quick_job_passes_long_ones(void)
{
	struct loop *l = loop_create();
	struct io_job slow[2] = {{long_work, nothing, NULL}, {long_work, nothing, NULL}};
	struct numbered quick = {.job = {work, done, NULL}, .n = 21};
	struct err e;
	struct io_pool *p = io_pool_create(l, &e);

	REQUIRE(p && !pthread_barrier_init(&held, NULL, 3) && !io_pool_start(p, &e));
	done_jobs = sum = 0;
	for (int i = 0; i < 2; i++)
		io_pool_run(p, &slow[i]);
	io_pool_run_quick(p, &quick.job);
	for (int i = 0; i < 500 && !done_jobs; i++)
		loop_turn(l, 20);
	CHECK_INT(sum, 42);
	CHECK_INT(io_pool_busy(p), 2);
	pthread_barrier_wait(&held);
	for (int i = 0; i < 500 && io_pool_busy(p); i++)
		loop_turn(l, 20);
	CHECK_INT(io_pool_busy(p), 0);
	io_pool_destroy(p);
	loop_destroy(l);
	pthread_barrier_destroy(&held);
}

static const struct test tests[] = {
	{"a_quick_job_passes_long_ones", a_quick_job_passes_long_ones},
	{"jobs_run_and_call_back", jobs_run_and_call_back},
};
TEST_MAIN(tests)
