/* SPDX-License-Identifier: Apache-2.0
 *
 * cpuid.c: what the guest is told about its processor. mayfly-vmm. Starts from what the host's KVM
 * supports; takes away what cannot be saved and restored (nested virtualization, performance
 * counters, asynchronous page faults, an invariant TSC) and what a template leaves out; makes the
 * topology one package of single-thread cores. A snapshot carries the result: cpuid_compatible
 * reads that list, which is hostile.
 */
#include "vmm/x86_64/cpu.h"

#include <string.h>

#define ANY      UINT32_MAX
#define KVM_LEAF 0x40000000u
#define HYP_BIT  31 /* leaf 1 ecx */
#define DL_BIT                                                                                     \
	24 /* leaf 1 ecx: TSC deadline timer; KVM emulates it but leaves it out of its list on     \
	      some hosts */
#define X2_BIT 21 /* leaf 1 ecx */
#define BIT(n) (1u << (n))

/* One row: bits taken away, and why. */
struct mask {
	uint32_t leaf, index;
	enum cpuid_reg reg;
	uint32_t clear;
};

static const struct mask always[] = {
	{1, ANY, CPUID_ECX,
		BIT(2) | BIT(3) | BIT(5) | BIT(6)}, /* DTES64, MONITOR, VMX, SMX: no nested
							     state is saved; MWAIT exits or burns */
	{1, ANY, CPUID_ECX,
		BIT(7) | BIT(8) | BIT(15)}, /* EIST, TM2, PDCM: host power and counters */
	{7, 0, CPUID_EBX, BIT(2)},          /* SGX: enclaves do not migrate */
	{7, 0, CPUID_ECX, BIT(5)},          /* WAITPKG: MSR_IA32_UMWAIT is not on every list */
	{0x0a, ANY, CPUID_EAX, ~0u},        /* performance counters: architectural leaf all zero */
	{0x0a, ANY, CPUID_EBX, ~0u}, {0x0a, ANY, CPUID_ECX, ~0u}, {0x0a, ANY, CPUID_EDX, ~0u},
	{0x14, ANY, CPUID_EAX, ~0u}, /* processor trace */
	{0x12, ANY, CPUID_EAX, ~0u},
	{0x80000001, ANY, CPUID_ECX,
		BIT(2) | BIT(10) | BIT(23) | BIT(24) |
			BIT(28)}, /* SVM, IBS, PERFCTR core, nb, llc */
	{0x80000007, ANY, CPUID_EDX,
		BIT(8)},                   /* invariant TSC: kvmclock carries time over a restore */
	{0x80000022, ANY, CPUID_EAX, ~0u}, /* PerfMonV2 */
	{CPUID_KVM, ANY, CPUID_EAX,
		BIT(4) | BIT(10) | BIT(14)},  /* async page faults: one in flight over a
							     snapshot would never end */
	{CPUID_KVM, ANY, CPUID_EAX, BIT(17)}, /* migration control */
};

/* x86-64-v2: SSE4.2, POPCNT, CX16; no XSAVE and what needs it. Smallest state, and what QEMU before
 * 9 can nest. */
static const struct mask tmpl_v2[] = {
	{1, ANY, CPUID_ECX,
		BIT(12) | BIT(26) | BIT(27) | BIT(28) |
			BIT(29)}, /* FMA, XSAVE, OSXSAVE, AVX, F16C */
	{7, 0, CPUID_EBX, BIT(3) | BIT(4) | BIT(5) | BIT(8) | BIT(11) | BIT(14) | 0xdc230000u},
	{7, 0, CPUID_ECX,
		BIT(1) | BIT(3) | BIT(4) | BIT(6) | BIT(8) | BIT(9) | BIT(10) | BIT(11) | BIT(12) |
			BIT(14)},
	{7, 0, CPUID_EDX, BIT(2) | BIT(3) | BIT(8) | BIT(22) | BIT(23) | BIT(24) | BIT(25)},
	{7, 1, CPUID_EAX, ~0u}, {7, 1, CPUID_EDX, ~0u}, {0x0d, ANY, CPUID_EAX, ~0u},
	{0x0d, ANY, CPUID_EBX, ~0u}, {0x0d, ANY, CPUID_ECX, ~0u}, {0x0d, ANY, CPUID_EDX, ~0u},
	{0x80000001, ANY, CPUID_ECX,
		BIT(5) | BIT(6) | BIT(11) | BIT(16) | BIT(21)}, /* ABM, SSE4A, XOP, FMA4, TBM */
};

