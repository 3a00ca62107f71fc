/* SPDX-License-Identifier: Apache-2.0
 *
 * ops_file.c: open files: read, write, holes, sync. Worker threads of mayfly-fs; the arguments are the guest's.
 */
#include "fs/server.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/uio.h>
#include <sys/vfs.h>

uint32_t open_answer_flags(const struct volume *v)
{
	/* files of a volume that is read-only for this guest stay in its page cache from one open to the next */
	return v && v->read_only ? FOPEN_KEEP_CACHE : 0;
}

bool access_mode_ok(uint32_t flags)
{
	return (flags & O_ACCMODE) != O_ACCMODE;
}

int op_open(struct fs_call *c)
{
	const struct fuse_open_in *in = c->r->arg;
	struct fuse_open_out o = {0};
	struct node_ref n;
	int fd, rc;

	if (c->out_max < sizeof(o) || !access_mode_ok(in->flags))
		return -EINVAL;
	rc = node_get(c->s->nodes, c->r->node, &n);
	if (rc < 0)
		return rc;
	o.open_flags = open_answer_flags(n.vol);
	if (!n.vol)
		rc = -EISDIR;
	else if (n.vol->read_only && ((in->flags & O_ACCMODE) != O_RDONLY || in->flags & O_TRUNC))
		rc = -EROFS;
	if (rc == 0) {
		fd = node_open(&n, (int)(in->flags & (HANDLE_FLAGS | O_TRUNC)));
		rc = fd < 0 ? fd : handle_new(c->s->nodes, &n, fd, in->flags & HANDLE_FLAGS, &o.fh);
	}
	node_put(c->s->nodes, &n);
	return rc < 0 ? rc : call_put(c, &o, sizeof(o));
}

int op_release(struct fs_call *c)
{
	const struct fuse_release_in *in = c->r->arg;

	handle_release(c->s->nodes, in->fh);
	return 0;
}

int op_read(struct fs_call *c)
{
	const struct fuse_read_in *in = c->r->arg;
	size_t want = MIN((size_t)in->size, c->out_max);
	struct handle_ref h;
	int rc;

	if (in->offset > INT64_MAX)
		return -EINVAL;
	rc = handle_get(c->s->nodes, in->fh, &h);
	if (rc < 0)
		return rc;
	while (c->out_len < want) {
		ssize_t n = pread(h.fd, c->out + c->out_len, want - c->out_len,
			(off_t)(in->offset + c->out_len));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && c->out_len == 0)
			rc = -errno;
		if (n <= 0)
			break;
		c->out_len += (size_t)n;
	}
	handle_put(c->s->nodes, &h);
	return rc;
}

#define LOOK_AGAIN_BYTES MIB(16)

/* The descriptor on which fstatfs() reports the free space of the disk. If the host's file system keeps a claim's limit (project quota), statfs
 * of the claim's folder reports that limit, and the reserve would be taken off each claim. Only folders have the flag that causes this
 * (project inheritance), so a regular file is asked. To compare the result with the limit would not show which of the two was reported:
 * a client chooses the limit, and could choose the disk's size. */
static int disk_fd(struct server *s, const struct volume *v, int fd)
{
	int first = 0, own = atomic_load(&s->disk_fd1);
	char path[16];

	if (!v->is_folder)
		return v->root_fd;
	if (own)
		return own - 1;
	snprintf(path, sizeof(path), "%d", v->root_fd);
	own = open(path, O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, 0) + 1;
	/* no space even for this file, or a file system without O_TMPFILE */
	if (!own)
		return fd;
	if (atomic_compare_exchange_strong(&s->disk_fd1, &first, own))
		return own - 1;
	/* another worker was faster: `first` is now its descriptor + 1 */
	close(own - 1);
	return first - 1;
}

static int room_on_disk(const struct fs_call *c, const struct volume *v, int fd, uint64_t bytes)
{
	struct server *s = c->s;
	struct statfs st;
	uint64_t room, charge;

	if (!v->keep_ids)
		return 0;
	/* Ask the disk after every 16 MiB, before a large piece, every 256 calls (each may take an inode), and at each call while the disk is full. */
	charge = MAX(bytes, LOOK_AGAIN_BYTES / 256);
	if (atomic_load(&s->disk_seen) && !atomic_load(&s->disk_full) && bytes < LOOK_AGAIN_BYTES &&
		atomic_fetch_add(&s->unseen_bytes, charge) + charge < LOOK_AGAIN_BYTES)
		return 0;
	if (fstatfs(disk_fd(s, v, fd), &st) < 0)
		return -errno;
	atomic_store(&s->unseen_bytes, 0);
	atomic_store(&s->disk_seen, true);
	/* f_files 0: this file system makes inodes as it needs them */
	room = (uint64_t)st.f_bavail * (uint64_t)st.f_bsize;
	atomic_store(&s->disk_full, room < SERVER_RESERVE + LOOK_AGAIN_BYTES + bytes ||
					    (st.f_files && st.f_ffree < SERVER_INODES));
	return atomic_load(&s->disk_full) ? -ENOSPC : 0;
}

int room_for(const struct fs_call *c, const struct volume *v, int fd, uint64_t bytes)
{
	int rc = room_on_disk(c, v, fd, bytes);

	return rc == 0 && v->max_bytes ? usage_take(&c->s->usages, c->s->nodes, v, bytes) : rc;
}

