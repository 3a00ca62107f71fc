/* SPDX-License-Identifier: Apache-2.0
 *
 * fault.c: see fault.h. mayfly-vmm. A kill is an _exit: like SIGKILL, it writes nothing and tidies
 * nothing up.
 */
#include "vmm/fault.h"

#include <unistd.h>

#define WAIT_NS 3000000000ull

int fault_set(struct vm *vm, uint64_t arg)
{
	uint32_t step = (uint32_t)arg, action = (uint32_t)(arg >> 32);

	if (step < FAULT_VMM_FIRST || step >= FAULT_COUNT || action < FAULT_KILL ||
		action > FAULT_WAIT)
		return -EINVAL;
	vm->fault_step = (int)step;
	vm->fault_action = (int)action;
	return 0;
}

int fault_at(struct vm *vm, enum fault_step s, struct err *e)
{
	if (vm->fault_step != (int)s)
		return 0;
	vm->fault_step = FAULT_NONE;
	if (vm->fault_action == FAULT_KILL)
		_exit(137);
	if (vm->fault_action == FAULT_FAIL)
		return err_plain(e, ENOSPC, "no space (asked for by a test)");
	/* no sleep: the seccomp lists of these threads allow no such call */
	for (uint64_t end = mono_ns() + WAIT_NS; mono_ns() < end;)
		;
	return 0;
}
