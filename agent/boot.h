/* SPDX-License-Identifier: Apache-2.0
 *
 * boot.h: what PID 1 does first (mounts, the root disk, the network) and last (unmounts, resets the
 * machine).
 */
#pragma once

#include "agent/agent.h"

/* Mounts, moves into the root disk, brings loopback up, fills the options. What is missing is logged, and a guest without a root
 * disk runs on the initramfs. Only a root disk that is mounted and cannot be entered ends the guest (boot_dead). */
void boot_init(struct agent_opts *o);
/* Called when all processes have ended or were sent SIGKILL: syncs, makes the root read-only, resets
 * the machine. */
_noreturn_ void boot_power_off(void);
_noreturn_ void boot_dead(const char *why);
