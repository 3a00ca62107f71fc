/* SPDX-License-Identifier: Apache-2.0
 *
 * local.h: developer mode: runs one VM without a daemon. Its console is the terminal, a snapshot
 * is a folder. mayfly-vmm.
 */
#pragma once

#include "vmm/config.h"

/* Runs the VM to its end. Returns the exit code: 0 if the guest powered off or reset, if a
 * signal ended the VM, or if it ended with its snapshot; 1 otherwise. Less than 0 and *e: it
 * did not start. */
int local_run(struct vm *vm, const struct config *c, struct err *e);
