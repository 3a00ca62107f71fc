/* SPDX-License-Identifier: Apache-2.0
 *
 * state.c: saves and loads the state of vCPUs, interrupt controllers and clock. mayfly-vmm, the
 * device thread, vCPUs parked. What is loaded is hostile (a snapshot file): every record's length
 * is checked against the structure that it fills; the kernel checks the values.
 *
 * A record is u16 tag, u32 length, bytes. The order of loading matters. It is that of the table
 * `plain`: LAPIC before MSRs because of the TSC deadline (msr.c has the order of the MSRs), events
 * last.
 */
#include <linux/kvm.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

#include "vmm/x86_64/cpu.h"

#define TSS_GPA                                                                                    \
	0xfffbd000u /* three pages that Intel's KVM uses in real mode; in the hole, where no       \
		       device is */
#define IDENTITY_GPA 0xfffbc000u
#define NCHIPS       3u /* two PICs, the IOAPIC */
#define XSAVE_MAX    65536u

enum tag {
	T_MP = 1,
	T_SREGS,
	T_REGS,
	T_XSAVE,
	T_XCRS,
	T_DEBUG,
	T_LAPIC,
	T_MSRS,
	T_EVENTS,
	T_CHIP0 = 32, /* .. T_CHIP0 + 2 */
	T_CLOCK = 40,
	T_TMPL = 48,
	T_TSC,
	T_CPUID,
	T_MSRLIST,
};

static void put_rec(struct buf *out, enum tag t, const void *p, size_t n)
{
	buf_u16(out, (uint16_t)t);
	buf_blob(out, p, n);
}

/* The next record, which must have this tag. Returns its bytes in place, or NULL and *e. */
static const void *get_rec(struct cur *in, enum tag want, uint32_t *len, struct err *e)
{
	uint16_t t = cur_u16(in);
	const void *p;

	*len = cur_u32(in);
	p = cur_bytes(in, *len);
	if (!p || t != want) {
		err_plain(e, EBADMSG, "state record %d: found %u, %u bytes%s", (int)want, t, *len,
			p ? "" : " (cut off)");
		return NULL;
	}
	return p;
}

static int get_exact(struct cur *in, enum tag want, void *to, size_t n, struct err *e)
{
	uint32_t len;
	const void *p = get_rec(in, want, &len, e);

	if (!p)
		return -EBADMSG;
	if (len != n)
		return err_plain(
			e, EBADMSG, "state record %d: %u bytes, wanted %zu", (int)want, len, n);
	memcpy(to, p, n);
	return 0;
}

int arch_vm_init(struct kvm *k, struct err *e)
{
	uint64_t identity = IDENTITY_GPA;

	if (kvm_ioctl(k->vm_fd, KVM_SET_IDENTITY_MAP_ADDR, &identity) < 0)
		return err_set(e, errno, "KVM_SET_IDENTITY_MAP_ADDR");
	if (ioctl(k->vm_fd, KVM_SET_TSS_ADDR, (unsigned long)TSS_GPA) < 0)
		return err_set(e, errno, "KVM_SET_TSS_ADDR");
	if (ioctl(k->vm_fd, KVM_CREATE_IRQCHIP, 0) < 0)
		return err_set(e, errno, "KVM_CREATE_IRQCHIP");
	return 0;
}

struct arch_cpu *arch_cpu_create(
	struct kvm *k, unsigned int nvcpus, const char *tmpl, struct err *e)
{
	struct arch_cpu *c = calloc(1, sizeof(*c));

	if (!c) {
		err_set(e, ENOMEM, "CPU description");
		return NULL;
	}
	c->nvcpus = nvcpus;
	c->host.h.nent = CPU_MAX_CPUID;
	if (kvm_ioctl(k->fd, KVM_GET_SUPPORTED_CPUID, &c->host) < 0) {
		err_set(e, errno, "KVM_GET_SUPPORTED_CPUID");
		goto fail;
	}
	c->guest = c->host;
	if (cpuid_make(&c->guest, tmpl, e) < 0)
		goto fail;
	snprintf(c->tmpl, sizeof(c->tmpl), "%s", tmpl);
	return c;
fail:
	free(c);
	return NULL;
}

void arch_cpu_destroy(struct arch_cpu *c)
{
	free(c);
}