/* A write that was opened to append goes to the file's end as it is on the host: other sandboxes append, too. */
int op_write(struct fs_call *c)
{
	const struct fuse_write_in *in = c->r->arg;
	int how = in->flags & O_APPEND && !(in->write_flags & FUSE_WRITE_CACHE) ? RWF_APPEND : 0;
	struct fuse_write_out o = {0};
	struct handle_ref h;
	int rc;

	if (in->size != c->r->data_len || in->offset > INT64_MAX)
		return -EINVAL;
	rc = handle_get(c->s->nodes, in->fh, &h);
	if (rc < 0)
		return rc;
	if (!h.vol || h.vol->read_only)
		rc = -EROFS;
	if (rc == 0)
		rc = room_for(c, h.vol, h.fd, in->size);
	while (rc == 0 && o.size < in->size) {
		struct iovec iov = {.iov_base = (uint8_t *)(uintptr_t)c->r->data + o.size,
			.iov_len = in->size - o.size};
		ssize_t n = pwritev2(h.fd, &iov, 1, (off_t)(in->offset + o.size), how);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && o.size == 0)
			rc = -errno;
		if (n <= 0)
			break;
		o.size += (uint32_t)n;
	}
	handle_put(c->s->nodes, &h);
	return rc < 0 ? rc : call_put(c, &o, sizeof(o));
}

int op_fsync(struct fs_call *c)
{
	const struct fuse_fsync_in *in = c->r->arg;
	struct handle_ref h;
	int rc = handle_get(c->s->nodes, in->fh, &h);

	if (rc < 0)
		return rc;
	if (h.fd >= 0 &&
		(in->fsync_flags & FUSE_FSYNC_FDATASYNC ? fdatasync(h.fd) : fsync(h.fd)) < 0)
		rc = -errno;
	handle_put(c->s->nodes, &h);
	return rc;
}

int op_fallocate(struct fs_call *c)
{
	const struct fuse_fallocate_in *in = c->r->arg;
	const uint32_t known = FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE;
	struct handle_ref h;
	int rc;

	if (in->mode & ~known)
		return -EOPNOTSUPP;
	if (in->offset > INT64_MAX || in->length > INT64_MAX)
		return -EINVAL;
	rc = handle_get(c->s->nodes, in->fh, &h);
	if (rc < 0)
		return rc;
	if (!h.vol || h.vol->read_only)
		rc = -EROFS;
	else if (h.vol->max_bytes && (in->mode & FALLOC_FL_KEEP_SIZE) &&
		 !(in->mode & FALLOC_FL_PUNCH_HOLE))
		rc = -EOPNOTSUPP; /* usage.c does not count what lies behind a file's end */
	else if (!(in->mode & FALLOC_FL_PUNCH_HOLE))
		rc = room_for(c, h.vol, h.fd, in->length);
	if (rc == 0 && fallocate(h.fd, (int)in->mode, (off_t)in->offset, (off_t)in->length) < 0)
		rc = -errno;
	handle_put(c->s->nodes, &h);
	return rc;
}

int op_lseek(struct fs_call *c)
{
	const struct fuse_lseek_in *in = c->r->arg;
	struct fuse_lseek_out o = {0};
	struct handle_ref h;
	off_t at;
	int rc;

	if ((in->whence != SEEK_DATA && in->whence != SEEK_HOLE) || in->offset > INT64_MAX)
		return -EINVAL;
	rc = handle_get(c->s->nodes, in->fh, &h);
	if (rc < 0)
		return rc;
	/* the position moves, but only folders' readers use it */
	at = lseek(h.fd, (off_t)in->offset, (int)in->whence);
	rc = at < 0 ? -errno : 0;
	handle_put(c->s->nodes, &h);
	o.offset = (uint64_t)at;
	return rc < 0 ? rc : call_put(c, &o, sizeof(o));
}

int op_copy_file_range(struct fs_call *c)
{
	const struct fuse_copy_file_range_in *in = c->r->arg;
	struct fuse_write_out o = {0};
	struct handle_ref from, to;
	off_t at_in = (off_t)in->off_in, at_out = (off_t)in->off_out;
	int rc;

	if (in->off_in > INT64_MAX || in->off_out > INT64_MAX || in->flags)
		return -EINVAL;
	rc = handle_get(c->s->nodes, in->fh_in, &from);
	if (rc < 0)
		return rc;
	rc = handle_get(c->s->nodes, in->fh_out, &to);
	if (rc == 0) {
		size_t most = MIN(in->len, (uint64_t)FS_DATA_MAX * 64);
		ssize_t n = -1;

		rc = to.vol && !to.vol->read_only ? room_for(c, to.vol, to.fd, most) : -EROFS;
		if (rc == 0) {
			n = copy_file_range(from.fd, &at_in, to.fd, &at_out, most, 0);
			rc = n < 0 ? -errno : 0;
		}
		o.size = (uint32_t)n;
		handle_put(c->s->nodes, &to);
	}
	handle_put(c->s->nodes, &from);
	return rc < 0 ? rc : call_put(c, &o, sizeof(o));
}

/* sync(2) in the guest. One at a time for a sandbox: each may cost the host's file system a lot. */
int op_syncfs(struct fs_call *c)
{
	struct node_ref n;
	int fd, rc = node_get(c->s->nodes, c->r->node, &n);

	if (rc < 0)
		return rc;
	pthread_mutex_lock(&c->s->syncing);
	for (unsigned int i = 0; i < c->s->vols->n && rc == 0; i++) {
		const struct volume *v = &c->s->vols->v[i];
		struct node_ref root = {.fd = v->root_fd, .vol = v};

		if (v->read_only)
			continue;
		fd = node_open(&root, O_RDONLY);
		if (fd < 0 || syncfs(fd) < 0)
			rc = fd < 0 ? fd : -errno;
		if (fd >= 0)
			close(fd);
	}
	pthread_mutex_unlock(&c->s->syncing);
	node_put(c->s->nodes, &n);
	return rc;
}
