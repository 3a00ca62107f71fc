/* SPDX-License-Identifier: Apache-2.0
 *
 * users.h: the image's own /etc/passwd and /etc/group, read by a parser of ours. getpwnam() needs files of libc, and the image may have no libc.
 */
#pragma once

#include "lib/base.h"

#include <sys/types.h>

#define USER_GROUPS_MAX 64

struct user {
	uid_t uid;
	gid_t gid;
	char name[64];  /* "" = the id has none */
	char home[256]; /* "/" = none */
	gid_t groups[USER_GROUPS_MAX];
	size_t ngroups;
};

/* The two texts; NULL where the image has none. */
struct userdb {
	char *passwd, *group;
};
void userdb_load(struct userdb *db);
void userdb_free(struct userdb *db);

/* "name" or "uid", then ":group" or ":gid" if there is one; "" is root. 0, -ENOENT: no such user or group. */
int user_by_spec(const struct userdb *db, const char *spec, struct user *u);
/* Numbers need no entry; gid (gid_t)-1: that of the entry, or the uid's own number. */
void user_by_id(const struct userdb *db, uid_t uid, gid_t gid, struct user *u);
/* Names or numbers. */
bool uid_of_name(const struct userdb *db, const char *name, uid_t *uid);
bool gid_of_name(const struct userdb *db, const char *name, gid_t *gid);
/* Into `to`: the name, or the number as text. */
void name_of_uid(const struct userdb *db, uid_t uid, char to[64]);
void name_of_gid(const struct userdb *db, gid_t gid, char to[64]);
