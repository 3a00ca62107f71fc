/* SPDX-License-Identifier: Apache-2.0
 *
 * layer.c: tar entries to tree changes. Runs in the image job, all bytes are hostile. Nothing is
 * written but data blocks of the disk; names only ever mean something inside the tree. The process
 * needs a UTF-8 LC_CTYPE, or libarchive cannot hand names over.
 */
#include "images/build/layer.h"
#include "images/build/acl.h"

#include <archive.h>
#include <archive_entry.h>
#include <string.h>
#include <sys/stat.h>

struct reader {
	struct stream *s;
	struct err err; /* of the stream */
};

static la_ssize_t on_read(struct archive *a, void *arg, const void **p)
{
	struct reader *r = arg;
	ssize_t k = stream_next(r->s, p, &r->err);

	if (k < 0)
		archive_set_error(a, r->err.code, "%s", r->err.msg);
	return k;
}

static int tar_err(struct archive *a, struct reader *rd, struct err *e)
{
	const char *text = archive_error_string(a);
	int code = archive_errno(a);

	if (rd->err.code) {
		*e = rd->err;
		return -e->code;
	}
	return err_plain(
		e, code > 0 && code < 4096 ? code : EBADMSG, "%s", text ? text : "damaged tar");
}

/* ---- whiteouts ---- */

#define WH        ".wh."
#define WH_OPAQUE ".wh..wh..opq"

/* 1: the entry was a whiteout, and is done. 0: an ordinary entry. */
static int try_whiteout(struct layers *l, const char *path, size_t len, uint32_t no, struct err *e)
{
	const char *base = memrchr(path, '/', len);
	struct place p;
	size_t n;
	int r;

	base = base ? base + 1 : path;
	n = len - (size_t)(base - path);
	if (n < 4 || memcmp(base, WH, 4) != 0)
		return 0;
	if (n == sizeof(WH_OPAQUE) - 1 && memcmp(base, WH_OPAQUE, n) == 0) {
		struct node *dir = l->tree->root;

		r = tree_find(l->tree, path, (size_t)(base - path), 0, no, &p, e);
		if (r == -ENOENT)
			return 1;
		if (r < 0)
			return r;
		if (p.dir)
			dir = p.dent ? p.dent->node : NULL;
		if (dir && S_ISDIR(dir->mode))
			tree_white_out_children(l->tree, dir, no);
		return 1;
	}
	if (n > 8 && memcmp(base, WH WH, 8) == 0)
		return 1; /* aufs' own files: not part of the image */
	if (n == 4 || (base[4] == '.' && (n == 5 || (n == 6 && base[5] == '.'))))
		return err_plain(e, EINVAL, "whiteout of no name");
	r = tree_find(l->tree, path, len, 0, no, &p, e);
	if (r == -ENOENT)
		return 1; /* nothing there to hide */
	if (r < 0)
		return r;
	p.dent = tree_lookup(l->tree, p.dir, base + 4, n - 4);
	if (p.dent)
		tree_white_out(l->tree, p.dent, no);
	return 1;
}

/* ---- metadata ---- */

static bool keep_xattr(const char *name)
{
	static const char *const drop[] = {
		"security.selinux", "system.nfs4_acl", "security.nfs4_acl"};
	static const char *const keep[] = {"user.", "trusted.", "security.",
		"system.posix_acl_access", "system.posix_acl_default"};

	if (strncmp(name, "trusted.overlay.", 16) == 0)
		return false;
	for (size_t i = 0; i < ARRAY_LEN(drop); i++)
		if (strcmp(name, drop[i]) == 0)
			return false;
	for (size_t i = 0; i < ARRAY_LEN(keep); i++) {
		size_t n = strlen(keep[i]);

		if (strncmp(name, keep[i], n) == 0)
			return keep[i][n - 1] == '.' ? name[n] != 0 : name[n] == 0;
	}
	return false;
}

static int copy_xattrs(struct layers *l, struct archive_entry *en, struct node *n, struct err *e)
{
	const char *name;
	const void *value;
	size_t len, sum = 0;

	archive_entry_xattr_reset(en);
	while (archive_entry_xattr_next(en, &name, &value, &len) == ARCHIVE_OK) {
		int r;

		if (!name || !keep_xattr(name)) {
			l->skipped_xattrs++;
			continue;
		}
		if (strlen(name) > IMAGE_NAME_MAX)
			return err_plain(e, ENAMETOOLONG, "attribute name of %zu bytes: at most %u",
				strlen(name), IMAGE_NAME_MAX);
		sum += strlen(name) + len;
		if (len > IMAGE_XATTR_MAX || sum > IMAGE_XATTR_MAX)
			return err_plain(
				e, E2BIG, "attributes of more than %u bytes", IMAGE_XATTR_MAX);
		if (strncmp(name, "system.posix_acl_", 17) == 0 && !acl_xattr_valid(value, len))
			return err_plain(e, EINVAL, "malformed access control list in %s", name);
		r = node_set_xattr(n, name, value, len);
		if (r < 0)
			return err_set(e, -r, "attribute %s", name);
	}
	return acl_from_entry(en, n, e);
}

