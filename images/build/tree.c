/* SPDX-License-Identifier: Apache-2.0
 *
 * tree.c: the merged file system in memory. Runs in the image job; every path and name is hostile.
 * One hash table over (directory, name) keeps look-ups flat whatever the image does; recursion is
 * replaced by walking parent pointers, because a hostile image may be as deep as a path is long.
 */
#include "images/build/tree.h"

#include <string.h>
#include <sys/stat.h>

#define MAX_LINKS 40 /* symbolic links followed in one path, as in the kernel */

static uint32_t hash_name(const struct node *dir, const char *name, size_t len, uint64_t mask)
{
	uint64_t h = 0xcbf29ce484222325u ^ ((uintptr_t)dir >> 4);

	for (size_t i = 0; i < len; i++)
		h = (h ^ (uint8_t)name[i]) * 0x100000001b3u;
	h ^= h >> 29;
	return (uint32_t)(h & mask);
}

struct node *node_new(mode_t mode)
{
	struct node *n = calloc(1, sizeof(*n));

	if (n)
		n->mode = mode;
	return n;
}

void node_clear_xattrs(struct node *n)
{
	while (n->xattrs) {
		struct xattr *x = n->xattrs;

		n->xattrs = x->next;
		free(x->name);
		free(x);
	}
}

void node_unref(struct tree *t, struct node *n)
{
	if (n->links > 1) {
		n->links--;
		return;
	}
	t->nodes--;
	if (n->n_ext && t->freed)
		t->freed(t->freed_arg, n->ext, n->n_ext);
	node_clear_xattrs(n);
	free(n->target);
	free(n->ext);
	free(n);
}

int node_add_extent(struct node *n, uint32_t lblk, uint32_t pblk, uint32_t len)
{
	struct extent *x = n->n_ext ? &n->ext[n->n_ext - 1] : NULL;

	if (x && x->lblk + x->len == lblk && x->pblk + x->len == pblk) {
		x->len += len;
		return 0;
	}
	if (n->n_ext == n->cap_ext) {
		uint32_t cap = n->cap_ext ? n->cap_ext * 2 : 1;

		x = realloc(n->ext, cap * sizeof(*x));
		if (!x)
			return -ENOMEM;
		n->ext = x;
		n->cap_ext = cap;
	}
	n->ext[n->n_ext++] = (struct extent){lblk, pblk, len};
	return 0;
}

int node_set_xattr(struct node *n, const char *name, const void *value, size_t len)
{
	struct xattr **at = &n->xattrs, *x;

	for (; *at; at = &(*at)->next) {
		if (strcmp((*at)->name, name) != 0)
			continue;
		x = *at;
		*at = x->next;
		free(x->name);
		free(x);
		break;
	}
	x = malloc(sizeof(*x) + len);
	if (!x)
		return -ENOMEM;
	x->name = strdup(name);
	if (!x->name) {
		free(x);
		return -ENOMEM;
	}
	x->len = (uint32_t)len;
	memcpy(x->value, value, len);
	x->next = NULL;
	for (at = &n->xattrs; *at; at = &(*at)->next)
		;
	*at = x;
	return 0;
}

int tree_init(struct tree *t)
{
	*t = (struct tree){.hash_cap = 1 << 12};
	t->hash = calloc(t->hash_cap, sizeof(*t->hash));
	t->root = node_new(S_IFDIR | 0755);
	if (!t->hash || !t->root) {
		free(t->hash);
		free(t->root);
		*t = (struct tree){0};
		return -ENOMEM;
	}
	t->root->links = 2;
	t->root->parent = t->root;
	t->nodes = 1;
	return 0;
}

void tree_fini(struct tree *t)
{
	if (!t->root)
		return;
	t->freed = NULL;
	while (t->root->first)
		tree_drop(t, t->root->first);
	t->root->links = 1;
	node_unref(t, t->root);
	free(t->hash);
	*t = (struct tree){0};
}

static void grow(struct tree *t)
{
	uint64_t cap = t->hash_cap * 4;
	struct dent **h;

	h = calloc(cap, sizeof(*h));
	if (!h)
		return; /* only slower */
	for (uint64_t i = 0; i < t->hash_cap; i++) {
		for (struct dent *d = t->hash[i], *next; d; d = next) {
			next = d->hash_next;
			d->hash = hash_name(d->dir, d->name, d->len, cap - 1);
			d->hash_next = h[d->hash];
			h[d->hash] = d;
		}
	}
	free(t->hash);
	t->hash = h;
	t->hash_cap = cap;
}

struct dent *tree_lookup(struct tree *t, struct node *dir, const char *name, size_t len)
{
	struct dent *d = t->hash[hash_name(dir, name, len, t->hash_cap - 1)];

	for (; d; d = d->hash_next)
		if (d->dir == dir && d->len == len && memcmp(d->name, name, len) == 0)
			return d;
	return NULL;
}

