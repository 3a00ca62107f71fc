/* SPDX-License-Identifier: Apache-2.0
 *
 * msr.c: the model-specific registers that a snapshot holds, by name and in the order in which
 * they are written. mayfly-vmm, vCPUs stopped. The table does not come from KVM's own list: on
 * Intel, kernels 5.12 to 6.12 list register 0x345 and return a value, but refuse to set it. A
 * register that a guest can use is in the table, or the feature that brings it is hidden from the
 * guest. Entries of a snapshot file are hostile: KVM checks the values, this file only orders
 * them.
 */
#include <linux/kvm.h>
#include <string.h>

#include "lib/log.h"
#include "vmm/x86_64/cpu.h"

#define MSR_TSC          0x10u
#define MSR_TSC_DEADLINE 0x6e0u

enum msr_rule {
	MSR_MUST,    /* every VM needs it: if KVM refuses it, no VM can be made */
	MSR_FEATURE, /* comes with a CPUID bit; if KVM refuses it, the guest is not shown the bit */
	MSR_MAY,     /* saved where KVM has it: nothing in CPUID announces it */
};

static const struct msr_row {
	uint32_t first, n;
	const char *name;
	enum msr_rule rule;
	uint32_t leaf, index;
	enum cpuid_reg reg;
	unsigned int bit;
} rows[] = {
#define MUST(i, n, name)                                                                           \
	{                                                                                          \
		i, n, name, MSR_MUST, 0, 0, CPUID_EAX, 0                                           \
	}
#define MAY(i, n, name)                                                                            \
	{                                                                                          \
		i, n, name, MSR_MAY, 0, 0, CPUID_EAX, 0                                            \
	}
	/* first the registers on which others depend */
	{0x10a, 1, "ARCH_CAPABILITIES", MSR_FEATURE, 7, 0, CPUID_EDX, 29},
	MAY(0x8b, 1, "UCODE_REV"),
	MAY(0xce, 1, "PLATFORM_INFO"),
	MAY(0x3a, 1, "FEATURE_CONTROL"),
	MAY(0xc0010015, 1, "HWCR"),
	MAY(0xc0011029, 1, "DE_CFG"),
	MUST(0x1a0, 1, "MISC_ENABLE"),
	MAY(0x140, 1, "MISC_FEATURES_ENABLES"),
	MAY(0x1d9, 1, "DEBUGCTL"),
	MAY(0x122, 1, "TSX_CTRL"),
	/* memory types */
	{0x200, 16, "MTRR_PHYS", MSR_FEATURE, 1, 0, CPUID_EDX, 12},
	{0x250, 1, "MTRR_FIX64K", MSR_FEATURE, 1, 0, CPUID_EDX, 12},
	{0x258, 2, "MTRR_FIX16K", MSR_FEATURE, 1, 0, CPUID_EDX, 12},
	{0x268, 8, "MTRR_FIX4K", MSR_FEATURE, 1, 0, CPUID_EDX, 12},
	{0x2ff, 1, "MTRR_DEF_TYPE", MSR_FEATURE, 1, 0, CPUID_EDX, 12},
	MUST(0x277, 1, "PAT"),
	/* system calls and segments; EFER and the other bases are part of SREGS */
	MUST(0x174, 3, "SYSENTER"),
	MUST(0xc0000081, 1, "STAR"),
	MUST(0xc0000082, 1, "LSTAR"),
	MUST(0xc0000083, 1, "CSTAR"),
	MUST(0xc0000084, 1, "SFMASK"),
	MUST(0xc0000102, 1, "KERNEL_GS_BASE"),
	{0xc0000103, 1, "TSC_AUX", MSR_FEATURE, 0x80000001, 0, CPUID_EDX, 27},
	{0xc0000103, 1, "TSC_AUX", MSR_FEATURE, 7, 0, CPUID_ECX, 22},
	/* speculation control: one register, one bit of CPUID for each thing that it can do */
	{0x48, 1, "SPEC_CTRL", MSR_FEATURE, 7, 0, CPUID_EDX, 26},
	{0x48, 1, "SPEC_CTRL", MSR_FEATURE, 7, 0, CPUID_EDX, 27},
	{0x48, 1, "SPEC_CTRL", MSR_FEATURE, 7, 0, CPUID_EDX, 31},
	{0x48, 1, "SPEC_CTRL", MSR_FEATURE, 0x80000008, 0, CPUID_EBX, 14},
	{0x48, 1, "SPEC_CTRL", MSR_FEATURE, 0x80000008, 0, CPUID_EBX, 15},
	{0x48, 1, "SPEC_CTRL", MSR_FEATURE, 0x80000008, 0, CPUID_EBX, 24},
	{0xc001011f, 1, "VIRT_SPEC_CTRL", MSR_FEATURE, 0x80000008, 0, CPUID_EBX, 25},
	/* extended state: cpuid.c hides some of these features, but older snapshots may have
	 * them */
	{0xda0, 1, "XSS", MSR_FEATURE, 0xd, 1, CPUID_EAX, 3},
	{0x1c4, 2, "XFD", MSR_FEATURE, 0xd, 1, CPUID_EAX, 4},
	{0xd90, 1, "BNDCFGS", MSR_FEATURE, 7, 0, CPUID_EBX, 14},
	{0xe1, 1, "UMWAIT_CONTROL", MSR_FEATURE, 7, 0, CPUID_ECX, 5},
	{0x17a, 2, "MCG", MSR_FEATURE, 1, 0, CPUID_EDX, 14},
	/* time: first the TSC, then what depends on it, the deadline last: KVM compares it with
	 * the TSC */
	MUST(MSR_TSC, 1, "TSC"),
	{0x3b, 1, "TSC_ADJUST", MSR_FEATURE, 7, 0, CPUID_EBX, 1},
	{0x11, 2, "KVM_CLOCK_OLD", MSR_FEATURE, CPUID_KVM, 0, CPUID_EAX, 0},
	{0x4b564d00, 2, "KVM_CLOCK", MSR_FEATURE, CPUID_KVM, 0, CPUID_EAX, 3},
	{0x4b564d02, 1, "KVM_ASYNC_PF_EN", MSR_FEATURE, CPUID_KVM, 0, CPUID_EAX, 4},
	{0x4b564d06, 2, "KVM_ASYNC_PF_INT", MSR_FEATURE, CPUID_KVM, 0, CPUID_EAX, 14},
	{0x4b564d03, 1, "KVM_STEAL_TIME", MSR_FEATURE, CPUID_KVM, 0, CPUID_EAX, 5},
	{0x4b564d04, 1, "KVM_PV_EOI", MSR_FEATURE, CPUID_KVM, 0, CPUID_EAX, 6},
	{0x4b564d05, 1, "KVM_POLL_CONTROL", MSR_FEATURE, CPUID_KVM, 0, CPUID_EAX, 12},
	{MSR_TSC_DEADLINE, 1, "TSC_DEADLINE", MSR_FEATURE, 1, 0, CPUID_ECX, 24},
};

