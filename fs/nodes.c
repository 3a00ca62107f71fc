/* SPDX-License-Identifier: Apache-2.0
 *
 * nodes.c: the table of nodes and handles in its memory file, and the descriptors beside it. Worker threads of mayfly-fs.
 *
 * Node 1 is the folder that holds the volumes; node 2 + V is volume V; these are never freed. A number that the guest sees is
 * (generation << 32 | index), so a number that was forgotten is refused. A record stays while the guest may name it (lookups),
 * while a handler uses it (pins), or while something depends on it (keeps: children and handles). One mutex guards the table.
 * It is not held while a file is opened, because that may wait for a disk. Descriptors are closed under it.
 *
 * The monitor holds the memory file too and can write to it at any time. Some values lead to memory of this process: indexes, volumes,
 * counts. Each of them is copied once when the table is loaded, checked, and then read from the copy. The names stay in the file only:
 * their chunks and lengths are checked at each use.
 */
#include "fs/nodes.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>

#define TABLE_MAGIC   0x3153464d59414d31u /* "1MAYMFS1" */
#define TABLE_VERSION 1u
#define DEPTH_MAX     1000u
#define CHUNKS_MAX    (2 * FS_NODES_MAX)
#define HASH_SIZE     (1u << 17)
#define ROOT          1u
#define FIXED         (2 + FS_VOLUMES_MAX) /* the first index that is given out */

enum { NODE_USED = 1, NODE_NAMELESS = 2 };

/* ---- the contents of the memory file, in the machine's byte order (little endian) */
struct table_head {
	uint64_t magic;
	uint32_t version, nodes_high, chunks_high, handles_high; /* the first index never used */
	struct fs_session session;
};
struct node_rec {
	uint64_t ino;
	int64_t btime_ns;
	uint64_t lookups;
	uint32_t parent, generation;
	uint32_t name; /* its first chunk, 0: none */
	uint16_t name_len;
	uint8_t volume, flags;
};
static_assert(sizeof(struct node_rec) == 40, "file format");
struct chunk {
	uint32_t next;
	char text[28];
};
static_assert(sizeof(struct chunk) == 32, "file format");
struct handle_rec {
	uint32_t node; /* 0: not in use */
	uint32_t flags, generation;
};
static_assert(sizeof(struct handle_rec) == 12, "file format");
struct table {
	struct table_head head;
	char pad[PAGE_BYTES - sizeof(struct table_head)];
	struct node_rec nodes[FS_NODES_MAX];
	struct chunk chunks[CHUNKS_MAX];
	struct handle_rec handles[FS_HANDLES_MAX];
};

/* ---- what only this process knows; all zero at the start */
struct node_run {
	int fd1; /* descriptor + 1; 0: none */
	uint32_t hash_next;
	/* neighbours in the cache's order of use; next also links free records */
	uint32_t prev, next;
	uint32_t pins, keeps;
	uint32_t parent, bucket; /* bucket: the record's slot of the hash */
	uint8_t volume;
	bool used;
	bool cached;  /* in the cache's list: has a descriptor that may be closed */
	bool counted; /* nodes_unnamed_bytes() has counted its bytes */
};
struct handle_run {
	int fd1;
	uint32_t refs, next;
	uint32_t node, flags; /* node 0: not in use */
	bool closing;
	pthread_mutex_t reading;
};

struct nodes {
	pthread_mutex_t lock;
	int memfd;
	const struct volumes *vols;
	struct table *t;
	struct node_run *run;
	struct handle_run *hrun;
	uint32_t hash[HASH_SIZE];
	uint32_t free_node, free_chunk, free_handle;
	uint32_t oldest, newest; /* of the cache */
	unsigned int fds, max_fds;
	uint32_t nodes_high, chunks_high, handles_high;
};

static uint64_t id_of(const struct nodes *n, uint32_t i)
{
	return (uint64_t)n->t->nodes[i].generation << 32 | i;
}

uint64_t node_ino(const struct volume *v, uint64_t host_ino)
{
	/* the volumes come from different file systems, whose numbers may be equal */
	return v ? host_ino ^ (uint64_t)(v->number + 1) << 56 : 1;
}

/* ---- names */

#define CHUNK_TEXT  sizeof(((struct chunk *)NULL)->text)
#define NAME_CHUNKS ((NAME_MAX + CHUNK_TEXT - 1) / CHUNK_TEXT)

/* The chunk number in *link, or 0 if no chunk has that number. */
static uint32_t chunk_at(const struct nodes *n, const uint32_t *link)
{
	uint32_t c = *(const volatile uint32_t *)link;

	return c < n->chunks_high ? c : 0;
}

static void name_free(struct nodes *n, struct node_rec *r)
{
	uint32_t c = chunk_at(n, &r->name);

	for (size_t i = 0; c && i < NAME_CHUNKS; i++) {
		uint32_t next = chunk_at(n, &n->t->chunks[c].next);

		n->t->chunks[c].next = n->free_chunk;
		n->free_chunk = c;
		c = next;
	}
	r->name = 0;
	r->name_len = 0;
}

