/* SPDX-License-Identifier: Apache-2.0
 *
 * proto_priv.h: between mayflyd and mayfly-priv, over the one inherited SOCK_SEQPACKET socket
 * (PRIV_FD in the daemon). Messages have a fixed size. Only behind those about volumes and quotas
 * come names and paths, at most PRIV_TEXT_MAX bytes. What may be asked for is a table. Descriptors
 * travel with SCM_RIGHTS. Replies carry the request's id; PRIV_EV_EXITED comes by itself. Both run
 * on one host, in one build: native byte order, the version must match exactly.
 */
#pragma once

#include <stdio.h>

#include "lib/base.h"

#define PRIV_MAGIC   0x3156504du
#define PRIV_VERSION 5u
#define PRIV_FD      3
/* Each slot has 65,536 user ids for files. One more range of that size owns the claims, and begins
 * at 65,536 or above. All ids must be below 2^32. */
#define PRIV_MAX_SLOTS 65533u
#define PRIV_VOLUMES   32u
#define PRIV_SPAWN_FDS                                                                             \
	(2 + PRIV_VOLUMES)  /* a file server: its socket, its table, and its volumes */
#define PRIV_TEXT_MAX 8192u /* bytes behind a message */

/* A sandbox is a group of processes. Each process has a slot: a user id, a jail and a leaf cgroup. The group is
 * the parent cgroup of its leaves, below the cgroup of its lease. Slots and groups are numbers below nslots. The
 * group begins with its first process and ends when its last slot is freed. */
enum priv_op {
	PRIV_HELLO = 1, /* -> nslots, nleases, host flags (PRIV_H_*), uid */
	/* kind, slot, group, lease, limits of the leaf; fds become 3, 4, ... of the new process
	 * -> pid, start_time, uid; fd: pidfd. EXDEV: the group is in another lease
	 * PRIV_K_FILES: fds: socket, memory file, volumes; volumes_ro, volumes_ids, volumes_max; what = 1: it empties volume 0 and ends */
	PRIV_SPAWN = 2,
	PRIV_LIMITS = 3, /* slot, limits of the leaf -> {}; memory_max 0: unchanged */
	PRIV_USAGE = 4,  /* slot -> usage of the leaf */
	PRIV_OPEN = 5,   /* what (enum priv_file) -> fd */
	PRIV_KILL = 6,   /* slot -> {} : SIGKILL to all of its leaf; PRIV_EV_EXITED follows */
	/* slot = where to begin -> the first used slot from there on: as PRIV_SPAWN's reply, with
	 * slot, group, lease and kind; ENOENT: no more. One that has ended and was not freed: pid 0,
	 * wait_status, no descriptor */
	PRIV_LIST = 7,
	PRIV_FREE = 8, /* slot -> {} : the slot and its uid may be used again. EBUSY: its process is
			  not reaped, its leaf is not empty, or an image job's folder still holds
			  files of that uid */
	/* fd: a regular file that an image job made -> {}: now the daemon's, read-only (0444).
	   EPERM: not one of theirs */
	PRIV_ADOPT = 9,
	/* group, limits of all its processes together -> {}; memory_max 0: unchanged; ENOENT: it
	 * has no process */
	PRIV_GROUP_LIMITS = 10,
	PRIV_GROUP_USAGE = 11, /* group -> usage of all its processes together */
	/* group -> {} : SIGKILL to all its processes; a PRIV_EV_EXITED for each follows */
	PRIV_GROUP_KILL = 12,
	/* A live snapshot copies the pages that the guest writes meanwhile, and both copies count.
	 * pid: the monitor's, so that a slot that was used again is left alone (ENOENT).
	 * slot, what = 1, limits.memory_max = ceiling -> usage.memory_bytes = by how much the
	 * limits of the leaf and of its group were raised: the leaf's private memory, but at least
	 * 16 MiB and at most the ceiling. A second call gives the same answer. If the limit is met
	 * all the same, the process with the highest oom_score_adj dies, not the whole leaf.
	 * what = 2: the snapshot's writer is there: every process of the leaf but the monitor gets
	 * the highest oom_score_adj.
	 * what = 0, limits.memory_max = that number: lowers the limits again. EBUSY: the copies are
	 * still there, ask again */
	PRIV_ROOM = 13,
	/* slot of the file server that will serve it, what (enum priv_volume), flags (PRIV_V_*).
	 * Behind the message, each ended by a NUL:
	 *   path      HOST: absolute, below one of the operator's folders
	 *             CLAIM: the name of its folder, 32 hexadecimal digits
	 *   sub-path  opened beneath the path
	 *   folder    HOST only, may be left out: the path is below it, and no link may leave it
	 * -> flags PRIV_V_FOLDER; fd: a detached mount whose ids are those of the slot. The answer
	 * may come after those of later requests. EPERM: not below one of the folders; EXDEV: a
	 * link leads out; ENOENT; EMEDIUMTYPE: neither a folder nor a file; EOPNOTSUPP: its file
	 * system cannot shift ids; ETIMEDOUT: it hangs; EAGAIN: too many at once */
	PRIV_VOLUME = 14,
	PRIV_VOLUME_REMOVE = 15, /* what = CLAIM, and its name as above -> {}; ENOTEMPTY */
	/* slot -> fd: the reading end of the pipe that the process has as descriptors 0 to 2. The helper keeps one, too, so that the process
	 * can write while no daemon is there. ENOENT: it has none */
	PRIV_LOG = 16,
	/* Limits that the file system keeps, for all files of one project together. project: 1 to PRIV_PROJECT_MAX, the daemon's choice; sandboxes
	 * and claims have ranges of their own. what = PRIV_Q_SANDBOX: fds: one to four regular files or folders of the daemon's.
	 * what = PRIV_Q_CLAIM: the claim's name and a NUL behind the message, no fds.
	 * The files get the project, a folder with all that is made in it from now on. quota: the limits, 0: none -> quota: what the project uses now.
	 * EOPNOTSUPP: the file system has no project quotas (PRIV_H_NO_QUOTA says so beforehand); EPERM: not one of the daemon's files */
	PRIV_QUOTA = 17,
	/* slot, group, kind, uid, start_time, wait_status, usage of the leaf */
	PRIV_EV_EXITED = 0x4001,
};

