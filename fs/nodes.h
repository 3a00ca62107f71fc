/* SPDX-License-Identifier: Apache-2.0
 *
 * nodes.h: what the guest knows of the volumes: a table of nodes (files and folders with a number) and of handles (what is open).
 * Worker threads of mayfly-fs; every call locks for itself.
 *
 * The table lives in a memory file. The file outlives the process: after a crash, a pause or a restore the next process loads
 * the table and opens each node again beneath its volume, by parent and name. A node that is not the same file any more
 * (inode number or birth time differ), or that has no name left, is -ESTALE. Descriptors are only a cache beside the table.
 */
#pragma once

#include "fs/volume.h"

#include <fcntl.h>
#include <sys/stat.h>

struct nodes;

/* Loads the table in memfd, or begins one in an empty file. The bytes may come from a damaged or forged checkpoint: every record
 * is checked, and -EBADMSG refuses the file. max_fds: descriptors that the cache may hold. Takes memfd; borrows the volumes. */
int nodes_open(
	struct nodes **to, int memfd, const struct volumes *v, unsigned int max_fds, struct err *e);
void nodes_close(struct nodes *n);

/* The minor version and the flags that INIT agreed on; 0 before it. */
struct fs_session {
	uint32_t minor, flags, flags2;
};
/* INIT: the guest's kernel starts from nothing, so all nodes and handles of an earlier mount are dropped. */
void nodes_start(struct nodes *n, struct fs_session s);

/* A node in use: it keeps its number and its descriptor until node_put. */
struct node_ref {
	uint32_t index;
	int fd;                   /* O_PATH; -1 for the folder that holds the volumes */
	const struct volume *vol; /* NULL for that folder */
};
/* 0 or -errno: -ESTALE for a number that was never given, was forgotten, or whose file is gone. */
int node_get(struct nodes *n, uint64_t id, struct node_ref *r);
void node_put(struct nodes *n, struct node_ref *r);

/* Finds NAME in the folder `dir`, counts one lookup for the guest, and fills its number and attributes. */
int node_lookup(struct nodes *n, const struct node_ref *dir, const char *name, uint64_t *id,
	struct statx *st);
/* The same for the open file fd. name: NULL if it has none (O_TMPFILE). */
int node_lookup_fd(struct nodes *n, const struct node_ref *dir, const char *name, int fd,
	uint64_t *id, struct statx *st);
void node_forget(struct nodes *n, uint64_t id, uint64_t count);
/* After a rename: the node at the new place has that name now. */
void node_moved(struct nodes *n, const struct node_ref *dir, const char *name);
/* Before an unlink, rmdir or a rename over it: holds the file open if the guest knows it, so that it stays usable without a name.
 * node_gone ends that; gone: the name was removed. */
struct node_victim {
	uint32_t index;    /* 0: the guest does not know this file */
	bool by_this_name; /* the table knows it by the name that is removed (it may have others) */
};
void node_victim(
	struct nodes *n, const struct node_ref *dir, const char *name, struct node_victim *v);
void node_gone(struct nodes *n, struct node_victim *v, bool gone);
/* The inode number that the guest sees, from the host's. */
uint64_t node_ino(const struct volume *v, uint64_t host_ino);

/* An open file or folder. The table remembers node and flags, so that a later process can open it again. */
struct handle_ref {
	uint32_t index;
	int fd;
	const struct volume *vol;
};
/* What the table remembers of a file's flags; a folder has HANDLE_FOLDER. */
#define HANDLE_FLAGS  ((uint32_t)(O_ACCMODE | O_SYNC | O_DSYNC))
#define HANDLE_FOLDER ((uint32_t)O_DIRECTORY)
/* Takes fd. flags: of HANDLE_FLAGS, or HANDLE_FOLDER. *fh is the handle's number for the guest. */
int handle_new(struct nodes *n, const struct node_ref *of, int fd, uint32_t flags, uint64_t *fh);
int handle_get(struct nodes *n, uint64_t fh, struct handle_ref *h);
void handle_put(struct nodes *n, struct handle_ref *h);
void handle_release(struct nodes *n, uint64_t fh);
/* Bytes on disk of this volume's files that have no name any more and that the guest still uses. */
uint64_t nodes_unnamed_bytes(struct nodes *n, const struct volume *v);
/* Serialises the readers of one open folder, whose position they share. */
void handle_lock(struct nodes *n, const struct handle_ref *h);
void handle_unlock(struct nodes *n, const struct handle_ref *h);

/* Opens the node's file or folder with these O_ flags: a descriptor or -errno. Never a device, FIFO or socket: -EACCES. */
int node_open(const struct node_ref *r, int flags);
