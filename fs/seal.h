/* SPDX-License-Identifier: Apache-2.0
 *
 * seal.h: the jail of mayfly-fs.
 */
#pragma once

#include "lib/err.h"
#include "lib/jail.h"
#include "lib/proto_fs.h"

struct fs_jail {
	unsigned long uid; /* the first of FS_IDS user ids outside; 0: seccomp only, for tests */
	int first;         /* the first volume's descriptor */
	unsigned int n;
	bool read_only[FS_VOLUMES_MAX];
};

#define FS_IDS    65536u /* user and group ids of a guest */
#define FS_NOFILE 65536u

/* Gives up everything but the volumes, and makes /proc/self/fd the working folder. */
int fs_seal(const struct fs_jail *j, struct err *e);

#define FS_RULES_MAX 80
size_t fs_rules(struct jail_rule to[static FS_RULES_MAX]);