static int set_cpuid(const struct arch_cpu *c, int vcpu_fd, unsigned int id, struct err *e)
{
	struct cpuid_list mine = c->guest;

	cpuid_for_vcpu(&mine, id, c->nvcpus);
	if (kvm_ioctl(vcpu_fd, KVM_SET_CPUID2, &mine) < 0)
		return err_set(e, errno, "KVM_SET_CPUID2 for vCPU %u", id);
	return 0;
}

#define MSR_MISC_ENABLE  0x1a0u
#define MSR_MTRR_DEFTYPE 0x2ffu

int arch_vcpu_init(struct kvm *k, struct arch_cpu *c, int vcpu_fd, unsigned int id, struct err *e)
{
	struct {
		struct kvm_msrs h;
		struct kvm_msr_entry e[2];
	} m = {.h.nmsrs = 2,
		.e = {{.index = MSR_MISC_ENABLE, .data = 1}, /* fast strings */
			{.index = MSR_MTRR_DEFTYPE,
				.data = 0x806}}}; /* on, everything write-back */
	bool hidden = false;
	int rc = set_cpuid(c, vcpu_fd, id, e);

	if (rc < 0)
		return rc;
	rc = kvm_ioctl(vcpu_fd, KVM_SET_MSRS, &m);
	if (rc < 0)
		return err_set(e, errno, "KVM_SET_MSRS");
	if (rc < (int)m.h.nmsrs)
		return err_plain(e, EOPNOTSUPP, "this host's KVM refuses MSR %#x (%s)",
			m.e[rc].index, msr_name(m.e[rc].index));
	rc = 0;
	if (id == 0) {
		rc = ioctl(vcpu_fd, KVM_GET_TSC_KHZ, 0);
		c->tsc_khz = rc > 0 ? (uint32_t)rc : 0;
		rc = msr_plan(c, vcpu_fd, &hidden, e);
	}
	/* the vCPUs after this one are shown the shorter list anyway */
	return rc == 0 && hidden ? set_cpuid(c, vcpu_fd, id, e) : rc;
}

int arch_vm_save(struct kvm *k, struct buf *out, struct err *e)
{
	struct kvm_clock_data clock = {0};

	for (uint32_t i = 0; i < NCHIPS; i++) {
		struct kvm_irqchip chip = {.chip_id = i};

		if (kvm_ioctl(k->vm_fd, KVM_GET_IRQCHIP, &chip) < 0)
			return err_set(e, errno, "KVM_GET_IRQCHIP %u", i);
		put_rec(out, (enum tag)(T_CHIP0 + (int)i), &chip, sizeof(chip));
	}
	if (kvm_ioctl(k->vm_fd, KVM_GET_CLOCK, &clock) < 0)
		return err_set(e, errno, "KVM_GET_CLOCK");
	put_rec(out, T_CLOCK, &clock.clock, sizeof(clock.clock));
	return 0;
}

int arch_vm_load(struct kvm *k, struct cur *in, struct err *e)
{
	struct kvm_clock_data clock = {0};
	struct kvm_irqchip chip[NCHIPS];
	uint64_t ns = 0;

	for (uint32_t i = 0; i < NCHIPS; i++) {
		if (get_exact(in, (enum tag)(T_CHIP0 + (int)i), &chip[i], sizeof(chip[i]), e) < 0)
			return -EBADMSG;
		if (chip[i].chip_id != i)
			return err_plain(e, EBADMSG, "interrupt controller %u calls itself %u", i,
				chip[i].chip_id);
	}
	if (get_exact(in, T_CLOCK, &ns, sizeof(ns), e) < 0)
		return -EBADMSG;
	for (uint32_t i = 0; i < NCHIPS; i++)
		if (kvm_ioctl(k->vm_fd, KVM_SET_IRQCHIP, &chip[i]) < 0)
			return err_set(e, errno, "KVM_SET_IRQCHIP %u", i);
	/* without flags: the guest's monotonic time goes on where it stood */
	clock.clock = ns;
	if (kvm_ioctl(k->vm_fd, KVM_SET_CLOCK, &clock) < 0)
		return err_set(e, errno, "KVM_SET_CLOCK");
	return 0;
}

