/* SPDX-License-Identifier: Apache-2.0
 *
 * api_egress_policy.c: two documents of a client with a NUL between them: a policy, and a patch or a list of targets. The broker can read
 * each policy that the daemon accepts, and the daemon accepts it again in the form in which it keeps it.
 */
#include <cjson/cJSON.h>

#include "api/network/egress_policy.h"
#include "lib/test.h"
#include "net/policy.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void fuzz_kept(const cJSON *policy)
{
	struct policy read = {0};
	cJSON *again = NULL;
	struct err e;
	struct buf b;
	struct cur c;

	buf_init(&b, MIB(8));
	egress_policy_wire(policy, &b);
	ASSERT(!b.bad);
	c = cur_of(b.p, b.len);
	ASSERT(policy_get(&c, &read, &e) == 0);
	policy_fini(&read);
	buf_fini(&b);
	ASSERT(egress_policy_read(policy, &again, &e) == 0);
	ASSERT(cJSON_Compare(policy, again, true));
	ASSERT(egress_policy_mode(policy));
	cJSON_Delete(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	const uint8_t *nul = memchr(p, 0, n);
	size_t first = nul ? (size_t)(nul - p) : n;
	cJSON *a = cJSON_ParseWithLength((const char *)p, first), *b = NULL, *policy = NULL,
	      *next = NULL;
	struct err e;
	bool found;

	if (nul)
		b = cJSON_ParseWithLength((const char *)nul + 1, n - first - 1);
	if (a && egress_policy_read(a, &policy, &e) == 0) {
		fuzz_kept(policy);
		if (egress_policy_patch(policy, b, &next, &e) == 0) {
			fuzz_kept(next);
			cJSON_Delete(next);
		}
		if (egress_policy_remove(policy, b, &next, &found, &e) == 0) {
			fuzz_kept(next);
			cJSON_Delete(next);
		}
		cJSON_Delete(policy);
	}
	cJSON_Delete(a);
	cJSON_Delete(b);
	return 0;
}
