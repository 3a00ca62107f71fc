/* SPDX-License-Identifier: Apache-2.0
 *
 * ops_name.c: operations on names: lookup, create, remove, rename, link. Worker threads of mayfly-fs; the arguments are the guest's.
 *
 * A name is one component (request.c checks it), and the folder it stands in is an open descriptor beneath the volume, so no name
 * leads out of the volume. The guest's kernel has checked permissions; read-only is enforced here.
 */
#include "fs/server.h"

#include <limits.h>
#include <stdio.h>
#include <sys/syscall.h>

#define RENAME_NOREPLACE_ (1u << 0)
#define RENAME_EXCHANGE_  (1u << 1)

void fill_valid(const struct volume *v, uint64_t *sec, uint32_t *nsec)
{
	*sec = !v || v->read_only ? 3600 : 0;
	*nsec = *sec ? 0 : 900000000;
}

void fill_attr(struct fuse_attr *a, const struct volume *v, const struct statx *st)
{
	*a = (struct fuse_attr){
		.ino = node_ino(v, st->stx_ino),
		.size = st->stx_size,
		.blocks = st->stx_blocks,
		.atime = (uint64_t)st->stx_atime.tv_sec,
		.mtime = (uint64_t)st->stx_mtime.tv_sec,
		.ctime = (uint64_t)st->stx_ctime.tv_sec,
		.atimensec = st->stx_atime.tv_nsec,
		.mtimensec = st->stx_mtime.tv_nsec,
		.ctimensec = st->stx_ctime.tv_nsec,
		.mode = st->stx_mode,
		.nlink = st->stx_nlink,
		.uid = v->keep_ids ? st->stx_uid : 0,
		.gid = v->keep_ids ? st->stx_gid : 0,
		.blksize = st->stx_blksize,
	};
}

void fill_entry(
	struct fuse_entry_out *o, uint64_t id, const struct volume *v, const struct statx *st)
{
	*o = (struct fuse_entry_out){.nodeid = id};
	fill_attr(&o->attr, v, st);
	fill_valid(v, &o->entry_valid, &o->entry_valid_nsec);
	fill_valid(v, &o->attr_valid, &o->attr_valid_nsec);
}

mode_t allowed_mode(uint32_t mode, bool folder)
{
	return mode & (folder ? 01777 : 0777);
}

/* Pins the folder that a request names. writing: it must be in a volume that is not read-only. */
static int folder_get(struct fs_call *c, uint64_t id, bool writing, struct node_ref *dir)
{
	int rc = node_get(c->s->nodes, id, dir);

	if (rc < 0)
		return rc;
	if (writing && (!dir->vol || dir->vol->read_only)) {
		node_put(c->s->nodes, dir);
		return -EROFS;
	}
	return 0;
}

/* Answers with the entry of a name. */
static int put_entry(struct fs_call *c, const struct node_ref *dir, const char *name)
{
	struct fuse_entry_out o;
	struct statx st;
	uint64_t id;
	int rc;

	if (c->out_max < sizeof(o))
		return -EINVAL; /* before the lookup is counted: the guest cannot forget a node that it never received */
	rc = node_lookup(c->s->nodes, dir, name, &id, &st);
	if (rc < 0)
		return rc;
	fill_entry(&o, id, dir->vol ? dir->vol : &c->s->vols->v[(uint32_t)id - 2], &st);
	return call_put(c, &o, sizeof(o));
}

int op_lookup(struct fs_call *c)
{
	struct node_ref dir;
	int rc = folder_get(c, c->r->node, false, &dir);

	if (rc < 0)
		return rc;
	rc = put_entry(c, &dir, c->r->name);
	if (rc == -ENOENT && dir.vol && dir.vol->read_only && c->out_len == 0) {
		/* node 0 with a validity time: the guest may cache that the name does not exist */
		struct fuse_entry_out o = {0};

		fill_valid(dir.vol, &o.entry_valid, &o.entry_valid_nsec);
		rc = call_put(c, &o, sizeof(o));
	}
	node_put(c->s->nodes, &dir);
	return rc;
}

int op_forget(struct fs_call *c)
{
	const struct fuse_forget_in *in = c->r->arg;

	node_forget(c->s->nodes, c->r->node, in->nlookup);
	return 0;
}

