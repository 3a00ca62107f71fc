/* SPDX-License-Identifier: Apache-2.0
 *
 * cpuid.c: what the guest learns about its processor. mayfly-vmm. An allow-list: a leaf or a bit that is not in the tables below does not exist for
 * guests. A bit is here if its state is saved (msr.c, XSAVE, SREGS) or if it has none.
 *
 * "host" shows what this host's KVM supports of column `host`. The classes x86-64-v2 and x86-64-v3
 * are constants: every host of one vendor that has all of their bits shows the same processor, with
 * the same model and caches. A host that lacks one of the bits is refused, and the error names
 * the bit. What only some hosts have is in no class, above all the bits that say that the processor
 * is free of a flaw: the guest then works around the flaw.
 *
 * The topology is one package of single-thread cores. A snapshot carries the resulting list: cpuid_compatible reads that, which is hostile.
 */
#include "vmm/x86_64/cpu.h"

#include <string.h>

#define ANY     UINT32_MAX
#define HYP_BIT 31 /* leaf 1 ecx */
#define DL_BIT                                                                                     \
	24 /* leaf 1 ecx: TSC deadline timer; KVM emulates it but some hosts do not list it */
#define X2_BIT            21 /* leaf 1 ecx */
#define BIT(n)            (1u << (n))
#define BITS2(a, b)       (BIT(a) | BIT(b))
#define BITS4(a, b, c, d) (BITS2(a, b) | BITS2(c, d))

/* Feature bits. host: shown if KVM supports them. v2, v3: the constants of the classes. intel, amd:
 * bits that v3 has in addition on that vendor's processors, because all of them have these bits. */
static const struct feature_row {
	uint32_t leaf, index;
	enum cpuid_reg reg;
	uint32_t host, v2, v3, intel, amd;
} features[] = {
	/* SSE3 SSSE3 CX16 SSE4.1 SSE4.2 x2APIC POPCNT deadline hypervisor; v3: PCLMUL FMA MOVBE AES XSAVE AVX F16C RDRAND; PCID on Intel.
	 * Not: MONITOR VMX SMX EIST TM2 PDCM (power, counters, nested virtualization) */
	{1, 0, CPUID_ECX, 0xfffa3203, 0x81b82201, 0xf7f83203, BIT(17), 0},
	/* Classes: not VME, MCE and MCA (no machine check is ever injected), SS. HTT is computed. */
	{1, 0, CPUID_EDX, 0x0f8bfbff, 0x078bbb7d, 0x078bbb7d, 0, 0},
	{6, 0, CPUID_EAX, BIT(2), BIT(2), BIT(2), 0, 0}, /* the APIC timer never stops */
	/* FSGSBASE TSC_ADJUST BMI1 AVX2 SMEP BMI2; ERMS INVPCID on Intel. Not: SGX HLE RTM MPX PT */
	{7, 0, CPUID_EBX, 0xf1bf27eb, BIT(1), 0x000001ab, BITS2(9, 10), 0},
	/* Not: WAITPKG, bus lock detection, SGX_LC, shadow stacks */
	{7, 0, CPUID_ECX, 0x1a415f4e, 0, 0, 0, 0},
	/* Not: AMX, TSXLDTRK, architectural LBR, indirect branch tracking */
	{7, 0, CPUID_EDX, 0xbc80451c, 0, 0, 0, 0},
	{7, 1, CPUID_EAX, 0x00801cb0, 0, 0, 0, 0},
	{7, 1, CPUID_EDX, 0x00004030, 0, 0, 0, 0},
	{7, 2, CPUID_EDX, 0x0000003f, 0, 0, 0, 0},
	/* state components: x87 SSE AVX; host: AVX-512, PKRU. Not: MPX, AMX */
	{0xd, 0, CPUID_EAX, 0x2e7, 0, 7, 0, 0},
	/* XSAVEOPT; host: XSAVEC XGETBV1 XSAVES. Not: XFD */
	{0xd, 1, CPUID_EAX, 0xf, 0, 1, 0, 0},
	/* Not: asynchronous page faults (one in flight over a snapshot would never end), migration control */
	{CPUID_KVM, 0, CPUID_EAX, 0x0100baeb, 0x01003acb, 0x01003acb, 0, 0},
	/* LAHF; v3: LZCNT. Not: SVM IBS OSVW LWP WDT, counters */
	{0x80000001, 0, CPUID_ECX, 0x006109f3, BIT(0), BITS2(0, 5), 0, 0},
	/* SYSCALL NX RDTSCP LM; AMD repeats leaf 1 here */
	{0x80000001, 0, CPUID_EDX, 0xefd3fbff, 0x28100800, 0x28100800, 0, 0x0183b37d},
	/* Not: features with a register that is not in msr.c */
	{0x80000008, 0, CPUID_EBX, 0x1702d205, 0, 0, 0, 0},
	{0x80000021, 0, CPUID_EAX, 0x78000365, 0, 0, 0, 0},
	{0x80000021, 0, CPUID_ECX, 0x00000006, 0, 0, 0, 0},
};

