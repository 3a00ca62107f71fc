/* SPDX-License-Identifier: Apache-2.0
 *
 * route_pty.c: terminal sessions: create, show, delete, and the WebSocket of a holder (who may write) or a viewer. mayflyd's loop. Clients and the guest's agent
 * are hostile. The agent keeps the sessions and the daemon keeps nothing of them, so a killed daemon, a pause and a snapshot lose none.
 *
 * A WebSocket is attached before the client has its 101, because an unknown or taken session is answered by HTTP. Output is held in the guest while the client is
 * slow, input is held at the client while the shell is.
 */
#include "api/exec/execd_int.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "api/core/text.h"
#include "api/http/upgrade.h"
#include "lib/websocket.h"

#define LIVE_MAX       (32u * 1024) /* of output in one frame */
#define MESSAGE_MAX    (256u * 1024)
#define PING_S         30
#define DEAD_S         60
#define VIOLATIONS_MAX 5
#define CLOSE_TAKEN    4001

/* ---- create, show, delete */

struct pty_new {
	char id[37];
};

static void pty_made(struct http_req *r, void *data, const struct agent_reply *rep)
{
	struct pty_new *n = data;
	struct buf b;

	if (rep->err) {
		execd_fail(r, rep);
		return;
	}
	buf_init(&b, 256);
	buf_printf(&b, "{\"session_id\":\"%s\"}", n->id);
	execd_reply_buf(r, 201, "application/json", &b);
}

void route_pty_new(struct http_req *r)
{
	_cleanup_json_ cJSON *j = execd_body(r, cJSON_Object, true);
	struct pty_new *n = http_alloc(r, sizeof(*n));
	struct execd_envs envs = {0};
	const char *cwd, *command;
	uint64_t uid, gid;
	bool has_uid, has_gid;
	struct buf b;

	if (!j || !n || !execd_str(r, j, "cwd", &cwd) || !execd_str(r, j, "command", &command) ||
		!execd_uint(r, j, "uid", AGENT_NO_ID - 1, &uid, &has_uid) ||
		!execd_uint(r, j, "gid", AGENT_NO_ID - 1, &gid, &has_gid) ||
		!execd_envs(r, j, &envs))
		return;
	uuid_make(n->id);
	buf_init(&b, AGENT_FRAME_MAX);
	buf_str(&b, n->id);
	buf_str(&b, cwd);
	buf_u32(&b, AGENT_SE_TERMINAL);
	buf_str(&b, command);
	buf_u32(&b, has_uid ? (uint32_t)uid : AGENT_NO_ID);
	buf_u32(&b, has_gid ? (uint32_t)gid : AGENT_NO_ID);
	buf_str(&b, "");
	buf_u32(&b, (uint32_t)envs.n);
	for (size_t i = 0; i < envs.n; i++) {
		buf_str(&b, envs.keys[i]);
		buf_str(&b, envs.vals[i]);
	}
	buf_str(&b, "");
	execd_ask(r, AGENT_SESSION_NEW, &b, 30000, pty_made, n);
	buf_fini(&b);
}

static void pty_unknown(struct http_req *r)
{
	execd_error(r, 404, "CONTEXT_NOT_FOUND", "There is no terminal session %.64s.",
		http_param(r, "id"));
}

/* The session of a path; NULL: answered. Only terminals have UUIDs as their names at the agent. */
static const char *pty_id(struct http_req *r)
{
	const char *id = http_param(r, "id");

	r->ws_codes = false; /* errors are HTTP statuses, on both forms of the path */
	if (uuid_ok(id))
		return id;
	pty_unknown(r);
	return NULL;
}

struct pty_item {
	uint32_t kind, runs;
	uint64_t offset;
};

static bool pty_item_read(struct cur c, struct pty_item *i)
{
	char id[64];

	cur_str(&c, id, sizeof(id));
	i->kind = cur_u32(&c);
	cur_u32(&c);
	i->runs = cur_u32(&c);
	cur_u64(&c);
	cur_u64(&c);
	cur_u64(&c);
	i->offset = cur_u64(&c);
	return !c.bad;
}

