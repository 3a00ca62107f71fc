/* SPDX-License-Identifier: Apache-2.0
 *
 * vmm_state: the processor's state goes out of one VM and into another, over a KVM that refuses things. For each MSR of the table, each
 * capability and each ioctl there is a case in which KVM refuses it; the error names what was refused.
 */
#include "lib/test.h"

#include "lib/log.h"
#include "tests/unit/lib/fake_kvm.h"
#include "vmm/vcpu.h"
#include "vmm/x86_64/cpu.h"

#define DEADLINE 0x6e0u
#define TSC      0x10u

struct machine { /* as vm_prepare() makes it, without memory and devices */
	struct fake_kvm *f;
	struct kvm k;
	struct arch_cpu *cpu;
	struct vcpus vcpus;
};

static int machine_make(struct machine *m, struct err *e)
{
	struct mem mem = {.ram_bytes = MIB(128), .low_bytes = MIB(128)};
	struct vcpu_hooks h = {0};
	int rc = kvm_open(&m->k, m->f->fd, e);

	if (rc == 0)
		rc = kvm_vm_create(&m->k, &mem, e);
	if (rc == 0)
		rc = arch_vm_init(&m->k, e);
	if (rc < 0)
		return rc;
	m->cpu = arch_cpu_create(&m->k, 1, "", e);
	if (!m->cpu)
		return -e->code;
	rc = vcpus_create(&m->vcpus, &m->k, 1, &h, e);
	return rc ? rc : arch_vcpu_init(&m->k, m->cpu, m->vcpus.v[0].fd, 0, e);
}

static void machine_start(struct machine *m)
{
	*m = (struct machine){.f = fake_kvm_start()};
}

static void machine_stop(struct machine *m)
{
	vcpus_forget(&m->vcpus);
	arch_cpu_destroy(m->cpu);
	kvm_close(&m->k);
	fake_kvm_stop(m->f);
}

static int machine_save(struct machine *m, struct buf *b, struct err *e)
{
	int rc;

	buf_reset(b);
	rc = arch_cpu_save(&m->k, m->cpu, m->vcpus.v[0].fd, b, e);
	if (rc == 0)
		rc = arch_vcpu_save(&m->k, m->cpu, m->vcpus.v[0].fd, b, e);
	return rc ? rc : arch_vm_save(&m->k, b, e);
}

static int machine_load(struct machine *m, const struct buf *b, struct err *e)
{
	struct cur in = cur_of(b->p, b->len);
	int fd = m->vcpus.v[0].fd, rc;

	m->f->vcpu[0].nmsr_writes = 0;
	rc = arch_cpu_load(&m->k, m->cpu, &fd, 1, &in, e);
	if (rc == 0)
		rc = arch_vcpu_load(&m->k, m->cpu, fd, &in, e);
	if (rc == 0)
		rc = arch_vm_load(&m->k, &in, e);
	if (rc == 0)
		CHECK(cur_done(&in));
	return rc;
}

/* A snapshot of a machine whose registers all hold something. */
static void saved(struct buf *b)
{
	struct machine m;
	struct err e = {0};

	machine_start(&m);
	CHECK_INT(machine_make(&m, &e), 0);
	for (unsigned int i = 0; i < m.f->nmsrs; i++)
		m.f->msr[i].value[0] = 0x1000 + i;
	m.f->vcpu[0].regs.rip = 0xffffffff81000000ull;
	CHECK_INT(machine_save(&m, b, &e), 0);
	machine_stop(&m);
}

static void says(const struct err *e, const char *what)
{
	if (!strstr(e->msg, what)) {
		printf("\"%s\" is not in \"%s\"\n", what, e->msg);
		test_failures++;
	}
}