static uint32_t chunk_new(struct nodes *n)
{
	uint32_t c = n->free_chunk;

	if (c)
		n->free_chunk = chunk_at(n, &n->t->chunks[c].next);
	else if (n->chunks_high < CHUNKS_MAX)
		n->t->head.chunks_high = (c = n->chunks_high++) + 1;
	return c;
}

/* false: the table has no room; the record then has no name. */
static bool name_set(struct nodes *n, struct node_rec *r, const char *name)
{
	uint32_t *link = &r->name;
	size_t len = strlen(name);

	name_free(n, r);
	r->name_len = (uint16_t)len;
	for (size_t at = 0; at < len; at += sizeof(n->t->chunks[0].text)) {
		uint32_t c = chunk_new(n);
		size_t part = MIN(len - at, sizeof(n->t->chunks[0].text));

		if (!c) {
			name_free(n, r);
			return false;
		}
		n->t->chunks[c].next = 0;
		memcpy(n->t->chunks[c].text, name + at, part);
		*link = c;
		link = &n->t->chunks[c].next;
	}
	return true;
}

/* Copies the name from the memory file. A chain of chunks that ends early cuts the name. */
static void name_get(const struct nodes *n, const struct node_rec *r, char to[static NAME_MAX + 1])
{
	size_t len = *(const volatile uint16_t *)&r->name_len, at = 0;
	uint32_t c = chunk_at(n, &r->name);

	len = MIN(len, (size_t)NAME_MAX);
	for (; c && at < len; at += CHUNK_TEXT) {
		memcpy(to + at, n->t->chunks[c].text, MIN(len - at, CHUNK_TEXT));
		c = chunk_at(n, &n->t->chunks[c].next);
	}
	to[MIN(at, len)] = 0;
}

/* ---- the hash by file */

static uint32_t hash_slot(unsigned int volume, uint64_t ino)
{
	uint64_t h = (ino ^ (uint64_t)volume << 56) * 0x9e3779b97f4a7c15u;

	return (uint32_t)(h >> (64 - 17));
}

static uint32_t node_find(struct nodes *n, unsigned int volume, uint64_t ino, int64_t btime_ns)
{
	uint32_t i = n->hash[hash_slot(volume, ino)];

	while (i) {
		const struct node_rec *r = &n->t->nodes[i];

		if (r->ino == ino && n->run[i].volume == volume && r->btime_ns == btime_ns)
			break;
		i = n->run[i].hash_next;
	}
	return i;
}

static void hash_add(struct nodes *n, uint32_t i)
{
	uint32_t bucket = hash_slot(n->run[i].volume, n->t->nodes[i].ino);
	uint32_t *slot = &n->hash[bucket];

	n->run[i].bucket = bucket;
	n->run[i].hash_next = *slot;
	*slot = i;
}

static void hash_remove(struct nodes *n, uint32_t i)
{
	uint32_t *at = &n->hash[n->run[i].bucket];

	while (*at && *at != i)
		at = &n->run[*at].hash_next;
	if (*at)
		*at = n->run[i].hash_next;
}

/* ---- the cache of descriptors */

static void cache_remove(struct nodes *n, uint32_t i)
{
	struct node_run *r = &n->run[i];

	if (!r->cached)
		return;
	*(r->prev ? &n->run[r->prev].next : &n->oldest) = r->next;
	*(r->next ? &n->run[r->next].prev : &n->newest) = r->prev;
	r->prev = r->next = 0;
	r->cached = false;
}

static void cache_add(struct nodes *n, uint32_t i)
{
	struct node_run *r = &n->run[i];

	r->prev = n->newest;
	r->next = 0;
	*(n->newest ? &n->run[n->newest].next : &n->oldest) = i;
	n->newest = i;
	r->cached = true;
}

static void node_close_fd(struct nodes *n, uint32_t i)
{
	if (!n->run[i].fd1)
		return;
	close(n->run[i].fd1 - 1);
	n->run[i].fd1 = 0;
	n->fds--;
}

static void cache_shrink(struct nodes *n)
{
	while (n->fds > n->max_fds && n->oldest) {
		uint32_t i = n->oldest;

		cache_remove(n, i);
		node_close_fd(n, i);
	}
}

/* Gives the record this descriptor, or closes it if there is one already. */
static void node_adopt_fd(struct nodes *n, uint32_t i, int fd)
{
	if (n->run[i].fd1) {
		close(fd);
		return;
	}
	n->run[i].fd1 = fd + 1;
	n->fds++;
}

/* ---- the life of a record */

static void node_settle(struct nodes *n, uint32_t i);

static void parent_set(struct nodes *n, uint32_t i, uint32_t parent)
{
	n->run[i].parent = n->t->nodes[i].parent = parent;
}