static bool row_has(const struct msr_row *r, uint32_t index)
{
	return index >= r->first && index - r->first < r->n;
}

static const struct msr_row *row_find(uint32_t index)
{
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (row_has(&rows[i], index))
			return &rows[i];
	return NULL;
}

const char *msr_name(uint32_t index)
{
	const struct msr_row *r = row_find(index);

	return r ? r->name : "not in our table";
}

size_t msr_table_next(size_t at, uint32_t *index, bool *must)
{
	for (size_t i = 0, k = 0; i < ARRAY_LEN(rows); k += rows[i++].n)
		if (at < k + rows[i].n) {
			*index = rows[i].first + (uint32_t)(at - k);
			*must = rows[i].rule == MSR_MUST;
			return at + 1;
		}
	return 0;
}

/* ---- which of them this VM has */

static bool is_shown(const struct arch_cpu *c, const struct msr_row *r)
{
	return r->rule != MSR_FEATURE || cpuid_bit(&c->guest, r->leaf, r->index, r->reg, r->bit);
}

static bool is_listed(const struct arch_cpu *c, uint32_t index)
{
	for (uint32_t i = 0; i < c->nmsrs; i++)
		if (c->msrs[i] == index)
			return true;
	return false;
}

/* KVM refuses a row: hides its feature, or fails if every VM needs it. */
static int row_refused(
	struct arch_cpu *c, const struct msr_row *r, uint32_t index, bool *hidden, struct err *e)
{
	if (r->rule == MSR_MUST)
		return err_plain(e, EOPNOTSUPP,
			"this host's KVM refuses to read MSR %#x (%s), which every snapshot needs",
			index, r->name);
	if (r->rule == MSR_FEATURE) {
		log_warn("KVM refuses MSR %#x (%s): the guest is not shown CPUID leaf %#x bit %u",
			index, r->name, r->leaf, r->bit);
		cpuid_hide(&c->guest, r->leaf, r->index, r->reg, r->bit);
		*hidden = true;
	}
	return 0;
}

