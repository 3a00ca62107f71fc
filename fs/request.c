/* SPDX-License-Identifier: Apache-2.0
 *
 * request.c: the bounded reader of FUSE requests. Every byte is the guest's. Nothing is read beyond the message, and a request that
 * breaks its shape is refused before any handler sees it.
 */
#include "fs/request.h"

#include <limits.h>

#define OP(op, ...) [FUSE_##op] = {.label = #op, __VA_ARGS__}
#define ARG(type)   .arg = sizeof(struct fuse_##type)

static const struct fs_shape shapes[] = {
	OP(LOOKUP, .names = 1),
	OP(FORGET, ARG(forget_in), .silent = true),
	OP(GETATTR, ARG(getattr_in)),
	OP(SETATTR, ARG(setattr_in)),
	OP(READLINK, .arg = 0),
	OP(SYMLINK, .names = 2, .free_name2 = true),
	OP(MKNOD, ARG(mknod_in), .names = 1),
	OP(MKDIR, ARG(mkdir_in), .names = 1),
	OP(UNLINK, .names = 1),
	OP(RMDIR, .names = 1),
	OP(RENAME, ARG(rename_in), .names = 2),
	OP(LINK, ARG(link_in), .names = 1),
	OP(OPEN, ARG(open_in)),
	OP(READ, ARG(read_in)),
	OP(WRITE, ARG(write_in), .data = true),
	OP(STATFS, .arg = 0),
	OP(RELEASE, ARG(release_in)),
	OP(FSYNC, ARG(fsync_in)),
	/* the short form: FUSE_SETXATTR_EXT is not negotiated */
	OP(SETXATTR, .arg = FUSE_COMPAT_SETXATTR_IN_SIZE, .names = 1, .free_name = true,
		.data = true),
	OP(GETXATTR, ARG(getxattr_in), .names = 1, .free_name = true),
	OP(LISTXATTR, ARG(getxattr_in)),
	OP(REMOVEXATTR, .names = 1, .free_name = true),
	OP(INIT, .arg = 16, .data = true),
	OP(OPENDIR, ARG(open_in)),
	OP(READDIR, ARG(read_in)),
	OP(RELEASEDIR, ARG(release_in)),
	OP(FSYNCDIR, ARG(fsync_in)),
	OP(CREATE, ARG(create_in), .names = 1),
	OP(INTERRUPT, ARG(interrupt_in), .silent = true),
	OP(DESTROY, .arg = 0),
	OP(BATCH_FORGET, ARG(batch_forget_in), .data = true, .silent = true),
	OP(FALLOCATE, ARG(fallocate_in)),
	OP(READDIRPLUS, ARG(read_in)),
	OP(RENAME2, ARG(rename2_in), .names = 2),
	OP(LSEEK, ARG(lseek_in)),
	OP(COPY_FILE_RANGE, ARG(copy_file_range_in)),
	OP(SYNCFS, ARG(syncfs_in)),
	OP(TMPFILE, ARG(create_in), .names = 1, .free_name = true),
};

const struct fs_shape *fs_shape_of(uint32_t op)
{
	return op < ARRAY_LEN(shapes) && shapes[op].label ? &shapes[op] : NULL;
}

/* One component of a path, as the guest's kernel sends it: it resolves "." and ".." itself. */
static int check_component(const char *name, size_t len)
{
	if (len > NAME_MAX)
		return -ENAMETOOLONG;
	if (len == 0 || memchr(name, '/', len) || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
		return -EINVAL;
	return 0;
}

static int take_name(const char **p, size_t *left, const char **name, bool is_free)
{
	const char *end = memchr(*p, 0, *left);
	size_t n;

	if (!end)
		return -EINVAL;
	n = (size_t)(end - *p);
	*name = *p;
	*p += n + 1;
	*left -= n + 1;
	if (is_free)
		return n < PATH_MAX ? 0 : -ENAMETOOLONG;
	return check_component(*name, n);
}

int fs_request_parse(struct fs_request *r, const void *p, size_t len, uint32_t reply_max)
{
	const struct fuse_in_header *h = p;
	const struct fs_shape *s;
	const char *at;
	size_t left;
	int rc = 0;

	*r = (struct fs_request){.reply_max = reply_max};
	if (len < sizeof(*h) || h->len != len)
		return -EBADMSG;
	r->op = h->opcode;
	r->unique = h->unique;
	r->node = h->nodeid;
	r->uid = h->uid;
	r->gid = h->gid;
	if (h->unique == 0)
		return -EBADMSG;
	s = fs_shape_of(h->opcode);
	if (!s)
		return -ENOSYS;
	at = (const char *)(h + 1);
	/* extensions stand at the end of the message, in units of 8 bytes; none was asked for, so they are left unread */
	left = len - sizeof(*h);
	if ((size_t)h->total_extlen * 8 > left)
		return -EINVAL;
	left -= (size_t)h->total_extlen * 8;
	if (left < s->arg)
		return -EINVAL;
	r->arg = s->arg ? at : NULL;
	at += s->arg;
	left -= s->arg;
	if (s->names > 0)
		rc = take_name(&at, &left, &r->name, s->free_name);
	if (rc == 0 && s->names > 1)
		rc = take_name(&at, &left, &r->name2, s->free_name2);
	if (rc < 0)
		return rc;
	if (left > 0 && !s->data)
		return -EINVAL;
	r->data = at;
	r->data_len = left;
	return 0;
}