/* x86-64-v3: AVX2, BMI, FMA; no AVX-512, AMX, protection keys */
static const struct mask tmpl_v3[] = {
	{7, 0, CPUID_EBX, BIT(4) | BIT(11) | BIT(14) | 0xdc230000u}, /* HLE, RTM, MPX, AVX-512 */
	{7, 0, CPUID_ECX, BIT(1) | BIT(3) | BIT(4) | BIT(6) | BIT(11) | BIT(12) | BIT(14)},
	{7, 0, CPUID_EDX, BIT(2) | BIT(3) | BIT(8) | BIT(22) | BIT(23) | BIT(24) | BIT(25)},
	{7, 1, CPUID_EAX, ~0u},
	{7, 1, CPUID_EDX, ~0u},
	{0x80000001, ANY, CPUID_ECX, BIT(6) | BIT(11) | BIT(16) | BIT(21)},
};

static const struct {
	const char *name;
	const struct mask *m;
	size_t n;
} templates[] = {
	{"", NULL, 0},
	{"host", NULL, 0},
	{"x86-64-v2", tmpl_v2, ARRAY_LEN(tmpl_v2)},
	{"x86-64-v3", tmpl_v3, ARRAY_LEN(tmpl_v3)},
};

static uint32_t *reg_of(struct kvm_cpuid_entry2 *e, enum cpuid_reg r)
{
	uint32_t *const regs[] = {[CPUID_EAX] = &e->eax,
		[CPUID_EBX] = &e->ebx,
		[CPUID_ECX] = &e->ecx,
		[CPUID_EDX] = &e->edx};

	return regs[r];
}

static void apply(struct cpuid_list *l, const struct mask *m, size_t n)
{
	for (size_t i = 0; i < n; i++)
		for (uint32_t k = 0; k < l->h.nent; k++)
			if (l->e[k].function == m[i].leaf &&
				(m[i].index == ANY || l->e[k].index == m[i].index))
				*reg_of(&l->e[k], m[i].reg) &= ~m[i].clear;
}

/* Leaf 0xd describes every state component of the host; the guest may only see those whose features
 * it was left. */
static void trim_xsave(struct cpuid_list *l)
{
	const struct kvm_cpuid_entry2 *f = cpuid_find(l, 7, 0);
	uint64_t drop = 0;

	if (f && !(f->ebx & BIT(16)))
		drop |= 0xe0; /* AVX-512 */
	if (f && !(f->ecx & BIT(3)))
		drop |= 1u << 9; /* PKRU */
	if (f && !(f->ebx & BIT(14)))
		drop |= 0x18; /* MPX */
	if (f && !(f->edx & BIT(24)))
		drop |= 3u << 17; /* AMX */
	for (uint32_t k = 0; k < l->h.nent; k++) {
		struct kvm_cpuid_entry2 *e = &l->e[k];

		if (e->function != 0xd)
			continue;
		if (e->index == 0)
			e->eax &= (uint32_t)~drop;
		else if (e->index < 64 && e->index > 1 && (drop >> e->index & 1))
			e->eax = e->ebx = e->ecx = e->edx = 0;
	}
}

int cpuid_make(struct cpuid_list *l, const char *tmpl, struct err *e)
{
	size_t t = 0;

	while (t < ARRAY_LEN(templates) && strcmp(templates[t].name, tmpl) != 0)
		t++;
	if (t == ARRAY_LEN(templates))
		return err_plain(e, EINVAL,
			"CPU template \"%s\": known are host, x86-64-v2, x86-64-v3", tmpl);
	apply(l, always, ARRAY_LEN(always));
	apply(l, templates[t].m, templates[t].n);
	if (templates[t].n)
		trim_xsave(l);
	for (uint32_t k = 0; k < l->h.nent; k++)
		if (l->e[k].function == 1)
			l->e[k].ecx |= BIT(HYP_BIT) | BIT(DL_BIT) | BIT(X2_BIT);
	return 0;
}

static unsigned int apic_bits(unsigned int n)
{
	unsigned int b = 0;

	while ((1u << b) < n)
		b++;
	return b;
}

static void topology_leaf(struct kvm_cpuid_entry2 *e, unsigned int id, unsigned int n)
{
	/* level 0: one thread a core; level 1: all cores of the package; further levels: none */
	e->edx = id;
	if (e->index == 0) {
		e->eax = 0;
		e->ebx = 1;
		e->ecx = 0x100;
	} else if (e->index == 1) {
		e->eax = apic_bits(n);
		e->ebx = n;
		e->ecx = 0x201;
	} else {
		e->eax = e->ebx = 0;
		e->ecx = e->index;
	}
}

