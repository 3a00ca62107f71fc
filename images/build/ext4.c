/* SPDX-License-Identifier: Apache-2.0
 *
 * ext4.c: the file system around the data, by libext2fs. Runs in the image job. By now every name
 * and size was checked by the layer reader; what can still be wrong is that something does not fit
 * ext4. That is an error: nothing is cut off. Times are the exception: a time that ext4 cannot store
 * (before 1901, after 2446) becomes the nearest one that it can.
 *
 * Features, and why: extents, 256-byte inodes with nanoseconds, dir_index for directories the guest
 * makes, flex_bg with one flex group (all bitmaps and inode tables side by side in front: few reads
 * at mount, dense writes later), uninit_bg with every group marked INODE_ZEROED (the guest's kernel
 * must not clear inode tables in the background: every sandbox would pay for it in its own layer),
 * sparse_super2 without backups (nobody repairs this disk from one: it is built again). No journal:
 * a sandbox's disk is only ever frozen together with its memory, so there is no crash to recover
 * from, and a journal would put each metadata block into the layer twice. No metadata_csum: the
 * image's layers are compared with their digests at the build, and the frozen layers of sandboxes
 * have digests of their own. No resize_inode: the disk does not grow in place.
 */
#include "images/build/ext4.h"

#include <ext2fs/ext2fs.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define INODE_BYTES 256u
#define FIRST_INO   11u /* lost+found's number elsewhere: an image has only what its layers have */
#define EPOCH       946684800u /* 2000-01-01, so that equal input makes an equal disk */
#define GROUP       (DISK_BLOCK * 8)
#define MAX_LINKS   65000u
#define INODES_MIN  524288u

static int lib_err(struct err *e, errcode_t r, const char *what)
{
	if (r > 0 && r < 4096)
		return err_set(e, (int)r, "ext4: %s", what);
	return err_plain(e,
		r == EXT2_ET_BLOCK_ALLOC_FAIL || r == EXT2_ET_EA_NO_SPACE ? ENOSPC : EIO,
		"ext4: %s: %s", what, error_message(r));
}

/* ---- inode numbers, in the order of a walk from the root ---- */

static struct node *number_inodes(struct tree *t, uint32_t *count)
{
	struct node *head = t->root, *tail = t->root;
	uint32_t ino = FIRST_INO;

	t->root->ino = EXT2_ROOT_INO;
	t->root->next_ino = NULL;
	/* the list is its own queue: breadth first, so that one directory's inodes share blocks */
	for (struct node *dir = head; dir; dir = dir->next_ino) {
		if (!S_ISDIR(dir->mode))
			continue;
		for (struct dent *d = dir->first; d; d = d->next) {
			if (d->node->ino)
				continue;
			d->node->ino = ino++;
			d->node->next_ino = NULL;
			tail->next_ino = d->node;
			tail = d->node;
		}
	}
	*count = ino - 1;
	return head;
}

/* ---- directories and long links: blocks of ours, behind the data ---- */

static uint8_t dir_type(mode_t m)
{
	switch (m & S_IFMT) {
	case S_IFREG:
		return EXT2_FT_REG_FILE;
	case S_IFDIR:
		return EXT2_FT_DIR;
	case S_IFLNK:
		return EXT2_FT_SYMLINK;
	case S_IFCHR:
		return EXT2_FT_CHRDEV;
	case S_IFBLK:
		return EXT2_FT_BLKDEV;
	case S_IFIFO:
		return EXT2_FT_FIFO;
	default:
		return EXT2_FT_SOCK;
	}
}

struct dir_out {
	struct blocks *b;
	struct node *dir;
	uint8_t block[DISK_BLOCK];
	uint32_t at, last, nblocks;
};

static int dir_block_done(struct dir_out *o)
{
	struct ext2_dir_entry_2 *de = (void *)(o->block + o->last);
	uint32_t pblk;
	int r;

	de->rec_len = ext2fs_cpu_to_le16((uint16_t)(DISK_BLOCK - o->last));
	r = blocks_append(o->b, o->block, 1, &pblk);
	if (r == 0)
		r = node_add_extent(o->dir, o->nblocks++, pblk, 1);
	memset(o->block, 0, sizeof(o->block));
	o->at = o->last = 0;
	return r;
}

