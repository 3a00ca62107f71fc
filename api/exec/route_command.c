/* SPDX-License-Identifier: Apache-2.0
 *
 * route_command.c: commands with their output as a stream of events, background commands, status,
 * logs, interrupt. mayflyd; what the client sends and what the guest prints are hostile. A client
 * that stops reading holds its own command's output only: events are made from a frame as far as
 * there is room, the rest waits here and the agent's stream is held. A client that leaves is
 * detached from the command, which runs on.
 */
#include "api/exec/execd_int.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "lib/log.h"
#include "lib/opt.h"

#define PING_NS    3000000000ull
#define CR_WAIT_NS 10000000ull
#define SLICE      2048u /* a byte of output becomes at most 60 of events */
#define LOGS_PART  (128u * 1024)
#define LOGS_MAX   (16u * 1024 * 1024)

struct command {
	struct http_req *r;
	struct agent_exec *x;
	char id[64];
	char *init_text;
	struct sse_lines lines[3];
	struct buf ev, rest; /* rest: of a frame that did not fit; its stream is rest_of */
	int rest_of;
	struct timer *ping, *cr;
	uint64_t begun_ns;
	bool streaming, done;
	/* A run of an isolated session: no init event, its errors have another name, and a client that leaves interrupts it. */
	bool isolated;
};

static void command_free(struct http_req *r)
{
	struct command *c = r->user;

	agent_exec_close(c->x);
	timer_remove(c->ping);
	timer_remove(c->cr);
	for (int i = 1; i <= 2; i++)
		sse_lines_fini(&c->lines[i]);
	buf_fini(&c->ev);
	buf_fini(&c->rest);
}

static void flush_events(struct command *c)
{
	http_stream_write(c->r, c->ev.p, c->ev.len);
	buf_reset(&c->ev);
}

static void begin_stream(struct command *c)
{
	http_add_header(c->r, "Cache-Control", "no-cache");
	http_add_header(c->r, "X-Accel-Buffering", "no");
	http_stream_begin(c->r, 200, "text/event-stream", -1);
	c->streaming = true;
	if (c->isolated)
		return;
	sse_text(&c->ev, "init", c->init_text, strlen(c->init_text));
}

static void on_ping(void *arg)
{
	struct command *c = arg;

	sse_text(&c->ev, "ping", "pong", 4);
	flush_events(c);
	timer_after(c->ping, PING_NS);
}

static void on_cr(void *arg)
{
	struct command *c = arg;

	for (int i = 1; i <= 2; i++)
		if (sse_lines_cr(&c->lines[i]))
			sse_lines_flush(&c->lines[i], &c->ev);
	flush_events(c);
}

static void on_started(void *arg, uint32_t pid)
{
	struct command *c = arg;

	c->begun_ns = mono_ns();
	sandbox_count_exec(c->r->sandbox, false);
	begin_stream(c);
	if (!c->isolated)
		sse_text(&c->ev, "ping", "pong", 4);
	flush_events(c);
	timer_after(c->ping, PING_NS);
}

/* Makes events of as many bytes as there is room for; returns how many. */
static size_t give_output(struct command *c, int stream, const uint8_t *p, size_t n)
{
	size_t given = 0;

	while (given < n && http_stream_room(c->r) > 0) {
		size_t part = MIN(n - given, (size_t)SLICE);

		sse_lines_feed(&c->lines[stream], p + given, part, &c->ev);
		given += part;
		flush_events(c);
	}
	return given;
}

static void on_output(void *arg, int stream, const uint8_t *p, size_t n)
{
	struct command *c = arg;
	size_t given = give_output(c, stream, p, n);

	if (given < n) {
		buf_put(&c->rest, p + given, n - given);
		c->rest_of = stream;
	}
	if (http_stream_room(c->r) == 0)
		agent_exec_hold(c->x, true);
	timer_set(c->cr, 0);
	if (sse_lines_cr(&c->lines[1]) || sse_lines_cr(&c->lines[2]))
		timer_after(c->cr, CR_WAIT_NS);
}

static void on_writable(struct http_req *r)
{
	struct command *c = r->user;

	if (c->done)
		return;
	buf_consume(&c->rest, give_output(c, c->rest_of, c->rest.p, c->rest.len));
	if (c->rest.len == 0 && http_stream_room(r) > 0)
		agent_exec_hold(c->x, false);
}

