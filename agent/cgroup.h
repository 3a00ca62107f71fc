/* SPDX-License-Identifier: Apache-2.0
 *
 * cgroup.h: a cgroup for every process that the host started, all below the one that is frozen for
 * a snapshot. Where there is no cgroup2 (tests), the functions do nothing, and signals go to
 * process groups.
 */
#pragma once

#include "agent/agent.h"

struct cgroup {
	char name[24]; /* "" = none */
	int dir_fd;    /* O_PATH, for clone3 */
};

/* Makes a->cgroup ready. 0 or -errno. */
int cgroups_init(struct agent *a, const char *root);
/* Limits the memory of all processes below the sandbox's cgroup together; bytes 0: no limit. 0 or
 * -errno. */
int cgroups_memory(struct agent *a, uint64_t bytes);
void cgroup_make(struct agent *a, struct cgroup *g);
/* Makes one for the next process ahead, while nobody waits for it. */
void cgroup_make_spare(struct agent *a);
void cgroups_fini(struct agent *a);
/* Sends SIGKILL to all processes in it; false: there is no such cgroup. */
bool cgroup_kill(struct agent *a, const struct cgroup *g);
/* Bounds what is in it; 0 = no bound. 0 or -errno (ENOTSUP: no cgroup, or the controllers are not handed down to it; EINVAL: the kernel has
 * none). The controllers are turned on with the first bound: a cgroup takes longer to make from then on. */
int cgroup_limit(struct agent *a, const struct cgroup *g, uint64_t memory_bytes, uint32_t pids);
/* The kernel's id of it (its inode number); 0: none. */
uint64_t cgroup_id(struct agent *a, const struct cgroup *g);
/* Opens one of its files for reading, or -errno. */
int cgroup_open(struct agent *a, const struct cgroup *g, const char *file);
/* Closes it and removes it. If it is not empty, cgroups_sweep() removes it later. */
void cgroup_release(struct agent *a, struct cgroup *g);
/* Called after children were reaped: removes released cgroups that became empty. */
void cgroups_sweep(struct agent *a);
