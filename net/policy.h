/* SPDX-License-Identifier: Apache-2.0
 *
 * policy.h: what a sandbox may reach (docs/network.md). The broker, one thread. Three sources decide together:
 * the sandbox's policy (hostile: a client wrote it); struct net_world, which all sandboxes share: the operator's lists and this host's own
 * addresses; and the addresses that were learned from DNS answers for allowed names.
 *
 * Names: the operator's deny list, the operator's allow list, then the policy's rules in order (first match), then its default.
 * Addresses: the order of the rules does not matter. Deny rules come first, then closed places (only an allow rule that lies inside one opens
 * it), then port 853, then allow rules, learned addresses and the default. Without a policy everything public is open.
 */
#pragma once

#include "lib/netrule.h"

struct policy {
	bool given; /* false: the client gave none */
	bool allow_default;
	uint32_t n;
	struct net_rule *rules;
};

/* Operator's rules and this host's addresses. An allow rule for an address opens a closed place for every sandbox. */
struct net_world {
	struct net_rule *rules;
	uint32_t nrules;
	struct net_addr *host; /* sorted */
	uint32_t nhost;
	bool host_unknown; /* the list could not be read: each public address may be the host's own */
	uint32_t fixed_kinds; /* 1 << enum net_kind: a sandbox's rules cannot open these */
};

enum net_verdict {
	NET_V_ALLOW,
	NET_V_OPERATOR, /* the operator's deny list */
	NET_V_RULE,     /* a deny rule of the policy */
	NET_V_PORT,     /* port 853: DNS that nobody could look into */
	NET_V_CLOSED,   /* a place that is closed unless opened */
	NET_V_DEFAULT,  /* the policy's default */
	NET_V_COUNT
};
const char *net_verdict_name(enum net_verdict v);

/* Addresses that DNS answers gave for allowed names. Entries expire. */
#define LEARNED_MAX   2048u
#define LEARNED_MIN_S 60u
#define LEARNED_MAX_S 360u
struct learned {
	uint32_t n;
	struct learned_entry {
		struct net_addr addr;
		uint64_t until_ns;
		char *name;
	} * entry;
};

/* The wire form: u8 given, u8 allow by default, u32 n, then rules (netrule.h). The whole cursor must be used up. *out is written only on
 * success. */
int policy_get(struct cur *c, struct policy *out, struct err *e);
void policy_fini(struct policy *p);
/* The wire form: u32 n, rules, u32 fixed_kinds. w keeps the host's addresses. */
int net_world_get(struct cur *c, struct net_world *w, struct err *e);
void net_world_fini(struct net_world *w);
/* Replaces the host's own addresses. */
int net_world_host(struct net_world *w, const struct net_addr *a, uint32_t n);

/* May the guest resolve this name? normal: as net_name_normal() writes it. */
enum net_verdict policy_name(const struct policy *p, const struct net_world *w, const char *normal);
/* *name: the name that made it allowed, or NULL; it belongs to the learned entry. `l` may be NULL. */
enum net_verdict policy_address(const struct policy *p, const struct net_world *w,
	const struct learned *l, const struct net_addr *a, bool tcp, uint16_t port, uint64_t now_ns,
	const char **name);
/* May a DNS answer for a name carry this address? A private address for a public name is DNS rebinding. */
bool policy_answer(const struct policy *p, const struct net_world *w, const struct net_addr *a);

/* 0 or -ENOMEM. A full table forgets the entry that would end first. */
int learned_add(struct learned *l, const struct net_addr *a, const char *name, uint32_t ttl_s,
	uint64_t now_ns);
/* After a change of policy: forgets the addresses of names that are not allowed any more. */
void learned_review(struct learned *l, const struct policy *p, const struct net_world *w);
void learned_fini(struct learned *l);
