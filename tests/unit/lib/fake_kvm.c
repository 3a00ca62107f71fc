/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_kvm.c: see fake_kvm.h. Descriptors are memory files: kvm_run is mapped as the monitor maps it.
 */
#include "tests/unit/lib/fake_kvm.h"

#include <poll.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "vmm/kvm.h"

static struct fake_kvm *fake;

enum whose { SYSTEM = 1, VM = 2, VCPU = 4 };

struct call {
	struct fake_kvm *f;
	struct fake_vcpu *v; /* NULL: of the system or the VM */
	void *arg;
	unsigned long num; /* the argument as a number */
};

static int fail(int err)
{
	errno = err;
	return -1;
}

/* ---- MSRs */

struct fake_msr *fake_msr(struct fake_kvm *f, uint32_t index)
{
	for (unsigned int i = 0; i < f->nmsrs; i++)
		if (f->msr[i].index == index)
			return &f->msr[i];
	return NULL;
}

void fake_refuse_msr(struct fake_kvm *f, uint32_t index, int refuses)
{
	for (unsigned int i = 0; i < FAKE_REFUSED; i++)
		if (!f->no_msr[i].refuses) {
			f->no_msr[i].index = index;
			f->no_msr[i].refuses = refuses;
			return;
		}
	ASSERT(!"too many refused MSRs");
}

void fake_refuse_cap(struct fake_kvm *f, unsigned long cap)
{
	for (unsigned int i = 0; i < FAKE_REFUSED; i++)
		if (!f->no_cap[i]) {
			f->no_cap[i] = cap + 1;
			return;
		}
	ASSERT(!"too many refused capabilities");
}

static bool refused(const struct fake_kvm *f, uint32_t index, int how)
{
	for (unsigned int i = 0; i < FAKE_REFUSED; i++)
		if (f->no_msr[i].index == index && (f->no_msr[i].refuses & how))
			return true;
	return false;
}

/* As KVM: stops at the first register that it does not take, and says how many it took. */
static int get_msrs(struct call *c)
{
	struct kvm_msrs *m = c->arg;
	unsigned int id = (unsigned int)(c->v - c->f->vcpu);

	for (uint32_t i = 0; i < m->nmsrs; i++) {
		struct fake_msr *r = fake_msr(c->f, m->entries[i].index);

		if (!r || refused(c->f, r->index, FAKE_MSR_READ))
			return (int)i;
		m->entries[i].data = r->value[id];
	}
	return (int)m->nmsrs;
}

static int set_msrs(struct call *c)
{
	const struct kvm_msrs *m = c->arg;
	unsigned int id = (unsigned int)(c->v - c->f->vcpu);

	for (uint32_t i = 0; i < m->nmsrs; i++) {
		struct fake_msr *r = fake_msr(c->f, m->entries[i].index);

		if (!r || refused(c->f, r->index, FAKE_MSR_WRITE))
			return (int)i;
		r->value[id] = m->entries[i].data;
		if (c->v->nmsr_writes < FAKE_MSR_LOG)
			c->v->msr_writes[c->v->nmsr_writes++] = r->index;
	}
	return (int)m->nmsrs;
}

/* ---- the rest */

static int api_version(struct call *c)
{
	return KVM_API_VERSION;
}

static int check_extension(struct call *c)
{
	for (unsigned int i = 0; i < FAKE_REFUSED; i++)
		if (c->f->no_cap[i] == c->num + 1)
			return 0;
	return c->num == KVM_CAP_XSAVE2 ? (int)c->f->xsave_bytes : 1;
}

static int run_bytes(struct call *c)
{
	return FAKE_RUN_BYTES;
}

static int new_fd(void)
{
	int fd = memfd_create("fake-kvm", MFD_CLOEXEC);

	ASSERT(fd >= 0 && ftruncate(fd, FAKE_RUN_BYTES) == 0);
	return fd;
}

static int create_vm(struct call *c)
{
	c->f->vm_fd = new_fd();
	return c->f->vm_fd;
}

static int create_vcpu(struct call *c)
{
	struct fake_vcpu *v = &c->f->vcpu[c->f->nvcpus];

	if (c->num != c->f->nvcpus || c->num >= FAKE_VCPUS)
		return fail(EINVAL);
	v->fd = new_fd();
	v->run = mmap(NULL, FAKE_RUN_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, v->fd, 0);
	ASSERT(v->run != MAP_FAILED);
	v->xcrs.nr_xcrs = 1;
	c->f->nvcpus++;
	return v->fd;
}

static int supported_cpuid(struct call *c)
{
	struct kvm_cpuid2 *l = c->arg;

	if (l->nent < c->f->ncpuid)
		return fail(E2BIG);
	l->nent = c->f->ncpuid;
	memcpy(l->entries, c->f->cpuid, c->f->ncpuid * sizeof(c->f->cpuid[0]));
	return 0;
}

