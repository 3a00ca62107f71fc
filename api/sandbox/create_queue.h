/* SPDX-License-Identifier: Apache-2.0
 *
 * create_queue.h: how many creates make their VM at one time: four for each CPU. mayflyd's loop. Of two
 * hundred at once on one CPU none gets done before its deadline; in turns the first ones are done
 * at once, and who waits is told so.
 */
#pragma once

#include "lib/base.h"
#include "lib/loop.h"

struct daemon;
struct sandbox;

struct turns {
	unsigned int working;
	struct turn *first, *last; /* who waits, in the order of coming */
};

struct turn {
	struct daemon *d;
	struct sandbox *sb;
	struct turn *prev, *next;
	bool waiting, working;
	struct timer *limit;
	void (*go)(struct sandbox *sb);
};

/* Calls go now, or when it is this one's turn (and not if turn_end comes first). */
void turn_take(struct turn *t, struct sandbox *sb, void (*go)(struct sandbox *sb));
/* Done with it, or given up; also for one that was never taken. */
void turn_end(struct turn *t);
