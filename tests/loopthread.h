/* SPDX-License-Identifier: Apache-2.0
 *
 * loopthread.h: a unit test's event loop in a thread of its own. loop.h lets another thread do
 * nothing but wake it: the end is a descriptor that the loop watches.
 */
#pragma once

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "lib/loop.h"

struct loop_thread {
	struct loop *loop;
	struct watch *watch;
	pthread_t thread;
	int end;
	void (*at_end)(void); /* in the loop's thread; may be NULL */
};

static inline void *loop_thread_main(void *arg)
{
	loop_run(((struct loop_thread *)arg)->loop);
	return NULL;
}

static inline void loop_thread_ends(void *arg, uint32_t events)
{
	struct loop_thread *t = arg;

	if (t->at_end)
		t->at_end();
	loop_stop(t->loop, 0);
}

static inline bool loop_thread_start(struct loop_thread *t, struct loop *loop)
{
	t->loop = loop;
	t->end = eventfd(0, EFD_CLOEXEC);
	t->watch = t->end < 0 ? NULL : loop_watch(loop, t->end, EPOLLIN, loop_thread_ends, t);
	return t->watch && pthread_create(&t->thread, NULL, loop_thread_main, t) == 0;
}

static inline void loop_thread_stop(struct loop_thread *t)
{
	if (eventfd_write(t->end, 1) < 0)
		return;
	pthread_join(t->thread, NULL);
	watch_remove(t->watch);
	close(t->end);
}
