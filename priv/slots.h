/* SPDX-License-Identifier: Apache-2.0
 *
 * slots.h: what mayfly-priv knows of each jail: a slot is a number, a user id, a cgroup and a process. The table lives in memory and, one
 * small file a slot, in a folder of root's, so that a new helper finds the jails of the one that died. mayfly-priv only.
 */
#pragma once

#include "lib/err.h"
#include "lib/loop.h"
#include "lib/proto_priv.h"

struct slot {
	uint32_t kind; /* 0: free */
	uint32_t uid;
	int32_t pid; /* 0: ended */
	int pidfd;
	int stage_fd; /* 0: none; the daemon's folder that it works in */
	uint64_t start_time;
	int32_t wait_status;
	bool told; /* its end was reported */
	struct watch *watch;
};

struct slots {
	struct slot s[PRIV_MAX_SLOTS];
	uint32_t n, uid_base;
	int dir_fd;    /* state files */
	int cgroup_fd; /* -1: this host has no delegated cgroup */
	int daemon_pidfd;
};

/* Opens the state folder, takes over what runs. cgroup: path of our base group, "" to find our own;
 * both are made if missing. */
int slots_init(struct slots *t, uint32_t n, uint32_t uid_base, const char *dir, const char *cgroup,
	struct err *e);
uint32_t slot_uid(const struct slots *t, uint32_t kind, uint32_t slot);
/* The cgroup of a slot as an open directory (made with the limits), or -errno; -ENOENT without
 * cgroups. */
int slot_cgroup_make(struct slots *t, uint32_t slot, const struct priv_limits *l);
int slot_cgroup_limits(struct slots *t, uint32_t slot, const struct priv_limits *l);
int slot_usage(struct slots *t, uint32_t slot, struct priv_usage *u);
/* Records a started process. Takes pidfd. */
int slot_used(struct slots *t, uint32_t slot, uint32_t kind, int32_t pid, int pidfd);
void slot_ended(struct slots *t, uint32_t slot, int32_t wait_status);
int slot_kill(struct slots *t, uint32_t slot);
/* 0, or -EBUSY while anything of it is left: a process, or a file of its user in the folder that it
 * worked in. */
int slot_free(struct slots *t, uint32_t slot);