static void parent_drop(struct nodes *n, uint32_t i)
{
	uint32_t parent = n->run[i].parent;

	parent_set(n, i, 0);
	if (parent) {
		n->run[parent].keeps--;
		node_settle(n, parent);
	}
}

static void place_set(struct nodes *n, uint32_t i, uint32_t parent, const char *name)
{
	struct node_rec *r = &n->t->nodes[i];
	char old[NAME_MAX + 1];

	if (n->run[i].parent == parent && r->name) {
		name_get(n, r, old);
		if (strcmp(old, name) == 0)
			return;
	}
	n->run[parent].keeps++;
	parent_drop(n, i);
	parent_set(n, i, parent);
	r->flags &= (uint8_t)~NODE_NAMELESS;
	if (!name_set(n, r, name)) {
		/* The node works as long as its descriptor is open. node_valid() allows it no parent. */
		r->flags |= NODE_NAMELESS;
		parent_drop(n, i);
	}
}

/* Frees the record if nothing needs it, and then each parent that only this record needed. Else lets the cache close its descriptor. */
static void node_settle(struct nodes *n, uint32_t i)
{
	while (i >= FIXED) {
		/* cppcheck-suppress arrayIndexOutOfBoundsCond ; records have numbers below FS_NODES_MAX */
		struct node_rec *r = &n->t->nodes[i];
		struct node_run *u = &n->run[i];
		uint32_t parent = u->parent;

		if (!u->used || u->pins)
			return;
		if (r->lookups || u->keeps) {
			if (u->fd1 && !u->cached && !(r->flags & NODE_NAMELESS)) {
				cache_add(n, i);
				cache_shrink(n);
			}
			return;
		}
		cache_remove(n, i);
		node_close_fd(n, i);
		hash_remove(n, i);
		name_free(n, r);
		r->flags = 0;
		r->generation++;
		parent_set(n, i, 0);
		u->used = false;
		u->next = n->free_node;
		n->free_node = i;
		i = parent;
		if (i)
			n->run[i].keeps--;
	}
}

static uint32_t node_new(struct nodes *n, unsigned int volume, uint64_t ino, int64_t btime_ns)
{
	uint32_t i = n->free_node;
	struct node_rec *r;

	if (i)
		n->free_node = n->run[i].next;
	else if (n->nodes_high < FS_NODES_MAX)
		n->t->head.nodes_high = (i = n->nodes_high++) + 1;
	else
		return 0;
	r = &n->t->nodes[i];
	n->run[i] = (struct node_run){.volume = (uint8_t)volume, .used = true};
	*r = (struct node_rec){
		.ino = ino,
		.btime_ns = btime_ns,
		.volume = (uint8_t)volume,
		.flags = NODE_USED | NODE_NAMELESS,
		.generation = r->generation,
	};
	hash_add(n, i);
	return i;
}

/* ---- opening beneath a volume */

/* openat2() would do all of this, but it would also make files: seccomp cannot see the mode in its structure, and a file with a set-user-id
 * bit must not be made on the host. So the name is checked here, and stat_beneath() checks the mount. */