static void every_register_comes_back(void)
{
	struct err e = {0};
	struct machine m;
	struct buf b;
	unsigned int i, n;

	buf_init(&b, MIB(1));
	saved(&b);
	machine_start(&m);
	CHECK_INT(machine_make(&m, &e), 0);
	CHECK_INT(machine_load(&m, &b, &e), 0);
	CHECK_INT(m.f->vcpu[0].regs.rip, 0xffffffff81000000ull);
	for (i = 0; i < m.cpu->nmsrs; i++) {
		const struct fake_msr *r = fake_msr(m.f, m.cpu->msrs[i]);

		CHECK_INT(r->value[0], 0x1000 + (r - m.f->msr));
	}
	/* the TSC before its deadline, the deadline last */
	n = m.f->vcpu[0].nmsr_writes;
	CHECK_INT(n, m.cpu->nmsrs);
	CHECK_INT(m.f->vcpu[0].msr_writes[n - 1], DEADLINE);
	for (i = 0; i < n && m.f->vcpu[0].msr_writes[i] != TSC;)
		i++;
	CHECK(i < n - 1);
	/* performance counters and other people's enlightenments are not ours to keep */
	for (i = 0; i < n; i++)
		CHECK(m.f->vcpu[0].msr_writes[i] != 0x345 && m.f->vcpu[0].msr_writes[i] != 0x34);
	machine_stop(&m);
	buf_fini(&b);
}

/* KVM returns 0 for a deadline whose interrupt is on its way: writing that back would disarm the timer for ever. */
static void a_deadline_that_passed_still_fires(void)
{
	static const struct {
		uint32_t lvtt;
		uint64_t want;
	} cases[] = {
		{2u << 17 | 0xec, 777},          /* armed: the TSC, which has passed */
		{2u << 17 | 1u << 16 | 0xec, 0}, /* masked */
		{1u << 17 | 0xec, 0},            /* periodic */
	};
	struct machine m;
	struct buf b;

	buf_init(&b, MIB(1));
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct err e = {0};

		machine_start(&m);
		CHECK_INT(machine_make(&m, &e), 0);
		fake_msr(m.f, TSC)->value[0] = 777;
		fake_msr(m.f, DEADLINE)->value[0] = 0;
		memcpy(m.f->vcpu[0].lapic.regs + 0x320, &cases[i].lvtt, 4);
		CHECK_INT(machine_save(&m, &b, &e), 0);
		fake_msr(m.f, DEADLINE)->value[0] = 1;
		CHECK_INT(machine_load(&m, &b, &e), 0);
		CHECK_INT(fake_msr(m.f, DEADLINE)->value[0], cases[i].want);
		machine_stop(&m);
	}
	buf_fini(&b);
}

/* Each register of the table, unreadable: the VM is refused by name, or the guest is not shown the feature, or it is left out. */
static void each_msr_refused_for_reading(void)
{
	uint32_t index;
	bool must;

	for (size_t at = msr_table_next(0, &index, &must); at;
		at = msr_table_next(at, &index, &must)) {
		struct err e = {0};
		struct machine m;
		char text[40];
		int rc;

		snprintf(text, sizeof(text), "MSR %#x (%s)", index, msr_name(index));
		machine_start(&m);
		fake_refuse_msr(m.f, index, FAKE_MSR_READ);
		rc = machine_make(&m, &e);
		CHECK_INT(rc < 0, must);
		if (must)
			says(&e, text);
		for (uint32_t i = 0; m.cpu && i < m.cpu->nmsrs && !must; i++)
			CHECK(m.cpu->msrs[i] != index);
		machine_stop(&m);
	}
}

static void a_feature_without_its_register_is_hidden(void)
{
	struct machine m;
	struct err e = {0};
	bool shown = true;

	machine_start(&m);
	fake_refuse_msr(m.f, DEADLINE, FAKE_MSR_READ);
	CHECK_INT(machine_make(&m, &e), 0);
	CHECK(!cpuid_bit(&m.cpu->guest, 1, 0, CPUID_ECX, 24));
	for (uint32_t i = 0; i < m.f->vcpu[0].ncpuid; i++)
		if (m.f->vcpu[0].cpuid[i].function == 1)
			shown = m.f->vcpu[0].cpuid[i].ecx >> 24 & 1;
	CHECK(!shown);
	machine_stop(&m);
}

/* Each register of the table that the snapshot holds, refused for writing: the restore fails and names it. */
static void each_msr_refused_for_writing(void)
{
	uint32_t index;
	bool must;
	struct buf b;

	buf_init(&b, MIB(1));
	saved(&b);
	for (size_t at = msr_table_next(0, &index, &must); at;
		at = msr_table_next(at, &index, &must)) {
		struct err e = {0};
		struct machine m;
		char text[40];
		bool held = false;

		snprintf(text, sizeof(text), "MSR %#x (%s)", index, msr_name(index));
		machine_start(&m);
		CHECK_INT(machine_make(&m, &e), 0);
		for (uint32_t i = 0; i < m.cpu->nmsrs; i++)
			held |= m.cpu->msrs[i] == index;
		fake_refuse_msr(m.f, index, FAKE_MSR_WRITE);
		CHECK_INT(machine_load(&m, &b, &e) < 0, held);
		if (held)
			says(&e, text);
		machine_stop(&m);
	}
	buf_fini(&b);
}

