/* SPDX-License-Identifier: Apache-2.0
 *
 * crash.h: the report when this process dies by a signal. mayfly-vmm.
 */
#pragma once

struct vm;

/* Installs the handlers. SIGBUS inside guest memory: a memory file was shortened or cannot be read
 * (VMM_X_HOST_ERROR). Everything else is a fault of the monitor (VMM_X_INTERNAL). */
void crash_install(int lastwords_fd);
/* From now on the report has the last exits of this VM's vCPUs and the state of its devices. */
void crash_know(struct vm *vm);
/* In a forked child: its crash is not the VM's end, so it must not write the last words. */
void crash_child(void);
