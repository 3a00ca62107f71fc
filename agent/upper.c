/* SPDX-License-Identifier: Apache-2.0
 *
 * upper.c: diff and commit of an overlay. A job's thread; the session may continue meanwhile, and a
 * commit takes what it finds. Both trees are hostile: the upper one was written by the session's
 * programs, the lower one by the sandbox's. So every step is by descriptor and name, no link is
 * followed, and a set-id bit is not carried over: in the session it means nothing, outside it
 * would.
 *
 * An overlay's upper directory: a character device 0:0 is a file that was deleted, a directory with the attribute trusted.overlay.opaque replaced
 * the lower one, everything else is what is seen.
 */
#include "agent/upper.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "agent/fsutil.h"
#include "agent/isolate.h"
#include "agent/jobs.h"
#include "agent/request.h"
#include "agent/session.h"
#include "agent/tree.h"

#define DEPTH_MAX   100u
#define ENTRIES_MAX 1000000u
#define PATH_CAP    AGENT_PATH_MAX

struct walk {
	struct job *j;
	struct userdb db;
	char path[PATH_CAP]; /* relative to the mount */
	size_t path_len;
	uint64_t entries;
	/* diff: offset of this frame's count */
	size_t count_at;
	uint32_t count, max;
	bool more;
	/* called for each entry; low -1: the directory below does not exist */
	int (*visit)(struct walk *w, int up, int low, const char *name, const struct stat *st);
};

struct overlay {
	char upper[700], lower[AGENT_PATH_MAX], id[64];
};

static bool is_whiteout(const struct stat *st)
{
	return S_ISCHR(st->st_mode) && st->st_rdev == 0;
}

static bool is_opaque(int dir)
{
	char v = 0;

	return fgetxattr(dir, "trusted.overlay.opaque", &v, 1) == 1 && v == 'y';
}

/* Goes through a directory of the upper tree. low: the same one below, -1: there is none. `up` is closed. */
static int walk_dir(struct walk *w, int up, int low, unsigned depth);

