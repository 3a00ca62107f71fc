/* SPDX-License-Identifier: Apache-2.0
 *
 * fault.h: what a test asked to happen to this monitor at one step (lib/fault.h). mayfly-vmm, the
 * device thread and the writer of a live snapshot.
 */
#pragma once

#include "lib/fault.h"
#include "vmm/vm.h"

/* arg of VMM_DBG_FAULT: step, action << 32. -EINVAL: neither. */
int fault_set(struct vm *vm, uint64_t arg);
/* 0; -ENOSPC and *e where that was asked for. Once. */
int fault_at(struct vm *vm, enum fault_step s, struct err *e);
