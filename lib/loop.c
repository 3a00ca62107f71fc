/* SPDX-License-Identifier: Apache-2.0
 *
 * loop.c: the event loop. Every process, one thread each. Removed watches are kept until the turn
 * ends, because events already fetched from the kernel still point at them. Timers are in a binary
 * heap; the loop waits at most until the next one.
 */
#include "lib/loop.h"

#include <string.h>

struct watch {
	struct loop *loop;
	int fd;
	watch_fn fn;
	void *arg;
	const char *name;
	bool dead;
	struct watch *next_dead;
};

struct timer {
	struct loop *loop;
	timer_fn fn;
	void *arg;
	const char *name;
	uint64_t at_ns;
	size_t pos; /* in the heap, +1; 0 = not armed */
};

struct deferred {
	timer_fn fn;
	void *arg;
	const char *name;
};

struct loop {
	int ep;
	struct watch *dead;
	struct timer **heap;
	size_t ntimers, heap_cap;
	struct deferred *later;
	size_t nlater, later_cap;
	bool stop;
	int code;
	const struct loop_observer *observer;
	uint64_t seen_ns; /* when the last handler ended */
};

struct loop *loop_create(void)
{
	struct loop *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	l->ep = epoll_create1(EPOLL_CLOEXEC);
	if (l->ep < 0) {
		free(l);
		return NULL;
	}
	return l;
}

static void bury_dead(struct loop *l)
{
	while (l->dead) {
		struct watch *w = l->dead;

		l->dead = w->next_dead;
		free(w);
	}
}

void loop_destroy(struct loop *l)
{
	if (!l)
		return;
	bury_dead(l);
	close(l->ep);
	free(l->heap);
	free(l->later);
	free(l);
}

struct watch *loop_watch_as(
	struct loop *l, int fd, uint32_t events, watch_fn fn, void *arg, const char *name)
{
	struct watch *w = calloc(1, sizeof(*w));
	struct epoll_event ev = {.events = events, .data.ptr = w};

	if (!w)
		return NULL;
	*w = (struct watch){.loop = l, .fd = fd, .fn = fn, .arg = arg, .name = name};
	if (epoll_ctl(l->ep, EPOLL_CTL_ADD, fd, &ev) < 0) {
		free(w);
		return NULL;
	}
	return w;
}

int watch_events(struct watch *w, uint32_t events)
{
	struct epoll_event ev = {.events = events, .data.ptr = w};

	return epoll_ctl(w->loop->ep, EPOLL_CTL_MOD, w->fd, &ev) < 0 ? -errno : 0;
}

void watch_remove(struct watch *w)
{
	if (!w || w->dead)
		return;
	epoll_ctl(w->loop->ep, EPOLL_CTL_DEL, w->fd, NULL);
	w->dead = true;
	w->next_dead = w->loop->dead;
	w->loop->dead = w;
}

struct timer *loop_timer_as(struct loop *l, timer_fn fn, void *arg, const char *name)
{
	struct timer *t = calloc(1, sizeof(*t));
	size_t cap = l->heap_cap ? l->heap_cap : 16;

	if (!t)
		return NULL;
	/* make room for this timer beside those that are armed, so that arming seldom allocates */
	while (cap < l->ntimers + 1)
		cap *= 2;
	if (cap != l->heap_cap) {
		struct timer **h = realloc(l->heap, cap * 2 * sizeof(*h));

		if (!h) {
			free(t);
			return NULL;
		}
		l->heap = h;
		l->heap_cap = cap * 2;
	}
	*t = (struct timer){.loop = l, .fn = fn, .arg = arg, .name = name};
	return t;
}

static void heap_place(struct loop *l, size_t i, struct timer *t)
{
	l->heap[i] = t;
	t->pos = i + 1;
}

static void heap_up(struct loop *l, size_t i)
{
	struct timer *t = l->heap[i];

	for (; i > 0 && l->heap[(i - 1) / 2]->at_ns > t->at_ns; i = (i - 1) / 2)
		heap_place(l, i, l->heap[(i - 1) / 2]);
	heap_place(l, i, t);
}

static void heap_down(struct loop *l, size_t i)
{
	struct timer *t = l->heap[i];

	for (;;) {
		size_t c = 2 * i + 1;

		if (c >= l->ntimers)
			break;
		if (c + 1 < l->ntimers && l->heap[c + 1]->at_ns < l->heap[c]->at_ns)
			c++;
		if (l->heap[c]->at_ns >= t->at_ns)
			break;
		heap_place(l, i, l->heap[c]);
		i = c;
	}
	heap_place(l, i, t);
}

