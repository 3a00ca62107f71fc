/* SPDX-License-Identifier: Apache-2.0
 *
 * fault.h: what a test asked to happen at a step (lib/fault.h). mayflyd's loop. With debug.faults
 * the file <run_dir>/fault holds lines "STEP ACTION"; each happens once, its line is removed
 * before. Without debug.faults a call costs one branch.
 */
#pragma once

#include "api/sandbox/sandbox.h"
#include "lib/fault.h"

/* 0, or -ENOSPC if the file says so. With "kill" it does not return. */
int fault_at(struct sandbox *sb, enum fault_step s);
/* The same where there is no sandbox. */
int fault_in(struct daemon *d, enum fault_step s);
/* Tells the VM what was asked for its own steps, before the request that they belong to. */
void fault_tell_vm(struct sandbox *sb);
