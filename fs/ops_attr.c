/* SPDX-License-Identifier: Apache-2.0
 *
 * ops_attr.c: INIT, attributes, extended attributes, statfs. Worker threads of mayfly-fs; the arguments are the guest's.
 */
#include "fs/server.h"

#include <stdio.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

#define XATTR_PREFIX "user."

/* What this server can do, and no more. Locks are absent on purpose: the guest's own kernel then keeps them, for all of its processes.
 * So is the write-back cache: others may write the same volume. */
#define WANTED_FLAGS                                                                               \
	(FUSE_ASYNC_READ | FUSE_ATOMIC_O_TRUNC | FUSE_BIG_WRITES | FUSE_AUTO_INVAL_DATA |          \
		FUSE_DO_READDIRPLUS | FUSE_READDIRPLUS_AUTO | FUSE_ASYNC_DIO |                     \
		FUSE_PARALLEL_DIROPS | FUSE_MAX_PAGES | FUSE_CACHE_SYMLINKS |                      \
		FUSE_HANDLE_KILLPRIV_V2)

int op_init(struct fs_call *c)
{
	const uint32_t *in = c->r->arg; /* major, minor, max_readahead, flags */
	struct fuse_init_out o = {
		.major = FUSE_KERNEL_VERSION,
		.minor = 31,
		.max_readahead = in[2],
		.flags = in[3] & WANTED_FLAGS,
		.max_background = FS_QUEUE / 2,
		.congestion_threshold = FS_QUEUE / 4,
		.max_write = FS_DATA_MAX,
		.time_gran = 1,
		.max_pages = FS_DATA_MAX / PAGE_BYTES,
	};

	if (in[0] != FUSE_KERNEL_VERSION)
		return in[0] > FUSE_KERNEL_VERSION ? call_put(c, &o, sizeof(o)) : -EPROTO;
	if (in[1] < 31)
		return -EPROTO; /* our guests are newer; older forms of the messages are not read */
	nodes_start(c->s->nodes, (struct fs_session){.minor = o.minor, .flags = o.flags});
	return call_put(c, &o, sizeof(o));
}

void attr_of_root(struct fuse_attr *a)
{
	*a = (struct fuse_attr){
		.ino = 1, .mode = S_IFDIR | 0555, .nlink = 2, .blksize = PAGE_BYTES};
}

static int put_attr(struct fs_call *c, int fd, const struct volume *v)
{
	struct fuse_attr_out o = {0};
	struct statx st;

	fill_valid(v, &o.attr_valid, &o.attr_valid_nsec);
	if (!v) {
		attr_of_root(&o.attr);
	} else {
		if (statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &st) < 0)
			return -errno;
		fill_attr(&o.attr, v, &st);
	}
	return call_put(c, &o, sizeof(o));
}

int op_getattr(struct fs_call *c)
{
	struct node_ref n;
	int rc = node_get(c->s->nodes, c->r->node, &n);

	if (rc < 0)
		return rc;
	rc = put_attr(c, n.fd, n.vol);
	node_put(c->s->nodes, &n);
	return rc;
}

static struct timespec set_time(
	uint32_t valid, uint32_t bit, uint32_t now_bit, uint64_t sec, uint32_t nsec)
{
	if (valid & now_bit)
		return (struct timespec){.tv_nsec = UTIME_NOW};
	if (valid & bit)
		return (struct timespec){.tv_sec = (time_t)sec, .tv_nsec = nsec};
	return (struct timespec){.tv_nsec = UTIME_OMIT};
}

static int set_size(struct fs_call *c, const struct fuse_setattr_in *in, const struct node_ref *n)
{
	struct handle_ref h;
	int fd, rc;

	if (in->size > INT64_MAX)
		return -EFBIG;
	if (in->valid & FATTR_FH) {
		rc = handle_get(c->s->nodes, in->fh, &h);
		if (rc < 0)
			return rc;
		rc = ftruncate(h.fd, (off_t)in->size) < 0 ? -errno : 0;
		handle_put(c->s->nodes, &h);
		return rc;
	}
	fd = node_open(n, O_WRONLY);
	if (fd < 0)
		return fd;
	rc = ftruncate(fd, (off_t)in->size) < 0 ? -errno : 0;
	close(fd);
	return rc;
}

