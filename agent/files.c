/* SPDX-License-Identifier: Apache-2.0
 *
 * files.c: file requests, except those of bulk.c and tree.c. The req_ functions run in the loop's
 * thread, the run_ ones in a job's. Payloads are the host's, hostile; the files are whatever the
 * guest made of them.
 */
#include "agent/files.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>

#include "agent/env.h"
#include "agent/exec.h"
#include "agent/fsutil.h"
#include "agent/isolate.h"
#include "agent/request.h"
#include "agent/tree.h"

#define REPLACE_MAX MIB(64)

struct job *files_job(struct agent *a, struct conn *c, uint32_t id, uint16_t type,
	const struct cur *b, void (*run)(struct job *j))
{
	struct job *j;

	if (a->frozen) {
		conn_error(c, id, EBUSY, AGENT_STEP_FREEZE, "the sandbox is frozen");
		return NULL;
	}
	j = job_create(a, c, id, type, b, run);
	if (!j)
		return NULL;
	j->uid = cur_u32(&j->body);
	j->gid = cur_u32(&j->body);
	if (j->body.bad || (j->uid == AGENT_NO_ID && j->gid != AGENT_NO_ID)) {
		job_free(j);
		req_bad(a, c, id);
		return NULL;
	}
	if (conn_view(c)) {
		j->own_thread = true;
		if (isolate_view_fds(conn_view(c)->iso, &j->ns_fd, &j->root_fd) < 0) {
			job_free(j);
			conn_error(c, id, ESRCH, AGENT_STEP_SESSION,
				"the shell of session %s has ended", conn_view(c)->id);
			return NULL;
		}
	}
	if (memchr(j->in.p, '$', j->in.len) || memchr(j->in.p, '~', j->in.len))
		j->env = exec_base_env(a);
	return j;
}

static void files_submit(struct agent *a, struct conn *c, uint32_t id, uint16_t type,
	const struct cur *b, void (*run)(struct job *j))
{
	struct job *j = files_job(a, c, id, type, b, run);

	if (j && job_submit(j) < 0) {
		job_free(j);
		conn_error(c, id, EAGAIN, AGENT_STEP_NONE, "no thread can be started");
	}
}

static void files_bad(struct job *j)
{
	job_fail(j, EPROTO, AGENT_STEP_NONE, "the request's fields are not valid");
}

/* Opens nothing and follows no link; works without the right to read the file. */
static void run_stat(struct job *j)
{
	uint32_t n = cur_u32(&j->body);
	char path[AGENT_PATH_MAX];
	struct userdb db;
	struct stat st;

	userdb_load(&db);
	for (uint32_t i = 0; i < n && !j->code; i++) {
		if (!fs_path(j, path))
			break;
		if (lstat(path, &st) < 0) {
			buf_u32(&j->out, (uint32_t)errno);
			fs_put_item(&j->out, &db, path, NULL, AT_FDCWD, path);
		} else {
			buf_u32(&j->out, 0);
			fs_put_item(&j->out, &db, path, &st, AT_FDCWD, path);
		}
	}
	userdb_free(&db);
	if (!j->code && !cur_done(&j->body))
		files_bad(j);
}

static void run_remove(struct job *j)
{
	uint32_t flags = cur_u32(&j->body), n = cur_u32(&j->body);
	char path[AGENT_PATH_MAX];
	struct stat st;

	for (uint32_t i = 0; i < n && !j->code; i++) {
		int rc = 0;

		if (!fs_path(j, path))
			return;
		if (lstat(path, &st) < 0)
			rc = -errno;
		else if (S_ISDIR(st.st_mode) && (flags & AGENT_RM_NO_DIR))
			rc = -EISDIR;
		else if (S_ISDIR(st.st_mode) && (flags & AGENT_RM_TREE))
			rc = tree_remove(path);
		else if ((S_ISDIR(st.st_mode) ? rmdir(path) : unlink(path)) < 0)
			rc = -errno;
		if (rc < 0 && !((rc == -ENOENT || rc == -ENOTDIR) && (flags & AGENT_RM_MISSING_OK)))
			fs_fail(j, rc, path);
	}
	if (!j->code && !cur_done(&j->body))
		files_bad(j);
}

/* What MKDIR and CHMOD have in common: path, owner, group, mode. */
static bool take_owned(struct job *j, char *path, struct fs_owner *o)
{
	char owner[64], group[64];
	uint32_t mode;

	if (!fs_path(j, path))
		return false;
	cur_str(&j->body, owner, sizeof(owner));
	cur_str(&j->body, group, sizeof(group));
	mode = cur_u32(&j->body);
	if (!cur_done(&j->body)) {
		files_bad(j);
		return false;
	}
	return fs_owner(j, owner, group, mode, o);
}

static void run_mkdir(struct job *j)
{
	char path[AGENT_PATH_MAX];
	struct fs_owner o;
	bool made;
	int rc;

	if (!take_owned(j, path, &o))
		return;
	rc = fs_make_dirs(path, &o, &made);
	if (rc < 0)
		fs_fail(j, rc, path);
}