/* The numbers stand in the helper's state files: they never change. */
enum priv_kind {
	PRIV_K_MONITOR = 1,
	PRIV_K_NETWORK = 2,     /* parses the guest's frames; in an empty network namespace */
	PRIV_K_IMAGE_BUILD = 3, /* no network */
	PRIV_K_IMAGE_PULL = 4,  /* the host's network */
	PRIV_K_BROKER = 5,      /* opens sockets for the network process; the host's network */
	PRIV_K_FILES = 6,       /* serves volumes */
	PRIV_K_COUNT
};
/* What PRIV_OPEN opens. CONFIG: the file that the daemon was started with, which it may not open by
 * itself. RESOLV: /etc/resolv.conf as it is at this moment; in a jail, the old file would stay
 * visible after a rename replaced it. 2 is not used again: it was a userfaultfd, which can write
 * into the memory of its maker, the helper. */
enum priv_file { PRIV_F_KVM = 1, PRIV_F_CONFIG = 3, PRIV_F_RESOLV = 4, PRIV_F_COUNT };

enum priv_volume { PRIV_V_HOST = 1, PRIV_V_CLAIM = 2 };
enum {
	PRIV_V_RO = 1,     /* read-only */
	PRIV_V_MAKE = 2,   /* missing folders are made */
	PRIV_V_FOLDER = 4, /* answer */
	PRIV_V_FLAGS = PRIV_V_RO | PRIV_V_MAKE
};

enum priv_quota_what { PRIV_Q_SANDBOX = 1, PRIV_Q_CLAIM = 2 };
#define PRIV_PROJECT_MAX 0x0fffffffu

/* host flags: what this host lacks for the strictest jail. NO_IO: the cgroups have no io controller,
 * or the state folder's file system is on no block device that the controller can limit. NO_QUOTA:
 * project quotas on the state folder's file system. */
enum {
	PRIV_H_NO_CGROUP = 1,
	PRIV_H_NO_LANDLOCK = 2,
	PRIV_H_NO_KVM = 4,
	PRIV_H_NO_IO = 8,
	PRIV_H_NO_QUOTA = 16
};

struct priv_limits {
	uint64_t cpu_max_us; /* per 100 ms; 0 = none */
	uint64_t memory_max; /* bytes; 0 = the kind's own, or unchanged */
	uint64_t pids_max;   /* 0 = kind's own */
	/* of a group only, on the disk of the state folder; each holds for reads and for writes. 0 = none */
	uint64_t io_bytes_max; /* a second */
	uint64_t io_ops_max;   /* a second */
	uint64_t io_weight;    /* 1 to 10000; 0 = the usual 100 */
};

struct priv_usage {
	uint64_t cpu_us, memory_bytes, memory_peak, pids, oom_kills;
};

struct priv_quota {
	uint64_t bytes, inodes;
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
	uint32_t nslots, flags;
	uint32_t group, lease, nleases;
	/* of a file server, a bit for each volume: read-only; keeps the guest's user ids */
	uint32_t volumes_ro, volumes_ids;
	uint32_t project, reserved;
	struct priv_quota quota;
	uint64_t volumes_max[PRIV_VOLUMES]; /* bytes that the volume may hold; 0: no limit */
};
static_assert(sizeof(struct priv_msg) == 448, "one fixed size");

/* Writes the option of mayfly-fs for volume i, for both programs that start one. */
#define PRIV_RULES_MAX 48
static inline void priv_volume_rules(
	const struct priv_msg *m, size_t i, char to[static PRIV_RULES_MAX])
{
	unsigned long long max = m->volumes_max[i];
	int n = snprintf(to, PRIV_RULES_MAX, "%s%s", m->volumes_ro >> i & 1 ? "ro" : "rw",
		m->volumes_ids >> i & 1 ? ",ids" : "");

	if (max)
		snprintf(to + n, PRIV_RULES_MAX - (size_t)n, ",max=%llu", max);
}
