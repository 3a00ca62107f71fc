/* SPDX-License-Identifier: Apache-2.0
 *
 * kvm_probe.h: is there a KVM worth using? Decided by trying, because a /dev/kvm may be a slow
 * imitation.
 */
#pragma once

#include "lib/base.h"

struct kvm_verdict {
	bool usable;
	uint64_t loop_us; /* what the loop took, 0 if it did not run */
	char reason[160]; /* one line for people */
};

/* Makes a VM, runs a million instructions in its ring 0 (at most 2 s), and looks at the clock. */
void kvm_probe(struct kvm_verdict *v);
