/* SPDX-License-Identifier: Apache-2.0
 *
 * ops_dir.c: reading folders. Worker threads of mayfly-fs; the arguments are the guest's.
 *
 * The offset of an entry is the host file system's own cookie, so that a later process can continue to read a folder. The folder that holds
 * the volumes exists only here: its offsets count entries.
 */
#include "fs/server.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/syscall.h>

/* as the kernel writes them */
struct host_dirent {
	uint64_t ino;
	int64_t off;
	uint16_t len;
	uint8_t type;
	char name[];
};

int op_opendir(struct fs_call *c)
{
	struct fuse_open_out o = {0};
	struct node_ref n;
	int fd = -1, rc;

	if (c->out_max < sizeof(o))
		return -EINVAL;
	rc = node_get(c->s->nodes, c->r->node, &n);
	if (rc < 0)
		return rc;
	if (n.vol) {
		fd = node_open(&n, O_RDONLY | O_DIRECTORY);
		rc = fd < 0 ? fd : 0;
		if (n.vol->read_only)
			o.open_flags = FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR;
	}
	if (rc == 0)
		rc = handle_new(c->s->nodes, &n, fd, HANDLE_FOLDER, &o.fh);
	node_put(c->s->nodes, &n);
	return rc < 0 ? rc : call_put(c, &o, sizeof(o));
}

/* One READDIR or READDIRPLUS. */
struct listing {
	struct fs_call *c;
	struct node_ref dir;
	size_t max;
	bool plus;
};

static int put_dirent(
	struct listing *l, uint64_t ino, uint64_t off, uint32_t type, const char *name)
{
	struct fuse_dirent d = {
		.ino = ino, .off = off, .namelen = (uint32_t)strlen(name), .type = type};
	static const uint8_t zeros[8];
	int rc = call_put(l->c, &d, FUSE_NAME_OFFSET);

	if (rc == 0)
		rc = call_put(l->c, name, d.namelen);
	if (rc == 0)
		rc = call_put(l->c, zeros,
			FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + d.namelen) - FUSE_NAME_OFFSET -
				d.namelen);
	return rc;
}

/* false: the answer is full. An entry is put whole or not at all. READDIRPLUS: if it cannot be looked up its node is 0, and the guest asks again. */
static bool listing_put(
	struct listing *l, uint64_t ino, uint64_t off, uint32_t type, const char *name)
{
	struct fs_call *c = l->c;
	size_t need = FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + strlen(name)) +
		      (l->plus ? sizeof(struct fuse_entry_out) : 0);
	bool dots = strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
	struct fuse_entry_out o = {0};
	struct statx st;
	uint64_t id;

	if (need > l->max - c->out_len)
		return false;
	if (l->plus) {
		if (!dots && node_lookup(c->s->nodes, &l->dir, name, &id, &st) == 0)
			fill_entry(&o, id,
				l->dir.vol ? l->dir.vol : &c->s->vols->v[(uint32_t)id - 2], &st);
		call_put(c, &o, sizeof(o));
	}
	put_dirent(l, ino, off, type, name);
	return true;
}

static int list_volumes(struct listing *l, uint64_t at)
{
	char name[16];

	for (; at < 2 + (uint64_t)l->c->s->vols->n; at++) {
		const struct volume *v = at < 2 ? NULL : &l->c->s->vols->v[at - 2];

		snprintf(name, sizeof(name), "%s", at == 0 ? "." : "..");
		if (v)
			snprintf(name, sizeof(name), "%u", v->number);
		if (!listing_put(l, v ? node_ino(v, v->root_ino) : 1, at + 1,
			    v && !v->is_folder ? DT_REG : DT_DIR, name))
			break;
	}
	return 0;
}

static int list_folder(struct listing *l, int fd, uint64_t at)
{
	_Alignas(8) char batch[32768];

	if (lseek(fd, (off_t)at, SEEK_SET) < 0)
		return -errno;
	for (;;) {
		/* About as much as the answer can hold: entries that do not fit must be read again. */
		long n = syscall(SYS_getdents64, fd, batch,
			MIN(sizeof(batch), MAX(l->max - l->c->out_len, (size_t)512)));

		if (n < 0)
			return l->c->out_len ? 0 : -errno;
		if (n == 0)
			return 0;
		for (long pos = 0; pos < n;) {
			const struct host_dirent *d =
				(const struct host_dirent *)(const void *)(batch + pos);

			if (!listing_put(l, node_ino(l->dir.vol, d->ino), (uint64_t)d->off, d->type,
				    d->name))
				return 0;
			pos += d->len;
		}
	}
}

static int read_folder(struct fs_call *c, bool plus)
{
	const struct fuse_read_in *in = c->r->arg;
	struct listing l = {.c = c, .max = MIN((size_t)in->size, c->out_max), .plus = plus};
	struct handle_ref h;
	int rc = node_get(c->s->nodes, c->r->node, &l.dir);

	if (rc < 0)
		return rc;
	rc = handle_get(c->s->nodes, in->fh, &h);
	if (rc == 0 && h.vol != l.dir.vol)
		rc = -EBADF;
	if (rc == 0) {
		handle_lock(c->s->nodes, &h);
		rc = l.dir.vol ? list_folder(&l, h.fd, in->offset) : list_volumes(&l, in->offset);
		handle_unlock(c->s->nodes, &h);
	}
	handle_put(c->s->nodes, &h);
	node_put(c->s->nodes, &l.dir);
	return rc;
}

int op_readdir(struct fs_call *c)
{
	return read_folder(c, false);
}

int op_readdirplus(struct fs_call *c)
{
	return read_folder(c, true);
}
