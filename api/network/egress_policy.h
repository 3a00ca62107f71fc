/* SPDX-License-Identifier: Apache-2.0
 *
 * egress_policy.h: a sandbox's egress policy as JSON (protocol, section 3; `ports` as release 1.1.2 of the clients has them): read from what a
 * client sends, changed, shown, and written for the broker. mayflyd's loop. The bytes of a client are hostile; what these functions return has
 * passed all checks and is kept in the record: {"defaultAction", "egress": [{"action", "target"?, "ports"?}]}.
 *
 * -EINVAL: *e names the bad rule (400). -E2BIG: too many rules, ports or targets (413). -ENOMEM. *out is the caller's.
 */
#pragma once

#include "lib/buf.h"
#include "lib/err.h"

struct cJSON;

/* A whole policy. JSON null or an object without a rule and without a default: everything is denied. */
int egress_policy_read(const struct cJSON *v, struct cJSON **out, struct err *e);
/* now: NULL if there is none yet, which allows everything. rules: an array; each is put before the old rules, and replaces one with
 * the same target and ports. */
int egress_policy_patch(
	const struct cJSON *now, const struct cJSON *rules, struct cJSON **out, struct err *e);
/* targets: an array of texts; "" is every rule without a target. *found: one of them was there. */
int egress_policy_remove(const struct cJSON *now, const struct cJSON *targets, struct cJSON **out,
	bool *found, struct err *e);

/* "allow_all", "deny_all" or "enforcing"; p may be NULL. */
const char *egress_policy_mode(const struct cJSON *p);
/* For network_start() and network_policy(), in the form of net/policy.h. */
void egress_policy_wire(const struct cJSON *p, struct buf *b);
