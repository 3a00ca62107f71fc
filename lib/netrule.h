/* SPDX-License-Identifier: Apache-2.0
 *
 * netrule.h: one egress rule (docs/network.md): allow or deny, a target (a name, *.suffix, an
 * address, a prefix, or nothing) and TCP ports. The daemon checks a client's rules with this
 * reader, the broker uses it on what the daemon sends.
 * Any process. The texts are hostile.
 */
#pragma once

#include "lib/buf.h"
#include "lib/err.h"
#include "lib/netaddr.h"

#define NET_NAME_MAX  254u /* a domain name of 253 bytes, and its NUL */
#define NET_RULES_MAX 4096u
#define NET_PORTS_MAX 256u

enum net_target {
	NET_T_ANY,    /* no target: ports alone */
	NET_T_NAME,   /* this name */
	NET_T_SUFFIX, /* names below this one, not the name itself */
	NET_T_PREFIX,
};

struct net_rule {
	bool allow;
	enum net_target what;
	char name[NET_NAME_MAX]; /* lower case, no final dot, without "*." */
	struct net_prefix prefix;
	uint16_t nports;
	uint16_t *
		ports; /* sorted; NULL: all ports and protocols. Otherwise TCP, and UDP if it denies. */
};

/* A name as rules and questions are compared: lower case, without the final dot. False: empty, too long, an empty or overlong label, or a
 * byte that is none of letters, digits, '-' and '_'. */
bool net_name_normal(const char *s, size_t n, char out[NET_NAME_MAX]);

/* Reads a target; the rule's ports stay as they are. -EINVAL quotes the target. */
int net_rule_target(const char *target, struct net_rule *r, struct err *e);
/* Checks, sorts and copies ports: 1 to 65535, at most NET_PORTS_MAX, no doubles, not together with a name. */
int net_rule_ports(const uint16_t *ports, size_t n, struct net_rule *r, struct err *e);
void net_rule_fini(struct net_rule *r);

/* Does the rule hold for this port? port 0: the protocol has none (ICMP). */
bool net_rule_port(const struct net_rule *r, bool tcp, uint16_t port);
/* Does the rule speak about this name? Never for addresses. */
bool net_rule_name(const struct net_rule *r, const char *normal);

/* A rule on the wire: u8 allow, str target, u16 n, n x u16. Appended as the client wrote it, read with all checks. */
void net_rule_put(struct buf *b, bool allow, const char *target, const uint16_t *ports, uint16_t n);
int net_rule_get(struct cur *c, struct net_rule *r, struct err *e);