static unsigned int bits_shown(const struct cpuid_list *l)
{
	unsigned int n = 0;

	for (uint32_t i = 0; i < l->h.nent; i++)
		n += (unsigned int)(__builtin_popcount(l->e[i].eax) +
				    __builtin_popcount(l->e[i].ebx) +
				    __builtin_popcount(l->e[i].ecx) +
				    __builtin_popcount(l->e[i].edx));
	return n;
}

static bool is_planned(const struct arch_cpu *c, uint32_t index)
{
	for (uint32_t i = 0; c && i < c->nmsrs; i++)
		if (c->msrs[i] == index)
			return true;
	return false;
}

/* Each register of the table that comes with a CPUID bit, unreadable: the guest is shown less, and the vCPU has the shorter list. A
 * register that nothing announces is left out, and the guest is shown the same. */
static void each_msr_refused_hides_its_feature(void)
{
	static const uint32_t unannounced[] = {
		0x8b, 0xce, 0x3a, 0xc0010015, 0xc0011029, 0x140, 0x1d9, 0x122};
	static struct cpuid_list all;
	struct arch_cpu *whole;
	uint32_t index;
	unsigned int hidden = 0;
	struct machine m;
	struct err e = {0};
	bool must;

	machine_start(&m);
	CHECK_INT(machine_make(&m, &e), 0);
	whole = memcpy(malloc(sizeof(*whole)), m.cpu, sizeof(*whole));
	machine_stop(&m);
	all = whole->guest;
	for (size_t at = msr_table_next(0, &index, &must); at;
		at = msr_table_next(at, &index, &must)) {
		bool silent = must || !is_planned(whole, index);
		uint32_t n = 0;

		for (size_t i = 0; i < ARRAY_LEN(unannounced); i++)
			silent |= unannounced[i] == index;
		machine_start(&m);
		fake_refuse_msr(m.f, index, FAKE_MSR_READ);
		CHECK_INT(machine_make(&m, &e) < 0, must);
		if (m.cpu && !must) {
			n = m.f->vcpu[0].ncpuid;
			CHECK(silent == (bits_shown(&m.cpu->guest) == bits_shown(&all)));
			CHECK_INT(n, m.cpu->guest.h.nent);
			for (uint32_t i = 0; i < n; i++)
				CHECK(m.f->vcpu[0].cpuid[i].ecx == m.cpu->guest.e[i].ecx &&
					m.f->vcpu[0].cpuid[i].edx == m.cpu->guest.e[i].edx);
			hidden += !silent;
			/* and nothing else is lost: memory types are the most that one bit brings */
			CHECK(!is_planned(m.cpu, index));
			CHECK(m.cpu->nmsrs + 28 >= whole->nmsrs);
		}
		machine_stop(&m);
	}
	/* memory types, TSC_AUX, speculation, machine checks, clocks, the deadline */
	CHECK(hidden > 30);
	free(whole);
}

/* A processor whose state is larger than a page (AMX): another ioctl, and all of it comes back. */
static void a_large_processor_state(void)
{
	struct machine m;
	struct err e = {0};
	struct buf b;

	buf_init(&b, MIB(1));
	machine_start(&m);
	m.f->xsave_bytes = FAKE_XSAVE_MAX;
	CHECK_INT(machine_make(&m, &e), 0);
	m.f->vcpu[0].xsave[FAKE_XSAVE_MAX - 1] = 7;
	CHECK_INT(machine_save(&m, &b, &e), 0);
	m.f->vcpu[0].xsave[FAKE_XSAVE_MAX - 1] = 0;
	CHECK_INT(machine_load(&m, &b, &e), 0);
	CHECK_INT(m.f->vcpu[0].xsave[FAKE_XSAVE_MAX - 1], 7);
	m.f->no_call[0] = KVM_GET_XSAVE2;
	CHECK(machine_save(&m, &b, &e) < 0);
	says(&e, "KVM_GET_XSAVE2");
	machine_stop(&m);
	/* and one of a smaller processor, whose record is shorter than what KVM reads */
	saved(&b);
	machine_start(&m);
	m.f->xsave_bytes = FAKE_XSAVE_MAX;
	CHECK_INT(machine_make(&m, &e), 0);
	memset(m.f->vcpu[0].xsave, 9, FAKE_XSAVE_MAX);
	CHECK_INT(machine_load(&m, &b, &e), 0);
	CHECK_INT(m.f->vcpu[0].xsave[FAKE_XSAVE_MAX - 1], 0);
	machine_stop(&m);
	buf_fini(&b);
}