static void run_chmod(struct job *j)
{
	char path[AGENT_PATH_MAX];
	struct fs_owner o;
	struct stat st;

	if (!take_owned(j, path, &o))
		return;
	/* by path: the file may be one that cannot be opened */
	if (stat(path, &st) < 0 ||
		((o.uid != (uid_t)-1 || o.gid != (gid_t)-1) && chown(path, o.uid, o.gid) < 0) ||
		(o.mode != AGENT_NO_MODE && chmod(path, o.mode & 07777) < 0))
		fs_fail(j, errno, path);
}

static void run_move(struct job *j)
{
	char src[AGENT_PATH_MAX], dest[AGENT_PATH_MAX];
	struct stat st;
	int rc;

	if (!fs_path(j, src) || !fs_path(j, dest))
		return;
	if (!cur_done(&j->body)) {
		files_bad(j);
		return;
	}
	if (lstat(src, &st) < 0) {
		fs_fail(j, errno, src);
		return;
	}
	rc = fs_make_parents(dest, NULL);
	if (rc == 0 &&
		syscall(SYS_renameat2, AT_FDCWD, src, AT_FDCWD, dest, 1 /* RENAME_NOREPLACE */) < 0)
		rc = -errno;
	if (rc < 0)
		fs_fail(j, rc, dest);
}

static char *read_whole(int fd, size_t *n)
{
	struct stat st;
	char *p;

	if (fstat(fd, &st) < 0)
		return NULL;
	if (!S_ISREG(st.st_mode) || st.st_size > (off_t)REPLACE_MAX) {
		errno = S_ISDIR(st.st_mode) ? EISDIR : S_ISREG(st.st_mode) ? EFBIG : EINVAL;
		return NULL;
	}
	*n = (size_t)st.st_size;
	p = malloc(*n + 1);
	if (p && *n && pread_full(fd, p, *n, 0) < 0) {
		free(p);
		errno = EIO;
		return NULL;
	}
	return p;
}

/* Writes text with each `from` replaced by `to`; returns how many there were, or -errno. */
static int64_t write_replaced(int fd, const char *text, size_t n, const char *from, size_t from_n,
	const char *to, size_t to_n)
{
	int64_t count = 0;
	int rc = 0;

	while (n > 0 && rc == 0) {
		const char *hit = memmem(text, n, from, from_n);
		size_t before = hit ? (size_t)(hit - text) : n;

		rc = write_full(fd, text, before);
		if (rc == 0 && hit) {
			rc = write_full(fd, to, to_n);
			count++;
			before += from_n;
		}
		text += before;
		n -= before;
	}
	return rc < 0 ? rc : count;
}

static void run_replace(struct job *j)
{
	char path[AGENT_PATH_MAX], real[AGENT_PATH_MAX], tmp[AGENT_PATH_MAX];
	_cleanup_close_ int fd = -1, to_fd = -1;
	_cleanup_free_ char *text = NULL;
	const char *from, *to;
	size_t from_n, to_n, n;
	int64_t count;
	int rc;

	if (!fs_path(j, path))
		return;
	from = cur_strp(&j->body, &from_n, AGENT_FRAME_MAX);
	to = cur_strp(&j->body, &to_n, AGENT_FRAME_MAX);
	if (!from || !to || from_n == 0 || !cur_done(&j->body)) {
		job_fail(j, from && from_n == 0 ? EINVAL : EPROTO, AGENT_STEP_NONE,
			"nothing to replace");
		return;
	}
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	text = fd < 0 ? NULL : read_whole(fd, &n);
	if (!text) {
		fs_fail(j, errno, path);
		return;
	}
	if (!memmem(text, n, from, from_n)) {
		buf_u64(&j->out, 0);
		return;
	}
	to_fd = fs_temp(path, real, tmp, 0644);
	if (to_fd < 0) {
		fs_fail(j, to_fd, path);
		return;
	}
	count = write_replaced(to_fd, text, n, from, from_n, to, to_n);
	rc = count < 0 ? (int)count : fs_commit(tmp, real);
	if (count < 0)
		unlink(tmp);
	if (rc < 0)
		fs_fail(j, rc, path);
	else
		buf_u64(&j->out, (uint64_t)count);
}

static void run_expand(struct job *j)
{
	char path[AGENT_PATH_MAX];

	if (!fs_path(j, path))
		return;
	if (!cur_done(&j->body))
		files_bad(j);
	else
		buf_str(&j->out, path);
}

void req_stat(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	files_submit(a, c, id, AGENT_STAT, b, run_stat);
}

void req_list(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	files_submit(a, c, id, AGENT_LIST, b, tree_run_list);
}

void req_search(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	files_submit(a, c, id, AGENT_SEARCH, b, tree_run_search);
}

void req_remove(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	files_submit(a, c, id, AGENT_REMOVE, b, run_remove);
}

void req_mkdir(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	files_submit(a, c, id, AGENT_MKDIR, b, run_mkdir);
}

void req_chmod(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	files_submit(a, c, id, AGENT_CHMOD, b, run_chmod);
}

void req_move(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	files_submit(a, c, id, AGENT_MOVE, b, run_move);
}

void req_replace(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	files_submit(a, c, id, AGENT_REPLACE, b, run_replace);
}

void req_expand(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	files_submit(a, c, id, AGENT_EXPAND, b, run_expand);
}
