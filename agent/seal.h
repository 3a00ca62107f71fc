/* SPDX-License-Identifier: Apache-2.0
 *
 * seal.h: what is taken away from a process of the guest: capabilities, system calls, reach. For the first process of an isolated
 * session, which seals itself before it starts the shell, and for commands that the configuration hardens (spawn.c).
 */
#pragma once

#include "lib/base.h"

struct sock_fprog;

/* The filter of system calls: those that change namespaces or mounts, reach the kernel's own machinery, make device nodes or open a
 * stream to the host. The rest of a program's life is allowed. NULL: not on this architecture. */
const struct sock_fprog *seal_filter(void);
/* Landlock: no abstract Unix socket of others and no signal to others. A descriptor of the rule set, or -errno (kernels before 6.12: ENOSYS). */
int seal_scope(void);
/* All of it, for the calling thread, for ever: every capability out, no new privileges, filter, scope (where the kernel has it). uid, gid and
 * groups are switched on the way. 0 or -errno: then nothing may be executed. */
int seal_session(uint32_t uid, uint32_t gid, const uint32_t *groups, size_t ngroups);
/* After seal_session() and a fork: no signal to, and no look into, the process that forked (where the kernel has scopes). 0 or -errno. */
int seal_apart(void);
