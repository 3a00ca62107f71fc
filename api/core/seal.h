/* SPDX-License-Identifier: Apache-2.0
 *
 * seal.h: what the daemon may still ask of the kernel once it serves: its Landlock rules and its
 * seccomp allow-list.
 * mayflyd.
 */
#pragma once

#include "lib/jail.h"

/* To be called before daemon_seal(), when the guest's kernel and initramfs are open. From then on only the daemon's own folders can
 * be opened, and some of /proc, /sys and /etc. -EOPNOTSUPP: this kernel has no Landlock. */
int daemon_landlock(const char *state_dir, const char *run_dir, struct err *e);

/* To be called before the first byte of a client is read, and before threads are started. A system
 * call that is not listed fails with ENOSYS. Not with --no-jail: there the daemon starts programs. */
int daemon_seal(struct err *e);

/* The list, for whoever compares it with what was really used (tests/unit/seal.c): how many rows
 * went into `to`. */
#define DAEMON_RULES_MAX 160
size_t daemon_rules(struct jail_rule to[static DAEMON_RULES_MAX]);
