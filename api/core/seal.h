/* SPDX-License-Identifier: Apache-2.0
 *
 * seal.h: what the daemon may still ask of the kernel once it serves: its Landlock rules and its
 * seccomp allow-list.
 * mayflyd.
 */
#pragma once

#include "lib/jail.h"

/* First of all: only its own folders may be opened, and what it asks the kernel about.
 * -EOPNOTSUPP: this kernel has no Landlock. */
int daemon_landlock(const char *state_dir, const char *run_dir, struct err *e);

/* Before the first byte of a client's, for every thread: what is not listed is answered with
 * ENOSYS. Starting programs is mayfly-priv's work, so not for --no-jail. */
int daemon_seal(struct err *e);

/* The list, for whoever compares it with what was really used (tests/unit/seal.c): how many rows
 * went into `to`. */
#define DAEMON_RULES_MAX 160
size_t daemon_rules(struct jail_rule to[static DAEMON_RULES_MAX]);
