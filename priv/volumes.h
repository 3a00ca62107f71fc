/* SPDX-License-Identifier: Apache-2.0
 *
 * volumes.h: opens volumes: a host folder below the operator's list, or a claim's folder. mayfly-priv, root. Paths come from the
 * daemon, and what lies behind them from guests: both are hostile.
 *
 * Each request is a child process, because a source may hang (NFS, FUSE). The helper goes on meanwhile.
 */
#pragma once

#include "lib/err.h"
#include "lib/loop.h"
#include "lib/proto_priv.h"

#define VOLUME_ROOTS_MAX 16u
#define VOLUME_JOBS_MAX  16u
#define VOLUME_HOST_JOBS 12u /* of them: folders of the host, which may hang for long */
#define VOLUME_IDS       65536u

struct volumes {
	const char *root[VOLUME_ROOTS_MAX]; /* the operator's list (--host-path) */
	uint32_t nroots;
	int claims_fd; /* the folder of all claims, root's alone; -1: there is none */
	/* On disk a claim's files have the ids from here on. No process has them: mounts shift them into the range of a slot. */
	uint32_t ids_base;
};

struct volume_ask {
	uint32_t op, what, flags;
	uint32_t slot_ids;      /* the first of VOLUME_IDS user ids of the file server */
	const char *path, *sub; /* sub: "" for the folder itself */
	/* a host folder that path is below, and that no link may leave; NULL: the operator's */
	const char *within;
};

/* <state>/volumes, made if missing. */
int volumes_open(struct volumes *v, const char *state_dir, struct err *e);
/* Is the path absolute or relative, as `absolute` says, without an empty component, "." and ".."? */
bool volume_path_ok(const char *path, bool absolute);
/* Reads a request into *a: 0 or -EINVAL. text: the n bytes behind the message; *a points into them. */
int volume_parse(struct volume_ask *a, const struct priv_msg *m, const char *text, size_t n);

/* In a child: 0 or -errno; *fd: the detached mount; *folder: true for a folder, false for a file. */
int volume_do(const struct volumes *v, const struct volume_ask *a, int *fd, bool *folder);

/* The folder of a claim that exists; its name is hostile: a descriptor or -errno. */
int volume_claim_open(const struct volumes *v, const char *name);

struct volume_jobs;
typedef void (*volume_done_fn)(
	void *arg, const struct priv_msg *reply, int fd); /* fd is the callee's */
struct volume_jobs *volume_jobs_create(
	struct loop *l, const struct volumes *v, volume_done_fn done, void *arg);
/* The daemon has ended: drops the answers that are still to come. */
void volume_jobs_forget(struct volume_jobs *j);
/* After SIGCHLD: gives back the places of jobs whose children ended. */
void volume_jobs_reap(struct volume_jobs *j);
/* How many calls of volume_done_fn are still to come. */
uint32_t volume_jobs_unanswered(const struct volume_jobs *j);
/* 0: done() follows. -EAGAIN: too many are being opened. */
int volume_start(struct volume_jobs *j, const struct volume_ask *a, const struct priv_msg *m);