void cpuid_for_vcpu(struct cpuid_list *l, unsigned int id, unsigned int n)
{
	for (uint32_t k = 0; k < l->h.nent; k++) {
		struct kvm_cpuid_entry2 *e = &l->e[k];

		switch (e->function) {
		case 1:
			e->ebx = (e->ebx & 0xffffu) | n << 16 | id << 24;
			e->edx = n > 1 ? e->edx | BIT(28) : e->edx & ~BIT(28);
			break;
		case 4: /* Intel: caches private to a core but the last; cores in the package */
			if ((e->eax & 0x1f) == 0)
				break;
			e->eax &= 0x3fffu;
			if ((e->eax >> 5 & 7) >= 3)
				e->eax |= (n - 1) << 14;
			e->eax |= ((1u << apic_bits(n)) - 1) << 26;
			break;
		case 0xb:
		case 0x1f:
			topology_leaf(e, id, n);
			break;
		case 0x80000008:
			e->ecx = (e->ecx & ~0xf0ffu) | apic_bits(n) << 12 | (n - 1);
			break;
		case 0x8000001d: /* AMD: the same as leaf 4 */
			if ((e->eax & 0x1f) == 0)
				break;
			e->eax &= 0x3fffu;
			if ((e->eax >> 5 & 7) >= 3)
				e->eax |= (n - 1) << 14;
			break;
		case 0x8000001e:
			e->eax = id;
			e->ebx = id; /* core id, one thread in it */
			e->ecx = 0;  /* one node */
			break;
		default:
			break;
		}
	}
}

const struct kvm_cpuid_entry2 *cpuid_find(const struct cpuid_list *l, uint32_t leaf, uint32_t index)
{
	for (uint32_t k = 0; k < l->h.nent; k++)
		if (l->e[k].function == leaf &&
			(l->e[k].index == index ||
				!(l->e[k].flags & KVM_CPUID_FLAG_SIGNIFCANT_INDEX)))
			return &l->e[k];
	return NULL;
}

/* The leaves whose bits are features: each bit the guest was shown must be there. */
static const struct {
	uint32_t leaf, index;
	enum cpuid_reg reg;
	uint32_t ignore; /* ours, or emulated whatever the host says */
	const char *name;
} features[] = {
	{1, 0, CPUID_ECX, BIT(HYP_BIT) | BIT(DL_BIT) | BIT(X2_BIT) | BIT(27), "leaf 1 ecx"},
	{1, 0, CPUID_EDX, BIT(28), "leaf 1 edx"},
	{7, 0, CPUID_EBX, 0, "leaf 7 ebx"},
	{7, 0, CPUID_ECX, BIT(4), "leaf 7 ecx"},
	{7, 0, CPUID_EDX, 0, "leaf 7 edx"},
	{7, 1, CPUID_EAX, 0, "leaf 7.1 eax"},
	{0xd, 0, CPUID_EAX, 0, "leaf 0xd eax (state components)"},
	{0xd, 1, CPUID_EAX, 0, "leaf 0xd.1 eax"},
	{0x80000001, 0, CPUID_ECX, 0, "leaf 0x80000001 ecx"},
	{0x80000001, 0, CPUID_EDX, 0, "leaf 0x80000001 edx"},
	{0x80000008, 0, CPUID_EBX, 0, "leaf 0x80000008 ebx"},
	{CPUID_KVM, 0, CPUID_EAX, 0, "KVM's own features"},
};

static uint32_t read_reg(const struct kvm_cpuid_entry2 *e, enum cpuid_reg r)
{
	struct kvm_cpuid_entry2 copy = {0};

	if (!e)
		return 0;
	copy = *e;
	return *reg_of(&copy, r);
}

int cpuid_compatible(const struct cpuid_list *host, const struct cpuid_list *want, struct err *e)
{
	const struct kvm_cpuid_entry2 *a = cpuid_find(host, 0, 0), *b = cpuid_find(want, 0, 0);

	if (!a || !b || a->ebx != b->ebx || a->ecx != b->ecx || a->edx != b->edx)
		return err_plain(
			e, EOPNOTSUPP, "the snapshot is from a processor of another vendor");
	for (size_t i = 0; i < ARRAY_LEN(features); i++) {
		uint32_t have = read_reg(
			cpuid_find(host, features[i].leaf, features[i].index), features[i].reg);
		uint32_t need = read_reg(
			cpuid_find(want, features[i].leaf, features[i].index), features[i].reg);
		uint32_t missing = need & ~have & ~features[i].ignore;

		if (missing)
			return err_plain(e, EOPNOTSUPP,
				"this host lacks CPU features that the snapshot uses: CPUID %s, "
				"bits %#x",
				features[i].name, missing);
	}
	return 0;
}

bool cpuid_bit(const struct cpuid_list *l, uint32_t leaf, uint32_t index, enum cpuid_reg reg,
	unsigned int bit)
{
	return read_reg(cpuid_find(l, leaf, index), reg) >> bit & 1;
}

void cpuid_hide(
	struct cpuid_list *l, uint32_t leaf, uint32_t index, enum cpuid_reg reg, unsigned int bit)
{
	const struct mask m = {leaf, index, reg, BIT(bit)};

	apply(l, &m, 1);
}
