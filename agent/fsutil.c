/* SPDX-License-Identifier: Apache-2.0
 *
 * fsutil.c: paths, items, owners, directories, atomic replacement. Job threads. Paths are the host's, the files the guest's: any name that Linux
 * allows, links anywhere. Nothing here protects the guest from itself; the credentials of the request do.
 */
#include "agent/fsutil.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "agent/env.h"
#include "agent/exec.h"

void fs_fail(struct job *j, int code, const char *path)
{
	code = code < 0 ? -code : code;
	job_fail(j, code, AGENT_STEP_PATH, "%.200s: %s", path, strerror(code));
}

bool fs_path(struct job *j, char *to)
{
	char raw[AGENT_PATH_MAX], missing[64];
	struct buf b;
	int rc;

	if (!cur_str(&j->body, raw, sizeof(raw)) || !raw[0]) {
		job_fail(j, EPROTO, AGENT_STEP_PATH, "no path");
		return false;
	}
	if (!j->env || (raw[0] != '~' && !strchr(raw, '$'))) {
		memcpy(to, raw, strlen(raw) + 1);
		return true;
	}
	buf_init(&b, AGENT_PATH_MAX);
	rc = env_expand(j->env, raw, exec_home(j->a, j->env), &b, missing);
	if (rc == 0)
		snprintf(to, AGENT_PATH_MAX, "%s", buf_cstr(&b));
	if (rc == 0 && b.bad)
		rc = -ENAMETOOLONG;
	buf_fini(&b);
	if (rc == -ENOENT)
		job_fail(j, EINVAL, AGENT_STEP_PATH, "variable %s is not set", missing);
	else if (rc < 0)
		fs_fail(j, rc, raw);
	return rc == 0;
}

static char item_type(mode_t m)
{
	return S_ISREG(m) ? 'f' : S_ISDIR(m) ? 'd' : S_ISLNK(m) ? 'l' : 'o';
}

static uint64_t time_ns(const struct timespec *t)
{
	return (uint64_t)((int64_t)t->tv_sec * 1000000000 + t->tv_nsec);
}

void fs_put_item(struct buf *b, const struct userdb *db, const char *path, const struct stat *st,
	int dir, const char *name)
{
	static const struct stat none;
	char owner[64] = "", group[64] = "", link[AGENT_PATH_MAX] = "";
	ssize_t k;

	if (st) {
		name_of_uid(db, st->st_uid, owner);
		name_of_gid(db, st->st_gid, group);
		if (S_ISLNK(st->st_mode) && (k = readlinkat(dir, name, link, sizeof(link) - 1)) > 0)
			link[k] = 0;
	} else {
		st = &none;
	}
	buf_str(b, path);
	buf_u8(b, st == &none ? 'o' : (uint8_t)item_type(st->st_mode));
	buf_u64(b, (uint64_t)st->st_size);
	buf_u64(b, time_ns(&st->st_mtim));
	buf_u64(b, time_ns(&st->st_ctim));
	buf_str(b, owner);
	buf_str(b, group);
	buf_u32(b, st->st_mode & 07777);
	buf_u32(b, st->st_uid);
	buf_u32(b, st->st_gid);
	buf_str(b, link);
}

bool fs_owner(
	struct job *j, const char *owner, const char *group, uint32_t mode, struct fs_owner *o)
{
	struct userdb db;
	bool ok = true;

	*o = (struct fs_owner){.uid = (uid_t)-1, .gid = (gid_t)-1, .mode = mode};
	if (!*owner && !*group)
		return true;
	userdb_load(&db);
	if (*owner && !uid_of_name(&db, owner, &o->uid)) {
		job_fail(j, EINVAL, AGENT_STEP_USER, "no user %s in this image", owner);
		ok = false;
	} else if (*group && !gid_of_name(&db, group, &o->gid)) {
		job_fail(j, EINVAL, AGENT_STEP_USER, "no group %s in this image", group);
		ok = false;
	}
	userdb_free(&db);
	return ok;
}

