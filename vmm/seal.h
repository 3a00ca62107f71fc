/* SPDX-License-Identifier: Apache-2.0
 *
 * seal.h: the last door behind each kind of thread: its seccomp allow-list. mayfly-vmm.
 */
#pragma once

#include "lib/err.h"

/* The device thread: everything it, the threads it still starts and a forked snapshot writer will ever call. Before the first control message, after
 * crash_install: a call that is not listed ends this process with last words. proc_fd: the only place where openat may begin; -1: none. */
int vmm_seal(int proc_fd, struct err *e);
/* A vCPU thread: stacked on top of the device thread's list. Aborts this process if it cannot: a thread without its list must not run. */
void vmm_seal_vcpu(void);
/* The forked child that writes a live snapshot. Aborts likewise. */
void vmm_seal_child(int proc_fd);
