/* SPDX-License-Identifier: Apache-2.0
 *
 * cell.c: see cell.h. A cell belongs to its context until the kernel said that it ended. If the client has not read everything by then, the cell drains:
 * it belongs to the request alone.
 */
#include "api/code/cell.h"

#include <stdio.h>
#include <string.h>

#include "api/code/contexts.h"
#include "api/core/account.h"
#include "api/code/kernel_channel.h"
#include "api/exec/execd_int.h"

#define PING_NS 3000000000ull
/* The kernel's reply comes over another of its channels than the output. After the output has ended it comes soon, or from an odd kernel never. */
#define REPLY_NS 2000000000ull
/* at one time in one sandbox */
#define CELLS_MAX 32u
#define OUT_MAX   (3 * (size_t)KERNEL_MESSAGE_MAX)

struct cell {
	struct context *ctx;     /* NULL: it drains */
	struct http_req *r;      /* NULL: the client has gone */
	char id[33], probe[33];  /* message ids: of the request, of the probe after a pause */
	char *code;              /* until it is sent */
	struct buf out, error;   /* events for the client; the error, which is sent last */
	size_t given;            /* of out */
	struct account *account; /* of the sandbox; r keeps it */
	size_t charged;
	struct timer *ping, *late;
	uint64_t begun_ns;
	bool streaming, idle, replied, counted, failed;
};

/* ---- towards the client */

/* Charges what is held for the client to the sandbox. false: there is no room. */
static bool cell_charge(struct cell *c)
{
	size_t now = c->r ? c->out.cap + c->error.cap : 0;

	if (now > c->charged && !account_take(c->account, now - c->charged))
		return false;
	if (now < c->charged)
		account_give(c->account, c->charged - now);
	c->charged = now;
	return true;
}

static void cell_free(struct cell *c)
{
	account_give(c->account, c->charged);
	if (c->ctx)
		c->ctx->cell = NULL;
	timer_remove(c->ping);
	timer_remove(c->late);
	buf_fini(&c->out);
	buf_fini(&c->error);
	free(c->code);
	free(c);
}

static void cell_finish(struct cell *c)
{
	struct http_req *r = take_ptr(c->r);

	r->user = NULL;
	cell_free(c);
	http_stream_end(r);
}

/* Gives the client what it has room for. true: all of it. */
static bool cell_pump(struct cell *c)
{
	while (c->r && c->given < c->out.len && http_stream_room(c->r) > 0) {
		size_t n = MIN(c->out.len - c->given, http_stream_room(c->r));

		http_stream_write(c->r, c->out.p + c->given, n);
		c->given += n;
	}
	if (c->r && c->given < c->out.len)
		return false;
	c->given = 0;
	/* the memory of large output (a picture) is freed, that of lines is kept */
	if (c->out.cap > KIB(256)) {
		buf_fini(&c->out);
		buf_init(&c->out, OUT_MAX);
	}
	buf_reset(&c->out);
	cell_charge(c);
	return true;
}

static void cell_flow(struct cell *c)
{
	bool all = cell_pump(c);

	if (c->ctx && c->ctx->channel)
		kernel_channel_hold(c->ctx->channel, !all);
	else if (all && !c->ctx && c->r)
		cell_finish(c);
}

static void on_writable(struct http_req *r)
{
	if (r->user)
		cell_flow(r->user);
}

/* Code that was not sent yet is not run. Code that was sent runs on, and its output is read and dropped. */
static void on_gone(struct http_req *r)
{
	struct cell *c = r->user;

	if (c) {
		r->user = NULL;
		c->r = NULL;
		cell_charge(c);
		timer_set(c->ping, 0);
		if (!c->ctx || !c->streaming)
			cell_free(c);
		else
			cell_flow(c);
	}
	http_abort(r);
}

static void on_ping(void *arg)
{
	struct cell *c = arg;

	/* a client that has not read what was sent needs no sign of life */
	if (c->given == c->out.len) {
		sse_text(&c->out, "ping", "pong", 4);
		cell_flow(c);
	}
	timer_after(c->ping, PING_NS);
}

static void begin_stream(struct http_req *r, struct buf *out, const char *id)
{
	http_add_header(r, "Cache-Control", "no-cache");
	http_add_header(r, "X-Accel-Buffering", "no");
	http_stream_begin(r, 200, "text/event-stream", -1);
	sse_text(out, "init", id, strlen(id));
	sse_text(out, "ping", "pong", 4);
}

/* ---- the end */

