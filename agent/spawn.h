/* SPDX-License-Identifier: Apache-2.0
 *
 * spawn.h: one child from clone to execve. Everything it needs is laid out beforehand, because the
 * child shares the agent's memory until it executes: no page table and no page is copied, and the
 * loop does not wait.
 */
#pragma once

#include "lib/base.h"
#include "lib/proto_agent.h"

#include <sys/types.h>

struct sock_fprog;

struct spawn_try {
	const char *path, *argv0;
};

/* as the kernel's prlimit64 takes it */
struct spawn_limit {
	uint32_t resource;
	uint64_t value[2]; /* soft, hard */
};

struct spawn {
	const struct spawn_try *tries; /* executed in order until one is there */
	size_t ntries;
	char **argv, **envp;
	const char *cwd;
	int fd[3]; /* become 0, 1, 2; all above 2 */
	int keep_fd[4],
		keep_as[4];      /* further ones, -1 none; no source may have a number of keep_as */
	uint64_t new_namespaces; /* CLONE_NEW* */
	int err_fd;              /* close-on-exec; gets a struct spawn_fail if the start fails */
	int cgroup_fd;           /* -1: none */
	bool set_ids, tty, reset_oom;
	uint64_t
		drop_caps; /* bits: taken out of the bounding set, so that no execve brings them back */
	bool no_new_privs;
	int landlock_fd;                 /* -1: none */
	const struct sock_fprog *filter; /* NULL: none */
	uid_t uid;
	gid_t gid;
	const gid_t *groups;
	size_t ngroups;
	struct spawn_limit limits[AGENT_LIMITS_MAX + 1]; /* set in order, as the agent's user */
	size_t nlimits;
	void *stack;
};

struct spawn_fail {
	int32_t code;
	uint32_t step; /* enum agent_step */
};

#define SPAWN_STACK (32u * 1024)

/* The pid, or -errno. *s and all it points at must live until err_fd's other end reads an end of
 * file. */
pid_t spawn_child(struct spawn *s);
