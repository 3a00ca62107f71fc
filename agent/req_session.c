/* SPDX-License-Identifier: Apache-2.0
 *
 * req_session.c: requests about sessions. The loop's thread. Every payload is the host's: parsed whole before anything is done, and
 * refused with EPROTO if something is missing or left over.
 */
#include "agent/req_session.h"

#include <string.h>

#include "agent/exec.h"
#include "agent/fsutil.h"
#include "agent/isolate.h"
#include "agent/jobs.h"
#include "agent/request.h"
#include "agent/session.h"
#include "agent/terminal.h"

/* Makes a session's directory; in a thread, as its file system may hang. */
static void run_session_dir(struct job *j)
{
	char path[AGENT_PATH_MAX];
	bool made;
	int rc;

	if (!cur_str(&j->body, path, sizeof(path))) {
		job_fail(j, ENAMETOOLONG, AGENT_STEP_CWD,
			"the path of the session's directory is too long");
		return;
	}
	rc = fs_make_dirs(path, NULL, &made);
	if (rc < 0)
		job_fail(j, rc, AGENT_STEP_CWD, "%s: %s", path, strerror(-rc));
}

/* The error was answered in this turn of the loop: no request can have used the session since. */
static void session_dir_done(struct agent *a, struct job *j)
{
	_cleanup_free_ char *name = j->arg;

	if (j->code)
		(void)session_destroy(a, name);
}

static void session_dir(
	struct agent *a, struct conn *c, uint32_t id, const char *name, const char *path)
{
	struct cur body;
	struct buf b;
	struct job *j;

	buf_init(&b, AGENT_PATH_MAX + 16);
	buf_str(&b, path);
	body = cur_of(b.p, b.len);
	j = job_create(a, c, id, AGENT_SESSION_NEW, &body, run_session_dir);
	buf_fini(&b);
	if (!j) {
		(void)session_destroy(a, name);
		return;
	}
	j->arg = strdup(name);
	j->done = session_dir_done;
	if (j->arg && job_submit(j) == 0)
		return;
	free(j->arg);
	job_free(j);
	(void)session_destroy(a, name);
	conn_error(c, id, EAGAIN, AGENT_STEP_CWD, "no thread can be started");
}

void session_req_free(struct session_req *r)
{
	free(r->terminal.command);
	env_unref(r->terminal.env);
	iso_req_free(&r->iso);
	free(r->note);
	*r = (struct session_req){0};
}

static char *take_text(struct cur *b, size_t max)
{
	size_t n;
	const char *s = cur_strp(b, &n, max);

	if (!s || memchr(s, 0, n)) {
		b->bad = true;
		return NULL;
	}
	return strndup(s, n);
}

int session_parse(struct cur *b, uint32_t version, struct session_req *r)
{
	int rc = 0;

	*r = (struct session_req){.kind = AGENT_SE_SHELL};
	cur_str(b, r->id, sizeof(r->id));
	cur_str(b, r->cwd, sizeof(r->cwd));
	if (version >= 3 && cur_left(b))
		r->kind = cur_u32(b);
	if (r->kind == AGENT_SE_TERMINAL) {
		r->terminal.command = take_text(b, AGENT_FRAME_MAX);
		r->terminal.uid = cur_u32(b);
		r->terminal.gid = cur_u32(b);
		cur_str(b, r->terminal.user, sizeof(r->terminal.user));
		r->terminal.env = env_new();
		rc = r->terminal.env && r->terminal.command ? env_parse(r->terminal.env, b)
							    : -ENOMEM;
		r->note = take_text(b, AGENT_NOTE_MAX);
	} else if (r->kind == AGENT_SE_ISOLATED) {
		rc = iso_req_parse(b, &r->iso);
		if (rc == 0)
			r->note = take_ptr(r->iso.note);
	} else if (r->kind != AGENT_SE_SHELL) {
		rc = -EINVAL;
	}
	if (b->bad || (rc == 0 && !cur_done(b)))
		rc = -EPROTO;
	if (rc == 0 && r->kind == AGENT_SE_ISOLATED && r->cwd[0] && r->cwd[0] != '/')
		rc = -EINVAL;
	if (rc < 0)
		session_req_free(r);
	return rc;
}

/* The session's directory, with variables expanded. */
static int session_cwd_of(
	struct agent *a, const struct session_req *r, struct buf *path, char missing[64])
{
	struct envset *env = exec_base_env(a);
	int rc = 0;

	if (!env)
		rc = -ENOMEM;
	else if (r->cwd[0])
		rc = env_expand(env, r->cwd, exec_home(a, env), path, missing);
	else
		buf_printf(path, "%s", a->workdir && *a->workdir ? a->workdir : "/");
	env_unref(env);
	return rc;
}

/* *later: the request is answered by the session. */
static int session_begin(struct agent *a, struct conn *c, uint32_t id, struct session_req *r,
	const char *cwd, bool *later, struct err *e)
{
	struct session *s;
	int rc = session_make(a, r->id, cwd, (enum agent_session_kind)r->kind, &s);

	if (rc < 0)
		return err_set(e, -rc, "session %s", r->id);
	s->note = take_ptr(r->note);
	if (r->kind == AGENT_SE_TERMINAL && terminal_make(s, &r->terminal) < 0)
		rc = err_plain(e, ENOMEM, "no memory for a session");
	*later = r->kind == AGENT_SE_ISOLATED;
	if (*later)
		rc = isolate_make(s, c, id, &r->iso, e);
	if (rc < 0)
		(void)session_destroy(a, r->id);
	return rc;
}

