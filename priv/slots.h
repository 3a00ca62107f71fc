/* SPDX-License-Identifier: Apache-2.0
 *
 * slots.h: what mayfly-priv knows of each jail: a slot is a number, a user id, a leaf cgroup and a process. The
 * table lives in memory and, one small file a slot, in a folder of root's, so that a new helper finds the jails
 * of the one that died. mayfly-priv only.
 */
#pragma once

#include "lib/err.h"
#include "lib/loop.h"
#include "lib/proto_priv.h"
#include "priv/groups.h"

struct slot {
	uint32_t kind; /* 0: free */
	uint32_t uid;
	int32_t pid; /* 0: ended */
	int pidfd;
	int stage_fd; /* 0: none; the stage folder of an image job */
	int log_fd;   /* 0: none; the reading end of its log's pipe */
	struct place at;
	uint64_t start_time;
	int32_t wait_status;
	uint64_t room_bytes; /* by which its limits are raised for a snapshot */
	bool told;           /* its end was reported */
	struct watch *watch;
};

struct spawned {
	int pidfd;
	int log_fd; /* the reading end of its log's pipe; 0: none */
};

/* monitors, network processes, image jobs, brokers; the fifth range is not used: file servers have their own ids (ids_base) */
#define PRIV_UID_RANGES 5u
#define SLOT_IDS        65536u /* user ids of a file server */

struct slots {
	struct slot *s;
	uint32_t n;
	uint32_t uid_base, uid_width; /* width: users of each range */
	/* File servers: SLOT_IDS users for each slot, from here on. The first SLOT_IDS are those of claims' files on disk. */
	uint32_t ids_base;
	uint32_t untold; /* ends that the daemon has not heard of */
	int dir_fd;      /* state files */
	int daemon_pidfd;
	bool core_scheduling; /* no two processes run on one core's threads at a time */
	struct leases leases;
};

int slots_alloc(struct slots *t, uint32_t n, uint32_t uid_base, uint32_t uid_width);
/* Opens the state folder (made if missing) and takes over what runs below the leases. */
int slots_take_over(struct slots *t, const char *dir, struct err *e);
uint32_t slot_uid(const struct slots *t, uint32_t kind, uint32_t slot);
/* Records a started process. Takes pidfd. */
int slot_used(
	struct slots *t, uint32_t slot, uint32_t kind, struct place at, int32_t pid, int pidfd);
void slot_ended(struct slots *t, uint32_t slot, int32_t wait_status);
int slot_kill(struct slots *t, uint32_t slot);
/* 0, or -EBUSY while anything of it is left: a process, or a file of its user in its stage folder. */
int slot_free(struct slots *t, uint32_t slot);
/* Where the processes of this group are. false: it has none. */
bool group_lease(const struct slots *t, uint32_t group, struct place *at);
int group_kill(struct slots *t, uint32_t group);
