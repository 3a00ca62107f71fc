/* SPDX-License-Identifier: Apache-2.0
 *
 * spawn.h: starting jailed processes and the daemon. mayfly-priv, root.
 */
#pragma once

#include "priv/slots.h"

/* One row for each kind of process: nothing else can be started. */
struct kind {
	const char *program, *extra; /* extra: one more argument, or NULL */
	uint32_t min_fds, max_fds;
	uint32_t stage_fd; /* 0, or the descriptor that is its stage folder in the new process */
	uint64_t pids_max, memory_max;
	const char *oom_score_adj;
};
const struct kind *kind_of(uint32_t kind); /* NULL: not in the table */

/* Starts slot's program with fds as 3, 4, ... and the writing end of a new pipe as 0 to 2: pid, or -errno. *out is the caller's. */
int spawn_jailed(struct slots *t, int bin_fd, const struct priv_msg *req, struct place at,
	const int *fds, size_t nfds, struct spawned *out);
/* The daemon: its user, what of the host it may see beside the libraries, its arguments. */
struct daemon_conf {
	uint32_t uid;
	const char *bin_dir, *run_dir, *state_dir, *show[8];
	char **argv;
};
/* Starts it without capabilities, in a root of its own, `sock` as PRIV_FD: pid or -errno. */
int spawn_daemon(const struct daemon_conf *c, int sock, int *pidfd);
