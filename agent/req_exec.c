/* SPDX-License-Identifier: Apache-2.0
 *
 * req_exec.c: requests about processes. The loop's thread. Every payload is the
 * host's: parsed whole before anything is done, and refused with EPROTO if something is missing or
 * left over.
 */
#include "agent/req_exec.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/exec.h"
#include "agent/hooks.h"
#include "agent/isolate.h"
#include "agent/life.h"
#include "agent/procio.h"
#include "agent/request.h"

#define LOGS_MAX KIB(192)

struct exec_answer {
	uint64_t conn;
	uint32_t id;
};

static void exec_started(struct agent *a, struct proc *p, void *arg, int code, enum agent_step step,
	const char *text)
{
	struct exec_answer *w = arg;
	struct conn *c = conn_find(a, w->conn);
	struct buf b;

	if (c && code) {
		conn_set_proc(c, NULL);
		conn_error(c, w->id, code, step, "%s", text);
	} else if (c) {
		buf_init(&b, 16);
		buf_u32(&b, (uint32_t)p->pid);
		conn_ok(c, w->id, &b);
		buf_fini(&b);
	}
	free(w);
}

void req_exec(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	enum agent_step step = AGENT_STEP_NONE;
	struct exec_answer *w;
	struct exec_req r;
	struct err e = {0};
	int rc = exec_parse(b, conn_version(c), &r);

	if (rc < 0) {
		conn_error(c, id, rc, AGENT_STEP_NONE, "the exec request is not valid");
		return;
	}
	if (conn_kind(c) == AGENT_CONN_EXEC ? conn_proc(c) != NULL
					    : !(r.flags & AGENT_X_BACKGROUND)) {
		conn_error(
			c, id, EINVAL, AGENT_STEP_NONE, "this connection cannot carry its output");
		exec_req_free(&r);
		return;
	}
	w = calloc(1, sizeof(*w));
	if (w) {
		*w = (struct exec_answer){.conn = conn_number(c), .id = id};
		rc = exec_start(a, &r, exec_started, w, &step, &e);
	} else {
		rc = err_plain(&e, ENOMEM, "no memory");
	}
	if (rc == 0 && conn_kind(c) == AGENT_CONN_EXEC)
		procio_attach(proc_find(a, r.id), c, 0, 0);
	exec_req_free(&r);
	if (rc < 0) {
		free(w);
		conn_error(c, id, rc, step, "%s", e.msg);
	}
}

/* Reads the exec id that begins many requests. NULL: an error was answered. last: nothing follows. */
static struct proc *take_proc(
	struct agent *a, struct conn *c, uint32_t id, struct cur *b, bool last)
{
	char name[PROC_ID_MAX + 1];
	struct proc *p;

	if (!cur_str(b, name, sizeof(name)) || (last && !cur_done(b))) {
		req_bad(a, c, id);
		return NULL;
	}
	p = proc_find(a, name);
	if (!p)
		conn_error(c, id, ENOENT, AGENT_STEP_NONE, "no process %s", name);
	return p;
}

void exec_attach(struct agent *a, struct conn *c, uint32_t id, const char *name, uint64_t out,
	uint64_t err, uint32_t flags)
{
	struct proc *p = proc_find(a, name);
	struct buf ok;
	int rc;

	if (!p) {
		conn_error(c, id, ENOENT, AGENT_STEP_NONE, "no process %s", name);
		return;
	}
	if (conn_proc(c)) {
		conn_error(c, id, EBUSY, AGENT_STEP_BUSY, "this connection has a process");
		return;
	}
	/* a background process's output is in its file: this connection carries its end only, which
	 * is how the daemon learns it */
	rc = flags & AGENT_AT_WATCH ? procio_watch(p, c, out) : procio_attach(p, c, out, err);
	if (rc < 0) {
		conn_error(c, id, rc, AGENT_STEP_NONE, "%s",
			rc == -EPIPE ? "the output from there on is gone"
				     : "the process has no terminal, or too many viewers");
		return;
	}
	buf_init(&ok, 16);
	buf_u32(&ok, p->state);
	conn_ok(c, id, &ok);
	buf_fini(&ok);
	procio_pump(p);
}

void req_attach(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	char name[PROC_ID_MAX + 1];
	uint64_t out, err;
	uint32_t flags = 0;

	cur_str(b, name, sizeof(name));
	out = cur_u64(b);
	err = cur_u64(b);
	if (cur_left(b))
		flags = cur_u32(b);
	if (!cur_done(b) || (flags & ~AGENT_AT_WATCH))
		req_bad(a, c, id);
	/* the entrypoint may wait for preStart: then the request waits with it */
	else if (strcmp(name, ENTRYPOINT_ID) != 0 || !hooks_wait(a, c, id))
		exec_attach(a, c, id, name, out, err, flags);
}