static int set_cpuid2(struct call *c)
{
	const struct kvm_cpuid2 *l = c->arg;

	if (l->nent > ARRAY_LEN(c->v->cpuid))
		return fail(E2BIG);
	c->v->ncpuid = l->nent;
	memcpy(c->v->cpuid, l->entries, l->nent * sizeof(l->entries[0]));
	return 0;
}

static int tsc_khz(struct call *c)
{
	return (int)c->f->tsc_khz;
}

static int set_tsc_khz(struct call *c)
{
	c->f->tsc_khz = (uint32_t)c->num;
	return 0;
}

static int get_chip(struct call *c)
{
	struct kvm_irqchip *x = c->arg;

	if (x->chip_id >= ARRAY_LEN(c->f->chip))
		return fail(EINVAL);
	c->f->chip[x->chip_id].chip_id = x->chip_id;
	*x = c->f->chip[x->chip_id];
	return 0;
}

static int set_chip(struct call *c)
{
	const struct kvm_irqchip *x = c->arg;

	if (x->chip_id >= ARRAY_LEN(c->f->chip))
		return fail(EINVAL);
	c->f->chip[x->chip_id] = *x;
	return 0;
}

/* As KVM: KVM_GET_XSAVE is the old call, which fails where the state is larger than a page. */
static int get_xsave(struct call *c)
{
	if (c->f->xsave_bytes > sizeof(struct kvm_xsave))
		return fail(EINVAL);
	memcpy(c->arg, c->v->xsave, sizeof(struct kvm_xsave));
	return 0;
}

static int get_xsave2(struct call *c)
{
	memcpy(c->arg, c->v->xsave, c->f->xsave_bytes);
	return 0;
}

static int set_xsave(struct call *c)
{
	memcpy(c->v->xsave, c->arg, c->f->xsave_bytes);
	return 0;
}

static int nothing(struct call *c)
{
	return 0;
}

static int irqfd(struct call *c)
{
	c->f->nlines++;
	return 0;
}

static int ioeventfd(struct call *c)
{
	c->f->nnotifications++;
	return 0;
}

/* Waits in the guest until a signal comes, as KVM does; immediate_exit covers the signal that came before. */
static int run(struct call *c)
{
	struct fake_vcpu *v = c->v;
	int rc = 0;

	atomic_store(&v->in_guest, true);
	while (rc == 0 || atomic_load(&v->stuck)) {
		if (__atomic_load_n(&v->run->immediate_exit, __ATOMIC_SEQ_CST) &&
			!atomic_load(&v->stuck))
			break;
		rc = poll(NULL, 0, 1);
	}
	atomic_store(&v->in_guest, false);
	return fail(EINTR);
}

/* ---- the table */

#define PART(m) offsetof(struct fake_vcpu, m), sizeof(((struct fake_vcpu *)0)->m)

