/* SPDX-License-Identifier: Apache-2.0
 *
 * spawn.h: starting jailed processes and the daemon. mayfly-priv, root.
 */
#pragma once

#include "priv/slots.h"

/* One row a kind: what may be started at all. */
struct kind {
	const char *program, *extra; /* extra: one more argument, or NULL */
	uint32_t min_fds, max_fds;
	uint64_t pids_max, memory_max;
	const char *oom_score_adj;
};
const struct kind *kind_of(uint32_t kind); /* NULL: not in the table */

/* Starts slot's program with fds as 3, 4, ...: pid, or -errno. *pidfd is the caller's. */
int spawn_jailed(struct slots *t, int bin_fd, uint32_t kind, uint32_t slot, const struct priv_limits *l, const int *fds, size_t nfds, int *pidfd);
/* Starts the daemon under uid without capabilities, `sock` as PRIV_FD: pid or -errno. */
int spawn_daemon(int bin_fd, uint32_t uid, int sock, char **argv, int *pidfd);