static int dir_add(struct dir_out *o, uint32_t ino, const char *name, uint8_t len, uint8_t type)
{
	uint32_t need = ALIGN_UP(8u + len, 4u);
	struct ext2_dir_entry_2 *de;

	if (o->at + need > DISK_BLOCK) {
		int r = dir_block_done(o);

		if (r < 0)
			return r;
	}
	de = (void *)(o->block + o->at);
	de->inode = ext2fs_cpu_to_le32(ino);
	de->rec_len = ext2fs_cpu_to_le16((uint16_t)need);
	de->name_len = len;
	de->file_type = type;
	memcpy(o->block + o->at + 8, name, len);
	o->last = o->at;
	o->at += need;
	return 0;
}

static int write_dir(struct blocks *b, struct node *dir)
{
	struct dir_out o = {.b = b, .dir = dir};
	int r = dir_add(&o, dir->ino, ".", 1, EXT2_FT_DIR);

	if (r == 0)
		r = dir_add(&o, dir->parent->ino, "..", 2, EXT2_FT_DIR);
	for (struct dent *d = dir->first; d && r == 0; d = d->next)
		r = dir_add(&o, d->node->ino, d->name, d->len, dir_type(d->node->mode));
	if (r == 0)
		r = dir_block_done(&o);
	dir->size = (uint64_t)o.nblocks * DISK_BLOCK;
	return r;
}

static bool fast_link(const struct node *n)
{
	return n->size < sizeof(((struct ext2_inode *)0)->i_block);
}

static int write_names(struct node *list, struct blocks *b, struct err *e)
{
	for (struct node *n = list; n; n = n->next_ino) {
		int r = 0;

		if (S_ISDIR(n->mode)) {
			r = write_dir(b, n);
		} else if (S_ISLNK(n->mode) && !fast_link(n)) {
			uint8_t block[DISK_BLOCK] = {0};
			uint32_t pblk;

			memcpy(block, n->target, n->size);
			r = blocks_append(b, block, 1, &pblk);
			if (r == 0)
				r = node_add_extent(n, 0, pblk, 1);
		}
		if (r < 0)
			return err_set(e, -r, "writing directories");
	}
	return 0;
}

/* ---- the file system ---- */

static void set_params(
	struct ext2_super_block *p, uint32_t data_end, uint32_t inodes, uint64_t room_bytes)
{
	uint64_t blocks = data_end + room_bytes / DISK_BLOCK, groups;

	inodes = MAX(inodes + inodes / 4 + 131072, INODES_MIN);
	groups = MAX((blocks + GROUP - 1) / GROUP, (inodes + GROUP - 1) / GROUP);
	p->s_rev_level = EXT2_DYNAMIC_REV;
	p->s_log_block_size = 2;
	p->s_log_cluster_size = 2;
	p->s_inode_size = INODE_BYTES;
	p->s_inodes_count = inodes;
	p->s_log_groups_per_flex = 4;
	while (1u << p->s_log_groups_per_flex < groups && p->s_log_groups_per_flex < 20)
		p->s_log_groups_per_flex++;
	ext2fs_blocks_count_set(p, groups * GROUP);
	p->s_feature_compat = EXT2_FEATURE_COMPAT_EXT_ATTR | EXT2_FEATURE_COMPAT_DIR_INDEX |
			      EXT4_FEATURE_COMPAT_SPARSE_SUPER2;
	p->s_feature_incompat = EXT2_FEATURE_INCOMPAT_FILETYPE | EXT3_FEATURE_INCOMPAT_EXTENTS |
				EXT4_FEATURE_INCOMPAT_FLEX_BG;
	p->s_feature_ro_compat =
		EXT2_FEATURE_RO_COMPAT_LARGE_FILE | EXT4_FEATURE_RO_COMPAT_HUGE_FILE |
		EXT4_FEATURE_RO_COMPAT_GDT_CSUM | EXT4_FEATURE_RO_COMPAT_DIR_NLINK |
		EXT4_FEATURE_RO_COMPAT_EXTRA_ISIZE;
}

