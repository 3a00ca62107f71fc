/* SPDX-License-Identifier: Apache-2.0
 *
 * budgets.h: the accounts of this daemon. mayflyd's loop. The tree for bytes: the daemon > all tenants > one principal >
 * its records, its guests > one sandbox. An operator's account is directly below the daemon's: the limits of tenants do not hold for it.
 * The shares leave room on purpose: records and guests together cannot take all that their principal has, so the principal can still
 * list and delete. Tenants together cannot take all that the daemon has, so the operator can still list and delete, too.
 *
 * A request to a port of a sandbox, its execution API included, is charged to that sandbox, also if the request shows a key. The sandbox's
 * owner is charged in turn.
 */
#pragma once

#include "api/core/account.h"
#include "api/core/principal.h"

struct config;

/* Each principal and each sandbox may always hold so much, whatever others hold: enough for a few requests at a time. */
#define PRINCIPAL_RESERVE MIB(1)
#define SANDBOX_RESERVE   KIB(256)

/* What the daemon holds for one principal, which owns records or sends requests. */
struct owner_budget {
	struct owner_budget *next;
	char owner[OWNER_MAX];
	/* bytes of the daemon's memory. records and guests are below memory. */
	struct account memory, records, guests;
	/* Open connections. connections: those that showed the principal's key, and guest_connections.
	 * guest_connections: those that carry a request to one of its sandboxes. */
	struct account connections, guest_connections;
	/* records of sandboxes that ended */
	struct account ended;
};

struct budgets {
	struct account memory, tenants_memory, tenants_connections;
	struct owner_budget strangers; /* requests that needed no key */
	struct owner_budget *owners;
};

struct budgets *budgets_create(const struct config *c); /* NULL: no memory */
/* Sets all limits from the configuration, after it was read again. */
void budgets_limit(struct budgets *b, const struct config *c);
/* The budget of this owner, made at its first use. Never NULL: if there is no memory, it is the strangers' budget. It stays valid as
 * long as the daemon runs: there are no more of them than principals in the configuration and in records. */
struct owner_budget *budget_of(struct budgets *b, const struct config *c, const char *owner);