struct candidates { /* registers that KVM is asked for in one call, and the row of each */
	struct msr_list m;
	size_t row[CPU_MAX_MSRS];
};

static void candidates_add(struct candidates *x, const struct arch_cpu *c, size_t row)
{
	for (uint32_t i = rows[row].first; i < rows[row].first + rows[row].n; i++) {
		bool there = is_listed(c, i);

		for (uint32_t k = 0; k < x->m.h.nmsrs; k++)
			there |= x->m.e[k].index == i;
		if (there)
			continue;
		ASSERT(c->nmsrs + x->m.h.nmsrs < CPU_MAX_MSRS);
		x->row[x->m.h.nmsrs] = row;
		x->m.e[x->m.h.nmsrs++].index = i;
	}
}

/* KVM stops at the first register that it refuses: one call for all rows, and one more for each row that it refuses. */
int msr_plan(struct arch_cpu *c, int vcpu_fd, bool *hidden, struct err *e)
{
	struct candidates x;
	int rc = 0;

	c->nmsrs = 0;
	*hidden = false;
	for (size_t from = 0; rc == 0 && from < ARRAY_LEN(rows);) {
		uint32_t n;
		int read;

		x.m.h = (struct kvm_msrs){0};
		for (size_t i = from; i < ARRAY_LEN(rows); i++)
			if (is_shown(c, &rows[i]))
				candidates_add(&x, c, i);
		n = x.m.h.nmsrs;
		read = n ? kvm_ioctl(vcpu_fd, KVM_GET_MSRS, &x.m) : 0;
		from = read == (int)n ? ARRAY_LEN(rows) : x.row[MAX(read, 0)] + 1;
		/* takes all registers of a row or none, because they belong to one feature */
		for (uint32_t i = 0; i < n && (read == (int)n || x.row[i] + 1 < from); i++)
			c->msrs[c->nmsrs++] = x.m.e[i].index;
		if (read != (int)n)
			rc = row_refused(c, &rows[from - 1], x.m.e[MAX(read, 0)].index, hidden, e);
	}
	return rc;
}

/* ---- save, load */

int msr_save(const struct arch_cpu *c, int vcpu_fd, struct msr_list *m, struct err *e)
{
	int n;

	*m = (struct msr_list){.h.nmsrs = c->nmsrs};
	for (uint32_t i = 0; i < c->nmsrs; i++)
		m->e[i].index = c->msrs[i];
	n = kvm_ioctl(vcpu_fd, KVM_GET_MSRS, m);
	if (n < 0)
		return err_set(e, errno, "KVM_GET_MSRS");
	if (n < (int)c->nmsrs)
		return err_plain(e, EIO, "this host's KVM refuses to read MSR %#x (%s)", c->msrs[n],
			msr_name(c->msrs[n]));
	return 0;
}