static void set_super(struct ext2_super_block *s, const struct digest *id)
{
	memcpy(s->s_uuid, id->b, 16);
	s->s_uuid[6] = (s->s_uuid[6] & 0x0f) | 0x80; /* version 8: from a digest of ours */
	s->s_uuid[8] = (s->s_uuid[8] & 0x3f) | 0x80;
	memcpy(s->s_hash_seed, id->b + 16, 16);
	s->s_def_hash_version = EXT2_HASH_HALF_MD4;
	s->s_flags = EXT2_FLAGS_UNSIGNED_HASH;
	s->s_state = EXT2_VALID_FS;
	s->s_errors = EXT2_ERRORS_CONTINUE;
	s->s_max_mnt_count = -1;
	s->s_checkinterval = 0;
	s->s_mkfs_time = s->s_lastcheck = s->s_wtime = EPOCH;
	s->s_min_extra_isize = s->s_want_extra_isize =
		sizeof(struct ext2_inode_large) - EXT2_GOOD_OLD_INODE_SIZE;
	s->s_default_mount_opts = EXT2_DEFM_XATTR_USER | EXT2_DEFM_ACL;
	s->s_creator_os = EXT2_OS_LINUX;
	snprintf((char *)s->s_volume_name, sizeof(s->s_volume_name), "root");
}

/* Marks the blocks that the layers and write_names() put on the disk as used, except those that later layers removed. */
static errcode_t mark_data(ext2_filsys fs, struct blocks *b)
{
	uint32_t first = blocks_first(b), next = blocks_next(b);
	const struct extent *x;
	size_t n;

	if (next > first)
		ext2fs_block_alloc_stats_range(fs, first, next - first, +1);
	x = blocks_freed(b, &n);
	for (size_t i = 0; i < n; i++)
		ext2fs_block_alloc_stats_range(fs, x[i].pblk, x[i].len, -1);
	return ext2fs_allocate_tables(fs);
}

static uint32_t time_low(int64_t *sec)
{
	/* 1901 to 2446 is what ext4 can say */
	*sec = MIN(MAX(*sec, -(int64_t)0x80000000), (int64_t)0x37fffffff);
	return (uint32_t)*sec;
}

static void put_time(struct stamp s, uint32_t *low, uint32_t *extra)
{
	*low = time_low(&s.sec);
	*extra = (uint32_t)(((s.sec - (int32_t)*low) >> 32) & 3) | MIN(s.nsec, 999999999u) << 2;
}

static void put_device(struct ext2_inode *i, const struct node *n)
{
	if (n->major < 256 && n->minor < 256)
		i->i_block[0] = n->major << 8 | n->minor;
	else
		i->i_block[1] = (n->minor & 0xff) | n->major << 8 | (n->minor & ~0xffu) << 12;
}

/* Up to four extents fit into the inode; more take a tree, which libext2fs builds. */
static uint32_t count_extents(const struct node *n)
{
	uint32_t k = 0;

	for (uint32_t i = 0; i < n->n_ext; i++)
		k += (n->ext[i].len + 32767) / 32768;
	return k;
}

static void put_extents(struct ext2_inode *i, const struct node *n)
{
	struct ext3_extent_header *h = (void *)i->i_block;
	struct ext3_extent *x = (void *)(h + 1);
	uint16_t k = 0;

	for (uint32_t j = 0; j < n->n_ext; j++) {
		for (uint32_t done = 0; done < n->ext[j].len; k++) {
			uint32_t len = MIN(n->ext[j].len - done, 32768u);

			x[k].ee_block = ext2fs_cpu_to_le32(n->ext[j].lblk + done);
			x[k].ee_start = ext2fs_cpu_to_le32(n->ext[j].pblk + done);
			x[k].ee_len = ext2fs_cpu_to_le16((uint16_t)len);
			done += len;
		}
	}
	h->eh_magic = ext2fs_cpu_to_le16(EXT3_EXT_MAGIC);
	h->eh_entries = ext2fs_cpu_to_le16(k);
	h->eh_max = ext2fs_cpu_to_le16(4);
}

