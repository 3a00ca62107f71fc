/* SPDX-License-Identifier: Apache-2.0
 *
 * io_pool.h: a few threads for what waits for a disk: making files, deleting large ones. The
 * loop hands a job over and hears of its end in a callback. The owner embeds
 * struct io_job in its own struct, so that handing a job over cannot fail.
 */
#pragma once

#include "lib/err.h"

struct io_pool;
struct loop;

struct io_job {
	void (*work)(struct io_job *j); /* in a thread of the pool; touches only the job */
	void (*done)(struct io_job *j); /* on the loop; the job is the owner's again */
	struct io_job *next;            /* the pool's */
};

struct io_pool *io_pool_create(struct loop *l, struct err *e);
/* Jobs wait until their threads are started: after the daemon has sealed itself. */
int io_pool_start(struct io_pool *p, struct err *e);
/* Waits for the jobs that run. The others are not begun, and no callback is called any more. */
void io_pool_destroy(struct io_pool *p);
void io_pool_run(struct io_pool *p, struct io_job *j);
/* For a job of milliseconds that somebody waits for: no long job holds it up. */
void io_pool_run_quick(struct io_pool *p, struct io_job *j);
/* Jobs that were handed over and have not called back. */
unsigned int io_pool_busy(const struct io_pool *p);
