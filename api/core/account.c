/* SPDX-License-Identifier: Apache-2.0
 *
 * account.c: see account.h. mayflyd's loop.
 */
#include "api/core/account.h"

static bool account_has_room(const struct account *a, uint64_t n)
{
	return !a->limit || (a->used <= a->limit && n <= a->limit - a->used);
}

struct account *account_full(struct account *a, uint64_t n)
{
	for (; a; a = a->parent) {
		if (!account_has_room(a, n))
			return a;
		if (a->reserve && n <= a->reserve && a->used <= a->reserve - n)
			return NULL;
	}
	return NULL;
}

bool account_take(struct account *a, uint64_t n)
{
	struct account *full = account_full(a, n);

	if (full) {
		full->refused++;
		return false;
	}
	account_force(a, n);
	return true;
}

void account_force(struct account *a, uint64_t n)
{
	for (; a; a = a->parent)
		a->used += n;
}

void account_give(struct account *a, uint64_t n)
{
	for (; a; a = a->parent) {
		ASSERT(a->used >= n);
		a->used -= n;
	}
}

bool account_within(const struct account *a, const struct account *top)
{
	while (a && a != top)
		a = a->parent;
	return a;
}

void account_move(struct account *a, struct account *parent)
{
	account_give(a->parent, a->used);
	a->parent = parent;
	account_force(parent, a->used);
}