static errcode_t insert_extents(ext2_filsys fs, const struct node *n, struct ext2_inode *i)
{
	ext2_extent_handle_t h;
	errcode_t r = ext2fs_extent_open2(fs, n->ino, i, &h);

	if (r)
		return r;
	for (uint32_t j = 0; j < n->n_ext && !r; j++) {
		for (uint32_t done = 0; done < n->ext[j].len && !r;) {
			uint32_t len = MIN(n->ext[j].len - done, 32768u);
			struct ext2fs_extent x = {.e_lblk = n->ext[j].lblk + done,
				.e_pblk = n->ext[j].pblk + done,
				.e_len = len};

			r = ext2fs_extent_insert(h, EXT2_EXTENT_INSERT_AFTER, &x);
			done += len;
		}
	}
	ext2fs_extent_free(h);
	return r;
}

static errcode_t write_xattrs(ext2_filsys fs, const struct node *n)
{
	struct ext2_xattr_handle *h;
	errcode_t r = ext2fs_xattrs_open(fs, n->ino, &h);

	if (r)
		return r;
	for (const struct xattr *x = n->xattrs; x && !r; x = x->next)
		r = ext2fs_xattr_set(h, x->name, x->value, x->len);
	ext2fs_xattrs_close(&h);
	return r;
}

static errcode_t write_inode(ext2_filsys fs, const struct node *n)
{
	union {
		struct ext2_inode_large large;
		struct ext2_inode small;
		uint8_t bytes[INODE_BYTES];
	} u = {0};
	uint64_t blocks = 0, links = S_ISDIR(n->mode) ? 2ull + n->nsub : n->links;
	bool data = S_ISREG(n->mode) || S_ISDIR(n->mode) || (S_ISLNK(n->mode) && !fast_link(n));
	struct ext2_inode *i = &u.small;
	errcode_t r = 0;

	i->i_mode = (uint16_t)n->mode;
	ext2fs_set_i_uid_high(*i, n->uid >> 16);
	ext2fs_set_i_gid_high(*i, n->gid >> 16);
	i->i_uid = (uint16_t)n->uid;
	i->i_gid = (uint16_t)n->gid;
	i->i_links_count = links > MAX_LINKS ? 1 : (uint16_t)links;
	put_time(n->mtime, &i->i_mtime, &u.large.i_mtime_extra);
	put_time(n->atime, &i->i_atime, &u.large.i_atime_extra);
	put_time(n->mtime, &i->i_ctime, &u.large.i_ctime_extra);
	put_time(n->mtime, &u.large.i_crtime, &u.large.i_crtime_extra);
	u.large.i_extra_isize = sizeof(struct ext2_inode_large) - EXT2_GOOD_OLD_INODE_SIZE;
	for (uint32_t j = 0; j < n->n_ext; j++)
		blocks += n->ext[j].len;
	if (S_ISREG(n->mode) || S_ISDIR(n->mode) || S_ISLNK(n->mode))
		ext2fs_inode_size_set(fs, i, n->size);
	ext2fs_iblk_set(fs, i, blocks);
	if (S_ISLNK(n->mode) && fast_link(n))
		memcpy(i->i_block, n->target, n->size);
	else if (S_ISCHR(n->mode) || S_ISBLK(n->mode))
		put_device(i, n);
	if (data)
		i->i_flags |= EXT4_EXTENTS_FL;
	if (data && count_extents(n) <= 4)
		put_extents(i, n);
	r = ext2fs_write_inode_full(fs, n->ino, i, sizeof(u));
	if (!r && data && count_extents(n) > 4)
		r = insert_extents(fs, n, i);
	if (!r && n->xattrs)
		r = write_xattrs(fs, n);
	return r;
}

/* For messages: some name of a node, with the way to it, and the layer that wrote it. */
static const struct dent *a_name_of(struct tree *t, const struct node *n)
{
	for (uint64_t i = 0; i < t->hash_cap; i++)
		for (struct dent *d = t->hash[i]; d; d = d->hash_next)
			if (d->node == n)
				return d;
	return NULL;
}

static int inode_err(struct tree *t, const struct node *n, errcode_t r, struct err *e)
{
	const struct dent *d = a_name_of(t, n);
	uint32_t layer = d ? d->layer : 0;
	size_t at = IMAGE_PATH_MAX - 1, bytes = 0;
	char path[IMAGE_PATH_MAX];

	path[at] = 0;
	for (; d && at > d->len; d = d->dir->at) {
		at -= d->len;
		memcpy(path + at, d->name, d->len);
		path[--at] = '/';
	}
	for (const struct xattr *x = n->xattrs; x; x = x->next)
		bytes += strlen(x->name) + x->len;
	if (r == EXT2_ET_EA_NO_SPACE)
		return err_plain(e, E2BIG,
			"layer %u, %.300s: extended attributes of %zu bytes; ext4 has room for "
			"about %u a file",
			layer, path + at, bytes, DISK_BLOCK - 64);
	lib_err(e, r, "inode");
	return err_wrap(e, "layer %u, %.300s", layer, path + at);
}

