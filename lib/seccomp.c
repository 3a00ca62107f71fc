/* SPDX-License-Identifier: Apache-2.0
 *
 * seccomp.c: the last stage of a jail: the calling thread's allow-list of system calls. In a file of its own, so that programs without a
 * list do not need the library. Reads nothing hostile.
 */
#include "lib/jail.h"

#include <seccomp.h>

/* only for tests/trace/make: a call that would be refused is allowed, so that strace sees it */
#ifdef REFUSED_IS_TOLD
#define REFUSE SCMP_ACT_LOG
#else
#define REFUSE SCMP_ACT_ERRNO(ENOSYS)
#endif

int jail_seccomp(const struct jail_rule *r, size_t n, enum jail_action otherwise, struct err *e)
{
	static const uint32_t actions[] = {[JAIL_KILL] = SCMP_ACT_KILL_PROCESS,
		[JAIL_TRAP] = SCMP_ACT_TRAP,
		[JAIL_LOG] = SCMP_ACT_LOG,
		[JAIL_REFUSE] = REFUSE};
	scmp_filter_ctx ctx = seccomp_init(actions[otherwise]);
	int rc = ctx ? 0 : -ENOMEM;

	for (size_t i = 0; rc == 0 && i < n; i++) {
		struct scmp_arg_cmp cmp[ARRAY_LEN(r[i].cmp)];

		for (unsigned int k = 0; k < r[i].ncmp; k++)
			cmp[k] = (struct scmp_arg_cmp){.arg = r[i].cmp[k].arg,
				.op = r[i].cmp[k].mask ? SCMP_CMP_MASKED_EQ : SCMP_CMP_EQ,
				.datum_a = r[i].cmp[k].mask ? r[i].cmp[k].mask : r[i].cmp[k].value,
				.datum_b = r[i].cmp[k].mask ? r[i].cmp[k].value : 0};
		rc = seccomp_rule_add_array(ctx,
			r[i].refuse ? SCMP_ACT_ERRNO((uint16_t)r[i].refuse) : SCMP_ACT_ALLOW,
			r[i].nr, r[i].ncmp, cmp);
		if (rc < 0)
			err_set(e, -rc, "seccomp rule %zu (%s)", i, r[i].need);
	}
	/* a binary tree: a vCPU's KVM_RUN should not walk a list of forty */
	if (rc == 0)
		seccomp_attr_set(ctx, SCMP_FLTATR_CTL_OPTIMIZE, 2);
	if (rc == 0 && (rc = seccomp_load(ctx)) < 0)
		err_set(e, -rc, "seccomp_load");
	if (ctx)
		seccomp_release(ctx);
	else
		err_set(e, ENOMEM, "seccomp_init");
	return rc;
}