static void end_error(struct command *c, const char *evalue, const char *trace)
{
	sse_error(&c->ev, c->isolated ? "ExitError" : "CommandExecError", evalue, trace);
}

static void put_end(struct command *c, const struct agent_reply *rep, uint32_t state, uint32_t code)
{
	char value[16], trace[96];
	const char *name;

	if (rep->err) {
		end_error(c, rep->text[0] ? rep->text : strerror(rep->err),
			rep->text[0] ? rep->text : strerror(rep->err));
	} else if (state == AGENT_EXITED && code == 0) {
		sse_complete(&c->ev, (mono_ns() - c->begun_ns) / 1000000);
	} else if (state == AGENT_EXITED) {
		snprintf(value, sizeof(value), "%u", code);
		snprintf(trace, sizeof(trace), "exit status %u", code);
		end_error(c, value, trace);
	} else if (state == AGENT_NOT_STARTED) {
		end_error(c, rep->text, rep->text);
	} else {
		name = state == AGENT_TIMED_OUT ? "killed" : strsignal((int)(code % 65));
		snprintf(trace, sizeof(trace), "signal: %s", name ? name : "unknown");
		end_error(c, "-1", trace);
	}
}

static void on_ended(void *arg, const struct agent_reply *rep, uint32_t state, uint32_t code)
{
	struct command *c = arg;

	c->done = true;
	timer_set(c->ping, 0);
	timer_set(c->cr, 0);
	if (!c->streaming && c->isolated) {
		isolated_fail(c->r, rep);
		return;
	}
	if (!c->streaming) {
		if (rep->step != AGENT_STEP_START) {
			execd_fail(c->r, rep);
			return;
		}
		begin_stream(c);
	}
	for (int i = 1; i <= 2; i++)
		sse_lines_flush(&c->lines[i], &c->ev);
	if (rep->err || state != AGENT_EXITED || code)
		sandbox_count_exec(c->r->sandbox, true);
	put_end(c, rep, state, code);
	flush_events(c);
	http_stream_end(c->r);
}

/* Nobody reads this run any more, and the session's shell is busy until it ends. */
static void interrupt_run(struct command *c)
{
	struct agentc *agent = sandbox_agentc(c->r->sandbox);
	struct buf b;

	buf_init(&b, 128);
	buf_str(&b, c->id);
	buf_u32(&b, SIGINT);
	buf_u32(&b, 0);
	if (agent && !agentc_call(agent, AGENT_SIGNAL, &b, 30000, NULL, NULL))
		log_limited(LOG_WARN, "cannot interrupt an abandoned run of an isolated session");
	buf_fini(&b);
}

static void on_gone(struct http_req *r)
{
	struct command *c = r->user;

	if (c->isolated && !c->done)
		interrupt_run(c);
	agent_exec_close(take_ptr(c->x));
	c->done = true;
	timer_set(c->ping, 0);
	timer_set(c->cr, 0);
	http_abort(r);
}

static const struct agent_exec_ops command_ops = {on_started, on_output, on_ended};

/* The only events of a background command: it has started, and this stream ends. */
static void background_started(struct http_req *r, void *data, const struct agent_reply *rep)
{
	const char *id = data;
	struct buf b;

	if (rep->err && rep->step != AGENT_STEP_START) {
		execd_fail(r, rep);
		return;
	}
	sandbox_count_exec(r->sandbox, rep->err != 0);
	buf_init(&b, 65536);
	sse_text(&b, "init", id, strlen(id));
	if (rep->err)
		sse_error(&b, "CommandExecError", rep->text, rep->text);
	else
		sse_complete(&b, 0);
	http_add_header(r, "Cache-Control", "no-cache");
	http_add_header(r, "X-Accel-Buffering", "no");
	http_stream_begin(r, 200, "text/event-stream", -1);
	http_stream_write(r, b.p, b.len);
	buf_fini(&b);
	http_stream_end(r);
}

static void run_background(struct http_req *r, struct agent_exec_spec *s)
{
	char *id = http_strdup(r, s->exec_id, strlen(s->exec_id));
	struct buf b;

	buf_init(&b, AGENT_FRAME_MAX);
	s->flags |= AGENT_X_BACKGROUND;
	agent_exec_encode(&b, s);
	if (id)
		execd_ask(r, AGENT_EXEC, &b, 60000, background_started, id);
	else
		http_error(r, 500, "RUNTIME_ERROR", "out of memory");
	buf_fini(&b);
}