int arch_cpu_save(struct kvm *k, struct arch_cpu *c, int vcpu_fd, struct buf *out, struct err *e)
{
	put_rec(out, T_TMPL, c->tmpl, strlen(c->tmpl));
	put_rec(out, T_TSC, &c->tsc_khz, sizeof(c->tsc_khz));
	put_rec(out, T_CPUID, c->guest.e, c->guest.h.nent * sizeof(c->guest.e[0]));
	return 0;
}

/* Compares the snapshot's TSC frequency with the host's. The guest's clock absorbs a difference of
 * 250 ppm. If the difference is larger, the processor must scale the TSC; a host that cannot is
 * refused. */
static int match_tsc(struct kvm *k, struct arch_cpu *c, const int *fds, unsigned int n,
	uint32_t khz, struct err *e)
{
	uint64_t diff = khz > c->tsc_khz ? khz - c->tsc_khz : c->tsc_khz - khz;

	if (khz == 0 || c->tsc_khz == 0 || diff * 4000 <= khz)
		return 0;
	if (!(k->have & KVM_HAVE_TSC_CONTROL))
		return err_plain(e, EOPNOTSUPP,
			"the snapshot's TSC runs at %u kHz, this host's at %u and cannot be scaled",
			khz, c->tsc_khz);
	for (unsigned int i = 0; i < n; i++)
		if (ioctl(fds[i], KVM_SET_TSC_KHZ, (unsigned long)khz) < 0)
			return err_set(
				e, errno, "scale the TSC from %u to %u kHz", c->tsc_khz, khz);
	c->tsc_khz = khz;
	return 0;
}

int arch_cpu_load(struct kvm *k, struct arch_cpu *c, const int *fds, unsigned int n, struct cur *in,
	struct err *e)
{
	const struct kvm_cpuid_entry2 *p;
	struct cpuid_list *want;
	uint32_t len, khz, tlen;
	bool hidden;
	const char *tmpl = get_rec(in, T_TMPL, &tlen, e);
	int rc;

	if (!tmpl)
		return -EBADMSG;
	if (tlen >= sizeof(c->tmpl))
		return err_plain(e, EBADMSG, "CPU template name of %u bytes", tlen);
	rc = get_exact(in, T_TSC, &khz, sizeof(khz), e);
	if (rc < 0)
		return rc;
	p = get_rec(in, T_CPUID, &len, e);
	if (!p)
		return -EBADMSG;
	if (len % sizeof(*p) || len / sizeof(*p) > CPU_MAX_CPUID)
		return err_plain(e, EBADMSG, "CPUID list of %u bytes", len);
	rc = match_tsc(k, c, fds, n, khz, e);
	if (rc < 0)
		return rc;
	/* the usual case, same host and template: the vCPUs have this list already */
	if (len == c->guest.h.nent * sizeof(*p) && memcmp(p, c->guest.e, len) == 0)
		return 0;
	want = calloc(1, sizeof(*want));
	if (!want)
		return err_set(e, ENOMEM, "CPUID list");
	memcpy(want->e, p, len);
	want->h.nent = len / (uint32_t)sizeof(*p);
	rc = cpuid_compatible(&c->host, want, e);
	if (rc == 0) {
		c->guest = *want;
		memcpy(c->tmpl, tmpl, tlen);
		c->tmpl[tlen] = 0;
	}
	for (unsigned int i = 0; rc == 0 && i < n; i++)
		rc = set_cpuid(c, fds[i], i, e);
	/* The next snapshot of this VM holds the registers of the CPUID that the VM has now. Nothing can be hidden from a guest
	 * that runs already: if KVM refuses such a register, msr_load() says so. */
	if (rc == 0 && n)
		rc = msr_plan(c, fds[0], &hidden, e);
	if (rc == 0)
		c->guest = *want;
	free(want);
	return rc;
}