static int walk_below(struct walk *w, int up, int low, const char *name, unsigned depth)
{
	_cleanup_close_ int l = -1;
	int u = openat(up, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (u < 0)
		return -errno;
	if (low >= 0)
		l = openat(low, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return walk_dir(w, u, l, depth + 1);
}

static int walk_dir(struct walk *w, int up, int low, unsigned depth)
{
	DIR *d = fdopendir(up);
	size_t keep = w->path_len;
	int rc = depth > DEPTH_MAX ? -ELOOP : 0;

	if (!d) {
		close(up);
		return -ENOMEM;
	}
	for (struct dirent *e; rc == 0 && !w->more && (e = readdir(d));) {
		struct stat st;
		int n;

		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		if (fstatat(up, e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			continue; /* gone meanwhile */
		n = snprintf(
			w->path + keep, sizeof(w->path) - keep, "%s%s", keep ? "/" : "", e->d_name);
		if (n < 0 || (size_t)n >= sizeof(w->path) - keep) {
			rc = -ENAMETOOLONG;
			break;
		}
		w->path_len = keep + (size_t)n;
		if (++w->entries > ENTRIES_MAX)
			rc = -E2BIG;
		if (rc == 0)
			rc = w->visit(w, up, low, e->d_name, &st);
		if (rc == 0 && S_ISDIR(st.st_mode))
			rc = walk_below(w, up, low, e->d_name, depth);
		w->path_len = keep;
		w->path[keep] = 0;
	}
	closedir(d);
	return rc;
}

/* ---- diff ---- */

static void frame_open(struct walk *w)
{
	buf_u32(&w->j->out, 0); /* more */
	w->count_at = w->j->out.len;
	w->count = 0;
	buf_u32(&w->j->out, 0);
}

static void frame_close(struct walk *w)
{
	uint8_t *p = w->j->out.p;

	if (w->j->out.bad || !p)
		return;
	p[w->count_at - 4] = w->more;
	for (size_t i = 0; i < 4; i++)
		p[w->count_at + i] = (uint8_t)(w->count >> (8 * i));
}

static int put_change(struct walk *w, int up, const char *name, const struct stat *st, char change)
{
	if (!w->max) {
		w->more = true;
		return 0;
	}
	w->max--;
	if (w->j->out.len + 2 * AGENT_PATH_MAX + 512 > AGENT_FRAME_MAX) {
		frame_close(w);
		job_more(w->j);
		frame_open(w);
	}
	buf_u8(&w->j->out, (uint8_t)change);
	fs_put_item(&w->j->out, &w->db, w->path, st, up, name);
	w->count++;
	return w->j->out.bad ? -ENOMEM : 0;
}

static int visit_diff(struct walk *w, int up, int low, const char *name, const struct stat *st)
{
	struct stat was;
	bool there = low >= 0 && fstatat(low, name, &was, AT_SYMLINK_NOFOLLOW) == 0;

	if (is_whiteout(st))
		return there ? put_change(w, low, name, &was, 'D') : 0;
	if (!there)
		return put_change(w, up, name, st, 'A');
	/* a directory in both trees counts only if it was replaced or changed itself: the upper one
	 * may be there only because of what is in it */
	if (S_ISDIR(st->st_mode) && S_ISDIR(was.st_mode) && st->st_mode == was.st_mode &&
		st->st_uid == was.st_uid && st->st_gid == was.st_gid) {
		_cleanup_close_ int d =
			openat(up, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

		if (d < 0 || !is_opaque(d))
			return 0;
	}
	return put_change(w, up, name, st, 'M');
}

/* ---- commit ---- */

static int remove_at(int dir, const char *name)
{
	_cleanup_close_ int fd = -1;
	int rc;

	if (unlinkat(dir, name, 0) == 0 || errno == ENOENT)
		return 0;
	if (errno != EISDIR && errno != EPERM)
		return -errno;
	fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	rc = tree_empty(fd);
	if (rc < 0)
		return rc;
	return unlinkat(dir, name, AT_REMOVEDIR) < 0 && errno != ENOENT ? -errno : 0;
}

/* Copies a file without its holes: it may be far larger than what is stored of it. */
static int copy_bytes(int from, int to, off_t size)
{
	_cleanup_free_ uint8_t *p = malloc(KIB(128));

	if (!p)
		return -ENOMEM;
	for (off_t at = 0, end; at < size; at = end) {
		ssize_t n = 0;

		at = lseek(from, at, SEEK_DATA);
		if (at < 0 &&
			errno == ENXIO) /* only a hole is left, or the file is shorter by now */
			break;
		end = at < 0 ? at : lseek(from, at, SEEK_HOLE);
		if (end < 0)
			return -errno;
		for (; at < end; at += n) {
			int rc;

			n = pread(from, p, MIN(KIB(128), (size_t)(end - at)), at);
			if (n <= 0)
				break;
			rc = pwrite_full(to, p, (size_t)n, at);
			if (rc < 0)
				return rc;
		}
		if (n < 0)
			return -errno;
	}
	return ftruncate(to, size) < 0 ? -errno : 0;
}

#define ATTR_MAX KIB(64) /* the kernel's limit of a list and of a value */

static int copy_user_attributes(int from, int to)
{
	_cleanup_free_ char *names = malloc(ATTR_MAX), *value = malloc(ATTR_MAX);
	ssize_t n = names && value ? flistxattr(from, names, ATTR_MAX) : 0;

	if (!names || !value)
		return -ENOMEM;
	for (const char *k = names; n > 0 && k < names + n; k += strlen(k) + 1) {
		ssize_t v = strncmp(k, "user.", 5) ? -1 : fgetxattr(from, k, value, ATTR_MAX);

		if (v >= 0 && fsetxattr(to, k, value, (size_t)v, 0) < 0)
			log_debug("attribute %s: %s", k, strerror(errno));
	}
	return 0;
}

static int apply_owner(int fd, const struct stat *st)
{
	struct timespec t[2] = {st->st_atim, st->st_mtim};

	if (fchown(fd, st->st_uid, st->st_gid) < 0 || fchmod(fd, st->st_mode & 01777) < 0)
		return -errno;
	return futimens(fd, t) < 0 ? -errno : 0;
}

/* A new file beside the old one takes its place in one step. */
static int commit_file(int up, int low, const char *name, const struct stat *st)
{
	_cleanup_close_ int from = openat(up, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK),
			    to = -1;
	char tmp[40];
	uint64_t r;
	int rc;

	if (from < 0)
		return -errno;
	random_bytes(&r, sizeof(r));
	snprintf(tmp, sizeof(tmp), ".mayfly-%016llx", (unsigned long long)r);
	to = openat(low, tmp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (to < 0)
		return -errno;
	rc = copy_bytes(from, to, st->st_size);
	if (rc == 0)
		rc = copy_user_attributes(from, to);
	if (rc == 0)
		rc = apply_owner(to, st);
	if (rc == 0 && renameat(low, tmp, low, name) < 0) {
		/* a directory stood there */
		rc = errno == EISDIR ? remove_at(low, name) : -errno;
		if (rc == 0 && renameat(low, tmp, low, name) < 0)
			rc = -errno;
	}
	if (rc < 0)
		unlinkat(low, tmp, 0);
	return rc;
}

static int commit_dir(int up, int low, const char *name, const struct stat *st)
{
	_cleanup_close_ int u = openat(up, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC),
			    l = -1;
	struct stat was;
	bool there = fstatat(low, name, &was, AT_SYMLINK_NOFOLLOW) == 0;
	int rc = u < 0 ? -errno : 0;

	if (rc == 0 && there && (!S_ISDIR(was.st_mode) || is_opaque(u))) {
		rc = remove_at(low, name);
		there = false;
	}
	if (rc == 0 && !there && mkdirat(low, name, 0700) < 0)
		rc = -errno;
	if (rc == 0) {
		l = openat(low, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		rc = l < 0 ? -errno : apply_owner(l, st);
	}
	return rc;
}

static int commit_link(int up, int low, const char *name, const struct stat *st)
{
	char target[AGENT_PATH_MAX];
	ssize_t n = readlinkat(up, name, target, sizeof(target) - 1);
	int rc = n < 0 ? -errno : remove_at(low, name);

	if (rc < 0)
		return rc;
	target[n] = 0;
	if (symlinkat(target, low, name) < 0 ||
		fchownat(low, name, st->st_uid, st->st_gid, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	return 0;
}

static int visit_commit(struct walk *w, int up, int low, const char *name, const struct stat *st)
{
	if (low < 0) /* somebody took the directory away that was just made */
		return -ENOENT;
	if (is_whiteout(st))
		return remove_at(low, name);
	if (S_ISREG(st->st_mode))
		return commit_file(up, low, name, st);
	if (S_ISDIR(st->st_mode))
		return commit_dir(up, low, name, st);
	if (S_ISLNK(st->st_mode))
		return commit_link(up, low, name, st);
	w->entries--; /* not copied: a FIFO or a socket belongs to a running program */
	return 0;
}

/* ---- both ---- */

static void run_walk(struct job *j, struct walk *w)
{
	struct overlay *o = j->arg;
	_cleanup_close_ int low = open(o->lower, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int up = open(o->upper, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), rc;
	struct stat st = {0};
	char id[64];

	if (up < 0 || low < 0) {
		fs_fail(j, errno, up < 0 ? o->upper : o->lower);
		if (up >= 0)
			close(up);
		return;
	}
	w->j = j;
	rc = fstat(low, &st);
	snprintf(id, sizeof(id), "%llu:%llu", (unsigned long long)st.st_dev,
		(unsigned long long)st.st_ino);
	if (rc < 0 || strcmp(id, o->id) != 0) {
		close(up);
		job_fail(j, ESTALE, AGENT_STEP_PATH,
			"%s is no longer the directory under the overlay", o->lower);
		return;
	}
	rc = walk_dir(w, up, low, 0);
	if (rc < 0)
		fs_fail(j, rc, w->path);
}

static void run_diff(struct job *j)
{
	struct walk w = {.visit = visit_diff, .max = cur_u32(&j->body), .j = j};

	if (!cur_done(&j->body)) {
		job_fail(j, EPROTO, AGENT_STEP_NONE, "the diff request is not valid");
		return;
	}
	userdb_load(&w.db);
	frame_open(&w);
	run_walk(j, &w);
	frame_close(&w);
	userdb_free(&w.db);
}

static void run_commit(struct job *j)
{
	struct walk w = {.visit = visit_commit};

	if (!cur_done(&j->body)) {
		job_fail(j, EPROTO, AGENT_STEP_NONE, "the commit request is not valid");
		return;
	}
	run_walk(j, &w);
	buf_u64(&j->out, w.entries);
}

static void upper_done(struct agent *a, struct job *j)
{
	free(j->arg);
}

static void upper_request(struct agent *a, struct conn *c, uint32_t id, struct cur *b,
	uint16_t type, void (*run)(struct job *j))
{
	struct overlay *o = calloc(1, sizeof(*o));
	char name[64], dest[AGENT_PATH_MAX];
	struct session *s;
	struct job *j;

	cur_str(b, name, sizeof(name));
	cur_str(b, dest, sizeof(dest));
	s = b->bad ? NULL : session_find(a, name);
	if (b->bad) {
		req_bad(a, c, id);
	} else if (a->frozen) {
		conn_error(c, id, EBUSY, AGENT_STEP_FREEZE, "the sandbox is frozen");
	} else if (!s || !s->iso) {
		conn_error(c, id, ENOENT, AGENT_STEP_SESSION, "no isolated session %s", name);
	} else if (!o || isolate_overlay(s->iso, dest, o->upper, o->lower, o->id) < 0) {
		conn_error(c, id, EINVAL, AGENT_STEP_NONE,
			"session %s has no lasting overlay on %s", name, *dest ? dest : "any path");
	} else if (type == AGENT_SESSION_COMMIT && s->run && !s->run->exited) {
		conn_error(c, id, EBUSY, AGENT_STEP_BUSY, "session %s is busy", name);
	} else if ((j = job_create(a, c, id, type, b, run))) {
		j->arg = take_ptr(o);
		j->done = upper_done;
		j->own_thread = true;
		if (job_submit(j) < 0) {
			free(j->arg);
			job_free(j);
			conn_error(c, id, EAGAIN, AGENT_STEP_NONE, "no thread can be started");
		}
	}
	free(o);
}

void req_session_diff(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	upper_request(a, c, id, b, AGENT_SESSION_DIFF, run_diff);
}

void req_session_commit(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	upper_request(a, c, id, b, AGENT_SESSION_COMMIT, run_commit);
}
