/* SPDX-License-Identifier: Apache-2.0
 *
 * server.h: answers FUSE requests from one socket with a few worker threads. mayfly-fs.
 */
#pragma once

#include "fs/nodes.h"
#include "fs/request.h"
#include "fs/usage.h"

#include <pthread.h>
#include <stdatomic.h>

#define SERVER_THREADS 4u

/* What all handlers share. */
struct server {
	struct nodes *nodes;
	const struct volumes *vols;
	int sock;
	pthread_mutex_t reading, writing, syncing;
	bool failed; /* under `reading`: the peer broke a rule, or is gone */
	/* For room_for(). unseen_bytes: written since the last statfs; disk_full: its result; disk_seen: there was a statfs. */
	_Atomic uint64_t unseen_bytes;
	_Atomic bool disk_full, disk_seen;
	_Atomic int disk_fd1; /* descriptor + 1 of our file on the disk of the claims; 0: none */
	struct usages usages;
};

/* Serves until the monitor's end closes: 0, or -errno. The working folder must be /proc/self/fd (nodes are opened again through it). */
int server_run(struct server *s);

/* Closes what requests opened. server_run() calls it at its end. */
void server_close(struct server *s);

/* Answers one request: the length of the reply in `out` (FS_MESSAGE_MAX bytes), 0 if FUSE has no reply to it. msg and out are 8-byte aligned. */
size_t server_answer(
	struct server *s, const void *msg, uint32_t len, uint32_t reply_max, uint8_t *out);

/* One request in work: handlers fill `out`, which has room for reply_max - sizeof(struct fuse_out_header) bytes. */
struct fs_call {
	struct server *s;
	const struct fs_request *r;
	uint8_t *out;
	size_t out_max, out_len;
};

/* Handlers return 0 or -errno. NULL: the operation is not served. */
typedef int (*fs_handler)(struct fs_call *c);
fs_handler server_handler(uint32_t op);

/* For handlers: appends a structure to the answer, or fails with -EINVAL when the guest left no room for it. */
int call_put(struct fs_call *c, const void *p, size_t n);

/* ops_name.c */
int op_lookup(struct fs_call *c);
int op_forget(struct fs_call *c);
int op_batch_forget(struct fs_call *c);
int op_create(struct fs_call *c);
int op_tmpfile(struct fs_call *c);
int op_mknod(struct fs_call *c);
int op_mkdir(struct fs_call *c);
int op_symlink(struct fs_call *c);
int op_link(struct fs_call *c);
int op_unlink(struct fs_call *c);
int op_rmdir(struct fs_call *c);
int op_rename(struct fs_call *c);
int op_rename2(struct fs_call *c);
int op_readlink(struct fs_call *c);
/* ops_attr.c */
int op_init(struct fs_call *c);
int op_getattr(struct fs_call *c);
int op_setattr(struct fs_call *c);
int op_statfs(struct fs_call *c);
int op_setxattr(struct fs_call *c);
int op_getxattr(struct fs_call *c);
int op_listxattr(struct fs_call *c);
int op_removexattr(struct fs_call *c);
/* ops_file.c */
int op_open(struct fs_call *c);
int op_read(struct fs_call *c);
int op_write(struct fs_call *c);
int op_release(struct fs_call *c);
int op_fsync(struct fs_call *c);
int op_fallocate(struct fs_call *c);
int op_lseek(struct fs_call *c);
int op_copy_file_range(struct fs_call *c);
int op_syncfs(struct fs_call *c);
/* ops_dir.c */
int op_opendir(struct fs_call *c);
int op_readdir(struct fs_call *c);
int op_readdirplus(struct fs_call *c);

/* Shared by the files of operations. */
/* May a request add so many bytes to the volume? 0, -ENOSPC, or why that cannot be found out.
 * The daemon needs the disk of the claims, too, so guests must leave SERVER_RESERVE bytes and SERVER_INODES inodes free there. A volume with a
 * limit of its own (max_bytes) stays below it. */
#define SERVER_RESERVE MIB(512)
#define SERVER_INODES  4096u
int room_for(const struct fs_call *c, const struct volume *v, int fd, uint64_t bytes);
void fill_attr(struct fuse_attr *a, const struct volume *v, const struct statx *st);
void fill_entry(
	struct fuse_entry_out *o, uint64_t id, const struct volume *v, const struct statx *st);
void attr_of_root(struct fuse_attr *a);
/* How long the guest may believe a name or an attribute: 0.9 s in a volume that it may write, an hour in one that is read-only for it. */
void fill_valid(const struct volume *v, uint64_t *sec, uint32_t *nsec);
/* false: the fourth access mode of open(2), which lets neither read nor write. handle_valid() would refuse the whole table for it. */
bool access_mode_ok(uint32_t flags);
uint32_t open_answer_flags(const struct volume *v);
/* Mode bits that a guest may set: never set-user-id or set-group-id; sticky on folders only. */
mode_t allowed_mode(uint32_t mode, bool folder);