static int copy_meta(struct layers *l, struct archive_entry *en, struct node *n, struct err *e)
{
	int64_t uid = archive_entry_uid(en), gid = archive_entry_gid(en);

	if (uid < 0 || uid >= UINT32_MAX || gid < 0 || gid >= UINT32_MAX)
		return err_plain(
			e, ERANGE, "owner %lld:%lld out of range", (long long)uid, (long long)gid);
	n->mode = (n->mode & S_IFMT) | (archive_entry_perm(en) & 07777);
	n->uid = (uint32_t)uid;
	n->gid = (uint32_t)gid;
	n->mtime = (struct stamp){archive_entry_mtime(en), (uint32_t)archive_entry_mtime_nsec(en)};
	n->atime = n->mtime;
	if (archive_entry_atime_is_set(en))
		n->atime = (struct stamp){
			archive_entry_atime(en), (uint32_t)archive_entry_atime_nsec(en)};
	node_clear_xattrs(n);
	return copy_xattrs(l, en, n, e);
}

/* ---- entries by type ---- */

static int fill_file(struct layers *l, struct archive *a, struct reader *rd,
	struct archive_entry *en, struct node *n, struct err *e)
{
	int64_t size = archive_entry_size(en);
	uint32_t pieces = 0;
	const void *p;
	size_t len;
	la_int64_t off;
	int r, w;

	if (size < 0 || (uint64_t)size > (uint64_t)UINT32_MAX * DISK_BLOCK)
		return err_plain(e, EFBIG, "size of %lld bytes is out of range", (long long)size);
	blocks_begin(l->blocks, n);
	while ((r = archive_read_data_block(a, &p, &len, &off)) == ARCHIVE_OK) {
		if (!len)
			continue;
		if (off < 0 || off > size || len > (uint64_t)(size - off))
			return err_plain(e, EBADMSG, "data beyond its size");
		l->bytes += len;
		if (l->bytes > l->lim.max_bytes)
			return err_plain(e, EFBIG, "image of more than %llu bytes",
				(unsigned long long)l->lim.max_bytes);
		w = blocks_write(l->blocks, (uint64_t)off, p, len);
		if (w < 0)
			return err_set(e, -w, "writing data");
		if (l->tick && pieces++ % 16 == 15 && (w = l->tick(l->tick_arg, rd->s)) < 0)
			return err_set(e, -w, "stopped");
	}
	if (r != ARCHIVE_EOF)
		return tar_err(a, rd, e);
	w = blocks_end(l->blocks, (uint64_t)size);
	return w < 0 ? err_set(e, -w, "writing data") : 0;
}

static int set_target(struct archive_entry *en, struct node *n, struct err *e)
{
	const char *target = archive_entry_symlink(en);
	size_t len = target ? strlen(target) : 0;

	if (!len)
		return err_plain(e, EINVAL, "symbolic link without a target");
	if (len >= IMAGE_PATH_MAX)
		return err_plain(e, ENAMETOOLONG, "symbolic link to %zu bytes (at most %u)", len,
			IMAGE_PATH_MAX - 1);
	n->target = strdup(target);
	n->size = len;
	n->mode = S_IFLNK | 0777; /* as every kernel makes them, whatever the archive says */
	return n->target ? 0 : err_set(e, ENOMEM, "symbolic link");
}

static int add_hardlink(
	struct layers *l, const struct place *p, const char *target, uint32_t no, struct err *e)
{
	struct place t;
	int r = tree_find(l->tree, target, strlen(target), 0, no, &t, e);

	if (r < 0)
		return err_wrap(e, "hard link to %s", target);
	if (!t.dir || !t.dent)
		return err_plain(e, ENOENT, "hard link to %s, which is not in the image", target);
	if (S_ISDIR(t.dent->node->mode))
		return err_plain(e, EPERM, "hard link to the directory %s", target);
	if (t.dent->node->links >= 65000)
		return err_plain(e, EMLINK, "more than 65000 hard links to %s", target);
	r = tree_put(l->tree, p, t.dent->node, no);
	return r < 0 ? err_set(e, -r, "hard link") : 0;
}

static int add_dir(struct layers *l, struct archive_entry *en, const struct place *p, uint32_t no,
	struct err *e)
{
	struct node *n;
	int r;