static void pty_got(struct http_req *r, void *data, const struct agent_reply *rep)
{
	struct pty_item i;
	struct buf b;

	if (rep->err && rep->err != ENOENT) {
		execd_fail(r, rep);
		return;
	}
	if (rep->err || !pty_item_read(rep->body, &i) || i.kind != AGENT_SE_TERMINAL) {
		pty_unknown(r);
		return;
	}
	buf_init(&b, 256);
	buf_printf(&b, "{\"session_id\":\"%s\",\"running\":%s,\"output_offset\":%llu}",
		http_param(r, "id"), i.runs ? "true" : "false", (unsigned long long)i.offset);
	execd_reply_buf(r, 200, "application/json", &b);
}

static void pty_deleted(struct http_req *r, void *data, const struct agent_reply *rep)
{
	if (rep->err == ENOENT)
		pty_unknown(r);
	else if (rep->err)
		execd_fail(r, rep);
	else
		http_reply_empty(r, 200);
}

static void pty_ask(struct http_req *r, uint16_t type, execd_reply_fn fn)
{
	const char *id = pty_id(r);
	struct buf b;

	if (!id)
		return;
	buf_init(&b, 128);
	buf_str(&b, id);
	execd_ask(r, type, &b, 30000, fn, NULL);
	buf_fini(&b);
}

void route_pty_get(struct http_req *r)
{
	pty_ask(r, AGENT_SESSION_GET, pty_got);
}

void route_pty_del(struct http_req *r)
{
	pty_ask(r, AGENT_SESSION_DEL, pty_deleted);
}

/* ---- the WebSocket */

struct pty {
	struct http_req *r;
	const char *id;
	struct agentc *agent;
	struct agent_terminal *term;
	struct http_upgrade *up;
	struct ws *ws;
	bool viewer, pipes, connected, over, eof;
	uint64_t replay_end, replayed;
	struct buf in; /* input that the shell had no room for */
	struct account *account;
	size_t charged; /* bytes of input that are charged to account */
	int violations;
};

static void pty_free(struct http_req *r)
{
	struct pty *x = r->user;

	agent_terminal_close(take_ptr(x->term));
	ws_destroy(take_ptr(x->ws));
	buf_fini(&x->in);
	account_give(x->account, x->charged);
}

/* Charges the buffered input to the sandbox. false: there is no room. */
static bool pty_charge(struct pty *x)
{
	size_t now = x->in.len + (x->ws ? ws_held(x->ws) : 0);

	if (now > x->charged && !account_take(x->account, now - x->charged))
		return false;
	if (now < x->charged)
		account_give(x->account, x->charged - now);
	x->charged = now;
	return true;
}

/* Ends the WebSocket with a close frame. The session stays. */
static void pty_end(struct pty *x, int code, const char *reason)
{
	if (x->over)
		return;
	x->over = true;
	agent_terminal_close(take_ptr(x->term));
	if (x->ws)
		ws_close(x->ws, code, reason);
	ws_destroy(take_ptr(x->ws));
	http_upgrade_close(take_ptr(x->up));
}

static void pty_say(struct pty *x, const char *fmt, ...) _printf_(2, 3);
static void pty_say(struct pty *x, const char *fmt, ...)
{
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (x->ws && !x->over)
		ws_send(x->ws, true, text, strlen(text));
}

static void pty_error(struct pty *x, const char *code, const char *text)
{
	_cleanup_(buf_fini) struct buf b;

	buf_init(&b, 4096);
	json_string(&b, text);
	pty_say(x, "{\"type\":\"error\",\"error\":%s,\"code\":\"%s\"}", buf_cstr(&b), code);
}

static void pty_connected(struct pty *x)
{
	x->connected = true;
	pty_say(x, "{\"type\":\"connected\",\"session_id\":\"%s\",\"mode\":\"%s\",\"role\":\"%s\"}",
		x->id, x->pipes ? "pipe" : "pty", x->viewer ? "viewer" : "holder");
}

/* ---- from the client */

/* Gives the shell what it has room for. The rest waits in x->in, and the client is held meanwhile. */
static void pty_feed(struct pty *x)
{
	size_t n = x->term ? agent_terminal_stdin(x->term, x->in.p, x->in.len) : x->in.len;

	buf_consume(&x->in, n);
	if (!x->in.len) {
		buf_fini(&x->in);
		if (x->eof && x->term)
			agent_terminal_eof(x->term);
		x->eof = false;
	}
	if (x->up)
		http_upgrade_hold(x->up, x->in.len > 0);
	if (x->ws)
		ws_hold(x->ws, x->in.len > 0);
}

static void pty_stdin(struct pty *x, const void *p, size_t n)
{
	buf_put(&x->in, p, n);
	if (x->in.bad)
		pty_end(x, WS_INTERNAL, "no memory for input");
	else
		pty_feed(x);
}

