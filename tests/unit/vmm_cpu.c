/* SPDX-License-Identifier: Apache-2.0
 *
 * vmm_cpu: a snapshot on a host it does not fit: a processor that lacks a feature, is another vendor's, or has a TSC that cannot be scaled. Each
 * is refused by name, before anything of the state is used. No KVM.
 */
#include "lib/test.h"

#include "vmm/kvm.h"
#include "vmm/x86_64/cpu.h"

static struct arch_cpu src, host;

static void cpu_make(struct arch_cpu *c, uint32_t khz)
{
	*c = (struct arch_cpu){.tmpl = "host", .tsc_khz = khz};
	c->host.h.nent = 3;
	/* "GenuineIntel"; SSE3, SSSE3, SSE4.1, SSE4.2, POPCNT, AVX; AVX2 */
	c->host.e[0] = (struct kvm_cpuid_entry2){
		.function = 0, .eax = 7, .ebx = 0x756e6547, .ecx = 0x6c65746e, .edx = 0x49656e69};
	c->host.e[1] = (struct kvm_cpuid_entry2){.function = 1,
		.ecx = 1u << 0 | 1u << 9 | 1u << 19 | 1u << 20 | 1u << 23 | 1u << 28,
		.edx = 0x078bfbff};
	c->host.e[2] = (struct kvm_cpuid_entry2){.function = 7, .ebx = 1u << 5};
	c->guest = c->host;
}

static int load(const struct buf *b, uint32_t have, struct err *e)
{
	struct kvm k = {.have = have};
	struct cur in = cur_of(b->p, b->len);

	*e = (struct err){0};
	return arch_cpu_load(&k, &host, NULL, 0, &in, e);
}

static void saved(struct buf *b)
{
	struct kvm k = {0};
	struct err e;

	buf_reset(b);
	CHECK_INT(arch_cpu_save(&k, &src, -1, b, &e), 0);
}

static void the_same_host_takes_it(void)
{
	struct err e;
	struct buf b;

	buf_init(&b, MIB(1));
	cpu_make(&src, 3000000);
	cpu_make(&host, 3000000);
	saved(&b);
	CHECK_INT(load(&b, 0, &e), 0);
	/* a host that can more shows no more than the snapshot was shown */
	host.host.e[1].ecx |= 1u << 12;
	host.guest = host.host;
	CHECK_INT(load(&b, 0, &e), 0);
	CHECK_INT(host.guest.e[1].ecx, src.guest.e[1].ecx);
	buf_fini(&b);
}

static void a_missing_feature_is_named(void)
{
	static const struct {
		unsigned int entry;
		uint32_t ecx, ebx;
		const char *says;
	} cases[] = {{1, 1u << 20, 0, "leaf 0x1 index 0 register ecx bits 0x100000"},
		{1, 1u << 28, 0, "leaf 0x1 index 0 register ecx bits 0x10000000"},
		{2, 0, 1u << 5, "leaf 0x7 index 0 register ebx bits 0x20"}};
	struct err e;
	struct buf b;

	buf_init(&b, MIB(1));
	cpu_make(&src, 3000000);
	saved(&b);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct cpuid_list before;

		cpu_make(&host, 3000000);
		host.host.e[cases[i].entry].ecx &= ~cases[i].ecx;
		host.host.e[cases[i].entry].ebx &= ~cases[i].ebx;
		host.guest = before = host.host;
		CHECK(load(&b, 0, &e) < 0);
		if (!strstr(e.msg, cases[i].says))
			printf("%s: %s\n", cases[i].says, e.msg), test_failures++;
		CHECK(!memcmp(&before, &host.guest, sizeof(before)));
	}
	cpu_make(&host, 3000000);
	host.host.e[0].ebx = 0x68747541; /* "Auth" */
	host.guest = host.host;
	CHECK(load(&b, 0, &e) < 0);
	CHECK(e.msg[0]);
	buf_fini(&b);
}

static void a_tsc_that_cannot_be_scaled_is_refused(void)
{
	struct err e;
	struct buf b;

	buf_init(&b, MIB(1));
	cpu_make(&src, 3000000);
	saved(&b);
	cpu_make(&host, 2500000);
	CHECK(load(&b, 0, &e) < 0);
	CHECK(strstr(e.msg, "3000000") && strstr(e.msg, "2500000") && strstr(e.msg, "scaled"));
	CHECK_INT(host.tsc_khz, 2500000);
	CHECK_INT(load(&b, KVM_HAVE_TSC_CONTROL, &e), 0);
	CHECK_INT(host.tsc_khz, 3000000);
	/* what a clock absorbs: 250 ppm */
	cpu_make(&host, 3000700);
	CHECK_INT(load(&b, 0, &e), 0);
	cpu_make(&host, 3001000);
	CHECK(load(&b, 0, &e) < 0);
	buf_fini(&b);
}

/* Each byte of the record changed, and each length cut: refused, or taken without leaving the
 * buffer (the sanitizers watch). */
static void every_field_may_lie(void)
{
	struct err e;
	struct buf b;

	buf_init(&b, MIB(1));
	cpu_make(&src, 3000000);
	saved(&b);
	for (size_t i = 0; i < b.len; i++) {
		uint8_t was = b.p[i];

		for (unsigned int bit = 0; bit < 8; bit++) {
			cpu_make(&host, 3000000);
			b.p[i] = was ^ (uint8_t)(1u << bit);
			if (load(&b, 0, &e) < 0)
				CHECK(e.msg[0]);
		}
		b.p[i] = was;
	}
	for (size_t n = 0; n < b.len; n++) {
		struct buf cut = {.p = b.p, .len = n};

		cpu_make(&host, 3000000);
		CHECK(load(&cut, 0, &e) < 0);
		CHECK(e.msg[0]);
	}
	buf_fini(&b);
}

static const struct test tests[] = {
	{"the_same_host_takes_it", the_same_host_takes_it},
	{"a_missing_feature_is_named", a_missing_feature_is_named},
	{"a_tsc_that_cannot_be_scaled_is_refused", a_tsc_that_cannot_be_scaled_is_refused},
	{"every_field_may_lie", every_field_may_lie},
};

int main(int argc, char **argv)
{
	return test_main(argc, argv, tests, ARRAY_LEN(tests));
}