/* Removes one name. If it is a directory's, the directory is empty already. */
static void unlink_name(struct tree *t, struct dent *d)
{
	struct dent **at = &t->hash[d->hash];
	struct node *dir = d->dir;

	while (*at != d)
		at = &(*at)->hash_next;
	*at = d->hash_next;
	if (d->prev)
		d->prev->next = d->next;
	else
		dir->first = d->next;
	if (d->next)
		d->next->prev = d->prev;
	else
		dir->last = d->prev;
	if (S_ISDIR(d->node->mode))
		dir->nsub--;
	t->names--;
	node_unref(t, d->node);
	free(d);
}

void tree_drop(struct tree *t, struct dent *top)
{
	struct dent *d = top;

	for (;;) {
		struct node *dir = d->dir;
		bool last = d == top;

		if (S_ISDIR(d->node->mode) && d->node->first) {
			d = d->node->first;
			continue;
		}
		unlink_name(t, d);
		if (last)
			return;
		/* when a directory is empty, go on with the name that leads to it */
		if (dir->first) {
			d = dir->first;
			continue;
		}
		d = dir->at;
	}
}

static int add_name(struct tree *t, struct node *dir, const char *name, uint8_t len,
	struct node *node, uint32_t layer)
{
	struct dent *d = malloc(sizeof(*d) + len + 1u);

	if (!d)
		return -ENOMEM;
	if (t->names > t->hash_cap)
		grow(t);
	*d = (struct dent){.dir = dir, .node = node, .layer = layer, .len = len, .prev = dir->last};
	memcpy(d->name, name, len);
	d->name[len] = 0;
	d->hash = hash_name(dir, name, len, t->hash_cap - 1);
	d->hash_next = t->hash[d->hash];
	t->hash[d->hash] = d;
	if (dir->last)
		dir->last->next = d;
	else
		dir->first = d;
	dir->last = d;
	if (node->links++ == 0)
		t->nodes++;
	if (S_ISDIR(node->mode)) {
		node->parent = dir;
		node->at = d;
		dir->nsub++;
	}
	t->names++;
	return 0;
}

int tree_put(struct tree *t, const struct place *p, struct node *node, uint32_t layer)
{
	struct dent *d = tree_lookup(t, p->dir, p->name, p->len);

	if (d && d->node == node) {
		d->layer = layer;
		return 0;
	}
	node->links++; /* it may be a second name of what is about to be removed */
	if (d)
		tree_drop(t, d);
	node->links--;
	return add_name(t, p->dir, p->name, p->len, node, layer);
}

/* Removes what is below dir and older than layer, from the bottom up, without recursion. Names that lead to
 * something of this layer stay. */
void tree_white_out_children(struct tree *t, struct node *dir, uint32_t layer)
{
	struct node *at = dir;
	struct dent *d = dir->first;

	/* at most once for each layer and directory: else a layer with many files, and as many
	 * whiteouts of their folder, would take hours */
	if (dir->swept == layer)
		return;
	dir->swept = layer;
	for (;;) {
		if (d && d->node->first && d->node->swept != layer) {
			at = d->node;
			at->swept = layer;
			d = at->first;
			continue;
		}
		if (d) {
			struct dent *next = d->next;

			if (d->layer < layer && !d->node->first)
				unlink_name(t, d);
			d = next;
			continue;
		}
		/* this directory is done: back to the name that leads to it, and on */
		for (;;) {
			struct dent *up = at->at;

			if (at == dir)
				return;
			at = at->parent;
			d = up->next;
			if (up->layer < layer && !up->node->first)
				unlink_name(t, up);
			if (d)
				break;
		}
	}
}

void tree_white_out(struct tree *t, struct dent *d, uint32_t layer)
{
	if (S_ISDIR(d->node->mode))
		tree_white_out_children(t, d->node, layer);
	if (d->layer < layer && !d->node->first)
		unlink_name(t, d);
}

static int make_dir(struct tree *t, struct node *dir, const char *name, uint8_t len, uint32_t layer,
	struct node **out)
{
	struct node *n = node_new(S_IFDIR | 0755);
	struct place p = {.dir = dir, .name = name, .len = len};
	int r;

	if (!n)
		return -ENOMEM;
	r = tree_put(t, &p, n, layer);
	if (r < 0) {
		free(n);
		return r;
	}
	*out = n;
	return 0;
}

/* One walk over one path. The target of a symbolic link is put before the rest of the path; the size of the buffer is
 * the limit for both together. */
struct walk {
	char path[2 * IMAGE_PATH_MAX];
	size_t pos, len;
	unsigned int links;
};

static int walk_begin(struct walk *w, const char *path, size_t len)
{
	if (len >= IMAGE_PATH_MAX)
		return -ENAMETOOLONG;
	if (memchr(path, 0, len))
		return -EINVAL;
	memcpy(w->path, path, len);
	w->pos = 0;
	w->len = len;
	w->links = 0;
	return 0;
}