/* Another clock rate: the TSC is scaled. A KVM that says that it can and does not is refused with both rates. */
static void a_tsc_that_kvm_does_not_scale(void)
{
	struct machine m;
	struct err e = {0};
	struct buf b;

	buf_init(&b, MIB(1));
	saved(&b);
	machine_start(&m);
	m.f->tsc_khz = 2500000;
	CHECK_INT(machine_make(&m, &e), 0);
	m.f->no_call[0] = KVM_SET_TSC_KHZ;
	CHECK(machine_load(&m, &b, &e) < 0);
	says(&e, "2500000");
	says(&e, "3000000");
	m.f->no_call[0] = 0;
	CHECK_INT(machine_load(&m, &b, &e), 0);
	CHECK_INT(m.f->tsc_khz, 3000000);
	machine_stop(&m);
	buf_fini(&b);
}

/* What the builds before wrote: KVM's list in KVM's order, 0x345 among it, which Intel's KVM then refuses. */
static void a_snapshot_of_before_loads(void)
{
	struct machine m;
	struct err e = {0};
	struct buf b;

	buf_init(&b, MIB(1));
	machine_start(&m);
	CHECK_INT(machine_make(&m, &e), 0);
	m.cpu->nmsrs = 0;
	for (unsigned int i = m.f->nmsrs; i-- > 0;) {
		m.f->msr[i].value[0] = 0x1000 + i;
		m.cpu->msrs[m.cpu->nmsrs++] = m.f->msr[i].index;
	}
	CHECK_INT(machine_save(&m, &b, &e), 0);
	machine_stop(&m);

	machine_start(&m);
	CHECK_INT(machine_make(&m, &e), 0);
	fake_refuse_msr(m.f, 0x345, FAKE_MSR_WRITE);
	CHECK_INT(machine_load(&m, &b, &e), 0);
	CHECK_INT(fake_msr(m.f, 0x345)->value[0], 0);
	CHECK_INT(fake_msr(m.f, TSC)->value[0], 0x1000 + (fake_msr(m.f, TSC) - m.f->msr));
	CHECK_INT(m.f->vcpu[0].msr_writes[m.f->vcpu[0].nmsr_writes - 1], DEADLINE);
	machine_stop(&m);
	buf_fini(&b);
}

/* ---- CPUID */

static int cpuid_of(struct fake_kvm *f, const char *tmpl, struct cpuid_list *l, struct err *e)
{
	*l = (struct cpuid_list){.h.nent = f->ncpuid};
	memcpy(l->e, f->cpuid, f->ncpuid * sizeof(f->cpuid[0]));
	*e = (struct err){0};
	return cpuid_make(l, tmpl, e);
}

static bool same_list(const struct cpuid_list *a, const struct cpuid_list *b)
{
	bool same = a->h.nent == b->h.nent && !memcmp(a->e, b->e, a->h.nent * sizeof(a->e[0]));

	for (uint32_t i = 0; !same && i < MAX(a->h.nent, b->h.nent); i++)
		if (memcmp(&a->e[i], &b->e[i], sizeof(a->e[i])))
			printf("leaf %#x.%u: %x %x %x %x, leaf %#x.%u: %x %x %x %x\n",
				a->e[i].function, a->e[i].index, a->e[i].eax, a->e[i].ebx,
				a->e[i].ecx, a->e[i].edx, b->e[i].function, b->e[i].index,
				b->e[i].eax, b->e[i].ebx, b->e[i].ecx, b->e[i].edx);
	return same;
}