static void run_foreground(struct http_req *r, struct agent_exec_spec *s, const char *init_text)
{
	struct agentc *agent = sandbox_agentc(r->sandbox);
	struct command *c = http_alloc(r, sizeof(*c));

	if (!c) {
		http_error(r, 500, "RUNTIME_ERROR", "out of memory");
		return;
	}
	c->r = r;
	c->isolated = !init_text;
	snprintf(c->id, sizeof(c->id), "%s", s->exec_id);
	c->init_text =
		http_strdup(r, init_text ? init_text : "", strlen(init_text ? init_text : ""));
	sse_lines_init(&c->lines[1], "stdout");
	sse_lines_init(&c->lines[2], "stderr");
	c->lines[1].strip = c->lines[2].strip = execd_strips_lines(r);
	buf_init(&c->ev, MIB(4));
	buf_init(&c->rest, 2 * AGENT_FRAME_MAX);
	r->user = c;
	http_on_free(r, command_free);
	c->ping = agent ? loop_timer(agentc_loop(agent), on_ping, c) : NULL;
	c->cr = agent ? loop_timer(agentc_loop(agent), on_cr, c) : NULL;
	errno = ENOTCONN;
	if (c->init_text && c->ping && c->cr)
		c->x = agent_exec_start(agent, s, &command_ops, c);
	if (!c->x) {
		c->done = true;
		if (errno == E2BIG)
			execd_error(r, 400, "INVALID_REQUEST_BODY",
				"the command and its environment are too long");
		else
			execd_error(r, 503, "SERVICE_UNAVAILABLE", "%s",
				errno == EBUSY ? "too many commands at one time"
					       : "the sandbox does not run");
		return;
	}
	http_stream_writable(r, on_writable);
	http_on_gone(r, on_gone);
}

void command_run_isolated(struct http_req *r, struct agent_exec_spec *s)
{
	run_foreground(r, s, NULL);
}

void command_run(struct http_req *r, const struct command_start *s)
{
	char id[33];
	const char *argv[1] = {s->command};
	struct agent_exec_spec spec = {.exec_id = id,
		.flags = AGENT_X_SHELL | AGENT_X_EXPAND_CWD,
		.uid = AGENT_NO_ID,
		.gid = AGENT_NO_ID,
		.cwd = s->cwd,
		.session = s->session,
		.timeout_ms = s->timeout_ms,
		.argc = 1,
		.argv = argv};

	execd_new_id(id);
	if (s->session)
		spec.flags |= AGENT_X_MERGE;
	if (s->background)
		run_background(r, &spec);
	else
		run_foreground(r, &spec, s->session ? s->session : id);
}

/* ---- POST /command */

struct command_body {
	const char *command, *cwd;
	const char **argv;
	size_t argc;
	struct execd_envs envs;
	uint64_t timeout, uid, gid;
	bool background, has_uid, has_gid, has_timeout;
};

static bool bad_command(struct http_req *r, const char *why)
{
	execd_error(r, 400, "INVALID_REQUEST_BODY", "invalid request: %s", why);
	return false;
}

static bool read_argv(struct http_req *r, const cJSON *j, struct command_body *b)
{
	const cJSON *a = cJSON_GetObjectItemCaseSensitive(j, "argv"), *e;

	if (!a || cJSON_IsNull(a))
		return true;
	if (!cJSON_IsArray(a))
		return bad_command(r, "argv must be an array of strings");
	b->argv = http_alloc(r, ((size_t)cJSON_GetArraySize(a) + 1) * sizeof(*b->argv));
	if (!b->argv)
		return bad_command(r, "argv is too long");
	cJSON_ArrayForEach (e, a) {
		if (!cJSON_IsString(e))
			return bad_command(r, "argv must be an array of strings");
		b->argv[b->argc++] = e->valuestring;
	}
	if (b->argc && !b->argv[0][0])
		return bad_command(r, "argv[0] must not be empty");
	return true;
}