static void heap_drop(struct loop *l, struct timer *t)
{
	size_t i = t->pos - 1;
	struct timer *last = l->heap[--l->ntimers];

	t->pos = 0;
	if (last == t)
		return;
	heap_place(l, i, last);
	heap_up(l, i);
	heap_down(l, last->pos - 1);
}

void timer_set(struct timer *t, uint64_t at_ns)
{
	struct loop *l = t->loop;

	if (t->pos)
		heap_drop(l, t);
	t->at_ns = at_ns;
	if (!at_ns)
		return;
	if (l->ntimers == l->heap_cap) {
		/* Timers that were not armed when others were made have no room yet. Arming cannot
		 * fail, so without memory the process ends. */
		struct timer **h = realloc(l->heap, l->heap_cap * 2 * sizeof(*h));

		ASSERT(h);
		l->heap = h;
		l->heap_cap *= 2;
	}
	heap_place(l, l->ntimers++, t);
	heap_up(l, l->ntimers - 1);
}

void timer_remove(struct timer *t)
{
	if (!t)
		return;
	timer_set(t, 0);
	free(t);
}

int loop_defer_as(struct loop *l, timer_fn fn, void *arg, const char *name)
{
	if (l->nlater == l->later_cap) {
		size_t cap = l->later_cap ? l->later_cap * 2 : 16;
		struct deferred *d = realloc(l->later, cap * sizeof(*d));

		if (!d)
			return -ENOMEM;
		l->later = d;
		l->later_cap = cap;
	}
	l->later[l->nlater++] = (struct deferred){fn, arg, name};
	return 0;
}

void loop_undefer(struct loop *l, timer_fn fn, const void *arg)
{
	/* emptied, not removed: run_deferred may be walking over them */
	for (size_t i = 0; i < l->nlater; i++)
		if (l->later[i].fn == fn && l->later[i].arg == arg)
			l->later[i].fn = NULL;
}

static int wait_ms(struct loop *l, int limit)
{
	uint64_t now, ms;

	if (l->nlater || l->stop)
		return 0;
	if (!l->ntimers)
		return limit;
	now = mono_ns();
	if (l->heap[0]->at_ns <= now)
		return 0;
	ms = (l->heap[0]->at_ns - now + 999999) / 1000000;
	if (ms > 3600000)
		ms = 3600000;
	return limit >= 0 && (uint64_t)limit < ms ? limit : (int)ms;
}

/* A handler has run. The clock is read once for each. */
static void handled(struct loop *l, const char *name)
{
	uint64_t now;

	if (!l->observer)
		return;
	now = mono_ns();
	l->observer->handler(l->observer->arg, name, now - l->seen_ns);
	l->seen_ns = now;
}

static void fire_timers(struct loop *l)
{
	uint64_t now = mono_ns();
	size_t budget = l->ntimers;

	/* the budget: a timer that re-arms itself for a time already past waits for the next turn
	 */
	while (budget-- > 0 && l->ntimers && l->heap[0]->at_ns <= now) {
		struct timer *t = l->heap[0];
		const char *name = t->name;

		heap_drop(l, t);
		t->fn(t->arg);
		handled(l, name);
	}
}

static void run_deferred(struct loop *l)
{
	size_t n = l->nlater;

	for (size_t i = 0; i < n; i++) {
		struct deferred d = l->later[i];

		if (!d.fn)
			continue;
		d.fn(d.arg);
		handled(l, d.name);
	}
	memmove(l->later, l->later + n, (l->nlater - n) * sizeof(*l->later));
	l->nlater -= n;
}

int loop_turn(struct loop *l, int timeout_ms)
{
	struct epoll_event ev[64];
	int n = epoll_wait(l->ep, ev, ARRAY_LEN(ev), wait_ms(l, timeout_ms));
	uint64_t begun_ns;

	if (n < 0 && errno != EINTR)
		return -errno;
	begun_ns = l->seen_ns = l->observer ? mono_ns() : 0;
	for (int i = 0; i < n; i++) {
		struct watch *w = ev[i].data.ptr;

		if (w->dead)
			continue;
		w->fn(w->arg, ev[i].events);
		handled(l, w->name); /* a dead watch is there until the turn ends */
	}
	fire_timers(l);
	if (l->nlater)
		run_deferred(l);
	bury_dead(l);
	if (l->observer)
		l->observer->turn(l->observer->arg, mono_ns() - begun_ns);
	return 0;
}

void loop_observe(struct loop *l, const struct loop_observer *o)
{
	l->observer = o;
}

int loop_run(struct loop *l)
{
	l->stop = false;
	while (!l->stop) {
		int rc = loop_turn(l, -1);

		if (rc < 0)
			return rc;
	}
	return l->code;
}

void loop_stop(struct loop *l, int code)
{
	l->stop = true;
	l->code = code;
}

int loop_fd(struct loop *l)
{
	return l->ep;
}