	if (!p->dir)
		return copy_meta(l, en, l->tree->root, e);
	if (p->dent && S_ISDIR(p->dent->node->mode)) {
		p->dent->layer = no;
		return copy_meta(l, en, p->dent->node, e);
	}
	n = node_new(S_IFDIR);
	if (!n)
		return err_set(e, ENOMEM, "directory");
	r = copy_meta(l, en, n, e);
	if (r == 0 && (r = tree_put(l->tree, p, n, no)) < 0)
		err_set(e, -r, "directory");
	if (r < 0) {
		node_clear_xattrs(n);
		free(n);
	}
	return r;
}

static int add_other(struct layers *l, struct archive *a, struct reader *rd,
	struct archive_entry *en, const struct place *p, uint32_t no, struct err *e)
{
	mode_t type = archive_entry_filetype(en);
	struct node *n;
	int r;

	if (type != S_IFREG && type != S_IFLNK && type != S_IFCHR && type != S_IFBLK &&
		type != S_IFIFO && type != S_IFSOCK)
		return err_plain(e, EINVAL, "unknown type of entry");
	n = node_new(type);
	if (!n)
		return err_set(e, ENOMEM, "entry");
	r = copy_meta(l, en, n, e);
	if (r == 0 && type == S_IFLNK)
		r = set_target(en, n, e);
	if (r == 0 && (type == S_IFCHR || type == S_IFBLK)) {
		n->major = (uint32_t)archive_entry_rdevmajor(en);
		n->minor = (uint32_t)archive_entry_rdevminor(en);
		if (n->major > 0xfff || n->minor > 0xfffff)
			r = err_plain(e, ERANGE, "device number %u:%u is out of range", n->major,
				n->minor);
	}
	/* in the tree first: from there on it has an owner, whatever happens to its data */
	if (r == 0 && (r = tree_put(l->tree, p, n, no)) < 0)
		err_set(e, -r, "entry");
	if (r < 0) {
		node_clear_xattrs(n);
		free(n->target);
		free(n);
		return r;
	}
	return type == S_IFREG ? fill_file(l, a, rd, en, n, e) : 0;
}

static int add_entry(struct layers *l, struct archive *a, struct reader *rd,
	struct archive_entry *en, uint32_t no, struct err *e)
{
	const char *path = archive_entry_pathname(en), *target = archive_entry_hardlink(en);
	size_t len = path ? strlen(path) : 0;
	struct place p;
	int r;

	if (!len)
		return err_plain(e, EINVAL, "entry without a name");
	if (++l->entries > l->lim.max_entries)
		return err_plain(e, EFBIG, "entry %llu, %.300s: more than %llu entries",
			(unsigned long long)l->entries, path,
			(unsigned long long)l->lim.max_entries);
	r = try_whiteout(l, path, len, no, e);
	if (r == 0) {
		r = tree_find(l->tree, path, len, PLACE_MAKE, no, &p, e);
		if (r == 0 && !p.dir && (target || archive_entry_filetype(en) != S_IFDIR))
			r = err_plain(e, EISDIR, "it would replace the root directory");
		else if (r == 0 && target)
			r = add_hardlink(l, &p, target, no, e);
		else if (r == 0 && archive_entry_filetype(en) == S_IFDIR)
			r = add_dir(l, en, &p, no, e);
		else if (r == 0)
			r = add_other(l, a, rd, en, &p, no, e);
	}
	if (r < 0)
		return err_wrap(e, "entry %llu, %.300s", (unsigned long long)l->entries, path);
	return 0;
}

int layer_apply(struct layers *l, struct stream *s, uint32_t no, struct err *e)
{
	struct reader rd = {.s = s};
	struct archive *a = archive_read_new();
	struct archive_entry *en;
	int r;

	if (!a)
		return err_set(e, ENOMEM, "reading tar");
	archive_read_support_format_tar(a);
	archive_read_support_format_empty(a);
	r = archive_read_open(a, &rd, NULL, on_read, NULL) == ARCHIVE_OK ? 0 : tar_err(a, &rd, e);
	while (r == 0) {
		int k = archive_read_next_header(a, &en);

		if (k == ARCHIVE_EOF)
			break;
		/* a warning means that something of the entry was left out */
		if (k != ARCHIVE_OK) {
			r = tar_err(a, &rd, e);
			r = err_wrap(e, "entry %llu", (unsigned long long)l->entries + 1);
			break;
		}
		r = add_entry(l, a, &rd, en, no, e);
		if (r == 0 && l->tick && l->entries % 64 == 0 && (r = l->tick(l->tick_arg, s)) < 0)
			err_set(e, -r, "stopped");
	}
	archive_read_free(a);
	return r;
}
