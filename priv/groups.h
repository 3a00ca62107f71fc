/* SPDX-License-Identifier: Apache-2.0
 *
 * groups.h: the cgroups of jails. A lease is a cgroup in which sandboxes may be placed; without --lease there is
 * one. A group is the parent cgroup of one sandbox, below its lease; a leaf is the cgroup of one process:
 * <lease>/g<group>/s<slot>. mayfly-priv, root. Numbers were checked by serve.c.
 */
#pragma once

#include "lib/err.h"
#include "lib/proto_priv.h"

#define LEASES_MAX 64u

struct lease {
	int cgroup_fd; /* -1: this host has no delegated cgroup */
	struct priv_limits limits;
};
struct leases {
	struct lease l[LEASES_MAX];
	uint32_t n;
	/* the block device of the state folder, as io.max names it; "": none, or no io controller */
	char io_device[24];
};

struct place {
	uint32_t lease, group;
	/* The leaf is <lease>/s<slot>, without a group: a helper of protocol 1 made it. */
	bool flat;
};

/* Adds a lease to the table. path: its cgroup, "" = the helper's own; both are made if missing. Without cgroups
 * the lease has descriptor -1. */
int leases_add(struct leases *t, const char *path, const struct priv_limits *l, struct err *e);
/* "PATH[,memory=BYTES][,cpu=MILLIS]" of the command line. */
int lease_parse(const char *text, char *path, size_t cap, struct priv_limits *l, struct err *e);

/* All three return an open directory or -errno; -ENOENT without cgroups. leaf_make makes the group, too. */
int leaf_make(const struct leases *t, struct place at, uint32_t slot, const struct priv_limits *l);
int leaf_open(const struct leases *t, struct place at, uint32_t slot);
int group_open(const struct leases *t, struct place at);
/* Does the lease pass the io controller on to its groups? */
bool cgroup_has_io(int lease);
/* Sets how much a group may read and write on that device. 0 or -errno. */
int cgroup_io_limits(int dir, const char *device, const struct priv_limits *l);
/* The whole disk that the file system of this folder is on, "MAJOR:MINOR". false: it is on none that io.max can name. */
bool io_device_of(const char *path, char *to, size_t cap);
/* Sets the limits of a leaf or a group. pids_max 0: 64 for a leaf, no limit for a group. */
int cgroup_limits(int dir, const struct priv_limits *l, bool group);
void cgroup_usage(int dir, struct priv_usage *u);
uint64_t cgroup_private_bytes(int dir);
/* memory.max in bytes; 0: none. */
uint64_t cgroup_memory_limit(int dir);
/* Raises memory.max. If memory runs out meanwhile, the kernel kills one process and not all. A cgroup without a limit keeps
 * having none. cgroup_lower() takes both back: -EBUSY if private memory would not fit. */
int cgroup_raise(int dir, uint64_t bytes);
int cgroup_lower(int dir, uint64_t bytes);
/* If memory runs out here, every process but this one dies before it does. */
int cgroup_spare(int dir, int pid);
/* 0 or -EBUSY while a process is in it. Removes the group with its last leaf. */
int leaf_remove(const struct leases *t, struct place at, uint32_t slot);
/* Calls fn for every leaf that exists below the leases; groups without one are removed. */
void leaves_each(const struct leases *t, uint32_t n,
	void (*fn)(void *arg, struct place at, uint32_t slot), void *arg);