/* Leaves without features: the host's values, masked with these. cpuid_for_vcpu() fills in the
 * topology. */
static const struct plain_row {
	uint32_t leaf, index;
	uint32_t eax, ebx, ecx, edx;
} plain[] = {
	{0, 0, ~0u, ~0u, ~0u, ~0u},
	{1, 0, 0x0fff3fff, 0x0000ff00, 0, 0}, /* model; size of a cache line */
	{2, ANY, ~0u, ~0u, ~0u, ~0u},
	{4, ANY, 0x00003fff, ~0u, ~0u, 7},
	{0xb, ANY, 0, 0, 0xffff, 0},
	{0x40000000, 0, ~0u, ~0u, ~0u, ~0u},
	{0x80000000, 0, ~0u, ~0u, ~0u, ~0u},
	{0x80000002, 0, ~0u, ~0u, ~0u, ~0u},
	{0x80000003, 0, ~0u, ~0u, ~0u, ~0u},
	{0x80000004, 0, ~0u, ~0u, ~0u, ~0u},
	{0x80000005, 0, ~0u, ~0u, ~0u, ~0u},
	{0x80000006, 0, ~0u, ~0u, ~0u, ~0u},
	{0x80000008, 0, 0x0000ffff, 0, 0, 0}, /* sizes of addresses */
	{0x8000001d, ANY, 0x00003fff, ~0u, ~0u, 3},
	{0x8000001e, 0, 0, 0, 0, 0},
};

#define MAX_BASIC 0xdu
#define MAX_EXT   0x80000021u

enum vendor { OTHER, INTEL, AMD };

/* The leaves that "host" takes from the host, as constants of a class: those of a processor
 * that has all features of the class, and no model-specific flaw for which kernels have
 * workarounds. */
static const struct class_leaf {
	enum vendor vendor; /* OTHER: both */
	uint32_t leaf, index;
	uint32_t eax, ebx, ecx, edx;
} class_leaves[] = {
	{INTEL, 1, 0, 0x000306c3, 0x0800, 0, 0},   /* Haswell */
	{AMD, 1, 0, 0x00830f10, 0x0800, 0, 0},     /* Zen 2 */
	{INTEL, 2, 0, 0x00feff01, 0xf0, 0, 0},     /* "see leaf 4" */
	{INTEL, 4, 0, 0x121, 0x01c0003f, 63, 0},   /* 32 KiB, data */
	{INTEL, 4, 1, 0x122, 0x01c0003f, 63, 0},   /* 32 KiB, instructions */
	{INTEL, 4, 2, 0x143, 0x01c0003f, 511, 0},  /* 256 KiB */
	{INTEL, 4, 3, 0x163, 0x03c0003f, 8191, 6}, /* 8 MiB */
	{INTEL, 4, 4, 0, 0, 0, 0}, {OTHER, 0xb, 0, 0, 0, 0x100, 0}, {OTHER, 0xb, 1, 0, 0, 0x201, 0},
	{OTHER, 0xb, 2, 0, 0, 2, 0},
	{AMD, 0x80000005, 0, 0xff40ff40, 0xff40ff40, 0x20080140, 0x40040140}, /* 32, 64 KiB */
	{AMD, 0x80000006, 0, 0, 0, 0x02006140, 0x00408140},                   /* 512 KiB, 8 MiB */
	{INTEL, 0x80000006, 0, 0, 0, 0x01006040, 0},
	{OTHER, 0x80000008, 0, 0x3027, 0, 0, 0}, /* 39 and 48 bits */
};

