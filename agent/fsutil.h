/* SPDX-License-Identifier: Apache-2.0
 *
 * fsutil.h: what the file requests share. Called in job threads, with the job's credentials.
 */
#pragma once

#include "agent/jobs.h"
#include "agent/users.h"

#include <sys/stat.h>

/* Reads a path from the job's payload and expands it into to[AGENT_PATH_MAX]. False: the job has
 * failed. */
bool fs_path(struct job *j, char *to);
/* Fails the job with errno and the path. */
void fs_fail(struct job *j, int code, const char *path);

/* Appends a file item; st NULL: an empty one. dir and name: where a link's target is read. */
void fs_put_item(struct buf *b, const struct userdb *db, const char *path, const struct stat *st,
	int dir, const char *name);

/* Looks up the ids of the request's user and group names; "" and AGENT_NO_MODE change nothing.
 * False: the job has failed (AGENT_STEP_USER). */
struct fs_owner {
	uid_t uid;
	gid_t gid;
	uint32_t mode;
};
bool fs_owner(
	struct job *j, const char *owner, const char *group, uint32_t mode, struct fs_owner *o);
int fs_apply_owner(int fd, const struct fs_owner *o);

/* mkdir -p. New directories get o's owner, the last one also its mode; o may be NULL. *made: the
 * last one is new. 0 or -errno. */
int fs_make_dirs(const char *path, const struct fs_owner *o, bool *made);
/* The same for the directory of the file `path`, without o's mode, which is the file's. */
int fs_make_parents(const char *path, const struct fs_owner *o);

/* real[AGENT_PATH_MAX] gets `path` with links resolved. Makes a temporary file beside `real`, with
 * the owner and mode of the old file. fs_commit renames tmp to real. */
int fs_temp(const char *path, char *real, char *tmp, mode_t mode);
int fs_commit(const char *tmp, const char *real);
