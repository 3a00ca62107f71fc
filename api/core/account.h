/* SPDX-License-Identifier: Apache-2.0
 *
 * account.h: how much of one thing (bytes, connections, records) the daemon holds for somebody, and how much it may hold. mayflyd's loop.
 * An account has a parent: what a sandbox holds, its owner holds, and the daemon holds. Taking is all or nothing along the whole chain, so
 * that each level has its own limit and one mechanism keeps all of them. NULL is an account without a limit.
 */
#pragma once

#include "lib/base.h"

struct account {
	struct account *parent;
	const char *whose; /* for errors: "this sandbox", "this API key" */
	uint64_t limit;    /* 0: only the parent's limit holds */
	/* The account may always hold so much, even if its parents are full: others cannot shut it out. */
	uint64_t reserve;
	uint64_t used;    /* of its children, too */
	uint64_t refused; /* how often it was this account that had no room */
};

/* Takes n from this account and all above it. False: one of them has no room, and nothing was taken. */
bool account_take(struct account *a, uint64_t n);
/* Takes n beyond the limits: for what is held already, or is small and bounded elsewhere. */
void account_force(struct account *a, uint64_t n);
void account_give(struct account *a, uint64_t n);
/* Returns the first account of the chain that has no room for n more bytes, or NULL if each has room.
 * With n == 0 it returns the first account that is over its limit. */
struct account *account_full(struct account *a, uint64_t n);
/* Is `a` the account `top`, or below it? */
bool account_within(const struct account *a, const struct account *top);
/* Moves the account below another parent, with all that it holds. Pass NULL as the parent before the account is freed. */
void account_move(struct account *a, struct account *parent);