bool execd_envs(struct http_req *r, const cJSON *j, struct execd_envs *b)
{
	const cJSON *o = cJSON_GetObjectItemCaseSensitive(j, "envs"), *e;
	size_t n;

	if (!o || cJSON_IsNull(o))
		return true;
	if (!cJSON_IsObject(o))
		return bad_command(r, "envs must be an object of strings");
	n = (size_t)cJSON_GetArraySize(o) + 1;
	b->keys = http_alloc(r, n * sizeof(*b->keys));
	b->vals = http_alloc(r, n * sizeof(*b->vals));
	if (!b->keys || !b->vals)
		return bad_command(r, "envs is too long");
	cJSON_ArrayForEach (e, o) {
		if (!cJSON_IsString(e))
			return bad_command(r, "envs must be an object of strings");
		if (!e->string[0] || strchr(e->string, '='))
			return bad_command(r, "a name in envs is empty or holds '='");
		b->keys[b->n] = e->string;
		b->vals[b->n++] = e->valuestring;
	}
	return true;
}

static bool read_command(struct http_req *r, const cJSON *j, struct command_body *b)
{
	if (!execd_str(r, j, "command", &b->command) || !execd_str(r, j, "cwd", &b->cwd) ||
		!execd_bool(r, j, "background", &b->background) ||
		!execd_uint(r, j, "timeout", 1ull << 40, &b->timeout, &b->has_timeout) ||
		!execd_uint(r, j, "uid", AGENT_NO_ID - 1, &b->uid, &b->has_uid) ||
		!execd_uint(r, j, "gid", AGENT_NO_ID - 1, &b->gid, &b->has_gid) ||
		!read_argv(r, j, b) || !execd_envs(r, j, &b->envs))
		return false;
	if (!!b->command[0] == !!b->argc)
		return bad_command(r, "exactly one of command and argv is needed");
	if (b->has_gid && !b->has_uid)
		return bad_command(r, "gid needs uid");
	return true;
}

void route_command(struct http_req *r)
{
	_cleanup_json_ cJSON *j = execd_body(r, cJSON_Object, false);
	struct command_body b = {0};
	struct agent_exec_spec s = {.uid = AGENT_NO_ID, .gid = AGENT_NO_ID};
	char id[33];

	if (!j || !read_command(r, j, &b))
		return;
	execd_new_id(id);
	s.exec_id = id;
	s.flags = AGENT_X_EXPAND_CWD | (b.argc ? 0 : AGENT_X_SHELL);
	if (b.has_uid)
		s.uid = (uint32_t)b.uid;
	if (b.has_gid)
		s.gid = (uint32_t)b.gid;
	s.cwd = b.cwd;
	s.timeout_ms = b.timeout;
	s.argc = b.argc ? b.argc : 1;
	s.argv = b.argc ? b.argv : &b.command;
	s.envc = b.envs.n;
	s.env_keys = b.envs.keys;
	s.env_vals = b.envs.vals;
	if (b.background)
		run_background(r, &s);
	else
		run_foreground(r, &s, id);
}

/* ---- interrupt: signals the command of that id, or else closes the session of that id */

static void session_closed(struct http_req *r, void *data, const struct agent_reply *rep)
{
	if (rep->err == ENOENT)
		execd_error(r, 500, "RUNTIME_ERROR",
			"error interrupting code execution. no such session");
	else if (rep->err)
		execd_fail(r, rep);
	else
		http_reply_empty(r, 200);
}

/* sig: 0 for SIGTERM, and SIGKILL 3 s later if the command still runs. */
static void ask_by_id(
	struct http_req *r, uint16_t type, uint32_t sig, const char *id, execd_reply_fn fn)
{
	struct buf b;

	buf_init(&b, 1024);
	buf_str(&b, id);
	if (type == AGENT_SIGNAL) {
		buf_u32(&b, sig ? sig : SIGTERM);
		buf_u32(&b, sig ? 0 : 3000); /* until SIGKILL */
	}
	execd_ask(r, type, &b, 30000, fn, NULL);
	buf_fini(&b);
}

static void interrupted(struct http_req *r, void *data, const struct agent_reply *rep)
{
	if (!rep->err)
		http_reply_empty(r, 200);
	else if (rep->err == ENOENT)
		ask_by_id(r, AGENT_SESSION_DEL, 0, http_query(r, "id"), session_closed);
	else if (rep->err == ESRCH)
		execd_error(r, 500, "RUNTIME_ERROR",
			"error interrupting code execution. the command has finished");
	else
		execd_fail(r, rep);
}

