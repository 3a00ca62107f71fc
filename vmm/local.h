/* SPDX-License-Identifier: Apache-2.0
 *
 * local.h: developer mode: one VM without a daemon, its console on the terminal, snapshots in a
 * folder. mayfly-vmm.
 */
#pragma once

#include "vmm/config.h"

/* Runs the VM to its end: the exit code (0 the guest powered off, reset or was snapshotted as
 * asked, 1 anything else). */
int local_run(struct vm *vm, const struct config *c, struct err *e);
/* The hooks of a VM that is run so. */
struct local;
