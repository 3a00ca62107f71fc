/* SPDX-License-Identifier: Apache-2.0
 *
 * terminal.h: standard input as the console of a VM started by hand: to the serial port if it has
 * one, else to hvc0. mayfly-vmm, the device thread. What the guest does not take waits, unread.
 */
#pragma once

#include "vmm/vm.h"

struct terminal;

/* The VM is prepared. On a terminal: no echo and no lines, the guest does that; Ctrl-C still ends
 * the VM. NULL and *e on error. */
struct terminal *terminal_start(struct vm *vm, struct err *e);
/* The terminal is as it was. NULL is fine. */
void terminal_stop(struct terminal *t);
