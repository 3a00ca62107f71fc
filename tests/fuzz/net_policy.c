/* SPDX-License-Identifier: Apache-2.0
 *
 * net_policy.c: a client's policy as it comes over the wire, and what it says about some addresses. Nothing opens multicast, and what is
 * learned opens no closed place.
 */
#include "lib/test.h"
#include "net/policy.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static const char *const places[] = {"224.0.0.1", "255.255.255.255", "0.0.0.0", "ff02::1", "::"};

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	struct policy policy = {0};
	struct net_world w = {0};
	struct learned l = {0};
	struct net_addr a;
	struct cur c;
	struct err e;
	const char *name;

	if (n < 19)
		return 0;
	c = cur_of(p + 18, n - 18);
	if (policy_get(&c, &policy, &e) < 0)
		return 0;
	for (size_t i = 0; i < ARRAY_LEN(places); i++) {
		ASSERT(net_addr_parse(places[i], &a));
		ASSERT(policy_address(&policy, &w, NULL, &a, true, 80, 1, &name) != NET_V_ALLOW);
	}
	memcpy(a.b, p, 16);
	if (policy_address(&policy, &w, NULL, &a, true, (uint16_t)(p[16] << 8 | p[17]), 1, &name) ==
		NET_V_CLOSED) {
		ASSERT(learned_add(&l, &a, "x.example", 60, 1) == 0);
		ASSERT(policy_address(&policy, &w, &l, &a, true, (uint16_t)(p[16] << 8 | p[17]), 2,
			       &name) == NET_V_CLOSED);
	}
	(void)policy_name(&policy, &w, "a.example.com");
	learned_review(&l, &policy, &w);
	learned_fini(&l);
	policy_fini(&policy);
	return 0;
}