static bool id_fits(const char *id)
{
	size_t n = strlen(id);

	return n > 0 && n <= 63;
}

void route_interrupt(struct http_req *r)
{
	const char *id = http_query(r, "id"), *sig = http_query(r, "signal");
	uint64_t n = 0;

	if (!id || !*id)
		execd_error(r, 400, "MISSING_QUERY", "missing query parameter 'id'");
	else if (sig && (!uint_parse(sig, &n) || n < 1 || n > 64))
		execd_error(r, 400, "INVALID_QUERY", "signal: a number from 1 to 64 is wanted");
	else if (!id_fits(id))
		execd_error(r, 500, "RUNTIME_ERROR",
			"error interrupting code execution. no such session");
	else
		ask_by_id(r, AGENT_SIGNAL, (uint32_t)n, id, interrupted);
}

/* ---- GET /command/status/{id} */

static bool put_content(struct buf *b, struct cur *c, uint32_t flags)
{
	uint32_t argc = cur_u32(c);
	struct buf text;
	size_t n;

	buf_init(&text, AGENT_FRAME_MAX * 6);
	if (!(flags & AGENT_X_SHELL))
		buf_put(&text, "[", 1);
	for (uint32_t i = 0; i < argc && !c->bad; i++) {
		const char *s = cur_strp(c, &n, AGENT_FRAME_MAX);

		if (!s)
			break;
		if (flags & AGENT_X_SHELL) {
			buf_put(&text, s, n);
			continue;
		}
		buf_put(&text, i ? ",\"" : "\"", i ? 2 : 1);
		json_escape(&text, s, n);
		buf_put(&text, "\"", 1);
	}
	if (!(flags & AGENT_X_SHELL))
		buf_put(&text, "]", 1);
	buf_put(b, "\"", 1);
	json_escape(b, text.p, text.len);
	buf_put(b, "\"", 1);
	buf_fini(&text);
	return cur_done(c);
}

void command_put_exit(struct buf *b, uint32_t state, uint32_t code, const char *error)
{
	char text[96];

	buf_printf(b, ",\"exit_code\":%d",
		state == AGENT_EXITED        ? (int)code
		: state == AGENT_NOT_STARTED ? 255
					     : -1);
	if (state == AGENT_SIGNALED)
		snprintf(text, sizeof(text), "signal: %s", strsignal((int)(code % 65)));
	else if (state == AGENT_TIMED_OUT)
		snprintf(text, sizeof(text), "timed out");
	else if (state == AGENT_EXITED && code)
		snprintf(text, sizeof(text), "exit status %u", code);
	else
		text[0] = 0;
	if (!*error)
		error = text;
	if (*error) {
		buf_printf(b, ",\"error\":");
		json_string(b, error);
	}
}

static void got_status(struct http_req *r, void *data, const struct agent_reply *rep)
{
	struct cur c = rep->body;
	uint32_t state, code, flags;
	uint64_t started, finished;
	char error[512];
	const char *e;
	struct buf b;
	size_t n;

	if (rep->err == ENOENT) {
		execd_error(r, 404, "INVALID_REQUEST_BODY", "command not found: %s",
			http_param(r, "id"));
		return;
	}
	if (rep->err) {
		execd_fail(r, rep);
		return;
	}
	state = cur_u32(&c);
	code = cur_u32(&c);
	started = cur_u64(&c);
	finished = cur_u64(&c);
	cur_u64(&c);
	e = cur_strp(&c, &n, AGENT_FRAME_MAX);
	snprintf(error, sizeof(error), "%.*s", (int)MIN(n, sizeof(error) - 1), e ? e : "");
	flags = cur_u32(&c);
	buf_init(&b, MIB(4));
	buf_printf(&b, "{\"id\":");
	json_string(&b, http_param(r, "id"));
	buf_printf(&b, ",\"content\":");
	if (!put_content(&b, &c, flags)) {
		buf_fini(&b);
		execd_error(r, 503, "SERVICE_UNAVAILABLE", "the sandbox gave no valid answer");
		return;
	}
	buf_printf(&b, ",\"running\":%s", state == AGENT_RUNNING ? "true" : "false");
	if (state != AGENT_RUNNING)
		command_put_exit(&b, state, code, error);
	buf_printf(&b, ",\"started_at\":");
	execd_time(&b, (int64_t)started);
	if (state != AGENT_RUNNING) {
		buf_printf(&b, ",\"finished_at\":");
		execd_time(&b, (int64_t)finished);
	}
	buf_put(&b, "}", 1);
	execd_reply_buf(r, 200, "application/json", &b);
}

