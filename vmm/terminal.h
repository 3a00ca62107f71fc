/* SPDX-License-Identifier: Apache-2.0
 *
 * terminal.h: standard input as the console of a VM started by hand: to the serial port if it has
 * one, else to hvc0. mayfly-vmm, the device thread. What the guest does not take waits, unread.
 */
#pragma once

#include "vmm/vm.h"

struct terminal;

/* The VM is prepared. Turns off echo and line editing of a terminal, because the guest has both.
 * Ctrl-C still ends the VM. NULL and *e on error. */
struct terminal *terminal_start(struct vm *vm, struct err *e);
/* Restores the terminal's settings. NULL is fine. */
void terminal_stop(struct terminal *t);