static void pty_json_stdin(struct pty *x, const cJSON *j)
{
	const char *data = cJSON_GetStringValue(json_field(j, "data"));

	if (data)
		pty_stdin(x, data, strlen(data));
}

static void pty_json_eof(struct pty *x, const cJSON *j)
{
	x->eof = true;
	pty_feed(x);
}

static void pty_tell_agent(struct pty *x, uint16_t type, const struct buf *b)
{
	if (x->agent)
		agentc_call(x->agent, type, b, 10000, NULL, NULL);
}

static void pty_json_resize(struct pty *x, const cJSON *j)
{
	uint64_t cols, rows;
	struct buf b;

	if (x->pipes || !json_whole(json_field(j, "cols"), 65535, &cols) ||
		!json_whole(json_field(j, "rows"), 65535, &rows) || !cols || !rows)
		return;
	buf_init(&b, 128);
	buf_str(&b, x->id);
	buf_u16(&b, (uint16_t)cols);
	buf_u16(&b, (uint16_t)rows);
	pty_tell_agent(x, AGENT_RESIZE, &b);
	buf_fini(&b);
}

static const struct {
	const char *name;
	int number;
} signals[] = {{"SIGHUP", SIGHUP}, {"SIGINT", SIGINT}, {"SIGQUIT", SIGQUIT}, {"SIGKILL", SIGKILL},
	{"SIGUSR1", SIGUSR1}, {"SIGUSR2", SIGUSR2}, {"SIGTERM", SIGTERM}, {"SIGCONT", SIGCONT},
	{"SIGSTOP", SIGSTOP}, {"SIGTSTP", SIGTSTP}, {"SIGWINCH", SIGWINCH}};

static void pty_json_signal(struct pty *x, const cJSON *j)
{
	const char *name = cJSON_GetStringValue(json_field(j, "signal"));
	struct buf b;
	size_t i = 0;

	while (name && i < ARRAY_LEN(signals) && strcmp(signals[i].name, name) != 0)
		i++;
	if (!name || i == ARRAY_LEN(signals)) {
		pty_error(x, "INVALID_FRAME", "unknown signal");
		return;
	}
	buf_init(&b, 128);
	buf_str(&b, x->id);
	buf_u32(&b, (uint32_t)signals[i].number);
	buf_u32(&b, 0);
	pty_tell_agent(x, AGENT_SIGNAL, &b);
	buf_fini(&b);
}

static void pty_json_ping(struct pty *x, const cJSON *j)
{
	pty_say(x, "{\"type\":\"pong\"}");
}

static const struct pty_type {
	const char *name;
	void (*fn)(struct pty *x, const cJSON *j);
	bool holder; /* a viewer may not send it */
} types[] = {
	{"stdin", pty_json_stdin, true}, {"resize", pty_json_resize, true},
	{"signal", pty_json_signal, true}, {"ping", pty_json_ping, false},
	{"eof", pty_json_eof, true}, /* ours: the end of a pipe's input */
};

static void pty_read_only(struct pty *x)
{
	pty_error(x, "READ_ONLY", "a viewer may not write to the session");
	if (++x->violations >= VIOLATIONS_MAX)
		pty_end(x, WS_POLICY, "READ_ONLY");
}

static void pty_json(struct pty *x, const uint8_t *p, size_t n)
{
	_cleanup_json_ cJSON *j = NULL;
	const char *name;
	char text[128];

	if (json_read(&j, p, n, JSON_OBJECT, NULL) != 0)
		return;
	name = cJSON_GetStringValue(json_field(j, "type"));
	for (size_t i = 0; name && i < ARRAY_LEN(types); i++) {
		if (strcmp(types[i].name, name) != 0)
			continue;
		if (x->viewer && types[i].holder)
			pty_read_only(x);
		else
			types[i].fn(x, j);
		return;
	}
	snprintf(text, sizeof(text), "unknown frame type %.64s", name ? name : "");
	pty_error(x, "INVALID_FRAME", text);
}

static void pty_message(void *arg, bool text, const uint8_t *p, size_t n)
{
	struct pty *x = arg;

	if (x->over)
		return;
	if (text)
		pty_json(x, p, n);
	else if (n > 0 && p[0] == 0 && x->viewer)
		pty_read_only(x);
	else if (n > 1 && p[0] == 0)
		pty_stdin(x, p + 1, n - 1);
}