void route_status(struct http_req *r)
{
	const char *id = http_param(r, "id");

	if (id_fits(id))
		ask_by_id(r, AGENT_STATUS, 0, id, got_status);
	else
		execd_error(r, 404, "INVALID_REQUEST_BODY", "command not found: %s", id);
}

/* ---- GET /command/{id}/logs */

struct logs {
	const char *id, *cursor_header; /* id: the agent's name of the background run */
	int missing;                    /* the status if there is no such run */
	uint64_t offset;
	size_t held; /* bytes of text that are charged */
	struct buf text;
};

static void logs_free(void *data)
{
	struct logs *l = data;

	buf_fini(&l->text);
	free(l);
}

static void got_logs(struct http_req *r, void *data, const struct agent_reply *rep);

static void ask_logs(struct http_req *r, struct logs *l)
{
	struct buf b;

	buf_init(&b, 1024);
	buf_str(&b, l->id);
	buf_u64(&b, l->offset);
	buf_u32(&b, LOGS_PART);
	execd_ask(r, AGENT_LOGS, &b, 30000, got_logs, l);
	buf_fini(&b);
}

static void got_logs(struct http_req *r, void *data, const struct agent_reply *rep)
{
	struct logs *l = data;
	struct cur c = rep->body;
	uint64_t next = cur_u64(&c);
	size_t n = cur_left(&c);
	char cursor[24];

	if (rep->err == EINVAL || rep->err == ENOENT) {
		if (l->missing == 404)
			execd_error(r, 404, "SESSION_NOT_FOUND", "no background run %s",
				http_param(r, "run"));
		else
			execd_error(
				r, 400, "INVALID_REQUEST_BODY", "no background command %s", l->id);
		return;
	}
	if (rep->err || c.bad) {
		execd_fail(r, rep->err ? rep : &(struct agent_reply){.err = EPROTO, .text = ""});
		return;
	}
	if (!http_hold(r, n)) {
		http_error_full(r);
		return;
	}
	l->held += n;
	buf_put(&l->text, c.p, n);
	l->offset = next;
	if (n && !l->text.bad && l->text.len + LOGS_PART <= LOGS_MAX) {
		ask_logs(r, l);
		return;
	}
	snprintf(cursor, sizeof(cursor), "%llu", (unsigned long long)next);
	http_add_header(r, l->cursor_header, cursor);
	/* the answer is a copy, and is charged as such */
	http_unhold(r, l->held);
	http_reply(r, 200, "text/plain; charset=utf-8", l->text.p, l->text.len);
}

static void logs_begin(
	struct http_req *r, const char *id, const char *header, int missing, uint64_t offset)
{
	struct logs *l = calloc(1, sizeof(*l));

	if (!l || !execd_own(r, l, logs_free)) {
		http_error(r, 500, "RUNTIME_ERROR", "out of memory");
		return;
	}
	*l = (struct logs){.id = id, .cursor_header = header, .missing = missing, .offset = offset};
	buf_init(&l->text, LOGS_MAX + LOGS_PART);
	ask_logs(r, l);
}

void command_logs_isolated(struct http_req *r, const char *exec_id, uint64_t offset)
{
	logs_begin(r, exec_id, "EXECD-ISOLATED-TAIL-CURSOR", 404, offset);
}

void route_logs(struct http_req *r)
{
	const char *cursor = http_query(r, "cursor"), *id = http_param(r, "id");
	bool digits = cursor && *cursor >= '0' && *cursor <= '9';

	if (id_fits(id))
		logs_begin(r, id, "EXECD-COMMANDS-TAIL-CURSOR", 400,
			digits ? strtoull(cursor, NULL, 10) : 0);
	else
		execd_error(r, 400, "INVALID_REQUEST_BODY", "no such command");
}
