/* SPDX-License-Identifier: Apache-2.0
 *
 * create_queue.c: see create_queue.h. A create that takes long (a guest that never finishes its boot) gives up its
 * place after step_timeout_seconds and continues beside the others: no guest can make all others wait.
 */
#include "api/sandbox/create_queue.h"

#include "api/core/daemon.h"
#include "api/sandbox/sandbox.h"

static unsigned int places(const struct daemon *d)
{
	return 4 * d->cpus;
}

static void next(void *arg);

static void give_up_place(struct turn *t)
{
	struct daemon *d = t->d;

	if (!t->working)
		return;
	t->working = false;
	timer_remove(take_ptr(t->limit));
	d->turns->working--;
	/* deferred: not from within the create that ends */
	loop_undefer(d->loop, next, d);
	if (d->turns->first && loop_defer(d->loop, next, d) < 0)
		next(d);
}

static void took_long(void *arg)
{
	give_up_place(arg);
}

static void leave_queue(struct turn *t)
{
	struct turns *q = t->d->turns;

	if (!t->waiting)
		return;
	t->waiting = false;
	*(t->prev ? &t->prev->next : &q->first) = t->next;
	*(t->next ? &t->next->prev : &q->last) = t->prev;
	t->prev = t->next = NULL;
}

static void start(struct turn *t)
{
	t->working = true;
	t->d->turns->working++;
	t->limit = loop_timer(t->d->loop, took_long, t);
	if (t->limit)
		timer_after(t->limit, (uint64_t)t->d->cfg.step_timeout_seconds * 1000000000u);
	t->go(t->sb);
}

static void next(void *arg)
{
	struct daemon *d = arg;

	while (d->turns->first && d->turns->working < places(d)) {
		struct turn *t = d->turns->first;

		leave_queue(t);
		start(t);
	}
}

void turn_take(struct turn *t, struct sandbox *sb, void (*go)(struct sandbox *sb))
{
	struct turns *q = sb->d->turns;

	*t = (struct turn){.d = sb->d, .sb = sb, .go = go};
	if (!q->first && q->working < places(sb->d)) {
		start(t);
		return;
	}
	t->waiting = true;
	t->prev = q->last;
	*(q->last ? &q->last->next : &q->first) = t;
	q->last = t;
}

void turn_end(struct turn *t)
{
	if (!t->d)
		return;
	leave_queue(t);
	give_up_place(t);
	/* pools make their machines only when no create waits */
	if (!t->d->turns->first && t->d->capacity_changed)
		t->d->capacity_changed(t->d);
}