void req_ack(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	uint64_t out = cur_u64(b), err = cur_u64(b);

	if (!cur_done(b))
		req_bad(a, c, id);
	else if (conn_proc(c))
		procio_ack(conn_proc(c), out, err);
}

void req_stdin(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	if (conn_proc(c))
		procio_stdin(conn_proc(c), c, b->p, cur_left(b));
}

void req_detach(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	struct proc *p = take_proc(a, c, id, b, true);

	if (!p)
		return;
	procio_discard(p);
	conn_ok(c, id, NULL);
}

void req_signal(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	struct proc *p = take_proc(a, c, id, b, false);
	uint32_t sig = cur_u32(b), kill_ms = cur_u32(b);
	int rc;

	if (!p)
		return;
	if (!cur_done(b) || sig < 1 || sig > 64) {
		req_bad(a, c, id);
		return;
	}
	rc = proc_signal(p, (int)sig);
	if (rc < 0) {
		conn_error(c, id, rc, AGENT_STEP_NONE, "process %s does not run", p->id);
		return;
	}
	proc_kill_after(p, kill_ms);
	conn_ok(c, id, NULL);
}

void req_status(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	struct proc *p = take_proc(a, c, id, b, true);
	struct buf ok;

	if (!p)
		return;
	buf_init(&ok, AGENT_FRAME_MAX);
	buf_u32(&ok, p->state);
	buf_u32(&ok, p->code);
	buf_u64(&ok, p->started_ns);
	buf_u64(&ok, p->finished_ns);
	buf_u64(&ok, procio_out_bytes(p));
	buf_str(&ok, p->error);
	buf_u32(&ok, p->flags);
	if (p->argv.len)
		buf_put(&ok, p->argv.p, p->argv.len);
	else
		buf_u32(&ok, 0);
	conn_ok(c, id, &ok);
	buf_fini(&ok);
}

void req_logs(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	struct proc *p = take_proc(a, c, id, b, false);
	uint64_t off = cur_u64(b), size;
	uint32_t max = cur_u32(b);
	struct buf ok;
	uint8_t *to;
	size_t n;

	if (!p)
		return;
	if (!cur_done(b)) {
		req_bad(a, c, id);
		return;
	}
	if (p->file_fd < 0) {
		conn_error(c, id, EINVAL, AGENT_STEP_NONE,
			"process %s does not run in the background", p->id);
		return;
	}
	size = procio_out_bytes(p);
	if (p->iso)
		size = MIN(size, ISO_LOG_MAX);
	n = off < size ? MIN(MIN(size - off, max), LOGS_MAX) : 0;
	buf_init(&ok, AGENT_FRAME_MAX);
	buf_u64(&ok, off + n);
	to = buf_room(&ok, n + 1);
	if (!to || (n && pread_full(p->file_fd, to, n, off) < 0)) {
		conn_error(c, id, EIO, AGENT_STEP_NONE, "the output cannot be read");
	} else {
		ok.len += n;
		conn_ok(c, id, &ok);
	}
	buf_fini(&ok);
}

void req_resize(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	struct proc *p = take_proc(a, c, id, b, false);
	uint16_t cols = cur_u16(b), rows = cur_u16(b);

	if (!p)
		return;
	if (!cur_done(b))
		req_bad(a, c, id);
	else if (procio_resize(p, cols, rows) < 0)
		conn_error(c, id, ENOTTY, AGENT_STEP_NONE, "process %s has no terminal", p->id);
	else
		conn_ok(c, id, NULL);
}

void req_execs(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	struct buf ok;
	uint32_t n = 0;

	if (!cur_done(b)) {
		req_bad(a, c, id);
		return;
	}
	buf_init(&ok, AGENT_FRAME_MAX);
	for (struct proc *p = a->procs; p && n < 3000; p = p->next)
		n++;
	buf_u32(&ok, n);
	for (struct proc *p = a->procs; n > 0; p = p->next, n--) {
		buf_str(&ok, p->id);
		buf_u32(&ok, p->flags);
		buf_u32(&ok, p->state);
	}
	conn_ok(c, id, &ok);
	buf_fini(&ok);
}

void req_forget(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	struct proc *p = take_proc(a, c, id, b, true);

	if (!p)
		return;
	if (p->terminal || (!p->exited && p->state == AGENT_RUNNING)) {
		conn_error(c, id, EBUSY, AGENT_STEP_BUSY, "process %s runs", p->id);
		return;
	}
	conn_ok(c, id, NULL);
	proc_destroy(p);
}
