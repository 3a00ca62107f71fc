/* SPDX-License-Identifier: Apache-2.0
 *
 * seal.h: the seccomp allow-list of each kind of thread. mayfly-vmm.
 */
#pragma once

#include "lib/jail.h"

/* Enters the jail of lib/jail.c, all of its stages. main() calls it while still root, after it has
 * read the options and checked its descriptors, and before it makes the event loop.
 * If the host has no Landlock, *missing is set; the daemon's configuration decides whether that
 * is allowed. */
int vmm_jail(uid_t uid, int *proc_fd, uint32_t *missing, struct err *e);
/* Seals the device thread. Its list has every call of this thread, of the threads that it starts
 * later and of a forked snapshot writer. Call it after crash_install() and before the first control
 * message: a call that is not listed ends this process with last words. proc_fd: the only folder
 * below which openat may open; -1: none. */
int vmm_seal(int proc_fd, struct err *e);
/* Seals a vCPU thread with a list on top of the device thread's. Aborts this process if that
 * fails: a thread without its list must not run. */
void vmm_seal_vcpu(void);
/* Seals the forked child that writes a snapshot. Aborts likewise. */
void vmm_seal_child(int proc_fd);

/* Copies the list of one kind of thread to `to`; returns the number of rows. tests/unit/seal.c
 * compares them with the calls that were really made. */
enum vmm_thread { VMM_T_DEVICE, VMM_T_VCPU, VMM_T_WRITER };
#define VMM_RULES_MAX 160
size_t vmm_seal_rules(enum vmm_thread t, int proc_fd, struct jail_rule to[static VMM_RULES_MAX]);
