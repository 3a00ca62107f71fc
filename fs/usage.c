/* SPDX-License-Identifier: Apache-2.0
 *
 * usage.c: see usage.h. The tree is the guests': of any size and any depth. A walk costs its own sandbox's processor time, and a tree that is
 * deeper than USAGE_DEPTH counts as full.
 */
#include "fs/usage.h"

#include <dirent.h>
#include <sys/stat.h>

#define USAGE_DEPTH 200u
#define FRESH_NS    1000000000ull

/* What a file takes on the disk, one page of attributes included. Blocks that the file system allocates ahead, behind the file's end, do not
 * count: the file system frees them by itself. */
static uint64_t file_bytes(const struct statx *st)
{
	uint64_t blocks = st->stx_blocks * 512,
		 size = ALIGN_UP(st->stx_size, (uint64_t)PAGE_BYTES) + PAGE_BYTES;

	/* a file with several names is met at each of them, and counts once in all */
	return (S_ISREG(st->stx_mode) ? MIN(blocks, size) : blocks) / MAX(st->stx_nlink, 1u);
}

static int walk_folder(int dir, unsigned int depth, uint64_t *bytes);

static int walk_entry(int dir, const char *name, unsigned int depth, uint64_t *bytes)
{
	_cleanup_close_ int fd = -1;
	struct statx st;

	if (statx(dir, name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &st) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (!S_ISDIR(st.stx_mode)) {
		*bytes += file_bytes(&st);
		return 0;
	}
	*bytes += st.stx_blocks * 512;
	if (depth == USAGE_DEPTH)
		return -ENOSPC;
	fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0) /* removed or exchanged meanwhile */
		return errno == ENOENT || errno == ENOTDIR || errno == ELOOP ? 0 : -errno;
	return walk_folder(fd, depth + 1, bytes);
}

static int walk_folder(int dir, unsigned int depth, uint64_t *bytes)
{
	_Alignas(8) char entries[4096];
	ssize_t got;
	int rc = 0;

	while (rc == 0 && (got = getdents64(dir, entries, sizeof(entries))) > 0) {
		for (ssize_t at = 0; at < got && rc == 0;) {
			const struct dirent64 *de = (const void *)(entries + at);

			at += de->d_reclen;
			if (strcmp(de->d_name, ".") != 0 && strcmp(de->d_name, "..") != 0)
				rc = walk_entry(dir, de->d_name, depth, bytes);
		}
	}
	return rc < 0 ? rc : got < 0 ? -errno : 0;
}

static int volume_measure(const struct volume *v, uint64_t *bytes)
{
	struct node_ref root = {.fd = v->root_fd, .vol = v};
	_cleanup_close_ int fd = -1;
	struct statx st;

	if (!v->is_folder) {
		if (statx(v->root_fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &st) < 0)
			return -errno;
		*bytes += file_bytes(&st);
		return 0;
	}
	fd = node_open(&root, O_RDONLY | O_DIRECTORY);
	if (fd < 0)
		return fd;
	if (statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &st) < 0)
		return -errno;
	/* the root folder without its first page: names make it grow, and an empty claim counts 0 */
	*bytes += st.stx_blocks * 512 - MIN(st.stx_blocks * 512, (uint64_t)PAGE_BYTES);
	return walk_folder(fd, 0, bytes);
}

static int usage_measure(struct usage *s, struct usages *u, struct nodes *n, const struct volume *v)
{
	/* the walk cannot meet files that have no name and that this guest still has open */
	uint64_t freed = atomic_load(&u->freed), bytes = nodes_unnamed_bytes(n, v);
	int rc = volume_measure(v, &bytes);

	if (rc == -ENOSPC)
		bytes = v->max_bytes;
	else if (rc < 0)
		return rc;
	*s = (struct usage){.measured = bytes, .measured_ns = mono_ns(), .freed = freed};
	return 0;
}

static bool is_fresh(const struct usage *s, const struct usages *u)
{
	return s->measured_ns && s->since == 0 && s->freed == atomic_load(&u->freed) &&
	       mono_ns() - s->measured_ns < FRESH_NS;
}

static bool is_full(const struct usage *s, const struct volume *v, uint64_t bytes)
{
	return bytes > v->max_bytes || s->measured + s->since > v->max_bytes - bytes;
}

int usage_take(struct usages *u, struct nodes *n, const struct volume *v, uint64_t bytes)
{
	struct usage *s = &u->of[v->number];
	int rc = 0;

	pthread_mutex_lock(&u->lock);
	if (!s->measured_ns || s->since + bytes > v->max_bytes / 8 ||
		(is_full(s, v, bytes) && !is_fresh(s, u)))
		rc = usage_measure(s, u, n, v);
	if (rc == 0 && is_full(s, v, bytes))
		rc = -ENOSPC;
	if (rc == 0)
		s->since += bytes;
	pthread_mutex_unlock(&u->lock);
	return rc;
}

uint64_t usage_left(struct usages *u, struct nodes *n, const struct volume *v)
{
	struct usage *s = &u->of[v->number];
	uint64_t used;

	pthread_mutex_lock(&u->lock);
	if (!s->measured_ns || (!is_fresh(s, u) && mono_ns() - s->measured_ns > FRESH_NS))
		usage_measure(s, u, n, v);
	used = s->measured + s->since;
	pthread_mutex_unlock(&u->lock);
	return used < v->max_bytes ? v->max_bytes - used : 0;
}

void usage_freed(struct usages *u)
{
	atomic_fetch_add(&u->freed, 1);
}
