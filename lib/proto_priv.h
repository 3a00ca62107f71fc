/* SPDX-License-Identifier: Apache-2.0
 *
 * proto_priv.h: between mayflyd and mayfly-priv, over the one inherited SOCK_SEQPACKET socket
 * (PRIV_FD in the daemon). Fixed-size messages, no strings, no paths: what may be asked for is a
 * table. Descriptors travel with SCM_RIGHTS. Replies carry the request's id; PRIV_EV_EXITED comes
 * by itself. Both run on one host, in one build: native byte order, the version must match exactly.
 */
#pragma once

#include "lib/base.h"

#define PRIV_MAGIC     0x3156504du
#define PRIV_VERSION   1u
#define PRIV_FD        3
#define PRIV_MAX_SLOTS 4096u
#define PRIV_SPAWN_FDS 8u

enum priv_op {
	PRIV_HELLO = 1,  /* -> nslots, host flags (PRIV_H_*) */
	PRIV_SPAWN = 2,  /* kind, slot, limits; fds become 3, 4, ... of the new process -> pid,
			    start_time, uid; fd: pidfd */
	PRIV_LIMITS = 3, /* slot, limits -> {} */
	PRIV_USAGE = 4,  /* slot -> usage */
	PRIV_OPEN = 5,   /* what (enum priv_file) -> fd */
	PRIV_KILL = 6,   /* slot -> {} : SIGKILL to all of its cgroup; PRIV_EV_EXITED follows */
	/* slot = where to begin -> the first used slot from there on: as PRIV_SPAWN's reply, with
	 * slot and kind; ENOENT: no more. One that has ended and was not freed: pid 0, wait_status,
	 * no descriptor */
	PRIV_LIST = 7,
	PRIV_FREE = 8, /* slot -> {} : its process is reaped, its cgroup empty: the slot and its uid
			  may be used again; EBUSY else */
	/* fd: a regular file that an image job made -> {}: now the daemon's, read-only (0444).
	   EPERM: not one of theirs */
	PRIV_ADOPT = 9,
	PRIV_EV_EXITED = 0x4001, /* slot, kind, pid, wait_status, oom_kills */
};

enum priv_kind {
	PRIV_K_VMM = 1,
	PRIV_K_NET = 2,
	PRIV_K_IMAGE_BUILD = 3 /* no network */,
	PRIV_K_IMAGE_PULL = 4 /* network */,
	PRIV_K_COUNT
};
/* CONFIG: the file that the daemon was started with, which it may not open by itself */
/* 2 was a userfaultfd: such a descriptor is a way to write into the memory of who made it, which is
 * the helper */
enum priv_file { PRIV_F_KVM = 1, PRIV_F_CONFIG = 3, PRIV_F_COUNT };

/* host flags: what the strictest form lacks here */
enum { PRIV_H_NO_CGROUP = 1, PRIV_H_NO_LANDLOCK = 2, PRIV_H_NO_KVM = 4 };

struct priv_limits {
	uint64_t cpu_max_us; /* per 100 ms; 0 = none */
	uint64_t memory_max; /* bytes; 0 = none */
	uint64_t pids_max;   /* 0 = kind's own */
};

struct priv_usage {
	uint64_t cpu_us, memory_bytes, memory_peak, pids, oom_kills;
};

struct priv_msg {
	uint32_t magic, version;
	uint32_t op, id;
	int32_t status; /* replies: 0 or -errno */
	uint32_t kind, slot, what;
	struct priv_limits limits;
	struct priv_usage usage;
	int32_t pid;
	uint32_t uid;
	uint64_t start_time; /* field 22 of /proc/PID/stat: with the pid it names a process for ever
			      */
	int32_t wait_status; /* as waitpid(2) has it; -1: ended while no helper was there to see it
			      */
	uint32_t nslots, flags, reserved;
};
static_assert(sizeof(struct priv_msg) == 128, "one fixed size");