static const struct answer {
	unsigned long nr;
	const char *name;
	int whose;
	int (*fn)(struct call *c); /* NULL: copies `bytes` at `part` of the vCPU, out or in */
	size_t part, bytes;
	bool in;
} answers[] = {
#define ROW(nr, whose, fn)                                                                         \
	{                                                                                          \
		nr, #nr, whose, fn, 0, 0, false                                                    \
	}
#define GET(nr, part)                                                                              \
	{                                                                                          \
		nr, #nr, VCPU, NULL, PART(part), false                                             \
	}
#define SET(nr, part)                                                                              \
	{                                                                                          \
		nr, #nr, VCPU, NULL, PART(part), true                                              \
	}
	ROW(KVM_GET_API_VERSION, SYSTEM, api_version),
	ROW(KVM_CHECK_EXTENSION, SYSTEM | VM, check_extension),
	ROW(KVM_GET_VCPU_MMAP_SIZE, SYSTEM, run_bytes),
	ROW(KVM_CREATE_VM, SYSTEM, create_vm),
	ROW(KVM_GET_SUPPORTED_CPUID, SYSTEM, supported_cpuid),
	ROW(KVM_SET_TSS_ADDR, VM, nothing),
	ROW(KVM_SET_IDENTITY_MAP_ADDR, VM, nothing),
	ROW(KVM_CREATE_IRQCHIP, VM, nothing),
	ROW(KVM_SET_USER_MEMORY_REGION, VM, nothing),
	ROW(KVM_CREATE_VCPU, VM, create_vcpu),
	ROW(KVM_IRQFD, VM, irqfd),
	ROW(KVM_IOEVENTFD, VM, ioeventfd),
	ROW(KVM_GET_IRQCHIP, VM, get_chip),
	ROW(KVM_SET_IRQCHIP, VM, set_chip),
	ROW(KVM_GET_CLOCK, VM, nothing),
	ROW(KVM_SET_CLOCK, VM, nothing),
	ROW(KVM_SET_CPUID2, VCPU, set_cpuid2),
	ROW(KVM_GET_TSC_KHZ, VCPU, tsc_khz),
	ROW(KVM_SET_TSC_KHZ, VCPU, set_tsc_khz),
	ROW(KVM_RUN, VCPU, run),
	ROW(KVM_PRE_FAULT_MEMORY, VCPU, nothing),
	ROW(KVM_GET_MSRS, VCPU, get_msrs),
	ROW(KVM_SET_MSRS, VCPU, set_msrs),
	ROW(KVM_KVMCLOCK_CTRL, VCPU, nothing),
	ROW(KVM_NMI, VCPU, nothing),
	GET(KVM_GET_MP_STATE, mp),
	SET(KVM_SET_MP_STATE, mp),
	GET(KVM_GET_SREGS, sregs),
	SET(KVM_SET_SREGS, sregs),
	GET(KVM_GET_REGS, regs),
	SET(KVM_SET_REGS, regs),
	ROW(KVM_GET_XSAVE, VCPU, get_xsave),
	ROW(KVM_GET_XSAVE2, VCPU, get_xsave2),
	ROW(KVM_SET_XSAVE, VCPU, set_xsave),
	GET(KVM_GET_XCRS, xcrs),
	SET(KVM_SET_XCRS, xcrs),
	GET(KVM_GET_DEBUGREGS, debug),
	SET(KVM_SET_DEBUGREGS, debug),
	GET(KVM_GET_LAPIC, lapic),
	SET(KVM_SET_LAPIC, lapic),
	GET(KVM_GET_VCPU_EVENTS, events),
	SET(KVM_SET_VCPU_EVENTS, events),
};

static const struct answer *find(unsigned long nr)
{
	for (size_t i = 0; i < ARRAY_LEN(answers); i++)
		if (answers[i].nr == nr)
			return &answers[i];
	return NULL;
}

const char *fake_kvm_call_name(unsigned long nr)
{
	const struct answer *a = find(nr);

	return a ? a->name : "?";
}

unsigned long fake_kvm_call(size_t i)
{
	return i < ARRAY_LEN(answers) ? answers[i].nr : 0;
}

static int whose_fd(struct fake_kvm *f, int fd, struct fake_vcpu **v)
{
	if (fd == f->fd)
		return SYSTEM;
	if (fd == f->vm_fd)
		return VM;
	for (unsigned int i = 0; i < f->nvcpus; i++)
		if (f->vcpu[i].fd == fd) {
			*v = &f->vcpu[i];
			return VCPU;
		}
	return 0;
}

static int answer(struct fake_kvm *f, int whose, struct fake_vcpu *v, unsigned long nr, void *arg)
{
	const struct answer *a = find(nr);
	struct call c = {.f = f, .v = v, .arg = arg, .num = (unsigned long)(uintptr_t)arg};

	if (!a || !(a->whose & whose)) {
		f->unknown = nr;
		return fail(ENOTTY);
	}
	for (unsigned int i = 0; i < FAKE_REFUSED; i++)
		if (f->no_call[i] == nr)
			return fail(f->no_call_errno);
	if (a->fn)
		return a->fn(&c);
	if (a->in)
		memcpy((uint8_t *)v + a->part, arg, a->bytes);
	else
		memcpy(arg, (uint8_t *)v + a->part, a->bytes);
	return 0;
}

int ioctl(int fd, unsigned long nr, ...)
{
	struct fake_vcpu *v = NULL;
	va_list ap;
	void *arg;
	int whose;

	va_start(ap, nr);
	arg = va_arg(ap, void *);
	va_end(ap);
	whose = fake ? whose_fd(fake, fd, &v) : 0;
	if (!whose)
		return (int)syscall(SYS_ioctl, fd, nr, arg);
	return answer(fake, whose, v, nr, arg);
}

/* ---- the processor */