/* The context is free for the next cell. The client may still have to read. */
static void cell_end(struct cell *c)
{
	struct context *x = take_ptr(c->ctx);

	x->cell = NULL;
	x->used_ns = mono_ns();
	if (x->channel)
		kernel_channel_hold(x->channel, false);
	timer_set(c->late, 0);
	timer_set(c->ping, 0);
	free(take_ptr(c->code));
	if (!c->r)
		cell_free(c);
	else
		cell_flow(c);
}

static void cell_fail(struct cell *c, const char *ename, const char *why)
{
	if (c->r) {
		sandbox_count_exec(c->r->sandbox, true);
		sse_error(&c->out, ename, why, why);
	}
	cell_end(c);
}

static void cell_done(struct cell *c)
{
	if (c->r && c->error.len) {
		buf_put(&c->out, c->error.p, c->error.len);
		sandbox_count_exec(c->r->sandbox, true);
	} else if (c->r) {
		sse_complete(&c->out, (mono_ns() - c->begun_ns) / 1000000);
	}
	cell_end(c);
}

static void on_late(void *arg)
{
	cell_done(arg);
}

/* Before the stream has begun an error is an answer of its own. */
static void cell_refuse(struct cell *c, int err, const char *why)
{
	struct http_req *r = take_ptr(c->r);

	if (r)
		r->user = NULL;
	cell_free(c);
	if (!r)
		return;
	if (err == ECANCELED)
		execd_error(r, 503, "SERVICE_UNAVAILABLE", "%s", why);
	else if (err == ENOENT)
		execd_error(r, 400, "CONTEXT_NOT_FOUND", "%s", why);
	else
		execd_error(r, 500, "RUNTIME_ERROR", "%s", why);
}

void cell_lost(struct cell *c, int err, const char *why)
{
	if (!c->streaming)
		cell_refuse(c, err, why);
	else
		cell_fail(c, err == ECANCELED ? "SandboxEnded" : "KernelLost", why);
}

/* ---- towards the kernel */

static void cell_send(struct cell *c)
{
	struct context *x = c->ctx;

	if (!kernel_channel_execute(x->channel, c->id, c->code)) {
		cell_refuse(c, ENOMEM, "the code cannot be sent to the kernel");
		return;
	}
	free(take_ptr(c->code));
	c->begun_ns = mono_ns();
	c->streaming = true;
	if (!c->r)
		return;
	sandbox_count_exec(c->r->sandbox, false);
	begin_stream(c->r, &c->out, x->id);
	timer_after(c->ping, PING_NS);
	cell_flow(c);
}

static void on_opened(void *arg)
{
	struct context *x = arg;

	x->channel_open = true;
	if (x->cell)
		cell_send(x->cell);
}

static bool on_lost(void *arg)
{
	const struct context *x = arg;

	return x->cell != NULL;
}

static void on_resumed(void *arg)
{
	struct context *x = arg;

	if (x->cell && !kernel_channel_probe(x->channel, x->cell->probe))
		cell_fail(x->cell, "KernelLost",
			"the kernel's connection was lost and did not come back");
}

/* Remembers what a message says about the cell. kernel_events_put() makes the client's events of it. */
static void cell_note(struct cell *c, const struct kernel_message *m)
{
	switch (m->kind) {
	case KERNEL_IDLE:
		c->idle = true;
		break;
	case KERNEL_REPLY:
		c->replied = true;
		break;
	case KERNEL_ERROR:
		c->failed = true;
		break;
	case KERNEL_INPUT:
		c->counted = true;
		break;
	case KERNEL_OTHER:
	case KERNEL_STREAM:
	case KERNEL_RESULT:
	case KERNEL_DIED:
	case KERNEL_ASKS:
		break;
	}
}

static void cell_events(struct cell *c, const struct kernel_message *m)
{
	if (!c->r)
		return;
	/* a kernel that sent no KERNEL_INPUT gives the execution count with the result */
	if (m->kind == KERNEL_RESULT && m->count && !c->counted) {
		c->counted = true;
		kernel_events_put(
			&c->out, &(struct kernel_message){.kind = KERNEL_INPUT, .count = m->count});
	}
	if (m->kind == KERNEL_ERROR)
		buf_reset(&c->error);
	/* The error is the client's last event, also if output comes after it. The kernel's reply has the same error again. */
	if (m->kind == KERNEL_ERROR || (m->kind == KERNEL_REPLY && !c->failed))
		kernel_events_put(&c->error, m);
	else if (m->kind != KERNEL_REPLY)
		kernel_events_put(&c->out, m);
}