/* A later processor of the same vendor: other model, caches and brand, everything that KVM could ever list. */
static void make_newer(struct fake_kvm *f)
{
	for (uint32_t i = 0; i < f->ncpuid; i++) {
		struct kvm_cpuid_entry2 *x = &f->cpuid[i];

		if (x->function == 0 || x->function == 0x80000000) {
			x->eax += 10;
		} else if (x->function != 0xd && (x->function & ~1u) != 0x40000000) {
			x->eax = ~x->eax;
			x->ebx = x->ecx = x->edx = ~0u;
		}
	}
	f->cpuid[f->ncpuid++] = (struct kvm_cpuid_entry2){
		.function = 0x80000021, .eax = ~0u, .ebx = ~0u, .ecx = ~0u};
	f->cpuid[f->ncpuid++] =
		(struct kvm_cpuid_entry2){.function = 7, .index = 2, .flags = 1, .edx = ~0u};
}

static void a_class_is_the_same_everywhere(void)
{
	static const char *const classes[] = {"x86-64-v2", "x86-64-v3"};
	static struct cpuid_list a, b;

	for (size_t i = 0; i < ARRAY_LEN(classes); i++) {
		struct fake_kvm *f = fake_kvm_start();
		struct err e;

		CHECK_INT(cpuid_of(f, classes[i], &a, &e), 0);
		make_newer(f);
		CHECK_INT(cpuid_of(f, classes[i], &b, &e), 0);
		CHECK(same_list(&a, &b));
		close(f->fd);
		fake_kvm_stop(f);
	}
	/* the smaller runs on the larger, not the other way round */
	{
		struct fake_kvm *f = fake_kvm_start();
		struct err e;

		CHECK_INT(cpuid_of(f, "x86-64-v2", &a, &e), 0);
		CHECK_INT(cpuid_of(f, "x86-64-v3", &b, &e), 0);
		CHECK_INT(cpuid_compatible(&b, &a, &e), 0);
		CHECK(cpuid_compatible(&a, &b, &e) < 0);
		CHECK(cpuid_of(f, "pentium", &a, &e) < 0);
		says(&e, "pentium");
		close(f->fd);
		fake_kvm_stop(f);
	}
}

static uint32_t *word(struct kvm_cpuid_entry2 *x, enum cpuid_reg reg)
{
	return reg == CPUID_EAX   ? &x->eax
	       : reg == CPUID_EBX ? &x->ebx
	       : reg == CPUID_ECX ? &x->ecx
				  : &x->edx;
}

/* Each bit that a class shows, missing on the host: refused, and leaf, register and bit are named. */
static void each_feature_of_a_class_missing(void)
{
	static struct cpuid_list l, shown;
	unsigned int refused = 0;
	struct err e;

	{
		struct fake_kvm *f = fake_kvm_start();

		CHECK_INT(cpuid_of(f, "x86-64-v3", &shown, &e), 0);
		close(f->fd);
		fake_kvm_stop(f);
	}
	for (uint32_t k = 0; k < shown.h.nent; k++)
		for (enum cpuid_reg reg = CPUID_EAX; reg <= CPUID_EDX; reg++)
			for (unsigned int bit = 0; bit < 32; bit++) {
				struct fake_kvm *f = fake_kvm_start();
				struct kvm_cpuid_entry2 *x =
					fake_cpuid(f, shown.e[k].function, shown.e[k].index);
				char text[80];

				if (x && (*word(&shown.e[k], reg) >> bit & 1)) {
					*word(x, reg) &= ~(1u << bit);
					if (cpuid_of(f, "x86-64-v3", &l, &e) < 0) {
						snprintf(text, sizeof(text),
							"leaf %#x index %u register e%cx bits %#x",
							x->function, x->index, "abcd"[reg],
							1u << bit);
						if (x->function) /* another vendor, else */
							says(&e, text);
						refused++;
					}
				}
				close(f->fd);
				fake_kvm_stop(f);
			}
	/* SSE3 to hypervisor, basic ones, AVX2 and its like, state components, KVM's own, long mode and its like */
	CHECK(refused > 60);
}