/* The records of a vCPU, in the order of loading. Most are one ioctl with one fixed structure. */
static const struct plain {
	enum tag tag;
	unsigned long get, set;
	size_t bytes;
	uint32_t needs; /* enum kvm_have; 0 = always there */
	const char *name;
} plain[] = {
	{T_MP, KVM_GET_MP_STATE, KVM_SET_MP_STATE, sizeof(struct kvm_mp_state), 0, "MP_STATE"},
	{T_SREGS, KVM_GET_SREGS, KVM_SET_SREGS, sizeof(struct kvm_sregs), 0, "SREGS"},
	{T_REGS, KVM_GET_REGS, KVM_SET_REGS, sizeof(struct kvm_regs), 0, "REGS"},
	{T_XSAVE, 0, 0, 0, 0, "XSAVE"}, /* its size is the host's: below */
	{T_XCRS, KVM_GET_XCRS, KVM_SET_XCRS, sizeof(struct kvm_xcrs), KVM_HAVE_XCRS, "XCRS"},
	{T_DEBUG, KVM_GET_DEBUGREGS, KVM_SET_DEBUGREGS, sizeof(struct kvm_debugregs),
		KVM_HAVE_DEBUGREGS, "DEBUGREGS"},
	{T_LAPIC, KVM_GET_LAPIC, KVM_SET_LAPIC, sizeof(struct kvm_lapic_state), 0, "LAPIC"},
	{T_MSRS, 0, 0, 0, 0, "MSRS"}, /* a list: below */
	{T_EVENTS, KVM_GET_VCPU_EVENTS, KVM_SET_VCPU_EVENTS, sizeof(struct kvm_vcpu_events), 0,
		"VCPU_EVENTS"},
};

union plain_room {
	struct kvm_mp_state mp;
	struct kvm_sregs sregs;
	struct kvm_regs regs;
	struct kvm_xcrs xcrs;
	struct kvm_debugregs debug;
	struct kvm_lapic_state lapic;
	struct kvm_vcpu_events events;
};

static int save_xsave(struct kvm *k, int fd, struct buf *out, struct err *e)
{
	bool big = k->xsave_bytes > sizeof(struct kvm_xsave);
	void *x = calloc(1, k->xsave_bytes);
	int rc = x ? kvm_ioctl(fd, big ? KVM_GET_XSAVE2 : KVM_GET_XSAVE, x) : -1;

	if (rc < 0)
		rc = err_set(e, x ? errno : ENOMEM, "KVM_GET_XSAVE%s", big ? "2" : "");
	else
		put_rec(out, T_XSAVE, x, k->xsave_bytes);
	free(x);
	return rc < 0 ? rc : 0;
}

static int load_xsave(struct kvm *k, int fd, struct cur *in, struct err *e)
{
	uint32_t len;
	const void *p = get_rec(in, T_XSAVE, &len, e);
	void *x;
	int rc;

	if (!p)
		return -EBADMSG;
	if (len < sizeof(struct kvm_xsave) || len > XSAVE_MAX)
		return err_plain(e, EBADMSG, "XSAVE area of %u bytes", len);
	/* KVM reads as much as this host's vCPU has, whatever the file held */
	x = calloc(1, MAX(len, k->xsave_bytes));
	if (!x)
		return err_set(e, ENOMEM, "XSAVE area");
	memcpy(x, p, len);
	rc = kvm_ioctl(fd, KVM_SET_XSAVE, x);
	if (rc < 0)
		rc = err_set(e, errno, "KVM_SET_XSAVE");
	free(x);
	return rc;
}

static int save_msrs(struct arch_cpu *c, int fd, struct buf *out, struct err *e)
{
	struct msr_list m;
	int rc = msr_save(c, fd, &m, e);

	if (rc == 0)
		put_rec(out, T_MSRS, m.e, c->nmsrs * sizeof(m.e[0]));
	return rc;
}

static int load_msrs(int fd, const struct kvm_lapic_state *lapic, struct cur *in, struct err *e)
{
	uint32_t len;
	const void *p = get_rec(in, T_MSRS, &len, e);
	struct msr_list m;

	if (!p)
		return -EBADMSG;
	if (len % sizeof(m.e[0]) || len / sizeof(m.e[0]) > CPU_MAX_MSRS)
		return err_plain(e, EBADMSG, "MSR list of %u bytes", len);
	memcpy(m.e, p, len); /* the record need not be aligned */
	return msr_load(fd, m.e, len / (uint32_t)sizeof(m.e[0]), lapic, e);
}