static int open_beneath(int dir, const char *name)
{
	int fd;

	if (!*name || strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
		return -EINVAL;
	fd = openat(dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/* -EXDEV: the file is on another mount than its volume's folder. */
static int stat_beneath(const struct volume *v, int fd, struct statx *st, int64_t *btime_ns)
{
	if (statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME | VOLUME_MNT_ID, st) < 0)
		return -errno;
	*btime_ns = st->stx_mask & STATX_BTIME
			    ? st->stx_btime.tv_sec * 1000000000LL + st->stx_btime.tv_nsec
			    : 0;
	return st->stx_mask & VOLUME_MNT_ID && st->stx_mnt_id != v->mnt_id ? -EXDEV : 0;
}

static int node_open_fd(struct nodes *n, uint32_t i, unsigned int depth);

/* The descriptor of a pinned record. The caller holds the lock; it is released while a file is opened. */
static int node_fd(struct nodes *n, uint32_t i, unsigned int depth)
{
	if (i == ROOT)
		return -1;
	return n->run[i].fd1 ? n->run[i].fd1 - 1 : node_open_fd(n, i, depth);
}

static int node_open_fd(struct nodes *n, uint32_t i, unsigned int depth)
{
	const struct node_rec *r = &n->t->nodes[i];
	struct node_rec was = *r;
	const struct volume *vol = &n->vols->v[n->run[i].volume];
	uint32_t parent = n->run[i].parent;
	char name[NAME_MAX + 1];
	struct statx st;
	int64_t btime_ns = 0;
	int dir, fd, rc;

	if (r->flags & NODE_NAMELESS || !parent || depth > DEPTH_MAX)
		return -ESTALE;
	name_get(n, r, name);
	n->run[parent].pins++;
	cache_remove(n, parent);
	dir = node_fd(n, parent, depth + 1);
	fd = dir;
	if (dir >= 0) {
		pthread_mutex_unlock(&n->lock);
		fd = open_beneath(dir, name);
		rc = fd < 0 ? fd : stat_beneath(vol, fd, &st, &btime_ns);
		if (rc == 0 && (st.stx_ino != was.ino || btime_ns != was.btime_ns))
			rc = -ESTALE;
		if (rc < 0 && fd >= 0)
			close(fd);
		if (rc < 0)
			fd = rc == -EMFILE || rc == -ENFILE || rc == -ENOMEM ? -ENFILE : -ESTALE;
		pthread_mutex_lock(&n->lock);
	}
	n->run[parent].pins--;
	node_settle(n, parent);
	if (fd < 0)
		return fd;
	node_adopt_fd(n, i, fd);
	return n->run[i].fd1 - 1;
}

/* ---- nodes, for the handlers */

static uint32_t id_check(const struct nodes *n, uint64_t id)
{
	uint32_t i = (uint32_t)id;

	if (i == 0 || i >= n->nodes_high || !n->run[i].used ||
		n->t->nodes[i].generation != id >> 32)
		return 0;
	return i;
}

/* Pins record i and fills r. The lock is held. */
static int node_pin(struct nodes *n, uint32_t i, struct node_ref *r)
{
	int fd;

	n->run[i].pins++;
	cache_remove(n, i);
	fd = node_fd(n, i, 0);
	if (fd < 0 && i != ROOT) {
		n->run[i].pins--;
		node_settle(n, i);
		return fd;
	}
	*r = (struct node_ref){
		.index = i, .fd = fd, .vol = i == ROOT ? NULL : &n->vols->v[n->run[i].volume]};
	return 0;
}

int node_get(struct nodes *n, uint64_t id, struct node_ref *r)
{
	uint32_t i;
	int rc = -ESTALE;

	*r = (struct node_ref){.fd = -1};
	pthread_mutex_lock(&n->lock);
	i = id_check(n, id);
	if (i)
		rc = node_pin(n, i, r);
	pthread_mutex_unlock(&n->lock);
	return rc;
}

void node_put(struct nodes *n, struct node_ref *r)
{
	if (!r->index)
		return;
	pthread_mutex_lock(&n->lock);
	n->run[r->index].pins--;
	node_settle(n, r->index);
	pthread_mutex_unlock(&n->lock);
	r->index = 0;
}

/* Looks up a volume: in the folder that holds the volumes, their names are their numbers. */
static int lookup_volume(struct nodes *n, const char *name, uint64_t *id, struct statx *st)
{
	char *end;
	unsigned long v = strtoul(name, &end, 10);
	char again[16];
	int64_t btime_ns;

	if (*end || v >= n->vols->n)
		return -ENOENT;
	snprintf(again, sizeof(again), "%lu", v);
	if (strcmp(again, name) != 0)
		return -ENOENT;
	*id = id_of(n, 2 + (uint32_t)v);
	return stat_beneath(&n->vols->v[v], n->vols->v[v].root_fd, st, &btime_ns);
}

/* Counts a lookup of the file behind fd. Takes fd. */
static int node_enter(struct nodes *n, const struct node_ref *dir, const char *name, int fd,
	uint64_t *id, struct statx *st)
{
	int64_t btime_ns;
	uint32_t i;
	int rc = stat_beneath(dir->vol, fd, st, &btime_ns);

	if (rc < 0) {
		close(fd);
		return rc;
	}
	pthread_mutex_lock(&n->lock);
	i = node_find(n, dir->vol->number, st->stx_ino, btime_ns);
	if (!i)
		i = node_new(n, dir->vol->number, st->stx_ino, btime_ns);
	if (!i) {
		pthread_mutex_unlock(&n->lock);
		close(fd);
		return -ENFILE;
	}
	cache_remove(n, i);
	node_adopt_fd(n, i, fd);
	if (i >= FIXED) {
		n->t->nodes[i].lookups++;
		if (name)
			place_set(n, i, dir->index, name);
	}
	*id = id_of(n, i);
	node_settle(n, i);
	pthread_mutex_unlock(&n->lock);
	return 0;
}

int node_lookup(struct nodes *n, const struct node_ref *dir, const char *name, uint64_t *id,
	struct statx *st)
{
	int fd;

	if (!dir->vol)
		return lookup_volume(n, name, id, st);
	fd = open_beneath(dir->fd, name);
	return fd < 0 ? fd : node_enter(n, dir, name, fd, id, st);
}

int node_lookup_fd(struct nodes *n, const struct node_ref *dir, const char *name, int fd,
	uint64_t *id, struct statx *st)
{
	char path[16];
	int own;

	snprintf(path, sizeof(path), "%d", fd);
	own = open(path, O_PATH | O_CLOEXEC);
	return own < 0 ? -errno : node_enter(n, dir, name, own, id, st);
}

void node_forget(struct nodes *n, uint64_t id, uint64_t count)
{
	uint32_t i;

	pthread_mutex_lock(&n->lock);
	i = id_check(n, id);
	if (i >= FIXED) {
		uint64_t *have = &n->t->nodes[i].lookups;

		*have -= MIN(*have, count);
		node_settle(n, i);
	}
	pthread_mutex_unlock(&n->lock);
}

/* The node that the table has for the file of this name, with its descriptor open; 0: none. Returns with the lock held. */
static uint32_t node_at(struct nodes *n, const struct node_ref *dir, const char *name)
{
	struct statx st;
	int64_t btime_ns = 0;
	int fd = open_beneath(dir->fd, name);
	uint32_t i = 0;

	if (fd >= 0 && stat_beneath(dir->vol, fd, &st, &btime_ns) < 0) {
		close(fd);
		fd = -1;
	}
	pthread_mutex_lock(&n->lock);
	if (fd < 0)
		return 0;
	i = node_find(n, dir->vol->number, st.stx_ino, btime_ns);
	if (i < FIXED) {
		close(fd);
		return 0;
	}
	cache_remove(n, i);
	node_adopt_fd(n, i, fd);
	return i;
}

void node_moved(struct nodes *n, const struct node_ref *dir, const char *name)
{
	uint32_t i = node_at(n, dir, name);

	if (i) {
		place_set(n, i, dir->index, name);
		node_settle(n, i);
	}
	pthread_mutex_unlock(&n->lock);
}

void node_victim(
	struct nodes *n, const struct node_ref *dir, const char *name, struct node_victim *v)
{
	uint32_t i = node_at(n, dir, name);
	struct node_rec *r = &n->t->nodes[i];
	char has[NAME_MAX + 1];

	*v = (struct node_victim){0};
	if (i) {
		name_get(n, r, has);
		v->index = i;
		v->by_this_name = n->run[i].parent == dir->index && strcmp(has, name) == 0;
		n->run[i].pins++;
	}
	pthread_mutex_unlock(&n->lock);
}

void node_gone(struct nodes *n, struct node_victim *v, bool gone)
{
	struct node_rec *r = &n->t->nodes[v->index];

	if (!v->index)
		return;
	pthread_mutex_lock(&n->lock);
	if (gone && v->by_this_name) {
		r->flags |= NODE_NAMELESS;
		name_free(n, r);
		parent_drop(n, v->index);
	}
	n->run[v->index].pins--;
	node_settle(n, v->index);
	pthread_mutex_unlock(&n->lock);
	v->index = 0;
}

int node_open(const struct node_ref *r, int flags)
{
	struct statx st;
	char path[16];
	int fd;

	if (r->fd < 0)
		return -EISDIR;
	if (statx(r->fd, "", AT_EMPTY_PATH, STATX_TYPE, &st) < 0)
		return -errno;
	/* the guest's kernel handles the other kinds itself; only a hostile one asks for them here */
	if (!S_ISREG(st.stx_mode) && !S_ISDIR(st.stx_mode))
		return -EACCES;
	snprintf(path, sizeof(path), "%d", r->fd);
	fd = open(path, (flags & ~(O_CREAT | O_EXCL | O_NOFOLLOW | O_DIRECT)) | O_CLOEXEC |
				O_NOCTTY | O_NONBLOCK);
	return fd < 0 ? -errno : fd;
}

static uint64_t unnamed_bytes(int fd)
{
	struct statx st;

	/* The file is open, so its inode is in memory: statx() waits for no disk. */
	return statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &st) == 0 && st.stx_nlink == 0
		       ? st.stx_blocks * 512
		       : 0;
}

/* A node that has a name in the table may have lost it all the same: another mount of the same claim removed it. */
uint64_t nodes_unnamed_bytes(struct nodes *n, const struct volume *v)
{
	uint64_t bytes = 0;

	pthread_mutex_lock(&n->lock);
	for (uint32_t i = FIXED; i < n->nodes_high; i++) {
		struct node_run *r = &n->run[i];

		r->counted = r->used && r->fd1 && r->volume == v->number;
		if (r->counted)
			bytes += unnamed_bytes(r->fd1 - 1);
	}
	/* open files whose node's own descriptor the cache has closed */
	for (uint32_t i = 1; i < n->handles_high; i++) {
		uint32_t node = n->hrun[i].node;

		if (node < FIXED || !n->hrun[i].fd1 || n->run[node].volume != v->number ||
			n->run[node].counted)
			continue;
		n->run[node].counted = true;
		bytes += unnamed_bytes(n->hrun[i].fd1 - 1);
	}
	pthread_mutex_unlock(&n->lock);
	return bytes;
}

/* ---- handles */

int handle_new(struct nodes *n, const struct node_ref *of, int fd, uint32_t flags, uint64_t *fh)
{
	uint32_t i;

	pthread_mutex_lock(&n->lock);
	i = n->free_handle;
	if (i)
		n->free_handle = n->hrun[i].next;
	else if (n->handles_high < FS_HANDLES_MAX)
		n->t->head.handles_high = (i = n->handles_high++) + 1;
	if (!i) {
		pthread_mutex_unlock(&n->lock);
		close(fd);
		return -ENFILE;
	}
	n->t->handles[i] = (struct handle_rec){
		.node = of->index, .flags = flags, .generation = n->t->handles[i].generation};
	n->hrun[i].node = of->index;
	n->hrun[i].flags = flags;
	n->hrun[i].fd1 = fd + 1;
	n->run[of->index].keeps++;
	*fh = (uint64_t)n->t->handles[i].generation << 32 | i;
	pthread_mutex_unlock(&n->lock);
	return 0;
}

static uint32_t handle_check(const struct nodes *n, uint64_t fh)
{
	uint32_t i = (uint32_t)fh;

	if (i == 0 || i >= n->handles_high || !n->hrun[i].node || n->hrun[i].closing ||
		n->t->handles[i].generation != fh >> 32)
		return 0;
	return i;
}

/* Opens a file that an earlier process had open. The caller holds the lock; it is released while the file is opened. */
static int handle_reopen(struct nodes *n, uint32_t i)
{
	struct node_ref r;
	uint32_t flags = n->hrun[i].flags;
	int fd, rc = node_pin(n, n->hrun[i].node, &r);

	if (rc < 0)
		return rc;
	pthread_mutex_unlock(&n->lock);
	fd = node_open(&r, (int)flags & ~O_TRUNC);
	pthread_mutex_lock(&n->lock);
	n->run[r.index].pins--;
	node_settle(n, r.index);
	if (fd < 0)
		return fd == -EMFILE || fd == -ENFILE ? -ENFILE : -ESTALE;
	if (n->hrun[i].fd1)
		close(fd);
	else
		n->hrun[i].fd1 = fd + 1;
	return 0;
}

static void handle_settle(struct nodes *n, uint32_t i)
{
	struct handle_run *u = &n->hrun[i];
	uint32_t node = n->hrun[i].node;

	if (u->refs || !u->closing)
		return;
	if (u->fd1)
		close(u->fd1 - 1);
	u->fd1 = 0;
	u->closing = false;
	u->node = n->t->handles[i].node = 0;
	n->t->handles[i].generation++;
	u->next = n->free_handle;
	n->free_handle = i;
	n->run[node].keeps--;
	node_settle(n, node);
}

int handle_get(struct nodes *n, uint64_t fh, struct handle_ref *h)
{
	uint32_t i;
	int rc = 0;

	*h = (struct handle_ref){.fd = -1};
	pthread_mutex_lock(&n->lock);
	i = handle_check(n, fh);
	if (!i) {
		pthread_mutex_unlock(&n->lock);
		return -EBADF;
	}
	n->hrun[i].refs++;
	if (!n->hrun[i].fd1 && n->hrun[i].node != ROOT)
		rc = handle_reopen(n, i);
	if (rc < 0) {
		n->hrun[i].refs--;
		handle_settle(n, i);
	} else {
		uint32_t node = n->hrun[i].node;

		*h = (struct handle_ref){.index = i,
			.fd = n->hrun[i].fd1 - 1,
			.vol = node == ROOT ? NULL : &n->vols->v[n->run[node].volume]};
	}
	pthread_mutex_unlock(&n->lock);
	return rc;
}

void handle_put(struct nodes *n, struct handle_ref *h)
{
	if (!h->index)
		return;
	pthread_mutex_lock(&n->lock);
	n->hrun[h->index].refs--;
	handle_settle(n, h->index);
	pthread_mutex_unlock(&n->lock);
	h->index = 0;
}

void handle_release(struct nodes *n, uint64_t fh)
{
	uint32_t i;

	pthread_mutex_lock(&n->lock);
	i = handle_check(n, fh);
	if (i) {
		n->hrun[i].closing = true;
		handle_settle(n, i);
	}
	pthread_mutex_unlock(&n->lock);
}

void handle_lock(struct nodes *n, const struct handle_ref *h)
{
	pthread_mutex_lock(&n->hrun[h->index].reading);
}

void handle_unlock(struct nodes *n, const struct handle_ref *h)
{
	pthread_mutex_unlock(&n->hrun[h->index].reading);
}

/* ---- the table as a whole */

void nodes_start(struct nodes *n, struct fs_session s)
{
	pthread_mutex_lock(&n->lock);
	for (uint32_t i = 1; i < n->handles_high; i++) {
		if (n->hrun[i].node) {
			n->hrun[i].closing = true;
			handle_settle(n, i);
		}
	}
	for (uint32_t i = FIXED; i < n->nodes_high; i++) {
		n->t->nodes[i].lookups = 0;
		node_settle(n, i);
	}
	n->t->head.session = s;
	pthread_mutex_unlock(&n->lock);
}

/* Makes the records of the volumes instead of loading them. So if a volume's root is another folder than before, all nodes below the old one are -ESTALE. */
static void nodes_fix_roots(struct nodes *n)
{
	n->t->nodes[ROOT] = (struct node_rec){.flags = NODE_USED};
	n->run[ROOT].used = true;
	for (unsigned int v = 0; v < FS_VOLUMES_MAX; v++) {
		const struct volume *vol = &n->vols->v[v];
		struct node_rec *r = &n->t->nodes[2 + v];

		*r = (struct node_rec){.flags = NODE_NAMELESS};
		if (v >= n->vols->n)
			continue;
		*r = (struct node_rec){.ino = vol->root_ino,
			.btime_ns = vol->root_btime_ns,
			.volume = (uint8_t)v,
			.flags = NODE_USED | NODE_NAMELESS};
		n->run[2 + v].used = true;
		n->run[2 + v].volume = (uint8_t)v;
		n->run[2 + v].fd1 = vol->root_fd + 1;
		hash_add(n, 2 + v);
	}
}

/* Chunks may belong to one name only: `seen` has a bit for each. */
static bool name_valid(const struct nodes *n, const struct node_rec *r, uint8_t *seen)
{
	char name[NAME_MAX + 1];
	size_t len = r->name_len;
	uint32_t c = chunk_at(n, &r->name);

	if (len == 0 || len > NAME_MAX)
		return false;
	for (size_t at = 0; at < len; at += CHUNK_TEXT) {
		if (c == 0 || seen[c / 8] & 1 << c % 8)
			return false;
		seen[c / 8] |= (uint8_t)(1 << c % 8);
		c = chunk_at(n, &n->t->chunks[c].next);
	}
	if (c != 0)
		return false;
	name_get(n, r, name);
	return strlen(name) == len && !strchr(name, '/') && strcmp(name, ".") != 0 &&
	       strcmp(name, "..") != 0;
}

/* r: a copy, which nobody else changes. nodes_copy() has copied parent and volume of all records to run[]. */
static bool node_valid(const struct nodes *n, const struct node_rec *r, uint32_t i, uint8_t *seen)
{
	uint32_t parent = n->run[i].parent;

	if (n->run[i].volume >= n->vols->n || r->flags & ~(NODE_USED | NODE_NAMELESS))
		return false;
	if (r->flags & NODE_NAMELESS)
		return parent == 0 && r->name == 0 && r->name_len == 0;
	return parent >= 2 && parent < n->nodes_high && n->run[parent].used &&
	       n->run[parent].volume == n->run[i].volume && name_valid(n, r, seen);
}

/* Does the chain of parents end at a volume? If not, the record loses its name. That also happens without an attack, when others
 * move folders while the guest looks at them. */
static bool chain_ends(const struct nodes *n, uint32_t i)
{
	for (unsigned int depth = 0; depth <= DEPTH_MAX; depth++) {
		if (i < FIXED)
			return i >= 2;
		i = n->run[i].parent;
	}
	return false;
}

/* The flags go to open(): only those that handle_new() is given, and none that write to a volume that is read-only. */
static bool handle_valid(const struct nodes *n, const struct handle_run *h)
{
	if (h->node >= n->nodes_high || !n->run[h->node].used)
		return false;
	if (h->flags == HANDLE_FOLDER)
		return true;
	if (h->node == ROOT || h->flags & ~HANDLE_FLAGS || (h->flags & O_ACCMODE) == O_ACCMODE)
		return false;
	return (h->flags & O_ACCMODE) == O_RDONLY || !n->vols->v[n->run[h->node].volume].read_only;
}

static int head_check(struct nodes *n)
{
	struct table_head h;

	memcpy(&h, (const void *)&n->t->head, sizeof(h));
	__asm__ volatile("" ::: "memory");
	n->nodes_high = h.nodes_high;
	n->chunks_high = h.chunks_high;
	n->handles_high = h.handles_high;
	if (h.magic != TABLE_MAGIC || h.version != TABLE_VERSION || h.nodes_high < FIXED ||
		h.nodes_high > FS_NODES_MAX || h.chunks_high < 1 || h.chunks_high > CHUNKS_MAX ||
		h.handles_high < 1 || h.handles_high > FS_HANDLES_MAX) {
		n->nodes_high = n->chunks_high = n->handles_high = 0;
		return -EBADMSG;
	}
	return 0;
}

/* Copies the fields that index memory of this process. Each is read once. */
static void nodes_copy(struct nodes *n)
{
	for (uint32_t i = FIXED; i < n->nodes_high; i++) {
		const volatile struct node_rec *r = &n->t->nodes[i];

		n->run[i].used = r->flags & NODE_USED;
		n->run[i].volume = r->volume;
		n->run[i].parent = r->parent;
	}
	for (uint32_t i = 1; i < n->handles_high; i++) {
		const volatile struct handle_rec *h = &n->t->handles[i];

		n->hrun[i].node = h->node;
		n->hrun[i].flags = h->flags;
	}
}

static int nodes_check(struct nodes *n)
{
	_cleanup_free_ uint8_t *seen = calloc(1, CHUNKS_MAX / 8);
	int rc = head_check(n);

	if (!seen || rc < 0)
		return seen ? rc : -ENOMEM;
	nodes_copy(n);
	for (uint32_t i = FIXED; i < n->nodes_high; i++) {
		struct node_rec r = n->t->nodes[i];

		if (n->run[i].used ? !node_valid(n, &r, i, seen) : r.flags != 0)
			return -EBADMSG;
		if (!n->run[i].used)
			n->run[i].parent = 0;
	}
	for (uint32_t i = 1; i < n->handles_high; i++) {
		if (n->hrun[i].node && !handle_valid(n, &n->hrun[i]))
			return -EBADMSG;
	}
	for (uint32_t c = 1; c < n->chunks_high; c++) {
		if (!(seen[c / 8] & 1 << c % 8)) {
			n->t->chunks[c].next = n->free_chunk;
			n->free_chunk = c;
		}
	}
	return 0;
}

/* Builds what this process keeps beside the checked records: the hash, the counts, the lists of free records. */
static void nodes_index(struct nodes *n)
{
	for (uint32_t i = FIXED; i < n->nodes_high; i++) {
		struct node_rec *r = &n->t->nodes[i];

		if (n->run[i].used && !chain_ends(n, i)) {
			r->flags |= NODE_NAMELESS;
			name_free(n, r);
			parent_set(n, i, 0);
		}
	}
	for (uint32_t i = n->nodes_high; i-- > FIXED;) {
		uint32_t parent = n->run[i].parent;

		if (n->run[i].used) {
			hash_add(n, i);
			n->run[parent].keeps += parent != 0;
		} else {
			n->run[i].next = n->free_node;
			n->free_node = i;
		}
	}
	for (uint32_t i = n->handles_high; i-- > 1;) {
		if (n->hrun[i].node) {
			n->run[n->hrun[i].node].keeps++;
		} else {
			n->hrun[i].next = n->free_handle;
			n->free_handle = i;
		}
	}
	for (uint32_t i = FIXED; i < n->nodes_high; i++)
		node_settle(n, i);
}

static void *lazy_array(size_t n, size_t each)
{
	void *p = mmap(NULL, n * each, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

int nodes_open(
	struct nodes **to, int memfd, const struct volumes *v, unsigned int max_fds, struct err *e)
{
	struct nodes *n = calloc(1, sizeof(*n));
	struct stat st;
	int rc;

	if (!n || fstat(memfd, &st) < 0 ||
		(st.st_size != 0 && st.st_size != sizeof(struct table)) ||
		ftruncate(memfd, sizeof(struct table)) < 0) {
		rc = err_set(e, n ? EBADMSG : ENOMEM, "loading the table of nodes");
		free(n);
		close(memfd);
		return rc;
	}
	n->memfd = memfd;
	n->vols = v;
	n->max_fds = max_fds;
	pthread_mutex_init(&n->lock, NULL);
	n->t = mmap(NULL, sizeof(*n->t), PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
	if (n->t == MAP_FAILED)
		n->t = NULL;
	n->run = lazy_array(FS_NODES_MAX, sizeof(*n->run));
	n->hrun = lazy_array(FS_HANDLES_MAX, sizeof(*n->hrun));
	if (!n->t || !n->run || !n->hrun) {
		nodes_close(n);
		return err_set(e, ENOMEM, "mapping the table of nodes");
	}
	if (st.st_size == 0)
		n->t->head = (struct table_head){.magic = TABLE_MAGIC,
			.version = TABLE_VERSION,
			.nodes_high = FIXED,
			.chunks_high = 1,
			.handles_high = 1};
	nodes_fix_roots(n);
	rc = nodes_check(n);
	if (rc < 0) {
		nodes_close(n);
		return err_set(e, -rc, "checking the table of nodes");
	}
	nodes_index(n);
	*to = n;
	return 0;
}

void nodes_close(struct nodes *n)
{
	if (!n)
		return;
	for (uint32_t i = 1; n->hrun && i < n->handles_high; i++) {
		if (n->hrun[i].fd1)
			close(n->hrun[i].fd1 - 1);
	}
	for (uint32_t i = FIXED; n->run && i < n->nodes_high; i++) {
		if (n->run[i].fd1)
			close(n->run[i].fd1 - 1);
	}
	if (n->t)
		munmap(n->t, sizeof(*n->t));
	if (n->run)
		munmap(n->run, FS_NODES_MAX * sizeof(*n->run));
	if (n->hrun)
		munmap(n->hrun, FS_HANDLES_MAX * sizeof(*n->hrun));
	close(n->memfd);
	pthread_mutex_destroy(&n->lock);
	free(n);
}