enum class { CLASS_HOST, CLASS_V2, CLASS_V3 };

static const struct {
	const char *name;
	enum class class;
	const char *brand; /* leaves 0x80000002 to 0x80000004 */
} templates[] = {
	{"", CLASS_HOST, NULL},
	{"host", CLASS_HOST, NULL},
	{"x86-64-v2", CLASS_V2, "mayfly x86-64-v2"},
	{"x86-64-v3", CLASS_V3, "mayfly x86-64-v3"},
};

static uint32_t *reg_of(struct kvm_cpuid_entry2 *e, enum cpuid_reg r)
{
	uint32_t *const regs[] = {[CPUID_EAX] = &e->eax,
		[CPUID_EBX] = &e->ebx,
		[CPUID_ECX] = &e->ecx,
		[CPUID_EDX] = &e->edx};

	return regs[r];
}

static uint32_t read_reg(const struct kvm_cpuid_entry2 *e, enum cpuid_reg r)
{
	struct kvm_cpuid_entry2 copy = {0};

	if (!e)
		return 0;
	copy = *e;
	return *reg_of(&copy, r);
}

static enum vendor vendor_of(const struct cpuid_list *l)
{
	const struct kvm_cpuid_entry2 *e = cpuid_find(l, 0, 0);

	if (e && e->ebx == 0x756e6547) /* "Genu" */
		return INTEL;
	return e && e->ebx == 0x68747541 ? AMD : OTHER; /* "Auth" */
}

/* ---- building a list */

/* Finds the entry, or makes it. The list has room: our tables have fewer entries. */
static struct kvm_cpuid_entry2 *entry(struct cpuid_list *l, uint32_t leaf, uint32_t index)
{
	static const uint32_t indexed[] = {4, 7, 0xb, 0xd, 0x8000001d};
	struct kvm_cpuid_entry2 *e;

	for (uint32_t k = 0; k < l->h.nent; k++)
		if (l->e[k].function == leaf && l->e[k].index == index)
			return &l->e[k];
	ASSERT(l->h.nent < CPU_MAX_CPUID);
	e = &l->e[l->h.nent++];
	*e = (struct kvm_cpuid_entry2){.function = leaf, .index = index};
	for (size_t i = 0; i < ARRAY_LEN(indexed); i++)
		if (leaf == indexed[i])
			e->flags = KVM_CPUID_FLAG_SIGNIFCANT_INDEX;
	return e;
}

static const struct plain_row *plain_find(uint32_t leaf, uint32_t index)
{
	for (size_t i = 0; i < ARRAY_LEN(plain); i++)
		if (plain[i].leaf == leaf && (plain[i].index == ANY || plain[i].index == index))
			return &plain[i];
	return NULL;
}

static uint32_t shown_bits(const struct feature_row *f, enum class class, enum vendor v)
{
	switch (class) {
	case CLASS_HOST:
		return f->host;
	case CLASS_V2:
		return f->v2;
	case CLASS_V3:
		break;
	}
	return f->v3 | (v == INTEL ? f->intel : v == AMD ? f->amd : 0);
}

/* Bits that KVM emulates on every host whatever it lists, and those that it sets by itself while the guest runs. */
static uint32_t always_there(uint32_t leaf, enum cpuid_reg reg)
{
	if (leaf == 1 && reg == CPUID_ECX)
		return BITS4(HYP_BIT, DL_BIT, X2_BIT, 27);
	return leaf == 6 ? BIT(2) : 0;
}

