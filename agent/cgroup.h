/* SPDX-License-Identifier: Apache-2.0
 *
 * cgroup.h: a cgroup for every process that was asked for, all below one that the freezer stops.
 * Where there is no cgroup2 (tests), everything here does nothing, and process groups have to do.
 */
#pragma once

#include "agent/agent.h"

struct cgroup {
	char name[24]; /* "" = none */
	int dir_fd;    /* O_PATH, for clone3 */
};

/* Makes a->cgroup ready. 0 or -errno. */
int cgroups_init(struct agent *a, const char *root);
/* What all processes below the sandbox's cgroup may use together; 0: no limit. 0 or -errno. */
int cgroups_memory(struct agent *a, uint64_t bytes);
void cgroup_make(struct agent *a, struct cgroup *g);
/* One for the next process, made when nobody waits for it. */
void cgroup_make_spare(struct agent *a);
void cgroups_fini(struct agent *a);
/* SIGKILL to all in it; false: there is none. */
bool cgroup_kill(struct agent *a, const struct cgroup *g);
/* Bounds what is in it; 0 = no bound. 0 or -errno (ENOTSUP: this guest has no such controllers). The controllers are turned on with the first
 * bound: a cgroup takes longer to make from then on. */
int cgroup_limit(struct agent *a, const struct cgroup *g, uint64_t memory_bytes, uint32_t pids);
/* Its number, as the kernel names it elsewhere; 0: none. */
uint64_t cgroup_id(struct agent *a, const struct cgroup *g);
/* Opens one of its files for reading, or -errno. */
int cgroup_open(struct agent *a, const struct cgroup *g, const char *file);
/* Lets it go; it is removed as soon as it is empty. */
void cgroup_release(struct agent *a, struct cgroup *g);
/* After children were reaped: removes those that became empty. */
void cgroups_sweep(struct agent *a);
