/* SPDX-License-Identifier: Apache-2.0
 *
 * boot.h: being init: from the kernel's hand-over to a root with everything mounted, and the way out.
 */
#pragma once

#include "agent/agent.h"

/* Mounts, moves into the root disk, brings loopback up, fills the options. Never fails: what is missing is logged, and a guest
 * without a root disk runs on the initramfs. */
void boot_init(struct agent_opts *o);
/* Everything is down: write, unmount, off. */
_noreturn_ void boot_power_off(void);
_noreturn_ void boot_dead(const char *why);