static int write_inodes(ext2_filsys fs, struct tree *t, struct node *list, struct err *e)
{
	errcode_t r = 0;

	for (uint32_t ino = 1; ino < FIRST_INO; ino++)
		ext2fs_inode_alloc_stats2(fs, ino, +1, ino == EXT2_ROOT_INO);
	for (struct node *n = list; n && !r; n = n->next_ino) {
		if (n->ino >= FIRST_INO)
			ext2fs_inode_alloc_stats2(fs, n->ino, +1, S_ISDIR(n->mode));
		r = write_inode(fs, n);
		if (r)
			return inode_err(t, n, r, e);
	}
	return 0;
}

static void fill_info(ext2_filsys fs, struct blocks *b, uint32_t used, struct ext4_info *out)
{
	const uint8_t *u = fs->super->s_uuid;
	const struct extent *x;
	size_t n;

	*out = (struct ext4_info){
		.disk_bytes = ext2fs_blocks_count(fs->super) * DISK_BLOCK,
		.data_bytes = (uint64_t)(blocks_next(b) - blocks_first(b)) * DISK_BLOCK,
		.inodes = fs->super->s_inodes_count,
		.inodes_used = used,
	};
	x = blocks_freed(b, &n);
	for (size_t i = 0; i < n; i++)
		out->data_bytes -= (uint64_t)x[i].len * DISK_BLOCK;
	snprintf(out->uuid, sizeof(out->uuid),
		"%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
		u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14],
		u[15]);
}

int ext4_write(struct tree *t, struct blocks *b, int fd, uint64_t room_bytes,
	const struct digest *id, struct ext4_info *out, struct err *e)
{
	struct ext2_super_block param = {0};
	struct node *list;
	ext2_filsys fs = NULL;
	uint32_t inodes;
	char name[16];
	errcode_t r;
	int k, copy;

	initialize_ext2_error_table(); /* for error_message(); may be called again */
	list = number_inodes(t, &inodes);
	k = write_names(list, b, e);
	if (k < 0)
		return k;
	k = blocks_flush(b);
	if (k < 0)
		return err_set(e, -k, "writing data");
	set_params(&param, blocks_next(b), inodes, room_bytes);
	if (ftruncate(fd, (off_t)(ext2fs_blocks_count(&param) * DISK_BLOCK)) < 0)
		return err_set(e, errno, "disk of %llu blocks",
			(unsigned long long)ext2fs_blocks_count(&param));
	copy = fcntl(fd, F_DUPFD_CLOEXEC, 3); /* libext2fs closes what it was given */
	if (copy < 0)
		return err_set(e, errno, "ext4: descriptor");
	snprintf(name, sizeof(name), "%d", copy);
	r = ext2fs_initialize(name, EXT2_FLAG_64BITS, &param, unixfd_io_manager, &fs);
	if (r)
		return lib_err(e, r, "initialise");
	fs->now = EPOCH;
	set_super(fs->super, id);
	r = mark_data(fs, b);
	if (r) {
		k = lib_err(e, r, "placing the tables");
		goto fail;
	}
	k = write_inodes(fs, t, list, e);
	if (k < 0)
		goto fail;
	for (dgrp_t g = 0; g < fs->group_desc_count; g++)
		ext2fs_bg_flags_set(fs, g, EXT2_BG_INODE_ZEROED);
	ext2fs_set_gdt_csum(fs);
	ext2fs_mark_super_dirty(fs);
	ext2fs_mark_ib_dirty(fs);
	ext2fs_mark_bb_dirty(fs);
	fill_info(fs, b, inodes, out);
	r = ext2fs_close_free(&fs);
	if (r)
		return lib_err(e, r, "writing the tables");
	return fsync(fd) < 0 ? err_set(e, errno, "sync of the disk") : 0;
fail:
	ext2fs_free(fs);
	return k;
}