int fs_apply_owner(int fd, const struct fs_owner *o)
{
	/* the owner first: changing it takes set-id bits away */
	if ((o->uid != (uid_t)-1 || o->gid != (gid_t)-1) && fchown(fd, o->uid, o->gid) < 0)
		return -errno;
	if (o->mode != AGENT_NO_MODE && fchmod(fd, o->mode & 07777) < 0)
		return -errno;
	return 0;
}

static int made_dir(const char *path, const struct fs_owner *o, bool last)
{
	struct fs_owner own = *o;
	_cleanup_close_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	if (!last)
		own.mode = AGENT_NO_MODE;
	return fs_apply_owner(fd, &own);
}

int fs_make_dirs(const char *path, const struct fs_owner *o, bool *made)
{
	char p[AGENT_PATH_MAX];
	size_t n = strlen(path);
	struct stat st;

	*made = false;
	if (n == 0 || n >= sizeof(p))
		return n ? -ENAMETOOLONG : -ENOENT;
	if (stat(path, &st) == 0)
		return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
	memcpy(p, path, n + 1);
	while (n > 1 && p[n - 1] == '/')
		p[--n] = 0;
	for (size_t i = 1; i <= n; i++) {
		bool last = i == n;
		int rc;

		if (!last && p[i] != '/')
			continue;
		p[i] = 0;
		if (mkdir(p, 0755) == 0) {
			rc = o ? made_dir(p, o, last) : 0;
			if (rc < 0)
				return rc;
			*made = last;
		} else if (errno != EEXIST) {
			return -errno;
		} else if (last && (stat(p, &st) < 0 || !S_ISDIR(st.st_mode))) {
			return -ENOTDIR;
		}
		if (!last)
			p[i] = '/';
	}
	return 0;
}

int fs_make_parents(const char *path, const struct fs_owner *o)
{
	char p[AGENT_PATH_MAX];
	struct fs_owner own;
	char *slash;
	bool made;

	snprintf(p, sizeof(p), "%s", path);
	slash = strrchr(p, '/');
	if (!slash || slash == p)
		return 0;
	*slash = 0;
	if (o) {
		own = *o;
		own.mode = AGENT_NO_MODE; /* o's mode is for the file */
	}
	return fs_make_dirs(p, o ? &own : NULL, &made);
}

int fs_temp(const char *path, char *real, char *tmp, mode_t mode)
{
	struct stat st;
	bool old = stat(path, &st) == 0;
	uint64_t r;
	char *slash;
	int fd;

	if (old && !S_ISREG(st.st_mode))
		return S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL;
	if (!old && errno != ENOENT)
		return -errno;
	/* follow a link to its target, as writing in place would */
	if (old) {
		char *full = realpath(path, NULL);

		if (!full)
			return -errno;
		if (snprintf(real, AGENT_PATH_MAX, "%s", full) >= (int)AGENT_PATH_MAX) {
			free(full);
			return -ENAMETOOLONG;
		}
		free(full);
	} else {
		snprintf(real, AGENT_PATH_MAX, "%s", path);
	}
	random_bytes(&r, sizeof(r));
	slash = strrchr(real, '/');
	if (snprintf(tmp, AGENT_PATH_MAX, "%.*s.mayfly-%016llx",
		    slash ? (int)(slash - real + 1) : 0, real,
		    (unsigned long long)r) >= (int)AGENT_PATH_MAX)
		return -ENAMETOOLONG;
	fd = open(tmp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, old ? 0600 : mode);
	if (fd < 0)
		return -errno;
	/* fchown fails without the right to give files away. The file then belongs to the request's
	 * user, as with an editor. */
	if (old && fchown(fd, st.st_uid, st.st_gid) < 0)
		log_debug("%s: %s", tmp, strerror(errno));
	if (old && fchmod(fd, st.st_mode & 07777) < 0)
		log_debug("%s: %s", tmp, strerror(errno));
	return fd;
}

int fs_commit(const char *tmp, const char *real)
{
	int rc = rename(tmp, real) < 0 ? -errno : 0;

	if (rc < 0)
		unlink(tmp);
	return rc;
}
