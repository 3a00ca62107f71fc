/* SPDX-License-Identifier: Apache-2.0
 *
 * tree.h: the merged file system of an image, in memory: names, inodes and where their data lies,
 * not the data itself. Layers are applied to it in order. Paths come from hostile archives; they
 * can only ever name something inside this tree, because there is no other tree: ".." is refused,
 * links are resolved with the root as their root.
 */
#pragma once

#include "images/oci/limits.h"
#include "lib/err.h"

#include <sys/types.h>

struct extent {
	uint32_t lblk, pblk, len; /* blocks of 4 KiB */
};

struct xattr {
	struct xattr *next;
	char *name; /* with its prefix: "security.capability" */
	uint32_t len;
	uint8_t value[];
};

struct stamp {
	int64_t sec;
	uint32_t nsec;
};

struct dent {
	struct dent *hash_next;
	struct dent *next, *prev; /* of one directory, in order of appearance */
	struct node *dir, *node;
	uint32_t hash;
	uint32_t layer; /* the layer that wrote this name last */
	uint8_t len;
	char name[];
};

struct node {
	mode_t mode;    /* type and permissions */
	uint32_t links; /* names that point here: a directory has one; the root counts 2 */
	uint32_t uid, gid;
	uint32_t major, minor;
	struct stamp mtime, atime;
	uint64_t size; /* files; links: length of target */
	char *target;
	struct xattr *xattrs;
	struct extent *ext;
	uint32_t n_ext, cap_ext;
	/* directories */
	struct node *parent;
	struct dent *at; /* its one name; NULL for the root */
	struct dent *first, *last;
	uint32_t nsub;
	uint32_t swept; /* the layer whose whiteouts were applied: nothing older is left below */
	/* while the disk is written */
	uint32_t ino;
	struct node *next_ino;
};

struct tree {
	struct node *root;
	struct dent **hash;
	uint64_t hash_cap, names, nodes;
	/* called for the extents of every file that a later layer removed */
	void (*freed)(void *arg, const struct extent *x, uint32_t n);
	void *freed_arg;
};

int tree_init(struct tree *t);
void tree_fini(struct tree *t);

/* Where a path leads: the directory that has or would have its last component. name points into the
 * path. dir == NULL: the root itself. */
struct place {
	struct node *dir;
	const char *name;
	uint8_t len;
	struct dent *dent; /* NULL: not there */
};

enum { PLACE_MAKE = 1 }; /* make missing parents: 0755, root, time 0 */

/* The last component is not followed. -ENOENT (a parent is missing), -ENOTDIR, -EINVAL ("..", a NUL), -ENAMETOOLONG,
 * -ELOOP. */
int tree_find(struct tree *t, const char *path, size_t len, int flags, uint32_t layer,
	struct place *out, struct err *e);
/* Follows links in the last component too; NULL if there is nothing. For reading the finished tree.
 */
struct node *tree_follow(struct tree *t, const char *path);

struct node *node_new(mode_t mode);
/* Puts node under the place's name, replacing what is there (a whole subtree if need be). The name
 * counts as one link of the node. */
int tree_put(struct tree *t, const struct place *p, struct node *node, uint32_t layer);
/* Removes a name and all below it. */
void tree_drop(struct tree *t, struct dent *d);
/* Whiteouts: removes what layers before `layer` put there, and keeps what `layer` itself did (and
 * the way to it). */
void tree_white_out(struct tree *t, struct dent *d, uint32_t layer);
void tree_white_out_children(struct tree *t, struct node *dir, uint32_t layer);

struct dent *tree_lookup(struct tree *t, struct node *dir, const char *name, size_t len);
int node_add_extent(struct node *n, uint32_t lblk, uint32_t pblk, uint32_t len);
int node_set_xattr(struct node *n, const char *name, const void *value, size_t len);
void node_clear_xattrs(struct node *n);
/* drops one link; frees the node with the last one */
void node_unref(struct tree *t, struct node *n);