static int set_owner(const struct fuse_setattr_in *in, const struct node_ref *n)
{
	uid_t uid = in->valid & FATTR_UID ? in->uid : (uid_t)-1;
	gid_t gid = in->valid & FATTR_GID ? in->gid : (gid_t)-1;

	/* on a host path all files have one owner: asking for another one changes nothing */
	if (!n->vol->keep_ids || (uid == (uid_t)-1 && gid == (gid_t)-1))
		return 0;
	return fchownat(n->fd, "", uid, gid, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

static int set_mode(const struct fuse_setattr_in *in, const struct node_ref *n)
{
	char path[16];
	struct statx st;

	if (statx(n->fd, "", AT_EMPTY_PATH, STATX_TYPE, &st) < 0)
		return -errno;
	if (S_ISLNK(st.stx_mode))
		return -EOPNOTSUPP;
	snprintf(path, sizeof(path), "%d", n->fd);
	return chmod(path, allowed_mode(in->mode, S_ISDIR(st.stx_mode))) < 0 ? -errno : 0;
}

static int set_times(const struct fuse_setattr_in *in, const struct node_ref *n)
{
	struct timespec t[2] = {
		set_time(in->valid, FATTR_ATIME, FATTR_ATIME_NOW, in->atime, in->atimensec),
		set_time(in->valid, FATTR_MTIME, FATTR_MTIME_NOW, in->mtime, in->mtimensec),
	};
	char path[16];

	if (utimensat(n->fd, "", t, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) == 0)
		return 0;
	if (errno != EINVAL)
		return -errno;
	/* before Linux 5.8 there was no AT_EMPTY_PATH here */
	snprintf(path, sizeof(path), "%d", n->fd);
	return utimensat(AT_FDCWD, path, t, 0) < 0 ? -errno : 0;
}

int op_setattr(struct fs_call *c)
{
	const struct fuse_setattr_in *in = c->r->arg;
	struct node_ref n;
	int rc = node_get(c->s->nodes, c->r->node, &n);

	if (rc < 0)
		return rc;
	if (!n.vol || n.vol->read_only)
		rc = -EROFS;
	if (rc == 0 && in->valid & FATTR_MODE)
		rc = set_mode(in, &n);
	if (rc == 0 && in->valid & (FATTR_UID | FATTR_GID))
		rc = set_owner(in, &n);
	if (rc == 0 && in->valid & FATTR_SIZE)
		rc = set_size(c, in, &n);
	if (rc == 0 && in->valid & (FATTR_ATIME | FATTR_MTIME | FATTR_ATIME_NOW | FATTR_MTIME_NOW))
		rc = set_times(in, &n);
	if (rc == 0)
		rc = put_attr(c, n.fd, n.vol);
	node_put(c->s->nodes, &n);
	return rc;
}

/* A claim with a limit looks like a disk of that size. */
static void limit_room(struct fuse_kstatfs *st, uint64_t max, uint64_t left)
{
	st->blocks = MIN(st->blocks, max / st->frsize);
	st->bfree = MIN(st->bfree, left / st->frsize);
	st->bavail = MIN(st->bavail, left / st->frsize);
}

int op_statfs(struct fs_call *c)
{
	struct fuse_statfs_out o = {
		.st = {.bsize = PAGE_BYTES, .frsize = PAGE_BYTES, .namelen = 255}};
	struct statvfs st;
	struct node_ref n;
	int rc = node_get(c->s->nodes, c->r->node, &n);

	if (rc < 0)
		return rc;
	if (n.vol && fstatvfs(n.fd, &st) < 0)
		rc = -errno;
	if (n.vol && rc == 0)
		o.st = (struct fuse_kstatfs){
			.blocks = st.f_blocks,
			.bfree = st.f_bfree,
			.bavail = st.f_bavail,
			.files = st.f_files,
			.ffree = st.f_ffree,
			.bsize = (uint32_t)st.f_bsize,
			.namelen = (uint32_t)st.f_namemax,
			.frsize = (uint32_t)st.f_frsize,
		};
	if (n.vol && n.vol->max_bytes && rc == 0 && o.st.frsize)
		limit_room(&o.st, n.vol->max_bytes, usage_left(&c->s->usages, c->s->nodes, n.vol));
	node_put(c->s->nodes, &n);
	return rc < 0 ? rc : call_put(c, &o, sizeof(o));
}

/* ---- extended attributes: those of the user namespace only. File capabilities and labels never reach the host. */

static int xattr_begin(struct fs_call *c, bool writing, struct node_ref *n, char path[static 16])
{
	int rc;

	if (c->r->name && strncmp(c->r->name, XATTR_PREFIX, strlen(XATTR_PREFIX)) != 0)
		return -EOPNOTSUPP;
	rc = node_get(c->s->nodes, c->r->node, n);
	if (rc < 0)
		return rc;
	if (!n->vol || (writing && n->vol->read_only)) {
		rc = n->vol ? -EROFS : -EOPNOTSUPP;
		node_put(c->s->nodes, n);
		return rc;
	}
	snprintf(path, 16, "%d", n->fd);
	return 0;
}

/* usage.c counts one page for the attributes of a file. So in a claim with a limit no file may have more. (ext4 allows no more, either.) */
static int xattr_room(const char *path, const char *name, size_t size)
{
	_cleanup_free_ char *list = malloc(65536); /* XATTR_LIST_MAX */
	ssize_t len = list ? listxattr(path, list, 65536) : -1;
	size_t total = strlen(name) + size;

	if (len < 0)
		return list ? -errno : -ENOMEM;
	for (const char *at = list; at < list + len; at += strlen(at) + 1) {
		ssize_t n = strcmp(at, name) == 0 ? -1 : getxattr(path, at, NULL, 0);

		if (n >= 0)
			total += strlen(at) + (size_t)n;
	}
	return total > PAGE_BYTES ? -ENOSPC : 0;
}

int op_setxattr(struct fs_call *c)
{
	const struct fuse_setxattr_in *in = c->r->arg;
	struct node_ref n;
	char path[16];
	int rc;

	if (in->size != c->r->data_len)
		return -EINVAL;
	rc = xattr_begin(c, true, &n, path);
	if (rc < 0)
		return rc;
	rc = room_for(c, n.vol, n.fd, PAGE_BYTES + in->size);
	if (rc == 0 && n.vol->max_bytes)
		rc = xattr_room(path, c->r->name, in->size);
	if (rc == 0 && setxattr(path, c->r->name, c->r->data, in->size,
			       (int)(in->flags & (XATTR_CREATE | XATTR_REPLACE))) < 0)
		rc = -errno;
	node_put(c->s->nodes, &n);
	return rc;
}

int op_getxattr(struct fs_call *c)
{
	const struct fuse_getxattr_in *in = c->r->arg;
	struct fuse_getxattr_out o = {0};
	struct node_ref n;
	char path[16];
	ssize_t len;
	int rc;

	/* with a buffer of 0 bytes getxattr(2) would return the value's length instead of the value */
	if (in->size && !c->out_max)
		return -ERANGE;
	rc = xattr_begin(c, false, &n, path);

	if (rc < 0)
		return rc;
	len = getxattr(
		path, c->r->name, in->size ? c->out : NULL, MIN((size_t)in->size, c->out_max));
	rc = len < 0 ? -errno : 0;
	node_put(c->s->nodes, &n);
	if (rc < 0)
		return rc;
	if (in->size) {
		c->out_len = (size_t)len;
		return 0;
	}
	o.size = (uint32_t)len;
	return call_put(c, &o, sizeof(o));
}

/* Keeps the names that begin with user., in place. */
static size_t xattr_filter(char *list, size_t len)
{
	size_t kept = 0;

	for (size_t at = 0; at < len;) {
		size_t n = strnlen(list + at, len - at) + 1;

		if (n > len - at)
			break;
		if (strncmp(list + at, XATTR_PREFIX, strlen(XATTR_PREFIX)) == 0) {
			memmove(list + kept, list + at, n);
			kept += n;
		}
		at += n;
	}
	return kept;
}

int op_listxattr(struct fs_call *c)
{
	const struct fuse_getxattr_in *in = c->r->arg;
	struct fuse_getxattr_out o = {0};
	_cleanup_free_ char *list = malloc(65536); /* XATTR_LIST_MAX */
	struct node_ref n;
	char path[16];
	ssize_t len;
	int rc;

	if (!list)
		return -ENOMEM;
	rc = xattr_begin(c, false, &n, path);
	if (rc < 0)
		return rc;
	len = listxattr(path, list, 65536);
	rc = len < 0 ? -errno : 0;
	node_put(c->s->nodes, &n);
	if (rc < 0)
		return rc;
	o.size = (uint32_t)xattr_filter(list, (size_t)len);
	if (in->size == 0)
		return call_put(c, &o, sizeof(o));
	return o.size > in->size ? -ERANGE : call_put(c, list, o.size);
}

int op_removexattr(struct fs_call *c)
{
	struct node_ref n;
	char path[16];
	int rc = xattr_begin(c, true, &n, path);

	if (rc < 0)
		return rc;
	rc = removexattr(path, c->r->name) < 0 ? -errno : 0;
	node_put(c->s->nodes, &n);
	return rc;
}
