/* SPDX-License-Identifier: Apache-2.0
 *
 * terminal.c: terminal sessions. The loop's thread. What the shell writes is never looked at.
 */
#include "agent/terminal.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "agent/env.h"
#include "agent/exec.h"
#include "agent/procio.h"

struct terminal {
	struct session *s;
	struct terminal_req r;
	struct buf ring; /* the replay while no shell has it */
	uint64_t base;   /* offset of ring.p[0] */
	struct proc *p;  /* the shell, until the next one starts */
	uint32_t exit_state, exit_code;
};

int terminal_make(struct session *s, struct terminal_req *r)
{
	struct terminal *t = calloc(1, sizeof(*t));

	if (!t)
		return -ENOMEM;
	t->s = s;
	t->r = *r;
	r->command = NULL;
	r->env = NULL;
	buf_init(&t->ring, 2 * AGENT_WINDOW);
	s->terminal = t;
	return 0;
}

void terminal_free(struct terminal *t)
{
	struct proc *p;

	if (!t)
		return;
	p = t->p;
	if (p) {
		p->terminal = NULL;
		p->on_end = NULL;
		p->forget = true;
		p->id[0] = 0; /* a new session may use the id at once */
		if (p->exited)
			proc_destroy(p);
		else
			proc_signal(p, SIGKILL);
	}
	buf_fini(&t->ring);
	free(t->r.command);
	env_unref(t->r.env);
	free(t);
}

bool terminal_runs(const struct terminal *t)
{
	return t->p && !t->p->exited;
}

uint64_t terminal_offset(const struct terminal *t)
{
	return t->p ? procio_out_bytes(t->p) : t->base + t->ring.len;
}

void terminal_exit(const struct terminal *t, uint32_t *state, uint32_t *code)
{
	*state = t->exit_state;
	*code = t->exit_code;
}

/* Moves the ring to the shell (it is never copied). Its offsets continue those of the shells
 * before. */
static void terminal_give(struct terminal *t, struct proc *p)
{
	struct stream *s = &p->out[0];

	buf_fini(&s->ring);
	s->ring = t->ring;
	s->base = s->sent = t->base;
	buf_init(&t->ring, 2 * AGENT_WINDOW);
	p->terminal = t;
	t->p = p;
}

void terminal_take_back(struct terminal *t, struct proc *p)
{
	struct stream *s = &p->out[0];

	t->ring = s->ring;
	t->base = s->base;
	buf_init(&s->ring, 2 * AGENT_WINDOW);
	t->p = NULL;
}

static void terminal_ended(struct agent *a, struct proc *p)
{
	struct terminal *t = p->terminal;

	t->exit_state = p->state;
	t->exit_code = p->code;
}

struct terminal_answer {
	uint64_t conn;
	uint32_t id;
};

static void terminal_answer(struct proc *p, struct conn *c, uint32_t id, uint64_t from)
{
	struct buf b;

	buf_init(&b, 32);
	buf_u32(&b, p->flags & AGENT_X_PTY ? AGENT_TM_PTY : AGENT_TM_PIPE);
	buf_u64(&b, from);
	buf_u64(&b, procio_out_bytes(p));
	conn_ok(c, id, &b);
	buf_fini(&b);
}

static void terminal_started(struct agent *a, struct proc *p, void *arg, int code,
	enum agent_step step, const char *text)
{
	_cleanup_free_ struct terminal_answer *w = arg;
	struct conn *c = conn_find(a, w->conn);

	if (!code && p->terminal)
		p->on_end = terminal_ended;
	if (c && code) {
		conn_set_proc(c, NULL);
		conn_error(c, w->id, code, step, "%s", text);
	} else if (c) {
		terminal_answer(p, c, w->id, p->out[0].sent);
	}
}

static int terminal_start(struct terminal *t, struct conn *c, uint32_t id, uint32_t flags,
	uint16_t cols, uint16_t rows, enum agent_step *step, struct err *e)
{
	struct agent *a = t->s->a;
	char *argv[2] = {t->r.command, NULL};
	struct exec_req r = {.flags = AGENT_X_SHELL | AGENT_X_STDIN,
		.uid = t->r.uid,
		.gid = t->r.gid,
		.cwd = t->s->cwd,
		.cols = cols,
		.rows = rows,
		.argc = *t->r.command ? 1 : 0,
		.argv = argv,
		.env = t->r.env};
	struct terminal_answer *w = calloc(1, sizeof(*w));
	int rc;

	if (!w)
		return err_plain(e, ENOMEM, "no memory for a terminal");
	*w = (struct terminal_answer){.conn = conn_number(c), .id = id};
	r.flags |= flags & AGENT_SA_PIPE ? PROC_X_REPLAY : AGENT_X_PTY;
	snprintf(r.id, sizeof(r.id), "%s", t->s->id);
	snprintf(r.user, sizeof(r.user), "%s", t->r.user);
	rc = exec_start(a, &r, terminal_started, w, step, e);
	if (rc < 0) {
		free(w);
		return rc;
	}
	t->s->last_run_ns = wall_ns();
	terminal_give(t, proc_find(a, r.id));
	return 0;
}

static void terminal_view(struct terminal *t, struct conn *c, uint32_t id, uint64_t since)
{
	struct proc *p = t->p;
	int rc;

	if (!p || p->exited || !p->started) {
		conn_error(c, id, ESRCH, AGENT_STEP_NONE,
			"no shell runs in session %s: attach without the view flag to start one",
			t->s->id);
		return;
	}
	since = MAX(since, p->out[0].base);
	rc = procio_watch(p, c, since);
	if (rc < 0) {
		conn_error(c, id, rc, AGENT_STEP_BUSY,
			"session %s has %u viewers, the most allowed", t->s->id, WATCHERS_MAX);
		return;
	}
	terminal_answer(p, c, id, MIN(since, procio_out_bytes(p)));
	procio_pump(p);
}

void terminal_attach(struct session *s, struct conn *c, uint32_t id, uint32_t flags, uint64_t since,
	uint16_t cols, uint16_t rows)
{
	struct terminal *t = s->terminal;
	enum agent_step step = AGENT_STEP_NONE;
	struct err e = {0};
	bool runs;

	if (flags & AGENT_SA_VIEW) {
		terminal_view(t, c, id, since);
		return;
	}
	if (t->p && t->p->ended)
		proc_destroy(t->p); /* its replay returns to the session */
	runs = t->p != NULL;
	if (runs && (!t->p->started || (t->p->conn && !(flags & AGENT_SA_TAKE)))) {
		conn_error(c, id, EBUSY, AGENT_STEP_BUSY,
			"another connection holds session %s: attach with the take-over flag, or "
			"as a viewer",
			s->id);
		return;
	}
	if (!runs && terminal_start(t, c, id, flags, cols, rows, &step, &e) < 0) {
		conn_error(c, id, e.code, step, "%s", e.msg);
		return;
	}
	procio_evict(t->p);
	procio_attach(t->p, c, since, 0);
	t->p->in_base = t->p->in_came; /* this holder counts its own input */
	if (!runs)
		return;
	terminal_answer(t->p, c, id, t->p->out[0].sent);
	if (cols && rows)
		procio_resize(t->p, cols, rows);
	procio_pump(t->p);
}
