/* SPDX-License-Identifier: Apache-2.0
 *
 * route_session.c: shell sessions. mayflyd; request bodies are hostile.
 */
#include "api/exec/execd_int.h"

#include <string.h>

static void session_made(struct http_req *r, void *data, const struct agent_reply *rep)
{
	struct buf b;

	if (rep->err) {
		execd_fail(r, rep);
		return;
	}
	buf_init(&b, 256);
	buf_printf(&b, "{\"session_id\":\"%s\"}", (const char *)data);
	execd_reply_buf(r, 200, "application/json", &b);
}

void route_session_new(struct http_req *r)
{
	_cleanup_json_ cJSON *j = execd_body(r, cJSON_Object, true);
	char id[33], *kept;
	const char *cwd;
	struct buf b;

	if (!j || !execd_str(r, j, "cwd", &cwd))
		return;
	execd_new_id(id);
	kept = http_strdup(r, id, strlen(id));
	if (!kept) {
		http_error(r, 500, "RUNTIME_ERROR", "out of memory");
		return;
	}
	buf_init(&b, AGENT_FRAME_MAX);
	buf_str(&b, id);
	buf_str(&b, cwd);
	execd_ask(r, AGENT_SESSION_NEW, &b, 30000, session_made, kept);
	buf_fini(&b);
}

void route_session_run(struct http_req *r)
{
	_cleanup_json_ cJSON *j = execd_body(r, cJSON_Object, false);
	struct command_start s = {.session = http_param(r, "id")};
	bool given;

	if (!j || !execd_str(r, j, "command", &s.command) || !execd_str(r, j, "cwd", &s.cwd) ||
		!execd_uint(r, j, "timeout", 1ull << 40, &s.timeout_ms, &given))
		return;
	if (!s.command[0])
		execd_error(r, 400, "INVALID_REQUEST_BODY", "invalid request: command is needed");
	else if (!s.session[0] || strlen(s.session) > 63)
		execd_error(r, 500, "RUNTIME_ERROR", "error running commands. no such session");
	else
		command_run(r, &s);
}

static void session_deleted(struct http_req *r, void *data, const struct agent_reply *rep)
{
	if (rep->err == ENOENT)
		execd_error(
			r, 404, "SESSION_NOT_FOUND", "session %s not found", http_param(r, "id"));
	else if (rep->err)
		execd_fail(r, rep);
	else
		http_reply_empty(r, 200);
}

void route_session_del(struct http_req *r)
{
	const char *id = http_param(r, "id");
	struct buf b;

	if (!id[0] || strlen(id) > 63) {
		execd_error(r, 404, "SESSION_NOT_FOUND", "no such session");
		return;
	}
	buf_init(&b, 256);
	buf_str(&b, id);
	execd_ask(r, AGENT_SESSION_DEL, &b, 30000, session_deleted, NULL);
	buf_fini(&b);
}