static int put_features(struct cpuid_list *to, const struct cpuid_list *host, enum class class,
	const char *name, struct err *e)
{
	enum vendor v = vendor_of(host);

	for (size_t i = 0; i < ARRAY_LEN(features); i++) {
		const struct feature_row *f = &features[i];
		const struct kvm_cpuid_entry2 *h = cpuid_find(host, f->leaf, f->index);
		uint32_t have = read_reg(h, f->reg) | always_there(f->leaf, f->reg);
		uint32_t want = shown_bits(f, class, v);

		if (class != CLASS_HOST && (want & ~have))
			return err_plain(e, EOPNOTSUPP,
				"CPU template %s: this host lacks CPUID leaf %#x index %u register "
				"e%cx bits %#x",
				name, f->leaf, f->index, "abcd"[f->reg], want & ~have);
		/* a class has no entry for a leaf without bits, even if the host has that leaf */
		if (class == CLASS_HOST ? !h : !want)
			continue;
		*reg_of(entry(to, f->leaf, f->index), f->reg) |= want & have;
	}
	return 0;
}

static void put_plain(struct cpuid_list *to, const struct cpuid_list *host)
{
	for (uint32_t k = 0; k < host->h.nent; k++) {
		const struct kvm_cpuid_entry2 *h = &host->e[k];
		const struct plain_row *p = plain_find(h->function, h->index);
		struct kvm_cpuid_entry2 *n;

		if (!p)
			continue;
		n = entry(to, h->function, h->index);
		n->eax |= h->eax & p->eax;
		n->ebx |= h->ebx & p->ebx;
		n->ecx |= h->ecx & p->ecx;
		n->edx |= h->edx & p->edx;
	}
}

static void put_class(struct cpuid_list *to, const struct cpuid_list *host, const char *brand)
{
	static const uint32_t same[] = {0, 0x40000000, 0x80000000};
	enum vendor v = vendor_of(host);
	char text[48] = "";

	for (size_t i = 0; i < ARRAY_LEN(same); i++) {
		const struct kvm_cpuid_entry2 *h = cpuid_find(host, same[i], 0);

		if (h)
			*entry(to, same[i], 0) = *h;
	}
	for (size_t i = 0; i < ARRAY_LEN(class_leaves); i++) {
		const struct class_leaf *c = &class_leaves[i];
		struct kvm_cpuid_entry2 *n;

		if (c->vendor != OTHER && c->vendor != v)
			continue;
		n = entry(to, c->leaf, c->index);
		n->eax |= c->eax;
		n->ebx |= c->ebx;
		n->ecx |= c->ecx;
		n->edx |= c->edx;
	}
	memcpy(text, brand, strlen(brand));
	for (uint32_t i = 0; i < 3; i++)
		memcpy(&entry(to, 0x80000002 + i, 0)->eax, text + (size_t)16 * i, 16);
}

/* Leaf 0xd: the parts of the XSAVE area that the guest has, and its size. The offsets are architectural. */
static void make_xsave(struct cpuid_list *l, const struct cpuid_list *host)
{
	const struct kvm_cpuid_entry2 *all = cpuid_find(l, 0xd, 0);
	uint32_t parts = all ? all->eax : 0, bytes = 576; /* legacy area and header */

	for (uint32_t i = 2; i < 32; i++) {
		const struct kvm_cpuid_entry2 *h = cpuid_find(host, 0xd, i);

		if (!(parts & BIT(i))) {
			for (uint32_t k = 0; k < l->h.nent; k++)
				if (l->e[k].function == 0xd && l->e[k].index == i)
					l->e[k--] = l->e[--l->h.nent];
			continue;
		}
		if (!h)
			continue;
		*entry(l, 0xd, i) = *h;
		bytes = MAX(bytes, h->ebx + h->eax);
	}
	for (uint32_t k = 0; k < l->h.nent; k++) {
		struct kvm_cpuid_entry2 *e = &l->e[k];

		if (e->function != 0xd || e->index > 1)
			continue;
		/* the size in use: KVM follows XCR0 while the guest runs */
		e->ebx = e->index == 0 && parts ? 576 : 0;
		e->ecx = e->index == 0 && parts ? bytes : 0;
		e->edx = 0;
	}
}

static int entry_order(const void *a, const void *b)
{
	const struct kvm_cpuid_entry2 *x = a, *y = b;

	if (x->function != y->function)
		return x->function < y->function ? -1 : 1;
	return x->index < y->index ? -1 : x->index > y->index;
}

