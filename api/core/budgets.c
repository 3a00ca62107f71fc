/* SPDX-License-Identifier: Apache-2.0
 *
 * budgets.c: see budgets.h. mayflyd's loop.
 */
#include "api/core/budgets.h"

#include <stdio.h>
#include <string.h>

#include "api/core/config.h"

/* parts of a limit, in eighths */
#define TENANTS_PART   6
#define RECORDS_PART   3
#define GUESTS_PART    3
#define STRANGERS_PART 1
#define KEY_CONNS_PART 4
#define OPERATORS_PART 6

static uint64_t part(uint64_t whole, unsigned int eighths)
{
	return MAX(whole / 8 * eighths, UINT64_C(1));
}

static bool is_operator(const struct owner_budget *o)
{
	return owner_may(o->owner, OWNER_OPERATOR);
}

static void owner_limit(struct owner_budget *o, const struct config *c)
{
	uint64_t all = MIB((uint64_t)c->budget_mib),
		 bytes = is_operator(o) ? all : MIN(MIB((uint64_t)c->budget_key_mib), all),
		 conns = (uint64_t)c->max_connections;

	o->memory.limit = bytes;
	o->records.limit = part(bytes, RECORDS_PART);
	o->guests.limit = part(bytes, GUESTS_PART);
	o->connections.limit = is_operator(o) ? 0 : part(conns, KEY_CONNS_PART);
	o->guest_connections.limit = part(conns, is_operator(o) ? OPERATORS_PART : GUESTS_PART);
	o->ended.limit = (uint64_t)c->max_ended;
}

static void owner_init(struct budgets *b, struct owner_budget *o, const char *owner)
{
	bool op;

	snprintf(o->owner, sizeof(o->owner), "%s", owner);
	op = is_operator(o);
	o->memory = (struct account){.whose = op ? "the operator" : "this API key",
		.parent = op ? &b->memory : &b->tenants_memory};
	o->memory.reserve = PRINCIPAL_RESERVE;
	o->records = (struct account){
		.whose = "the records of this API key's sandboxes", .parent = &o->memory};
	o->guests = (struct account){.whose = "this API key's sandboxes", .parent = &o->memory};
	o->connections = (struct account){
		.whose = o->memory.whose, .parent = op ? NULL : &b->tenants_connections};
	o->guest_connections =
		(struct account){.whose = o->guests.whose, .parent = &o->connections};
}

void budgets_limit(struct budgets *b, const struct config *c)
{
	b->memory.limit = MIB((uint64_t)c->budget_mib);
	b->tenants_memory.limit = part(b->memory.limit, TENANTS_PART);
	b->tenants_connections.limit = part((uint64_t)c->max_connections, TENANTS_PART);
	for (struct owner_budget *o = b->owners; o; o = o->next)
		owner_limit(o, c);
	b->strangers.memory.limit = part(b->memory.limit, STRANGERS_PART);
}

struct budgets *budgets_create(const struct config *c)
{
	struct budgets *b = calloc(1, sizeof(*b));

	if (!b)
		return NULL;
	b->memory.whose = "this server";
	b->tenants_memory =
		(struct account){.whose = "all API keys together", .parent = &b->memory};
	b->tenants_connections.whose = "all API keys together";
	owner_init(b, &b->strangers, "");
	b->strangers.memory.whose = "requests without an API key";
	b->strangers.connections.parent = NULL;
	budgets_limit(b, c);
	return b;
}

struct owner_budget *budget_of(struct budgets *b, const struct config *c, const char *owner)
{
	struct owner_budget *o = b->owners;

	while (o && strcmp(o->owner, owner) != 0)
		o = o->next;
	if (o)
		return o;
	o = calloc(1, sizeof(*o));
	if (!o)
		return &b->strangers;
	owner_init(b, o, owner);
	owner_limit(o, c);
	o->next = b->owners;
	b->owners = o;
	return o;
}
