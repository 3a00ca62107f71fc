/* SPDX-License-Identifier: Apache-2.0
 *
 * store_int.h: what store.c and store_list.c share.
 */
#pragma once

#include "images/store/store.h"

enum { F_BLOBS, F_IMAGES, F_NAMES, F_PINS, F_STAGING, F_LOCKS, F_PARTS, F_GRANTS, STORE_FOLDERS };

struct store {
	char path[320];
	int root, dir[STORE_FOLDERS];
};

struct name_entry {
	char name[REF_MAX], key[DIGEST_HEX];
	struct digest id;
	bool local;
};

/* flock on root/lock: LOCK_EX to remove, LOCK_SH to rely on an image that is there. Descriptor or -errno. */
int store_lock(struct store *s, int how);
int remove_tree(int dir_fd, const char *name);
/* Calls fn for each name that does not begin with a dot, until a result is not 0. */
int each_entry(int dir_fd, int (*fn)(void *arg, const char *name), void *arg);
int read_name(struct store *s, const char *hex, struct name_entry *out);
int find_name(struct store *s, const char *canonical, struct name_entry *out);
int read_config(int dir_fd, const char *name, struct image_config *out, struct err *e);
