/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu.h: struct arch_cpu of x86-64 and the CPUID rules. mayfly-vmm, at set-up and restore.
 */
#pragma once

#include <linux/kvm.h>

#include "vmm/arch.h"

#define CPU_MAX_CPUID 256u
#define CPU_MAX_MSRS  384u
#define CPU_TMPL_MAX  32u

struct cpuid_list { /* as KVM_GET_SUPPORTED_CPUID and KVM_SET_CPUID2 take it */
	struct kvm_cpuid2 h;
	struct kvm_cpuid_entry2 e[CPU_MAX_CPUID];
};

struct arch_cpu {
	char tmpl[CPU_TMPL_MAX];
	unsigned int nvcpus;
	uint32_t tsc_khz;
	uint32_t nmsrs;
	uint32_t msrs[CPU_MAX_MSRS]; /* saved and restored; empty until the first vCPU exists */
	struct cpuid_list host;      /* what this host's KVM supports */
	struct cpuid_list
		guest; /* what the guest sees; topology leaves are filled in for each vCPU */
};

/* Masks *l (a copy of the host's list) to what can be saved, restored and explained, then to the
 * template. -EINVAL: no such template. */
int cpuid_make(struct cpuid_list *l, const char *tmpl, struct err *e);
/* The leaves that differ between vCPUs. */
void cpuid_for_vcpu(struct cpuid_list *l, unsigned int id, unsigned int nvcpus);
/* 0 if a guest that was shown `want` can run on `host`; else *e names the first feature that is
 * missing. */
int cpuid_compatible(const struct cpuid_list *host, const struct cpuid_list *want, struct err *e);
const struct kvm_cpuid_entry2 *cpuid_find(
	const struct cpuid_list *l, uint32_t leaf, uint32_t index);
