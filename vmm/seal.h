/* SPDX-License-Identifier: Apache-2.0
 *
 * seal.h: the last door behind each kind of thread: its seccomp allow-list. mayfly-vmm.
 */
#pragma once

#include "lib/jail.h"

/* Stages 1 to 7 of lib/jail.c as this kind needs them: first thing in main, while still root. Landlock may be missing (then said in *missing): whether
 * such a host will do is the daemon's configuration to say. */
int vmm_jail(uid_t uid, int *proc_fd, uint32_t *missing, struct err *e);
/* The device thread: everything it, the threads it still starts and a forked snapshot writer will ever call. Before the first control message, after
 * crash_install: a call that is not listed ends this process with last words. proc_fd: the only place where openat may begin; -1: none. */
int vmm_seal(int proc_fd, struct err *e);
/* A vCPU thread: stacked on top of the device thread's list. Aborts this process if it cannot: a
 * thread without its list must not run. */
void vmm_seal_vcpu(void);
/* The forked child that writes a live snapshot. Aborts likewise. */
void vmm_seal_child(int proc_fd);

/* The list of a kind, for whoever applies it or compares it with what was really used
 * (tests/unit/seal.c): how many rows went into `to`. */
enum vmm_thread { VMM_T_DEVICE, VMM_T_VCPU, VMM_T_WRITER };
#define VMM_RULES_MAX 160
size_t vmm_seal_rules(enum vmm_thread t, int proc_fd, struct jail_rule to[static VMM_RULES_MAX]);