/* Every bit set on a host: what guests see is what the tables allow, and nothing of nested virtualization, counters or time. */
static void nothing_beyond_the_list_is_shown(void)
{
	static const uint32_t gone[] = {
		0xa, 0x12, 0x14, 0x15, 0x1f, 0x80000007, 0x8000000a, 0x8000001f, 0x80000022};
	static const struct {
		uint32_t leaf, index;
		enum cpuid_reg reg;
		unsigned int bit;
	} hidden[] = {
		{1, 0, CPUID_ECX, 3},
		{1, 0, CPUID_ECX, 5},
		{1, 0, CPUID_ECX, 15},
		{7, 0, CPUID_EBX, 2},
		{7, 0, CPUID_EBX, 4},
		{7, 0, CPUID_EBX, 11},
		{7, 0, CPUID_EBX, 14},
		{7, 0, CPUID_EBX, 25},
		{7, 0, CPUID_ECX, 5},
		{7, 0, CPUID_ECX, 7},
		{7, 0, CPUID_EDX, 20},
		{7, 0, CPUID_EDX, 24},
		{0xd, 1, CPUID_EAX, 4},
		{CPUID_KVM, 0, CPUID_EAX, 4},
		{CPUID_KVM, 0, CPUID_EAX, 14},
		{0x80000001, 0, CPUID_ECX, 2},
		{0x80000001, 0, CPUID_ECX, 23},
	};
	struct fake_kvm *f = fake_kvm_start();
	static struct cpuid_list l;
	struct err e;

	for (uint32_t i = 0; i < f->ncpuid; i++)
		if (f->cpuid[i].function && f->cpuid[i].function != 0x80000000)
			f->cpuid[i].eax = f->cpuid[i].ebx = f->cpuid[i].ecx = f->cpuid[i].edx = ~0u;
	for (size_t i = 0; i < ARRAY_LEN(gone); i++)
		f->cpuid[f->ncpuid++] = (struct kvm_cpuid_entry2){
			.function = gone[i], .eax = ~0u, .ebx = ~0u, .ecx = ~0u, .edx = ~0u};
	CHECK_INT(cpuid_of(f, "", &l, &e), 0);
	for (size_t i = 0; i < ARRAY_LEN(gone); i++)
		CHECK(!cpuid_find(&l, gone[i], 0));
	for (size_t i = 0; i < ARRAY_LEN(hidden); i++)
		if (cpuid_bit(&l, hidden[i].leaf, hidden[i].index, hidden[i].reg, hidden[i].bit)) {
			printf("leaf %#x.%u register %d bit %u is shown\n", hidden[i].leaf,
				hidden[i].index, (int)hidden[i].reg, hidden[i].bit);
			test_failures++;
		}
	/* the parts of the XSAVE area are those that are left, and so is its size */
	CHECK_INT(cpuid_find(&l, 0xd, 0)->eax, 0x2e7);
	close(f->fd);
	fake_kvm_stop(f);
}

/* A host with everything that could ever be shown. Each bit of what its guests see, missing on the host that restores: refused by name. */
static void each_feature_of_a_snapshot_missing(void)
{
	/* KVM emulates these whatever it lists, or sets them itself */
	static const struct {
		uint32_t leaf, ecx, edx;
	} emulated[] = {{1, 1u << 31 | 1u << 27 | 1u << 24 | 1u << 21, 1u << 28}};
	static const struct {
		uint32_t leaf, index;
		enum cpuid_reg reg;
	} words[] = {{1, 0, CPUID_ECX}, {1, 0, CPUID_EDX}, {7, 0, CPUID_EBX}, {7, 0, CPUID_ECX},
		{7, 0, CPUID_EDX}, {7, 1, CPUID_EAX}, {7, 1, CPUID_EDX}, {7, 2, CPUID_EDX},
		{0xd, 0, CPUID_EAX}, {0xd, 1, CPUID_EAX}, {CPUID_KVM, 0, CPUID_EAX},
		{0x80000001, 0, CPUID_ECX}, {0x80000001, 0, CPUID_EDX}, {0x80000008, 0, CPUID_EBX},
		{0x80000021, 0, CPUID_EAX}, {0x80000021, 0, CPUID_ECX}};
	struct fake_kvm *f = fake_kvm_start();
	static struct cpuid_list host, shown;
	unsigned int refused = 0;
	struct err e;

	f->cpuid[f->ncpuid++] = (struct kvm_cpuid_entry2){.function = 0x80000021};
	f->cpuid[f->ncpuid++] = (struct kvm_cpuid_entry2){.function = 7, .index = 2, .flags = 1};
	for (uint32_t i = 0; i < f->ncpuid; i++)
		if (f->cpuid[i].function && f->cpuid[i].function != 0x80000000)
			f->cpuid[i].eax = f->cpuid[i].ebx = f->cpuid[i].ecx = f->cpuid[i].edx = ~0u;
	CHECK_INT(cpuid_of(f, "", &shown, &e), 0);
	host = (struct cpuid_list){.h.nent = f->ncpuid};
	memcpy(host.e, f->cpuid, f->ncpuid * sizeof(f->cpuid[0]));
	CHECK_INT(cpuid_compatible(&host, &shown, &e), 0);
	for (size_t i = 0; i < ARRAY_LEN(words); i++) {
		struct kvm_cpuid_entry2 *h = NULL, *s = NULL;

		for (uint32_t k = 0; k < host.h.nent; k++)
			if (host.e[k].function == words[i].leaf &&
				host.e[k].index == words[i].index)
				h = &host.e[k];
		for (uint32_t k = 0; k < shown.h.nent; k++)
			if (shown.e[k].function == words[i].leaf &&
				shown.e[k].index == words[i].index)
				s = &shown.e[k];
		REQUIRE(h && s);
		for (unsigned int bit = 0; bit < 32; bit++) {
			uint32_t free_bits = words[i].leaf != emulated[0].leaf ? 0
					     : words[i].reg == CPUID_ECX       ? emulated[0].ecx
									       : emulated[0].edx;
			char text[80];

			if (!(*word(s, words[i].reg) >> bit & 1))
				continue;
			*word(h, words[i].reg) &= ~(1u << bit);
			e = (struct err){0};
			if (free_bits >> bit & 1) {
				CHECK_INT(cpuid_compatible(&host, &shown, &e), 0);
			} else if (cpuid_compatible(&host, &shown, &e) == 0) {
				printf("leaf %#x.%u register %d bit %u is not missed\n",
					words[i].leaf, words[i].index, (int)words[i].reg, bit);
				test_failures++;
			} else {
				snprintf(text, sizeof(text),
					"leaf %#x index %u register e%cx bits %#x", words[i].leaf,
					words[i].index, "abcd"[words[i].reg], 1u << bit);
				says(&e, text);
				refused++;
			}
			*word(h, words[i].reg) |= 1u << bit;
		}
	}
	CHECK(refused > 150);
	close(f->fd);
	fake_kvm_stop(f);
}

