/* SPDX-License-Identifier: Apache-2.0
 *
 * api_account: accounts with parents, and the daemon's tree of them.
 */
#include "lib/test.h"

#include "api/core/budgets.h"
#include "api/core/config.h"

static void all_or_nothing_along_the_chain(void)
{
	struct account top = {.limit = 100}, mid = {.limit = 80, .parent = &top},
		       a = {.limit = 60, .parent = &mid}, b = {.parent = &mid};

	CHECK(account_take(&a, 60));
	CHECK(!account_take(&a, 1) && a.refused == 1);
	CHECK(account_full(&b, 21) == &mid && !account_full(&b, 20));
	CHECK(!account_take(&b, 21) && mid.refused == 1);
	CHECK_INT(b.used, 0);
	CHECK_INT(top.used, 60);
	CHECK(account_take(&b, 20));
	CHECK(!account_full(&b, 0));
	/* beyond: seen until it is given back */
	account_force(&b, 30);
	CHECK(account_full(&b, 0) == &mid);
	CHECK_INT(top.used, 110);
	account_give(&b, 50);
	account_give(&a, 60);
	CHECK(!top.used && !mid.used && !a.used && !b.used);
	/* no sum overflows */
	CHECK(!account_take(&a, UINT64_MAX));
	account_force(&a, 50);
	CHECK(!account_take(&a, UINT64_MAX - 10));
	CHECK(account_take(NULL, UINT64_MAX) && !account_full(NULL, 1));
}

static void an_account_moves_with_what_it_holds(void)
{
	struct account x = {0}, y = {0}, a = {.parent = &x};

	account_force(&a, 7);
	account_move(&a, &y);
	CHECK(!x.used && y.used == 7 && a.used == 7);
	CHECK(account_within(&a, &y) && account_within(&a, &a) && !account_within(&a, &x));
	account_move(&a, NULL);
	CHECK(!y.used && a.used == 7);
}

static void a_reserve_is_for_itself(void)
{
	struct account top = {.limit = 100}, greedy = {.parent = &top},
		       modest = {.reserve = 10, .parent = &top};

	CHECK(account_take(&greedy, 100));
	CHECK(account_take(&modest, 10) && top.used == 110);
	CHECK(!account_take(&modest, 1));
	CHECK(!account_take(&greedy, 1));
}

static void the_shares_leave_room(void)
{
	struct config c;
	struct budgets *b;
	struct owner_budget *op, *a, *k[8];

	conf_defaults(&c);
	b = budgets_create(&c);
	op = budget_of(b, &c, OWNER_OPERATOR);
	a = budget_of(b, &c, "a/a");
	CHECK(a == budget_of(b, &c, "a/a") && a != op && a != budget_of(b, &c, "a/b"));
	/* full of records and of its sandboxes' traffic, a principal can still ask */
	account_force(&a->records, a->records.limit);
	account_force(&a->guests, a->guests.limit);
	CHECK(!account_take(&a->records, 1));
	CHECK(account_take(&a->memory, MIB(8)));
	/* all tenants together leave something to the operator */
	for (int i = 0; i < 8; i++) {
		char owner[8] = {'t', (char)('0' + i), '/', 'x', 0};

		k[i] = budget_of(b, &c, owner);
		while (account_take(&k[i]->memory, MIB(1)))
			;
	}
	CHECK(b->tenants_memory.used <= b->tenants_memory.limit + 9 * PRINCIPAL_RESERVE);
	CHECK(account_take(&op->memory, MIB(32)));
	/* and none shuts another out */
	CHECK(account_take(&budget_of(b, &c, "late/x")->memory, KIB(512)));
	c.budget_key_mib = 4;
	budgets_limit(b, &c);
	CHECK_INT(a->memory.limit, MIB(4));
	CHECK_INT(op->memory.limit, MIB((uint64_t)c.budget_mib));
	while (b->owners) {
		struct owner_budget *next = b->owners->next;

		free(b->owners);
		b->owners = next;
	}
	free(b);
}

static const struct test tests[] = {
	{"all_or_nothing_along_the_chain", all_or_nothing_along_the_chain},
	{"an_account_moves_with_what_it_holds", an_account_moves_with_what_it_holds},
	{"a_reserve_is_for_itself", a_reserve_is_for_itself},
	{"the_shares_leave_room", the_shares_leave_room},
};
TEST_MAIN(tests)