int op_batch_forget(struct fs_call *c)
{
	const struct fuse_batch_forget_in *in = c->r->arg;
	const uint8_t *at = c->r->data;
	struct fuse_forget_one f;

	if (c->r->data_len / sizeof(f) < in->count)
		return -EINVAL;
	for (uint32_t i = 0; i < in->count; i++) {
		memcpy(&f, at + i * sizeof(f), sizeof(f));
		node_forget(c->s->nodes, f.nodeid, f.nlookup);
	}
	return 0;
}

/* Gives a new file to the guest's user, where the volume keeps ids. */
static int own_fd(const struct fs_call *c, const struct node_ref *dir, int fd)
{
	if (!dir->vol->keep_ids)
		return 0;
	return fchownat(fd, "", c->r->uid, c->r->gid, AT_EMPTY_PATH) < 0 ? -errno : 0;
}

static int own_name(const struct fs_call *c, const struct node_ref *dir, const char *name)
{
	if (!dir->vol->keep_ids)
		return 0;
	return fchownat(dir->fd, name, c->r->uid, c->r->gid, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

/* Makes one name in a folder: 0 or -errno. */
typedef int (*maker)(const struct fs_call *c, const struct node_ref *dir, const char *name);

static int make_entry(struct fs_call *c, maker make, bool folder)
{
	struct node_ref dir;
	int rc = folder_get(c, c->r->node, true, &dir);

	if (rc < 0)
		return rc;
	rc = room_for(c, dir.vol, dir.fd, PAGE_BYTES);
	if (rc == 0)
		rc = make(c, &dir, c->r->name);
	if (rc == 0) {
		rc = own_name(c, &dir, c->r->name);
		if (rc == 0)
			rc = put_entry(c, &dir, c->r->name);
		if (rc < 0)
			unlinkat(dir.fd, c->r->name, folder ? AT_REMOVEDIR : 0);
	}
	node_put(c->s->nodes, &dir);
	return rc;
}

static int make_node(const struct fs_call *c, const struct node_ref *dir, const char *name)
{
	const struct fuse_mknod_in *in = c->r->arg;

	/* device nodes never reach the host; a FIFO or socket there is only a name, the guest's kernel does the rest */
	if (!S_ISREG(in->mode) && !S_ISFIFO(in->mode) && !S_ISSOCK(in->mode))
		return -EPERM;
	return mknodat(dir->fd, name, (in->mode & S_IFMT) | allowed_mode(in->mode, false), 0) < 0
		       ? -errno
		       : 0;
}

static int make_folder(const struct fs_call *c, const struct node_ref *dir, const char *name)
{
	const struct fuse_mkdir_in *in = c->r->arg;

	return mkdirat(dir->fd, name, allowed_mode(in->mode, true)) < 0 ? -errno : 0;
}

/* The name of a symbolic link comes first, then where it points to: any text, since only the guest follows it. */
static int make_symlink(const struct fs_call *c, const struct node_ref *dir, const char *name)
{
	return symlinkat(c->r->name2, dir->fd, name) < 0 ? -errno : 0;
}

int op_mknod(struct fs_call *c)
{
	return make_entry(c, make_node, false);
}

int op_mkdir(struct fs_call *c)
{
	return make_entry(c, make_folder, true);
}

int op_symlink(struct fs_call *c)
{
	return make_entry(c, make_symlink, false);
}

int op_link(struct fs_call *c)
{
	const struct fuse_link_in *in = c->r->arg;
	struct node_ref dir, old;
	char path[16];
	int rc = folder_get(c, c->r->node, true, &dir);

	if (rc < 0)
		return rc;
	rc = node_get(c->s->nodes, in->oldnodeid, &old);
	if (rc == 0) {
		snprintf(path, sizeof(path), "%d", old.fd);
		if (old.vol != dir.vol)
			rc = -EXDEV;
		else
			rc = room_for(c, dir.vol, dir.fd, PAGE_BYTES); /* the folder may grow */
		if (rc == 0 && linkat(AT_FDCWD, path, dir.fd, c->r->name, AT_SYMLINK_FOLLOW) < 0)
			rc = -errno;
		if (rc == 0)
			rc = put_entry(c, &dir, c->r->name);
		node_put(c->s->nodes, &old);
	}
	node_put(c->s->nodes, &dir);
	return rc;
}

static int remove_name(struct fs_call *c, int flags)
{
	struct node_victim v;
	struct node_ref dir;
	int rc = folder_get(c, c->r->node, true, &dir);

	if (rc < 0)
		return rc;
	node_victim(c->s->nodes, &dir, c->r->name, &v);
	rc = unlinkat(dir.fd, c->r->name, flags) < 0 ? -errno : 0;
	node_gone(c->s->nodes, &v, rc == 0);
	node_put(c->s->nodes, &dir);
	return rc;
}

int op_unlink(struct fs_call *c)
{
	return remove_name(c, 0);
}

int op_rmdir(struct fs_call *c)
{
	return remove_name(c, AT_REMOVEDIR);
}

static int rename_between(struct fs_call *c, uint64_t to_id, uint32_t flags)
{
	struct node_ref from, to;
	struct node_victim v = {0};
	int rc;

	if (flags & ~(RENAME_NOREPLACE_ | RENAME_EXCHANGE_))
		return -EINVAL;
	rc = folder_get(c, c->r->node, true, &from);
	if (rc < 0)
		return rc;
	rc = folder_get(c, to_id, true, &to);
	if (rc == 0) {
		if (from.vol != to.vol)
			rc = -EXDEV;
		/* Only a longer name, or a name in another folder, can make a folder grow. A full claim allows all other renames. */
		if (rc == 0 && (from.index != to.index || strlen(c->r->name2) > strlen(c->r->name)))
			rc = room_for(c, to.vol, to.fd, PAGE_BYTES);
		if (rc == 0 && !(flags & RENAME_EXCHANGE_))
			node_victim(c->s->nodes, &to, c->r->name2, &v);
		if (rc == 0 &&
			syscall(SYS_renameat2, from.fd, c->r->name, to.fd, c->r->name2, flags) < 0)
			rc = -errno;
		node_gone(c->s->nodes, &v, rc == 0);
		if (rc == 0) {
			node_moved(c->s->nodes, &to, c->r->name2);
			if (flags & RENAME_EXCHANGE_)
				node_moved(c->s->nodes, &from, c->r->name);
		}
		node_put(c->s->nodes, &to);
	}
	node_put(c->s->nodes, &from);
	return rc;
}

int op_rename(struct fs_call *c)
{
	const struct fuse_rename_in *in = c->r->arg;

	return rename_between(c, in->newdir, 0);
}

int op_rename2(struct fs_call *c)
{
	const struct fuse_rename2_in *in = c->r->arg;

	return rename_between(c, in->newdir, in->flags);
}

int op_readlink(struct fs_call *c)
{
	struct node_ref n;
	ssize_t len;
	int rc = node_get(c->s->nodes, c->r->node, &n);

	if (rc < 0)
		return rc;
	len = n.fd < 0 ? -1
		       : readlinkat(n.fd, "", (char *)c->out, MIN(c->out_max, (size_t)PATH_MAX));
	if (len < 0)
		rc = n.fd < 0 ? -EINVAL : -errno;
	else
		c->out_len = (size_t)len;
	node_put(c->s->nodes, &n);
	return rc;
}

/* The open flags that are passed to the host. O_APPEND is left out: each WRITE carries it (op_write). */
static int create_flags(uint32_t flags)
{
	return (int)(flags & (O_ACCMODE | O_TRUNC | O_SYNC | O_DSYNC | O_EXCL)) | O_CLOEXEC |
	       O_NOFOLLOW | O_NONBLOCK;
}

/* Opens NAME, and makes it if it does not exist. Another sandbox may make or remove it meanwhile. *made: this call made it. */
static int create_open(const struct fs_call *c, const struct node_ref *dir,
	const struct fuse_create_in *in, bool *made)
{
	int no_room = room_for(c, dir->vol, dir->fd, PAGE_BYTES);

	*made = false;
	if (no_room < 0)
		return no_room;
	for (int tries = 0; tries < 8; tries++) {
		int fd = openat(dir->fd, c->r->name, create_flags(in->flags) | O_CREAT | O_EXCL,
			    allowed_mode(in->mode, false)),
		    rc;
		struct statx st;

		if (fd >= 0) {
			rc = own_fd(c, dir, fd);
			if (rc < 0) {
				unlinkat(dir->fd, c->r->name, 0);
				close(fd);
				return rc;
			}
			*made = true;
			return fd;
		}
		if (errno != EEXIST || in->flags & O_EXCL)
			return -errno;
		/* not a device or FIFO, whose opening could do something */
		if (statx(dir->fd, c->r->name, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &st) == 0 &&
			!S_ISREG(st.stx_mode))
			return S_ISLNK(st.stx_mode) ? -ELOOP : -EACCES;
		fd = openat(dir->fd, c->r->name, create_flags(in->flags));
		if (fd >= 0 || errno != ENOENT)
			return fd < 0 ? -errno : fd;
	}
	return -EAGAIN;
}

/* Answers with an entry and a handle on it. Takes fd. */
static int put_created(struct fs_call *c, uint64_t id, const struct volume *v,
	const struct statx *st, int fd, uint32_t flags)
{
	struct fuse_open_out o = {.open_flags = open_answer_flags(v)};
	struct fuse_entry_out entry;
	struct node_ref n;
	int rc = node_get(c->s->nodes, id, &n);

	if (rc < 0) {
		close(fd);
	} else {
		rc = handle_new(c->s->nodes, &n, fd, flags & HANDLE_FLAGS, &o.fh);
		node_put(c->s->nodes, &n);
	}
	if (rc < 0) {
		node_forget(c->s->nodes, id, 1);
		return rc;
	}
	fill_entry(&entry, id, v, st);
	call_put(c, &entry, sizeof(entry));
	return call_put(c, &o, sizeof(o));
}

int op_create(struct fs_call *c)
{
	const struct fuse_create_in *in = c->r->arg;
	struct node_ref dir;
	struct statx st;
	uint64_t id;
	bool made;
	int fd, rc;

	if (c->out_max < sizeof(struct fuse_entry_out) + sizeof(struct fuse_open_out) ||
		!access_mode_ok(in->flags))
		return -EINVAL;
	rc = folder_get(c, c->r->node, true, &dir);
	if (rc < 0)
		return rc;
	fd = create_open(c, &dir, in, &made);
	/* by the descriptor: by now the name may be another sandbox's file */
	rc = fd < 0 ? fd : node_lookup_fd(c->s->nodes, &dir, c->r->name, fd, &id, &st);
	if (rc == 0)
		rc = put_created(c, id, dir.vol, &st, fd, in->flags);
	else if (fd >= 0)
		close(fd);
	if (rc < 0 && fd >= 0 && made)
		unlinkat(dir.fd, c->r->name, 0);
	node_put(c->s->nodes, &dir);
	return rc;
}

int op_tmpfile(struct fs_call *c)
{
	const struct fuse_create_in *in = c->r->arg;
	struct node_ref dir;
	struct statx st;
	char path[16];
	uint64_t id;
	int fd, rc;

	if (c->out_max < sizeof(struct fuse_entry_out) + sizeof(struct fuse_open_out) ||
		!access_mode_ok(in->flags))
		return -EINVAL;
	rc = folder_get(c, c->r->node, true, &dir);
	if (rc < 0)
		return rc;
	rc = room_for(c, dir.vol, dir.fd, PAGE_BYTES);
	if (rc < 0) {
		node_put(c->s->nodes, &dir);
		return rc;
	}
	snprintf(path, sizeof(path), "%d", dir.fd);
	fd = open(path, O_TMPFILE | (int)(in->flags & (O_ACCMODE | O_EXCL)) | O_CLOEXEC,
		allowed_mode(in->mode, false));
	rc = fd < 0 ? -errno : own_fd(c, &dir, fd);
	if (rc == 0)
		rc = node_lookup_fd(c->s->nodes, &dir, NULL, fd, &id, &st);
	if (rc == 0)
		rc = put_created(c, id, dir.vol, &st, fd, in->flags);
	else if (fd >= 0)
		close(fd);
	node_put(c->s->nodes, &dir);
	return rc;
}
