/* SPDX-License-Identifier: Apache-2.0
 *
 * fault.h: a failure that a test injects into this monitor at one step (lib/fault.h). mayfly-vmm,
 * the device thread and the writer of a snapshot.
 */
#pragma once

#include "lib/fault.h"
#include "vmm/vm.h"

/* arg of VMM_DBG_FAULT: step, action << 32. -EINVAL: no such step or action. */
int fault_set(struct vm *vm, uint64_t arg);
/* At the step that was set, once: ends the process, or returns -ENOSPC, or waits 3 s and returns 0.
 * At every other step: 0. */
int fault_at(struct vm *vm, enum fault_step s, struct err *e);
