/* SPDX-License-Identifier: Apache-2.0
 *
 * loop.h: an epoll event loop with timers and deferred calls, for one thread. No polling: it sleeps until a descriptor or a timer
 * has something. Handlers may remove any watch or timer, their own included, at any time.
 */
#pragma once

#include "lib/base.h"

#include <sys/epoll.h>

struct loop;
struct watch;
struct timer;

typedef void (*watch_fn)(void *arg, uint32_t events);
typedef void (*timer_fn)(void *arg);

struct loop *loop_create(void);
void loop_destroy(struct loop *l);

/* Watches fd (borrowed) for EPOLLIN/EPOLLOUT/EPOLLRDHUP (level triggered unless EPOLLET is given).
 * NULL: errno says why. */
#define loop_watch(l, fd, events, fn, arg) loop_watch_as(l, fd, events, fn, arg, LOOP_NAME(fn))
/* name: of the handler, for loop_observe; a literal. */
#define LOOP_NAME(fn) __FILE_NAME__ ":" #fn
struct watch *loop_watch_as(
	struct loop *l, int fd, uint32_t events, watch_fn fn, void *arg, const char *name);
/* change what is waited for; 0 = nothing but errors */
int watch_events(struct watch *w, uint32_t events);
void watch_remove(struct watch *w); /* NULL is fine */

/* A new timer is disarmed. at_ns: CLOCK_MONOTONIC; 0 disarms. It fires once for each setting. */
#define loop_timer(l, fn, arg) loop_timer_as(l, fn, arg, LOOP_NAME(fn))
struct timer *loop_timer_as(struct loop *l, timer_fn fn, void *arg, const char *name);
void timer_set(struct timer *t, uint64_t at_ns);
static inline void timer_after(struct timer *t, uint64_t ns)
{
	timer_set(t, mono_ns() + ns);
}
void timer_remove(struct timer *t); /* NULL is fine */

/* Calls fn once from the loop, after the handlers of this turn. 0 or -ENOMEM. */
#define loop_defer(l, fn, arg) loop_defer_as(l, fn, arg, LOOP_NAME(fn))
int loop_defer_as(struct loop *l, timer_fn fn, void *arg, const char *name);
/* Cancels all such calls, for an owner of arg that ends. */
void loop_undefer(struct loop *l, timer_fn fn, const void *arg);
/* Runs until loop_stop; returns its code. loop_turn takes one turn, waiting at most timeout_ms (-1:
 * for ever). */
int loop_run(struct loop *l);
int loop_turn(struct loop *l, int timeout_ms);
void loop_stop(struct loop *l, int code);
/* Both callbacks run after the handlers that they measure. */
struct loop_observer {
	void (*turn)(
		void *arg, uint64_t ns); /* all of a turn: so long another event may have waited */
	void (*handler)(void *arg, const char *name, uint64_t ns);
	void *arg;
};
/* One observer, borrowed; NULL: nobody, and no clock is read. */
void loop_observe(struct loop *l, const struct loop_observer *o);
/* The epoll descriptor, to nest this loop in another. */
int loop_fd(struct loop *l);