/* No memory, or the sandbox holds too much already. If the client has a part of an event, it cannot be completed: the client's stream is cut. */
static void cell_overflow(struct cell *c)
{
	struct http_req *r = c->given ? take_ptr(c->r) : NULL;

	c->given = 0;
	buf_fini(&c->out);
	buf_fini(&c->error);
	buf_reset(&c->out);
	buf_reset(&c->error);
	cell_charge(c);
	if (r) {
		r->user = NULL;
		http_abort(r);
	}
	cell_fail(c, "OutputLost", "too much of the cell's output is held for this sandbox");
}

static void cell_message(struct cell *c, const struct kernel_message *m)
{
	cell_note(c, m);
	cell_events(c, m);
	if (c->out.bad || c->error.bad || !cell_charge(c)) {
		cell_overflow(c);
	} else if (c->idle && c->replied) {
		cell_done(c);
	} else {
		if (c->idle)
			timer_after(c->late, REPLY_NS);
		cell_flow(c);
	}
}

static void on_message(void *arg, const struct kernel_message *m)
{
	struct context *x = arg;
	struct cell *c = x->cell;

	if (!c || !c->streaming)
		return;
	if (m->kind == KERNEL_DIED)
		cell_fail(c, "KernelDied",
			"the kernel died, and a new one starts: what the context had is lost");
	else if (json_slice_is(m->parent, c->id))
		cell_message(c, m);
	else if (m->kind == KERNEL_IDLE && json_slice_is(m->parent, c->probe))
		cell_fail(c, "OutputLost",
			"the cell has ended, but its last output was lost while the sandbox was "
			"paused");
}

static void on_closed(void *arg, int err, const char *why)
{
	struct context *x = arg;
	struct contexts *cs = x->of;

	kernel_channel_destroy(take_ptr(x->channel));
	x->channel_open = false;
	if (x->cell)
		cell_lost(x->cell, err, why);
	/* the session may have another kernel by now, or none: the next cell looks the session up again */
	if (err == ENOENT)
		context_forget(x);
	contexts_tidy(cs);
}

static const struct kernel_channel_ops channel_ops = {
	.opened = on_opened,
	.lost = on_lost,
	.resumed = on_resumed,
	.message = on_message,
	.closed = on_closed,
};

/* ---- the beginning */

static void answer_busy(struct http_req *r, const struct context *x)
{
	struct buf b;

	buf_init(&b, 8192);
	begin_stream(r, &b, x->id);
	sse_error(&b, "ContextBusy", "session is busy", "session is busy");
	http_stream_write(r, b.p, b.len);
	buf_fini(&b);
	http_stream_end(r);
}

static struct cell *cell_new(struct http_req *r, struct context *x, const char *code)
{
	struct loop *l = agentc_loop(sandbox_agentc(r->sandbox));
	struct cell *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	execd_new_id(c->id);
	execd_new_id(c->probe);
	buf_init(&c->out, OUT_MAX);
	buf_init(&c->error, OUT_MAX);
	c->code = strdup(code);
	c->ping = loop_timer(l, on_ping, c);
	c->late = loop_timer(l, on_late, c);
	if (!c->code || !c->ping || !c->late) {
		cell_free(c);
		return NULL;
	}
	c->ctx = x;
	x->cell = c;
	c->r = r;
	c->account = agentc_account(sandbox_agentc(r->sandbox));
	r->user = c;
	return c;
}

void cell_run(
	struct http_req *r, struct context *x, const struct jupyter_server *s, const char *code)
{
	struct cell *c;

	r->user = NULL;
	if (x->cell) {
		answer_busy(r, x);
		return;
	}
	if (contexts_running(x->of) >= CELLS_MAX) {
		execd_error(r, 503, "SERVICE_UNAVAILABLE", "%u cells run in this sandbox already",
			CELLS_MAX);
		return;
	}
	c = cell_new(r, x, code);
	if (!c) {
		execd_error(r, 500, "RUNTIME_ERROR", "out of memory");
		return;
	}
	x->used_ns = mono_ns();
	http_on_gone(r, on_gone);
	http_stream_writable(r, on_writable);
	if (x->channel_open) {
		cell_send(c);
		return;
	}
	if (!x->channel)
		x->channel = kernel_channel_open(
			sandbox_agentc(r->sandbox), s, x->kernel, &channel_ops, x);
	if (!x->channel)
		cell_refuse(c, ENOMEM, "out of memory");
}