static void pty_ws_closed(void *arg, int code, const char *reason)
{
	struct pty *x = arg;

	x->over = true;
	agent_terminal_close(take_ptr(x->term));
	ws_destroy(take_ptr(x->ws));
	http_upgrade_close(take_ptr(x->up));
}

static const struct ws_ops pty_ws_ops = {.message = pty_message, .closed = pty_ws_closed};

static bool pty_wire_send(void *to, const void *p, size_t n)
{
	struct pty *x = to;

	return x->up && http_upgrade_send(x->up, p, n);
}

static void pty_up_bytes(void *arg, const uint8_t *p, size_t n)
{
	struct pty *x = arg;

	if (x->over || !x->ws)
		return;
	if (n)
		ws_input(x->ws, p, n);
	else
		ws_input_end(x->ws);
	if (!x->over && !pty_charge(x))
		pty_end(x, WS_INTERNAL, "too much input is held for this sandbox");
}

static void pty_up_drained(void *arg)
{
	struct pty *x = arg;

	if (x->term)
		agent_terminal_hold(x->term, false);
}

static void pty_up_leave(void *arg)
{
	pty_end(arg, WS_GOING_AWAY, "the server ends");
}

static void pty_up_closed(void *arg, int err)
{
	struct pty *x = arg;

	x->up = NULL; /* it is gone */
	x->over = true;
	agent_terminal_close(take_ptr(x->term));
	ws_destroy(take_ptr(x->ws));
}

static const struct http_upgrade_ops pty_up_ops = {
	pty_up_bytes, pty_up_drained, pty_up_leave, pty_up_closed};

/* ---- from the guest */

/* Replies 101. false: the request was answered otherwise. */
static bool pty_accept(struct pty *x)
{
	struct ws_config c = {
		.role = WS_SERVER, .message_max = MESSAGE_MAX, .ping_s = PING_S, .dead_s = DEAD_S};
	struct ws_wire wire = {x, pty_wire_send};

	x->ws = ws_create(agentc_loop(x->agent), &c, &wire, &pty_ws_ops, x);
	if (x->ws)
		x->up = http_websocket_accept(x->r, NULL, &pty_up_ops, x);
	if (x->up)
		return true;
	x->over = true;
	agent_terminal_close(take_ptr(x->term));
	execd_error(x->r, 500, "RUNTIME_ERROR", "this connection cannot be upgraded");
	return false;
}

static void pty_attached(void *arg, uint32_t mode, uint64_t from, uint64_t offset)
{
	struct pty *x = arg;

	x->pipes = mode == AGENT_TM_PIPE;
	x->replayed = from;
	x->replay_end = offset;
	http_on_gone(x->r, NULL);
	if (pty_accept(x) && from == offset)
		pty_connected(x);
}

/* A message of the client's protocol: 1 or 2 and live output, or 3, the offset and output. 3 is for the replay, and for all output to a viewer. */
static void pty_send_output(
	struct pty *x, bool replay, int stream, uint64_t off, const uint8_t *p, size_t n)
{
	uint8_t frame[9 + LIVE_MAX];
	size_t head = replay ? 9 : 1;

	frame[0] = replay ? 3 : (uint8_t)stream;
	for (int i = 0; replay && i < 8; i++)
		frame[1 + i] = (uint8_t)(off >> (56 - 8 * i));
	memcpy(frame + head, p, n);
	ws_send(x->ws, false, frame, head + n);
}

/* stream: 3 is output from before the attach (lib/proto_agent.h), the replay. */
static void pty_output(void *arg, int stream, uint64_t off, const uint8_t *p, size_t n)
{
	struct pty *x = arg;

	/* a guest that lies may send less replay than it announced: live output ends the replay */
	if (!x->connected && stream != 3)
		pty_connected(x);
	for (size_t at = 0; at < n && !x->over; at += LIVE_MAX) {
		size_t part = MIN(n - at, (size_t)LIVE_MAX);

		pty_send_output(x, stream == 3 || x->viewer, stream, off + at, p + at, part);
	}
	x->replayed = off + n;
	if (!x->connected && x->replayed >= x->replay_end)
		pty_connected(x);
	if (x->up && http_upgrade_full(x->up))
		agent_terminal_hold(x->term, true);
}

static void pty_taken(void *arg)
{
	pty_feed(arg);
	pty_charge(arg); /* it holds less now */
}