/* The ioctl ran on another CPU of the same host: its APIC id and topology stand in KVM's list. */
static void the_cpu_that_answers_does_not_matter(void)
{
	static const char *const all[] = {"", "x86-64-v2", "x86-64-v3"};
	static struct cpuid_list a, b;

	for (size_t i = 0; i < ARRAY_LEN(all); i++) {
		struct fake_kvm *f = fake_kvm_start();
		struct err e;

		CHECK_INT(cpuid_of(f, all[i], &a, &e), 0);
		fake_cpuid(f, 1, 0)->ebx ^= 0x55ff0000;
		fake_cpuid(f, 0xb, 0)->edx = 99;
		fake_cpuid(f, 0xb, 1)->edx = 99;
		fake_cpuid(f, 0xd, 0)->ebx = 0xa88; /* that CPU's XCR0 */
		f->cpuid[3].padding[1] = 7;
		CHECK_INT(cpuid_of(f, all[i], &b, &e), 0);
		CHECK(same_list(&a, &b));
		cpuid_for_vcpu(&b, 3, 4);
		CHECK_INT(cpuid_find(&b, 1, 0)->ebx >> 16, 3 << 8 | 4);
		CHECK_INT(cpuid_find(&b, 0xb, 1)->ebx, 4);
		close(f->fd);
		fake_kvm_stop(f);
	}
}

static void each_capability_refused(void)
{
	static const struct {
		unsigned long cap;
		const char *name;
	} caps[] = {
		{KVM_CAP_IRQCHIP, "KVM_CAP_IRQCHIP"},
		{KVM_CAP_USER_MEMORY, "KVM_CAP_USER_MEMORY"},
		{KVM_CAP_IRQFD, "KVM_CAP_IRQFD"},
		{KVM_CAP_IOEVENTFD, "KVM_CAP_IOEVENTFD"},
		{KVM_CAP_IMMEDIATE_EXIT, "KVM_CAP_IMMEDIATE_EXIT"},
		{KVM_CAP_ADJUST_CLOCK, "KVM_CAP_ADJUST_CLOCK"},
		{KVM_CAP_VCPU_EVENTS, "KVM_CAP_VCPU_EVENTS"},
		{KVM_CAP_MP_STATE, "KVM_CAP_MP_STATE"},
		/* wanted, not needed */
		{KVM_CAP_PRE_FAULT_MEMORY, NULL},
		{KVM_CAP_TSC_CONTROL, NULL},
		{KVM_CAP_XSAVE2, NULL},
		{KVM_CAP_DEBUGREGS, NULL},
		{KVM_CAP_XCRS, NULL},
	};
	struct buf b;

	buf_init(&b, MIB(1));
	for (size_t i = 0; i < ARRAY_LEN(caps); i++) {
		struct err e = {0};
		struct machine m;
		int rc;

		machine_start(&m);
		fake_refuse_cap(m.f, caps[i].cap);
		rc = machine_make(&m, &e);
		CHECK_INT(rc < 0, caps[i].name != NULL);
		if (caps[i].name) {
			says(&e, caps[i].name);
		} else {
			CHECK_INT(machine_save(&m, &b, &e), 0);
			CHECK_INT(machine_load(&m, &b, &e), 0);
		}
		machine_stop(&m);
	}
	buf_fini(&b);
}

