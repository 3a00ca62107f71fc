/* SPDX-License-Identifier: Apache-2.0
 *
 * tree.c: listing, searching and removing trees. Job threads. The tree is the guest's, which may
 * change it while it is walked and may have made it deep, wide or full of odd names. So every step
 * goes by a descriptor of its directory: no system call gets a path that is too long, and no link
 * below the root of the walk is followed. Answers are cut at the request's maximum, and leave out
 * what has a path longer than AGENT_PATH_MAX. A directory whose names take more than NAMES_MAX
 * bytes fails the request with E2BIG.
 */
#include "agent/tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "agent/fsutil.h"

#define NAMES_MAX  MIB(64)
#define DEPTH_MAX  2000u
#define ITEMS_MAX  200000u
#define FRAME_FULL (AGENT_FRAME_MAX - 3 * AGENT_PATH_MAX)

struct walk {
	struct job *j;
	struct userdb db;
	uint32_t max, total, in_frame;
	bool more;
	size_t n_at;      /* offset of this frame's count */
	const char *glob; /* NULL: everything */
	uint32_t depth;
	struct buf path;
};

static void frame_open(struct walk *w)
{
	buf_u32(&w->j->out, 0);
	w->n_at = w->j->out.len;
	buf_u32(&w->j->out, 0);
	w->in_frame = 0;
}

static void frame_close(struct walk *w)
{
	uint8_t *p = w->j->out.p;

	if (w->j->out.bad || !p)
		return;
	p[w->n_at - 4] = w->more;
	for (size_t i = 0; i < 4; i++)
		p[w->n_at + i] = (uint8_t)(w->in_frame >> (8 * i));
}

static void put_found(struct walk *w, const struct stat *st, int dir, const char *name)
{
	if (w->total >= w->max) {
		w->more = true;
		return;
	}
	if (w->j->out.len > FRAME_FULL) {
		frame_close(w);
		job_more(w->j);
		frame_open(w);
	}
	fs_put_item(&w->j->out, &w->db, buf_cstr(&w->path), st, dir, name);
	w->in_frame++;
	w->total++;
}

static int by_name(const void *x, const void *y)
{
	return strcmp(*(char *const *)x, *(char *const *)y);
}

struct names {
	char **v;
	size_t n, cap, bytes;
};

static void names_free(struct names *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->v[i]);
	free(l->v);
}

/* All names of a directory, sorted. Takes the descriptor. */
static int names_read(int fd, struct names *l)
{
	DIR *d = fdopendir(fd);
	int rc = 0;

	if (!d) {
		rc = -errno;
		close(fd);
		return rc;
	}
	errno = 0;
	for (struct dirent *e; rc == 0 && (e = readdir(d));) {
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		if (l->n == l->cap) {
			size_t cap = l->cap ? l->cap * 2 : 64;
			char **v = realloc(l->v, cap * sizeof(*v));

			if (!v) {
				rc = -ENOMEM;
				break;
			}
			l->v = v;
			l->cap = cap;
		}
		l->v[l->n] = strdup(e->d_name);
		l->bytes += strlen(e->d_name) + 24;
		if (!l->v[l->n])
			rc = -ENOMEM;
		else if (l->bytes > NAMES_MAX)
			rc = -E2BIG;
		if (l->v[l->n])
			l->n++;
	}
	closedir(d);
	if (rc == 0 && l->n)
		qsort(l->v, l->n, sizeof(*l->v), by_name);
	return rc;
}

static int walk_dir(struct walk *w, int fd, uint32_t depth)
{
	struct names l = {0};
	size_t keep = w->path.len;
	int dir = dup(fd), rc;

	if (dir < 0) {
		close(fd);
		return -errno;
	}
	rc = names_read(fd, &l);
	for (size_t i = 0; rc == 0 && i < l.n && !w->more && !w->j->code; i++) {
		struct stat st;
		int sub = -1;

		if (fstatat(dir, l.v[i], &st, AT_SYMLINK_NOFOLLOW) < 0)
			continue; /* gone meanwhile */
		w->path.len = keep;
		buf_printf(&w->path, "%s%s", keep && w->path.p[keep - 1] == '/' ? "" : "/", l.v[i]);
		if (w->path.bad) {
			w->path.bad = false; /* deeper than a path can say */
			continue;
		}
		if (!w->glob || (S_ISREG(st.st_mode) && tree_match(w->glob, l.v[i])))
			put_found(w, &st, dir, l.v[i]);
		if (S_ISDIR(st.st_mode) && depth < w->depth)
			sub = openat(dir, l.v[i], O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		/* a directory that may not be read is listed, but not entered */
		if (sub >= 0)
			rc = walk_dir(w, sub, depth + 1);
	}
	w->path.len = keep;
	close(dir);
	names_free(&l);
	return rc;
}

static void walk_run(struct walk *w, const char *path)
{
	struct stat st;
	int fd, rc;

	buf_init(&w->path, AGENT_PATH_MAX);
	buf_printf(&w->path, "%s", path);
	while (w->path.len > 1 && w->path.p[w->path.len - 1] == '/')
		w->path.len--;
	userdb_load(&w->db);
	frame_open(w);
	w->max = MIN(w->max, ITEMS_MAX);
	/* a link given as the root is followed; none below it is */
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 && errno == ENOTDIR && w->glob && stat(path, &st) == 0 && S_ISREG(st.st_mode)) {
		const char *base = strrchr(path, '/');

		if (tree_match(w->glob, base ? base + 1 : path))
			put_found(w, &st, AT_FDCWD, path);
		rc = 0;
	} else {
		rc = fd < 0 ? -errno : walk_dir(w, fd, 1);
	}
	if (rc < 0)
		fs_fail(w->j, rc, path);
	frame_close(w);
	userdb_free(&w->db);
	buf_fini(&w->path);
}