/* The agent refused before the 101. Answers with HTTP where the protocol has a status, otherwise with an error after the handshake. */
static void pty_refused(struct pty *x, const struct agent_reply *rep)
{
	const char *text = rep->text[0] ? rep->text : strerror(rep->err);

	http_on_gone(x->r, NULL);
	agent_terminal_close(take_ptr(x->term));
	if (rep->err == ENOENT && rep->step == AGENT_STEP_SESSION)
		pty_unknown(x->r);
	else if (rep->err == EINVAL && rep->step == AGENT_STEP_NONE)
		pty_unknown(x->r);
	else if (rep->err == EBUSY)
		execd_error(x->r, 409, "ALREADY_CONNECTED",
			"Another client is connected to this session. Add takeover=1 to replace "
			"it.");
	else if (rep->err == ESRCH)
		execd_error(x->r, 409, "VIEWER_REQUIRES_RUNNING_SESSION",
			"No shell runs in this session.");
	else if (!rep->text[0])
		execd_fail(x->r, rep);
	else if (pty_accept(x)) {
		pty_error(x, "START_FAILED", text);
		pty_end(x, WS_INTERNAL, "START_FAILED");
	}
}

static void pty_ended(void *arg, const struct agent_reply *rep, const struct agent_terminal_end *e)
{
	struct pty *x = arg;

	if (x->over)
		return;
	if (!x->up) {
		pty_refused(x, rep);
	} else if (e->evicted) {
		pty_end(x, CLOSE_TAKEN, "TAKEN_OVER");
	} else if (rep->err) {
		pty_end(x, WS_GOING_AWAY, "the connection to the sandbox was lost");
	} else if (e->state == AGENT_NOT_STARTED) {
		pty_error(x, "START_FAILED", rep->text);
		pty_end(x, WS_INTERNAL, "START_FAILED");
	} else {
		if (!x->connected)
			pty_connected(x);
		pty_say(x, "{\"type\":\"exit\",\"exit_code\":%u}",
			e->state == AGENT_SIGNALED ? 128 + e->code : e->code);
		pty_end(x, WS_NORMAL, "process exited");
	}
}

static const struct agent_terminal_ops pty_terminal_ops = {
	pty_attached, pty_output, pty_taken, pty_ended};

static void pty_gone(struct http_req *r)
{
	struct pty *x = r->user;

	x->over = true;
	agent_terminal_close(take_ptr(x->term));
	http_abort(r);
}

static uint64_t pty_number(struct http_req *r, const char *key, uint64_t max)
{
	const char *v = http_query(r, key);
	char *end;
	unsigned long long n = v && *v >= '0' && *v <= '9' ? strtoull(v, &end, 10) : 0;

	return n > max ? max : n;
}

static bool pty_query_is(struct http_req *r, const char *key, const char *value)
{
	const char *v = http_query(r, key);

	return v && !strcmp(v, value);
}

void route_pty_ws(struct http_req *r)
{
	struct agent_terminal_spec s = {.id = pty_id(r)};
	struct pty *x = s.id ? http_alloc(r, sizeof(*x)) : NULL;

	if (!s.id || !http_websocket_ok(r))
		return;
	if (!x) {
		http_error(r, 500, "RUNTIME_ERROR", "out of memory");
		return;
	}
	x->viewer = pty_query_is(r, "mode", "viewer");
	s.flags = (x->viewer ? AGENT_SA_VIEW : 0) |
		  (pty_query_is(r, "takeover", "1") ? AGENT_SA_TAKE : 0) |
		  (pty_query_is(r, "pty", "0") ? AGENT_SA_PIPE : 0);
	s.since = pty_number(r, "since", UINT64_MAX);
	s.cols = (uint16_t)pty_number(r, "cols", 65535);
	s.rows = (uint16_t)pty_number(r, "rows", 65535);
	x->r = r;
	x->id = s.id;
	x->agent = sandbox_agentc(r->sandbox);
	x->account = x->agent ? agentc_account(x->agent) : NULL;
	buf_init(&x->in, 2 * MESSAGE_MAX + KIB(64));
	r->user = x;
	http_on_free(r, pty_free);
	http_on_gone(r, pty_gone);
	x->term = x->agent ? agent_terminal_attach(x->agent, &s, &pty_terminal_ops, x) : NULL;
	if (!x->term) {
		http_on_gone(r, NULL);
		execd_error(
			r, 503, "SERVICE_UNAVAILABLE", "too many connections into this sandbox");
	}
}