static void take(struct msr_list *to, const struct kvm_msr_entry *from)
{
	/* a register that is in the file twice is written twice, one after the other */
	to->e[to->h.nmsrs++] = *from;
}

/* Registers that are not in the table come first (snapshots of earlier builds have some), then the
 * others in the table's order. Every entry is taken once. */
static void put_in_order(struct msr_list *to, const struct kvm_msr_entry *p, uint32_t n)
{
	to->h.nmsrs = 0;
	for (uint32_t i = 0; i < n; i++)
		if (!row_find(p[i].index))
			take(to, &p[i]);
	for (size_t r = 0; r < ARRAY_LEN(rows); r++)
		for (uint32_t i = 0; i < n; i++)
			if (row_find(p[i].index) == &rows[r])
				take(to, &p[i]);
}

#define LVTT_OFFSET       0x320u
#define LVTT_MASKED       (1u << 16)
#define LVTT_MODE         (3u << 17)
#define LVTT_TSC_DEADLINE (2u << 17)

static bool deadline_is_armed(const struct kvm_lapic_state *lapic)
{
	uint32_t lvtt;

	memcpy(&lvtt, lapic->regs + LVTT_OFFSET, sizeof(lvtt));
	return (lvtt & LVTT_MODE) == LVTT_TSC_DEADLINE && !(lvtt & LVTT_MASKED);
}

/* KVM returns 0 for a deadline that has passed while its interrupt is still on the way. Writing 0
 * disarms the timer, and a guest that waits for it then sleeps for ever. So the saved TSC becomes
 * the deadline: it has passed, too, and the interrupt comes at once. One too many is harmless. */
static void mend_deadline(struct msr_list *m, const struct kvm_lapic_state *lapic)
{
	uint64_t tsc = 0;

	if (!deadline_is_armed(lapic))
		return;
	for (uint32_t i = 0; i < m->h.nmsrs; i++) {
		if (m->e[i].index == MSR_TSC)
			tsc = m->e[i].data;
		if (m->e[i].index == MSR_TSC_DEADLINE && m->e[i].data == 0)
			m->e[i].data = tsc;
	}
}

/* KVM refused an entry. 0: the restore may go on without it. */
static int entry_refused(const struct kvm_msr_entry *x, struct err *e)
{
	const struct msr_row *r = row_find(x->index);

	if (!r) {
		log_warn("the snapshot's MSR %#x = %#llx is dropped: this host's KVM refuses it, "
			 "and "
			 "no feature that guests are shown needs it",
			x->index, (unsigned long long)x->data);
		return 0;
	}
	/* this host lacks the register, and the guest never set it: no harm */
	if (x->data == 0 && r->rule != MSR_MUST)
		return 0;
	return err_plain(e, EOPNOTSUPP,
		"this host's KVM refuses MSR %#x (%s) = %#llx, which the snapshot uses", x->index,
		r->name, (unsigned long long)x->data);
}

int msr_load(int vcpu_fd, const struct kvm_msr_entry *p, uint32_t n,
	const struct kvm_lapic_state *lapic, struct err *e)
{
	struct msr_list all, rest;
	uint32_t done = 0;

	if (n > CPU_MAX_MSRS)
		return err_plain(e, EBADMSG, "MSR list of %u entries", n);
	put_in_order(&all, p, n);
	mend_deadline(&all, lapic);
	while (done < n) {
		int k, rc;

		rest.h = (struct kvm_msrs){.nmsrs = n - done};
		memcpy(rest.e, all.e + done, (n - done) * sizeof(rest.e[0]));
		k = kvm_ioctl(vcpu_fd, KVM_SET_MSRS, &rest);
		if (k < 0)
			return err_set(e, errno, "KVM_SET_MSRS");
		done += (uint32_t)k;
		if (done == n)
			break;
		rc = entry_refused(&all.e[done], e);
		if (rc < 0)
			return rc;
		done++;
	}
	return 0;
}