void req_session_new(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	struct session_req r;
	struct err e = {0};
	bool later = false;
	char missing[64];
	struct buf path;
	int rc;

	if (a->frozen) {
		conn_error(c, id, EBUSY, AGENT_STEP_FREEZE, "the sandbox is frozen");
		return;
	}
	rc = session_parse(b, conn_version(c), &r);
	if (rc == 0 && r.kind == AGENT_SE_ISOLATED && !a->opts.state_dir) {
		session_req_free(&r);
		rc = -ENOTSUP;
	}
	if (rc < 0) {
		a->n.frames_bad += rc == -EPROTO;
		conn_error(c, id, rc, AGENT_STEP_NONE,
			"the session request is not valid, or sessions of this kind are not "
			"available");
		return;
	}
	buf_init(&path, AGENT_PATH_MAX);
	rc = session_cwd_of(a, &r, &path, missing);
	if (rc == -ENOENT) {
		conn_error(c, id, EINVAL, AGENT_STEP_CWD, "variable %s is not set", missing);
	} else {
		if (rc == 0)
			rc = session_begin(a, c, id, &r, buf_cstr(&path), &later, &e);
		if (rc < 0)
			conn_error(c, id, rc, AGENT_STEP_CWD, "%s", e.msg);
		else if (!later)
			session_dir(a, c, id, r.id, buf_cstr(&path));
	}
	buf_fini(&path);
	session_req_free(&r);
}

void req_session_del(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	char name[64];

	if (!cur_str(b, name, sizeof(name)) || !cur_done(b))
		req_bad(a, c, id);
	else if (session_destroy(a, name) < 0)
		conn_error(c, id, ENOENT, AGENT_STEP_SESSION, "no session %s", name);
	else
		conn_ok(c, id, NULL);
}

static void put_session(struct buf *b, const struct session *s)
{
	uint32_t state = 0, code = 0;
	bool runs = s->run && !s->run->exited, dead = s->iso && isolate_is_dead(s->iso);

	if (s->terminal) {
		runs = terminal_runs(s->terminal);
		terminal_exit(s->terminal, &state, &code);
	} else if (s->iso) {
		runs = isolate_runs(s->iso);
		isolate_exit(s->iso, &state, &code);
	}
	buf_str(b, s->id);
	buf_u32(b, s->kind);
	buf_u32(b, dead ? AGENT_SE_DEAD : AGENT_SE_ACTIVE);
	buf_u32(b, runs);
	buf_u64(b, s->created_ns);
	buf_u64(b, s->last_run_ns);
	buf_u64(b, s->iso ? isolate_idle_left_ms(s->iso) : UINT64_MAX);
	buf_u64(b, s->terminal ? terminal_offset(s->terminal) : 0);
	buf_u32(b, state);
	buf_u32(b, code);
}

void req_session_list(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	struct buf ok;
	uint32_t n = 0;

	if (!cur_done(b)) {
		req_bad(a, c, id);
		return;
	}
	for (struct session *s = a->sessions; s; s = s->next)
		n++;
	buf_init(&ok, AGENT_FRAME_MAX);
	buf_u32(&ok, n);
	for (struct session *s = a->sessions; s; s = s->next)
		put_session(&ok, s);
	conn_ok(c, id, &ok);
	buf_fini(&ok);
}

/* Reads the id that begins a request. NULL: an error was answered. last: nothing follows. */
static struct session *take_session(
	struct agent *a, struct conn *c, uint32_t id, struct cur *b, bool last)
{
	char name[64];
	struct session *s;

	if (!cur_str(b, name, sizeof(name)) || (last && !cur_done(b))) {
		req_bad(a, c, id);
		return NULL;
	}
	s = session_find(a, name);
	if (!s)
		conn_error(c, id, ENOENT, AGENT_STEP_SESSION, "no session %s", name);
	return s;
}

void req_session_get(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	struct session *s = take_session(a, c, id, b, true);
	struct buf ok;

	if (!s)
		return;
	buf_init(&ok, AGENT_FRAME_MAX);
	put_session(&ok, s);
	buf_str(&ok, s->note ? s->note : "");
	conn_ok(c, id, &ok);
	buf_fini(&ok);
}

void req_session_attach(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	struct session *s = take_session(a, c, id, b, false);
	uint32_t flags = cur_u32(b);
	uint64_t since = cur_u64(b);
	uint16_t cols = cur_u16(b), rows = cur_u16(b);

	if (!s)
		return;
	if (!cur_done(b) || (flags & ~(AGENT_SA_VIEW | AGENT_SA_TAKE | AGENT_SA_PIPE)))
		req_bad(a, c, id);
	else if (conn_proc(c))
		conn_error(c, id, EBUSY, AGENT_STEP_BUSY, "this connection has a process");
	else if (s->kind != AGENT_SE_TERMINAL)
		conn_error(c, id, EINVAL, AGENT_STEP_NONE, "session %s is not a terminal", s->id);
	else
		terminal_attach(s, c, id, flags, since, cols, rows);
}
