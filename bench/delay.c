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

/* once in a restore: the interrupt controllers and the clock. Computing, not sleeping: as slow code
 * would be. */
int __wrap_arch_vm_load(struct kvm *k, struct cur *c, struct err *e)
{
	uint64_t end = mono_ns() + DELAY_US * 1000ull;

	while (mono_ns() < end)
		;
	return __real_arch_vm_load(k, c, e);
}