void tree_run_list(struct job *j)
{
	struct walk w = {.j = j};
	char path[AGENT_PATH_MAX];

	if (!fs_path(j, path))
		return;
	w.depth = cur_u32(&j->body);
	w.max = cur_u32(&j->body);
	w.depth = MIN(w.depth, DEPTH_MAX);
	if (!cur_done(&j->body) || w.depth == 0) {
		job_fail(j, j->body.bad ? EPROTO : EINVAL, AGENT_STEP_NONE,
			"the list request is not valid");
		return;
	}
	walk_run(&w, path);
}

void tree_run_search(struct job *j)
{
	struct walk w = {.j = j, .depth = DEPTH_MAX};
	char path[AGENT_PATH_MAX], glob[1024];

	if (!fs_path(j, path))
		return;
	cur_str(&j->body, glob, sizeof(glob));
	w.max = cur_u32(&j->body);
	if (!cur_done(&j->body)) {
		job_fail(j, EPROTO, AGENT_STEP_NONE, "the search request is not valid");
		return;
	}
	w.glob = glob;
	walk_run(&w, path);
}

/* Matches c with a set of a pattern. *pat points behind the '[', and afterwards behind the ']'. If
 * there is no ']', *pat becomes NULL: the '[' is an ordinary character. */
static bool match_set(const char **pat, char c)
{
	const char *p = *pat;
	bool negate = *p == '!' || *p == '^', in = false;

	if (negate)
		p++;
	for (bool first = true; *p && (first || *p != ']'); first = false) {
		char lo = *p == '\\' && p[1] ? *++p : *p, hi = lo;

		p++;
		if (*p == '-' && p[1] && p[1] != ']') {
			p++;
			hi = *p == '\\' && p[1] ? *++p : *p;
			p++;
		}
		in |= (unsigned char)c >= (unsigned char)lo &&
		      (unsigned char)c <= (unsigned char)hi;
	}
	*pat = *p == ']' ? p + 1 : NULL;
	return in != negate;
}

/* Backtracks to the last star only, so that its work is at most the product of the lengths. */
bool tree_match(const char *pat, const char *name)
{
	const char *star = NULL, *back = NULL;

	while (*name) {
		const char *p = pat;
		bool ok;

		if (*p == '*') {
			star = ++pat;
			back = name;
			continue;
		}
		if (*p == '[') {
			const char *q = p + 1;

			ok = match_set(&q, *name);
			if (!q) {
				ok = *name == '[';
				q = p + 1;
			}
			p = q;
		} else {
			if (*p == '\\' && p[1])
				p++;
			ok = *p && (*p == *name || (*p == '?' && p == pat));
			p++;
		}
		if (ok) {
			pat = p;
			name++;
		} else if (star) {
			pat = star;
			name = ++back;
		} else {
			return false;
		}
	}
	while (*pat == '*')
		pat++;
	return !*pat;
}

/* Removes what is in fd (taken). Directories more than 100 deep are moved up to `top` first, so
 * that neither descriptors nor stack grow with a tree's depth. */
static int remove_below(int fd, int top, unsigned depth, unsigned *moved)
{
	DIR *d = fdopendir(fd);
	int rc = 0;

	if (!d) {
		rc = -errno;
		close(fd);
		return rc;
	}
	for (struct dirent *e; rc == 0 && (e = readdir(d));) {
		int sub;

		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		if (unlinkat(fd, e->d_name, 0) == 0 || errno == ENOENT)
			continue;
		if (errno != EISDIR && errno != EPERM) {
			rc = -errno;
			break;
		}
		if (depth >= 100) {
			char name[40];

			snprintf(name, sizeof(name), ".mayfly-rm-%u", (*moved)++);
			if (renameat(fd, e->d_name, top, name) < 0)
				rc = -errno;
			continue;
		}
		sub = openat(fd, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (sub < 0)
			rc = -errno;
		else
			rc = remove_below(sub, top, depth + 1, moved);
		if (rc == 0 && unlinkat(fd, e->d_name, AT_REMOVEDIR) < 0 && errno != ENOENT)
			rc = -errno;
	}
	closedir(d);
	return rc;
}

int tree_empty(int top)
{
	unsigned moved = 0, before;
	int rc, fd;

	/* Again, for what was moved up. If programs fill the directory faster than we empty it, the
	 * caller's rmdir() fails with ENOTEMPTY. */
	do {
		before = moved;
		fd = openat(top, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		rc = fd < 0 ? -errno : remove_below(fd, top, 0, &moved);
	} while (rc == 0 && moved != before && moved < 1000000);
	return rc;
}

int tree_remove(const char *path)
{
	_cleanup_close_ int top = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	int rc;

	if (top < 0)
		return -errno;
	rc = tree_empty(top);
	if (rc == 0 && rmdir(path) < 0)
		rc = -errno;
	return rc;
}
