/* SPDX-License-Identifier: Apache-2.0
 *
 * seal.h: the last door behind each kind of thread: its seccomp allow-list. mayfly-vmm.
 */
#pragma once

#include "lib/err.h"

/* The device thread: everything it and the threads it still starts will ever call. Before READY / the first control message. */
int vmm_seal(struct err *e);
/* A vCPU thread: stacked on top of the device thread's list. Aborts this process if it cannot: a thread without its list must not run. */
void vmm_seal_vcpu(void);
/* The forked child that writes a live snapshot. Aborts likewise. */
void vmm_seal_child(void);
