/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu.h: struct arch_cpu of x86-64, the CPUID rules and the table of MSRs. mayfly-vmm, at set-up and restore.
 */
#pragma once

#include <linux/kvm.h>

#include "vmm/arch.h"

#define CPU_MAX_CPUID 256u
#define CPU_MAX_MSRS  384u /* what a state file may hold; the table has fewer */
#define CPU_TMPL_MAX  32u

struct cpuid_list { /* as KVM_GET_SUPPORTED_CPUID and KVM_SET_CPUID2 take it */
	struct kvm_cpuid2 h;
	struct kvm_cpuid_entry2 e[CPU_MAX_CPUID];
};

struct msr_list { /* as KVM_GET_MSRS and KVM_SET_MSRS take it */
	struct kvm_msrs h;
	struct kvm_msr_entry e[CPU_MAX_MSRS];
};

struct arch_cpu {
	char tmpl[CPU_TMPL_MAX];
	unsigned int nvcpus;
	uint32_t tsc_khz;
	uint32_t nmsrs;
	uint32_t msrs[CPU_MAX_MSRS]; /* saved, in this order; empty until the first vCPU exists */
	struct cpuid_list host;      /* what this host's KVM supports */
	struct cpuid_list
		guest; /* what the guest sees; topology leaves are filled in for each vCPU */
};

/* Turns *l (a copy of the host's list) into what a guest with this template is shown. -EINVAL:
 * no such template; -EOPNOTSUPP: the host lacks a feature of the template. */
int cpuid_make(struct cpuid_list *l, const char *tmpl, struct err *e);
/* Fills in the leaves that differ between vCPUs. */
void cpuid_for_vcpu(struct cpuid_list *l, unsigned int id, unsigned int nvcpus);
/* 0 if a guest that was shown `want` can run on `host`; else *e names the first feature that is
 * missing. */
int cpuid_compatible(const struct cpuid_list *host, const struct cpuid_list *want, struct err *e);
const struct kvm_cpuid_entry2 *cpuid_find(
	const struct cpuid_list *l, uint32_t leaf, uint32_t index);

enum cpuid_reg { CPUID_EAX, CPUID_EBX, CPUID_ECX, CPUID_EDX };
#define CPUID_KVM 0x40000001u /* the leaf of KVM's own features */
bool cpuid_bit(const struct cpuid_list *l, uint32_t leaf, uint32_t index, enum cpuid_reg reg,
	unsigned int bit);
void cpuid_hide(
	struct cpuid_list *l, uint32_t leaf, uint32_t index, enum cpuid_reg reg, unsigned int bit);

/* Fills c->msrs with the registers of the table that this VM has. If KVM refuses the register of a
 * feature, the feature is removed from c->guest and *hidden is set: the caller must set the vCPUs'
 * CPUID again. Less than 0: KVM refuses a register that every VM needs; *e names it. */
int msr_plan(struct arch_cpu *c, int vcpu_fd, bool *hidden, struct err *e);
int msr_save(const struct arch_cpu *c, int vcpu_fd, struct msr_list *m, struct err *e);
/* Writes the n entries of a snapshot in the table's order. lapic: this vCPU's, as it was loaded just before. */
int msr_load(int vcpu_fd, const struct kvm_msr_entry *p, uint32_t n,
	const struct kvm_lapic_state *lapic, struct err *e);
const char *msr_name(uint32_t index);
/* For tests: register number `at` of the table, and whether every VM needs it. 0: no more, otherwise what to pass next. */
size_t msr_table_next(size_t at, uint32_t *index, bool *must);