/* Each ioctl of the fake's table that this way takes, refused: an error that a person can act on. */
static void each_call_refused(void)
{
	/* not on this way, or done without */
	static const unsigned long other[] = {KVM_IRQFD, KVM_IOEVENTFD, KVM_SET_TSC_KHZ, KVM_RUN,
		KVM_PRE_FAULT_MEMORY, KVM_KVMCLOCK_CTRL, KVM_NMI, KVM_GET_TSC_KHZ, KVM_GET_XSAVE2};
	/* says it in other words */
	static const struct {
		unsigned long nr;
		const char *text;
	} words[] = {
		{KVM_GET_API_VERSION, "version -1"},
		{KVM_CHECK_EXTENSION, "KVM_CAP_IRQCHIP"},
		{KVM_SET_USER_MEMORY_REGION, "register 128 MiB of guest memory"},
		/* a KVM that reads no register at all lacks the first that every VM needs */
		{KVM_GET_MSRS, "MSR 0x1a0 (MISC_ENABLE)"},
	};
	struct buf b;
	unsigned long nr;

	buf_init(&b, MIB(1));
	for (size_t i = 0; (nr = fake_kvm_call(i)); i++) {
		const char *text = fake_kvm_call_name(nr);
		struct err e = {0};
		struct machine m;
		bool skip = false;
		int rc;

		for (size_t k = 0; k < ARRAY_LEN(other); k++)
			skip |= other[k] == nr;
		for (size_t k = 0; k < ARRAY_LEN(words); k++)
			if (words[k].nr == nr)
				text = words[k].text;
		machine_start(&m);
		m.f->no_call[0] = nr;
		rc = machine_make(&m, &e);
		if (rc == 0)
			rc = machine_save(&m, &b, &e);
		if (rc == 0)
			rc = machine_load(&m, &b, &e);
		CHECK_INT(rc < 0, !skip);
		if (!skip)
			says(&e, text);
		CHECK_INT(m.f->unknown, 0);
		machine_stop(&m);
	}
	buf_fini(&b);
}

static const struct test tests[] = {
	{"every_register_comes_back", every_register_comes_back},
	{"a_deadline_that_passed_still_fires", a_deadline_that_passed_still_fires},
	{"each_msr_refused_for_reading", each_msr_refused_for_reading},
	{"a_feature_without_its_register_is_hidden", a_feature_without_its_register_is_hidden},
	{"each_msr_refused_hides_its_feature", each_msr_refused_hides_its_feature},
	{"each_msr_refused_for_writing", each_msr_refused_for_writing},
	{"a_large_processor_state", a_large_processor_state},
	{"a_tsc_that_kvm_does_not_scale", a_tsc_that_kvm_does_not_scale},
	{"a_snapshot_of_before_loads", a_snapshot_of_before_loads},
	{"a_class_is_the_same_everywhere", a_class_is_the_same_everywhere},
	{"each_feature_of_a_class_missing", each_feature_of_a_class_missing},
	{"nothing_beyond_the_list_is_shown", nothing_beyond_the_list_is_shown},
	{"each_feature_of_a_snapshot_missing", each_feature_of_a_snapshot_missing},
	{"the_cpu_that_answers_does_not_matter", the_cpu_that_answers_does_not_matter},
	{"each_capability_refused", each_capability_refused},
	{"each_call_refused", each_call_refused},
};

int main(int argc, char **argv)
{
	log_level = LOG_ERROR; /* what is refused here is meant to be */
	return test_main(argc, argv, tests, ARRAY_LEN(tests));
}