/* Limits the number of the last leaf to max; a class always shows max. */
static void limit_leaf(struct cpuid_list *l, enum class class, uint32_t leaf, uint32_t max)
{
	for (uint32_t k = 0; k < l->h.nent; k++)
		if (l->e[k].function == leaf)
			l->e[k].eax = class == CLASS_HOST ? MIN(l->e[k].eax, max) : max;
}

/* Nothing in a list may come from the CPU that happened to answer, or two blanks of one host would differ. */
static void normalise(struct cpuid_list *l, enum class class)
{
	struct kvm_cpuid_entry2 *e;

	limit_leaf(l, class, 0, MAX_BASIC);
	limit_leaf(l, class, 0x80000000, class == CLASS_HOST ? MAX_EXT : 0x80000008);
	limit_leaf(l, class, 0x40000000, CPUID_KVM);
	/* number of subleaves: those that are in the list */
	e = entry(l, 7, 0);
	e->eax = cpuid_find(l, 7, 2) ? 2 : cpuid_find(l, 7, 1) ? 1 : 0;
	for (uint32_t k = 0; k < l->h.nent; k++)
		memset(l->e[k].padding, 0, sizeof(l->e[k].padding));
	cpuid_for_vcpu(l, 0, 1);
	qsort(l->e, l->h.nent, sizeof(l->e[0]), entry_order);
}

int cpuid_make(struct cpuid_list *l, const char *tmpl, struct err *e)
{
	struct cpuid_list host = *l;
	size_t t = 0;
	int rc;

	while (t < ARRAY_LEN(templates) && strcmp(templates[t].name, tmpl) != 0)
		t++;
	if (t == ARRAY_LEN(templates))
		return err_plain(e, EINVAL,
			"CPU template \"%s\": known are host, x86-64-v2, x86-64-v3", tmpl);
	*l = (struct cpuid_list){0};
	rc = put_features(l, &host, templates[t].class, tmpl, e);
	if (rc < 0) {
		*l = host;
		return rc;
	}
	if (templates[t].class == CLASS_HOST)
		put_plain(l, &host);
	else
		put_class(l, &host, templates[t].brand);
	make_xsave(l, &host);
	normalise(l, templates[t].class);
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
		case 4: /* Intel: who shares a cache (only level 3 is shared); number of cores */
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

/* Bits that a guest may be shown although its host does not list them: those of always_there(), and
 * those that cpuid_for_vcpu() or KVM sets. */
static uint32_t not_compared(uint32_t leaf, enum cpuid_reg reg)
{
	if (leaf == 1 && reg == CPUID_EDX)
		return BIT(28); /* HTT: the topology is ours */
	if (leaf == 7 && reg == CPUID_ECX)
		return BIT(4); /* OSPKE: the guest's own CR4 */
	return always_there(leaf, reg);
}

int cpuid_compatible(const struct cpuid_list *host, const struct cpuid_list *want, struct err *e)
{
	const struct kvm_cpuid_entry2 *a = cpuid_find(host, 0, 0), *b = cpuid_find(want, 0, 0);

	if (!a || !b || a->ebx != b->ebx || a->ecx != b->ecx || a->edx != b->edx)
		return err_plain(
			e, EOPNOTSUPP, "the snapshot is from a processor of another vendor");
	/* whole registers, not only the bits that this build shows: earlier builds showed more */
	for (size_t i = 0; i < ARRAY_LEN(features); i++) {
		const struct feature_row *f = &features[i];
		uint32_t have = read_reg(cpuid_find(host, f->leaf, f->index), f->reg);
		uint32_t need = read_reg(cpuid_find(want, f->leaf, f->index), f->reg);
		uint32_t missing = need & ~have & ~not_compared(f->leaf, f->reg);

		if (missing)
			return err_plain(e, EOPNOTSUPP,
				"this host lacks CPU features that the snapshot uses: CPUID leaf "
				"%#x index %u register e%cx bits %#x",
				f->leaf, f->index, "abcd"[f->reg], missing);
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
	for (uint32_t k = 0; k < l->h.nent; k++)
		if (l->e[k].function == leaf && l->e[k].index == index)
			*reg_of(&l->e[k], reg) &= ~BIT(bit);
}