int arch_vcpu_save(struct kvm *k, struct arch_cpu *c, int fd, struct buf *out, struct err *e)
{
	for (size_t i = 0; i < ARRAY_LEN(plain); i++) {
		const struct plain *p = &plain[i];
		union plain_room room = {0};
		int rc = 0;

		if (p->tag == T_XSAVE)
			rc = save_xsave(k, fd, out, e);
		else if (p->tag == T_MSRS)
			rc = save_msrs(c, fd, out, e);
		else if ((p->needs & ~k->have) == 0 && kvm_ioctl(fd, p->get, &room) < 0)
			rc = err_set(e, errno, "KVM_GET_%s", p->name);
		else
			put_rec(out, p->tag, &room, p->bytes);
		if (rc < 0)
			return rc;
	}
	return 0;
}

int arch_vcpu_load(struct kvm *k, struct arch_cpu *c, int fd, struct cur *in, struct err *e)
{
	struct kvm_lapic_state lapic = {{0}};

	for (size_t i = 0; i < ARRAY_LEN(plain); i++) {
		const struct plain *p = &plain[i];
		union plain_room room;
		int rc;

		if (p->tag == T_XSAVE) {
			rc = load_xsave(k, fd, in, e);
		} else if (p->tag == T_MSRS) {
			rc = load_msrs(fd, &lapic, in, e);
		} else {
			rc = get_exact(in, p->tag, &room, p->bytes, e);
			if (rc == 0 && p->tag == T_LAPIC)
				lapic = room.lapic;
			if (rc == 0 && p->tag == T_XCRS && room.xcrs.nr_xcrs == 0)
				continue; /* saved on a host without XSAVE */
			if (rc == 0 && (p->needs & ~k->have) == 0 &&
				kvm_ioctl(fd, p->set, &room) < 0)
				rc = err_set(e, errno, "KVM_SET_%s", p->name);
		}
		if (rc < 0)
			return rc;
	}
	/* tells the guest's soft-lockup detector of the stop; EINVAL: no kvmclock yet */
	ioctl(fd, KVM_KVMCLOCK_CTRL, 0);
	return 0;
}

void arch_vcpu_resumed(int fd)
{
	ioctl(fd, KVM_KVMCLOCK_CTRL, 0);
}

int arch_nmi(int fd)
{
	return ioctl(fd, KVM_NMI, 0) < 0 ? -errno : 0;
}

size_t arch_regs_text(int fd, char *to, size_t cap)
{
	struct kvm_regs r = {0};
	struct kvm_sregs s = {0};
	int n;

	if (kvm_ioctl(fd, KVM_GET_REGS, &r) < 0 || kvm_ioctl(fd, KVM_GET_SREGS, &s) < 0)
		n = snprintf(to, cap, "registers cannot be read");
	else
		n = snprintf(to, cap,
			"rip %016llx rsp %016llx rflags %08llx\nrax %016llx rbx %016llx rcx "
			"%016llx rdx %016llx\n"
			"rsi %016llx rdi %016llx rbp %016llx r8  %016llx\nr9  %016llx r10 %016llx "
			"r11 %016llx r12 %016llx\n"
			"r13 %016llx r14 %016llx r15 %016llx\ncr0 %llx cr2 %llx cr3 %llx cr4 %llx "
			"efer %llx cs %x ss %x\n",
			r.rip, r.rsp, r.rflags, r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp,
			r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, s.cr0, s.cr2, s.cr3,
			s.cr4, s.efer, s.cs.selector, s.ss.selector);
	return n < 0 ? 0 : MIN((size_t)n, cap - 1);
}

void arch_exit_text(int fd, const struct kvm_run *run, char *to, size_t cap)
{
	struct kvm_regs r = {0};

	kvm_ioctl(fd, KVM_GET_REGS, &r);
	switch (run->exit_reason) {
	case KVM_EXIT_INTERNAL_ERROR:
		snprintf(to, cap, "KVM internal error %u at rip %#llx", run->internal.suberror,
			r.rip);
		break;
	case KVM_EXIT_FAIL_ENTRY:
		snprintf(to, cap,
			"the processor refused to enter the guest, reason %#llx, rip %#llx",
			(unsigned long long)run->fail_entry.hardware_entry_failure_reason, r.rip);
		break;
	case KVM_EXIT_SHUTDOWN:
		snprintf(to, cap, "triple fault, rip %#llx", r.rip);
		break;
	default:
		snprintf(to, cap, "unexpected exit %u, rip %#llx", run->exit_reason, r.rip);
	}
}
