/* SPDX-License-Identifier: Apache-2.0
 *
 * users.c: passwd and group lines. Loop and job threads. The texts are the image's: any bytes, bounded by text_load.
 */
#include "agent/users.h"

#include <stdio.h>
#include <string.h>

#include "agent/text.h"

#define USERDB_MAX (1u << 20)
#define FIELDS_MAX 7

struct field {
	const char *p;
	size_t n;
};

void userdb_load(struct userdb *db)
{
	db->passwd = text_load("/etc/passwd", USERDB_MAX, NULL);
	db->group = text_load("/etc/group", USERDB_MAX, NULL);
}

void userdb_free(struct userdb *db)
{
	free(db->passwd);
	free(db->group);
	*db = (struct userdb){0};
}

/* The next line with at least `want` fields; NULL at the end. */
static const char *next_line(const char *s, struct field f[FIELDS_MAX], size_t want)
{
	while (s && *s) {
		const char *end = s + strcspn(s, "\n");
		size_t n = 0;

		for (const char *p = s; n < FIELDS_MAX; n++) {
			size_t k = 0;

			while (p + k < end && p[k] != ':')
				k++;
			f[n] = (struct field){p, k};
			if (p + k == end) {
				n++;
				break;
			}
			p += k + 1;
		}
		s = *end ? end + 1 : end;
		if (n >= want && f[0].n > 0 && *f[0].p != '#')
			return s;
	}
	return NULL;
}

static bool field_is(const struct field *f, const char *s)
{
	return f->n == strlen(s) && !memcmp(f->p, s, f->n);
}

static bool field_id(const struct field *f, uint32_t *id)
{
	char num[12];
	uint64_t v;

	if (f->n >= sizeof(num))
		return false;
	memcpy(num, f->p, f->n);
	num[f->n] = 0;
	/* the last number means "none" to the kernel */
	if (!text_u64(num, UINT32_MAX - 1u, &v))
		return false;
	*id = (uint32_t)v;
	return true;
}

static bool field_copy(const struct field *f, char *to, size_t cap)
{
	if (f->n >= cap)
		return false;
	memcpy(to, f->p, f->n);
	to[f->n] = 0;
	return true;
}

/* By name, or by uid when name is NULL. */
static bool find_user(const struct userdb *db, const char *name, uid_t uid, struct user *u)
{
	struct field f[FIELDS_MAX];
	uint32_t id, gid;

	for (const char *s = next_line(db->passwd, f, 6); s; s = next_line(s, f, 6)) {
		if (!field_id(&f[2], &id) || !field_id(&f[3], &gid))
			continue;
		if (name ? !field_is(&f[0], name) : id != uid)
			continue;
		u->uid = id;
		u->gid = gid;
		if (!field_copy(&f[0], u->name, sizeof(u->name)))
			u->name[0] = 0;
		if (f[5].n == 0 || !field_copy(&f[5], u->home, sizeof(u->home)))
			snprintf(u->home, sizeof(u->home), "/");
		return true;
	}
	return false;
}

static bool list_has(const struct field *list, const char *name)
{
	size_t n = strlen(name);

	for (const char *p = list->p, *end = p + list->n; p < end;) {
		const char *q = memchr(p, ',', (size_t)(end - p));
		size_t k = (size_t)((q ? q : end) - p);

		if (k == n && !memcmp(p, name, n))
			return true;
		p += k + 1;
	}
	return false;
}

static void find_groups(const struct userdb *db, struct user *u)
{
	struct field f[FIELDS_MAX];
	uint32_t gid;

	u->ngroups = 0;
	u->groups[u->ngroups++] = u->gid;
	if (!u->name[0])
		return;
	for (const char *s = next_line(db->group, f, 4); s; s = next_line(s, f, 4)) {
		if (u->ngroups == USER_GROUPS_MAX)
			return;
		if (field_id(&f[2], &gid) && gid != u->gid && list_has(&f[3], u->name))
			u->groups[u->ngroups++] = gid;
	}
}

bool gid_of_name(const struct userdb *db, const char *name, gid_t *gid)
{
	struct field f[FIELDS_MAX], num = {name, strlen(name)};
	uint32_t id;

	for (const char *s = next_line(db->group, f, 3); s; s = next_line(s, f, 3)) {
		if (field_is(&f[0], name) && field_id(&f[2], &id)) {
			*gid = id;
			return true;
		}
	}
	return field_id(&num, gid);
}

bool uid_of_name(const struct userdb *db, const char *name, uid_t *uid)
{
	struct field num = {name, strlen(name)};
	struct user u;

	if (find_user(db, name, 0, &u)) {
		*uid = u.uid;
		return true;
	}
	return field_id(&num, uid);
}

void user_by_id(const struct userdb *db, uid_t uid, gid_t gid, struct user *u)
{
	if (!find_user(db, NULL, uid, u)) {
		*u = (struct user){.uid = uid, .gid = uid};
		snprintf(u->home, sizeof(u->home), "%s", uid == 0 ? "/root" : "/");
	}
	if (gid != (gid_t)-1)
		u->gid = gid;
	find_groups(db, u);
}

int user_by_spec(const struct userdb *db, const char *spec, struct user *u)
{
	const char *colon = strchr(spec, ':');
	char name[64];
	gid_t gid = (gid_t)-1;
	uid_t uid = 0;
	size_t n = colon ? (size_t)(colon - spec) : strlen(spec);

	if (n >= sizeof(name))
		return -ENOENT;
	memcpy(name, spec, n);
	name[n] = 0;
	if (n && !uid_of_name(db, name, &uid))
		return -ENOENT;
	if (colon && colon[1] && !gid_of_name(db, colon + 1, &gid))
		return -ENOENT;
	if (n && find_user(db, name, 0, u)) {
		if (gid != (gid_t)-1)
			u->gid = gid;
		find_groups(db, u);
		return 0;
	}
	user_by_id(db, uid, gid, u);
	/* as container engines do it for a USER that is a number without an entry */
	if (gid == (gid_t)-1 && !u->name[0])
		u->gid = u->groups[0] = 0;
	return 0;
}

void name_of_uid(const struct userdb *db, uid_t uid, char to[64])
{
	struct user u;

	if (find_user(db, NULL, uid, &u) && u.name[0])
		snprintf(to, 64, "%s", u.name);
	else
		snprintf(to, 64, "%u", uid);
}

void name_of_gid(const struct userdb *db, gid_t gid, char to[64])
{
	struct field f[FIELDS_MAX];
	uint32_t id;

	for (const char *s = next_line(db->group, f, 3); s; s = next_line(s, f, 3))
		if (field_id(&f[2], &id) && id == gid && field_copy(&f[0], to, 64))
			return;
	snprintf(to, 64, "%u", gid);
}
