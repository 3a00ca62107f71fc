/* SPDX-License-Identifier: Apache-2.0
 *
 * delay.c: five milliseconds put into the monitor's restore path on purpose, to see that
 * bench/compare finds them. Linked in front of the same objects as the real monitor (--wrap), so
 * that nothing of the product knows about it: build/bench/delay/mayfly-vmm; bench/selftest runs it.
 */
#include "lib/base.h"
#include "vmm/arch.h"

enum { DELAY_US = 5000 };

int __real_arch_vm_load(struct kvm *k, struct cur *c, struct err *e);
int __wrap_arch_vm_load(struct kvm *k, struct cur *c, struct err *e);

/* Called once in a restore, for the interrupt controllers and the clock. It computes and does not sleep, as slow code
 * would. */
int __wrap_arch_vm_load(struct kvm *k, struct cur *c, struct err *e)
{
	uint64_t end = mono_ns() + DELAY_US * 1000ull;

	while (mono_ns() < end)
		;
	return __real_arch_vm_load(k, c, e);
}
