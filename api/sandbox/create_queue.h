/* SPDX-License-Identifier: Apache-2.0
 *
 * create_queue.h: at most four creates for each CPU make their VM at a time; the others wait for their
 * turn. mayflyd's loop. Without this, none of two hundred creates on one CPU would end before its
 * deadline. With it, the first ones end soon, and the others show that they wait.
 */
#pragma once

#include "lib/base.h"
#include "lib/loop.h"

struct daemon;
struct sandbox;

struct turns {
	unsigned int working;
	struct turn *first, *last; /* creates that wait, the oldest first */
};

struct turn {
	struct daemon *d;
	struct sandbox *sb;
	struct turn *prev, *next;
	bool waiting, working;
	struct timer *limit;
	void (*go)(struct sandbox *sb);
};

/* Calls go now, or later when it is the turn of t. turn_end() before that cancels the call. */
void turn_take(struct turn *t, struct sandbox *sb, void (*go)(struct sandbox *sb));
/* Ends the turn of t, or its wait. Does nothing if turn_take() was never called. */
void turn_end(struct turn *t);