/* An Intel processor of level x86-64-v3, with what KVM adds. */
static const struct kvm_cpuid_entry2 intel[] = {
	{.function = 0, .eax = 0x16, .ebx = 0x756e6547, .ecx = 0x6c65746e, .edx = 0x49656e69},
	{.function = 1, .eax = 0x50657, .ebx = 0x07100800, .ecx = 0xfffa3223, .edx = 0x1f8bfbff},
	{.function = 4, .index = 0, .flags = 1, .eax = 0x7c004121, .ebx = 0x1c0003f, .ecx = 63},
	{.function = 4, .index = 1, .flags = 1, .eax = 0x7c004122, .ebx = 0x1c0003f, .ecx = 63},
	{.function = 4, .index = 2, .flags = 1, .eax = 0x7c004143, .ebx = 0x3c0003f, .ecx = 1023},
	{.function = 4, .index = 3, .flags = 1, .eax = 0x7c07c163, .ebx = 0x2c0003f, .ecx = 36863},
	{.function = 7,
		.index = 0,
		.flags = 1,
		.eax = 1,
		.ebx = 0xd19f27eb,
		.ecx = 0x818,
		.edx = 0xac000400},
	{.function = 7, .index = 1, .flags = 1, .eax = 0x20},
	{.function = 0xa, .eax = 0x08300802, .edx = 0x603},
	{.function = 0xb, .index = 0, .flags = 1, .eax = 1, .ebx = 2, .ecx = 0x100, .edx = 7},
	{.function = 0xb, .index = 1, .flags = 1, .eax = 5, .ebx = 32, .ecx = 0x201, .edx = 7},
	{.function = 0xd, .index = 0, .flags = 1, .eax = 0x2e7, .ebx = 0x340, .ecx = 0xa88},
	{.function = 0xd, .index = 1, .flags = 1, .eax = 0xf, .ebx = 0x340},
	{.function = 0xd, .index = 2, .flags = 1, .eax = 0x100, .ebx = 0x240},
	{.function = 0xd, .index = 5, .flags = 1, .eax = 0x40, .ebx = 0x440},
	{.function = 0xd, .index = 6, .flags = 1, .eax = 0x200, .ebx = 0x480},
	{.function = 0xd, .index = 7, .flags = 1, .eax = 0x400, .ebx = 0x680},
	{.function = 0xd, .index = 9, .flags = 1, .eax = 8, .ebx = 0xa80},
	{.function = 0x14, .index = 0, .flags = 1},
	{.function = 0x40000000,
		.eax = 0x40000001,
		.ebx = 0x4b4d564b,
		.ecx = 0x564b4d56,
		.edx = 0x4d},
	{.function = 0x40000001, .eax = 0x01007efb},
	{.function = 0x80000000, .eax = 0x80000008},
	{.function = 0x80000001, .ecx = 0x121, .edx = 0x2c100800},
	{.function = 0x80000002, .eax = 0x65746e49, .ebx = 0x2952286c, .ecx = 0x6f655820},
	{.function = 0x80000007, .edx = 0x100},
	{.function = 0x80000008, .eax = 0x302e, .ebx = 0x0100d000},
};

/* Registers that the fake has. */
static const struct {
	uint32_t first, n;
} msrs[] = {
	{0x10, 1},
	{0x11, 2},
	{0x34, 1},
	{0x3b, 1},
	{0x48, 1},
	{0x8b, 1},
	{0xce, 1},
	{0x10a, 1},
	{0x122, 1},
	{0x140, 1},
	{0x174, 3},
	{0x17a, 2},
	{0x1a0, 1},
	{0x1d9, 1},
	{0x200, 16},
	{0x250, 1},
	{0x258, 2},
	{0x268, 8},
	{0x277, 1},
	{0x2ff, 1},
	{0x345, 1},
	{0x6e0, 1},
	{0xda0, 1},
	{0x4b564d00, 9},
	{0xc0000081, 4},
	{0xc0000102, 2},
	{0xc0010015, 1},
};

struct fake_kvm *fake_kvm_start(void)
{
	struct fake_kvm *f = calloc(1, sizeof(*f));

	ASSERT(f && !fake);
	f->fd = new_fd();
	f->vm_fd = -1;
	f->tsc_khz = 3000000;
	f->xsave_bytes = sizeof(struct kvm_xsave);
	f->no_call_errno = EPERM;
	memcpy(f->cpuid, intel, sizeof(intel));
	f->ncpuid = ARRAY_LEN(intel);
	for (size_t i = 0; i < ARRAY_LEN(msrs); i++)
		for (uint32_t k = 0; k < msrs[i].n; k++) {
			ASSERT(f->nmsrs < FAKE_MSRS);
			f->msr[f->nmsrs++].index = msrs[i].first + k;
		}
	fake = f;
	return f;
}

void fake_kvm_stop(struct fake_kvm *f)
{
	fake = NULL;
	for (unsigned int i = 0; i < f->nvcpus; i++)
		munmap(f->vcpu[i].run, FAKE_RUN_BYTES);
	free(f);
}

struct kvm_cpuid_entry2 *fake_cpuid(struct fake_kvm *f, uint32_t leaf, uint32_t index)
{
	for (uint32_t i = 0; i < f->ncpuid; i++)
		if (f->cpuid[i].function == leaf && f->cpuid[i].index == index)
			return &f->cpuid[i];
	return NULL;
}