/* The next component; false at the end. */
static bool walk_next(struct walk *w, const char **name, size_t *len)
{
	size_t from;

	do {
		while (w->pos < w->len && w->path[w->pos] == '/')
			w->pos++;
		from = w->pos;
		while (w->pos < w->len && w->path[w->pos] != '/')
			w->pos++;
	} while (w->pos - from == 1 && w->path[from] == '.');
	*name = w->path + from;
	*len = w->pos - from;
	return *len > 0;
}

static bool walk_more(const struct walk *w)
{
	struct walk rest = *w;
	const char *name;
	size_t n;

	return walk_next(&rest, &name, &n);
}

static int walk_link(struct walk *w, const char *target)
{
	size_t left = w->len - w->pos, n = strlen(target);

	if (++w->links > MAX_LINKS)
		return -ELOOP;
	if (n + 1 + left > sizeof(w->path))
		return -ENAMETOOLONG;
	memmove(w->path + n + 1, w->path + w->pos, left);
	memcpy(w->path, target, n);
	w->path[n] = '/';
	w->pos = 0;
	w->len = n + 1 + left;
	return 0;
}

/* Goes one component down from *dir. */
static int step(struct tree *t, struct walk *w, struct node **dir, const char *name, size_t len,
	int flags, uint32_t layer)
{
	struct dent *d;

	if (len == 2 && name[0] == '.' && name[1] == '.') {
		/* ".." can only come from a link's target; the root is its own parent */
		*dir = (*dir)->parent;
		return 0;
	}
	if (len > IMAGE_NAME_MAX)
		return -ENAMETOOLONG;
	d = tree_lookup(t, *dir, name, len);
	if (d && S_ISDIR(d->node->mode)) {
		*dir = d->node;
		return 0;
	}
	if (d && S_ISLNK(d->node->mode)) {
		const char *target = d->node->target;
		int r = walk_link(w, target);

		if (r == 0 && target[0] == '/')
			*dir = t->root;
		return r;
	}
	if (d)
		return -ENOTDIR;
	if (!(flags & PLACE_MAKE))
		return -ENOENT;
	return make_dir(t, *dir, name, (uint8_t)len, layer, dir);
}

static bool has_dotdot(const char *path, size_t len)
{
	for (size_t i = 0; i + 1 < len; i++)
		if (path[i] == '.' && path[i + 1] == '.' && (i == 0 || path[i - 1] == '/') &&
			(i + 2 == len || path[i + 2] == '/'))
			return true;
	return false;
}

/* The last component of the caller's own path, without trailing slashes and "/."; false: the path
 * is the root. */
static bool split_last(const char *path, size_t *plen, const char **name, size_t *len)
{
	size_t n = *plen, from;

	for (;;) {
		while (n && path[n - 1] == '/')
			n--;
		from = n;
		while (from && path[from - 1] != '/')
			from--;
		if (n - from != 1 || path[from] != '.')
			break;
		n = from;
	}
	*plen = from;
	*name = path + from;
	*len = n - from;
	return n > from;
}

int tree_find(struct tree *t, const char *path, size_t len, int flags, uint32_t layer,
	struct place *out, struct err *e)
{
	struct node *dir = t->root;
	const char *last, *name;
	size_t last_len, n;
	struct walk w;
	int r;

	if (len >= IMAGE_PATH_MAX)
		return err_plain(
			e, ENAMETOOLONG, "path of %zu bytes (at most %u)", len, IMAGE_PATH_MAX - 1);
	if (has_dotdot(path, len))
		return err_plain(e, EINVAL, "path with \"..\"");
	if (!split_last(path, &len, &last, &last_len)) {
		*out = (struct place){0};
		return 0;
	}
	if (last_len > IMAGE_NAME_MAX)
		return err_plain(e, ENAMETOOLONG, "name of %zu bytes (at most %u)", last_len,
			IMAGE_NAME_MAX);
	r = walk_begin(&w, path, len);
	while (r == 0 && walk_next(&w, &name, &n))
		r = step(t, &w, &dir, name, n, flags, layer);
	if (r < 0)
		return err_set(e, -r, "its parent directory");
	*out = (struct place){.dir = dir,
		.name = last,
		.len = (uint8_t)last_len,
		.dent = tree_lookup(t, dir, last, last_len)};
	return 0;
}

struct node *tree_follow(struct tree *t, const char *path)
{
	struct node *dir = t->root;
	const char *name;
	struct walk w;
	size_t n;

	if (walk_begin(&w, path, strlen(path)) < 0)
		return NULL;
	while (walk_next(&w, &name, &n)) {
		struct dent *d = n <= IMAGE_NAME_MAX ? tree_lookup(t, dir, name, n) : NULL;

		if (d && !S_ISDIR(d->node->mode) && !S_ISLNK(d->node->mode))
			return walk_more(&w) ? NULL : d->node;
		if (step(t, &w, &dir, name, n, 0, 0) < 0)
			return NULL;
	}
	return dir;
}
