/* SPDX-License-Identifier: Apache-2.0
 *
 * budgets.h: the accounts of this daemon. mayflyd's loop. Bytes: the daemon > all tenants > one principal > its records, its guests > one sandbox.
 * A principal without tenants' limits is an operator. The shares leave room on purpose: records and guests together cannot take all that their
 * principal has, so the principal can still list and delete; tenants together cannot take all that the daemon has, so the operator can.
 *
 * Clients that know only a sandbox's id are charged to that sandbox, whose owner is charged in turn.
 */
#pragma once

#include "api/core/account.h"
#include "api/core/principal.h"

struct config;

/* What each has for itself, whatever others hold: enough for a few requests at a time. */
#define PRINCIPAL_RESERVE MIB(1)
#define SANDBOX_RESERVE   KIB(256)

/* What is held for one principal: the owner of records, or a key that asks. */
struct owner_budget {
	struct owner_budget *next;
	char owner[OWNER_MAX];
	/* bytes of the daemon's memory. records and guests are below memory. */
	struct account memory, records, guests;
	/* open connections that showed the principal's key, or on which a request for one of its sandboxes is answered: guest_connections */
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
/* The configuration was read again. */
void budgets_limit(struct budgets *b, const struct config *c);
/* Never NULL: without memory for a new one it is the strangers'. It stays valid as long as the daemon runs; there are as many as
 * principals were ever in the configuration or in a record. */
struct owner_budget *budget_of(struct budgets *b, const struct config *c, const char *owner);
