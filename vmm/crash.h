/* SPDX-License-Identifier: Apache-2.0
 *
 * crash.h: what is left when this process dies by a signal. mayfly-vmm.
 */
#pragma once

struct vm;

/* Installs the handlers: SIGBUS inside guest memory is a memory file that was shortened
 * (VMM_X_HOST_ERROR), everything else is ours. */
void crash_install(int lastwords_fd);
/* From now on the report has registers, last exits and devices of this VM. */
void crash_know(struct vm *vm);
/* In a forked child: its crash is not the VM's, whose last words it leaves alone. */
void crash_child(void);
