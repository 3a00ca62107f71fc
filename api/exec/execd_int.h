/* SPDX-License-Identifier: Apache-2.0
 *
 * execd_int.h: what the files of the execution API share. mayflyd, its loop's thread.
 */
#pragma once

#include <cjson/cJSON.h>

#include "api/links/agent_client.h"
#include "api/exec/execd.h"
#include "api/http/event_stream.h"
#include "api/sandbox/guest.h"
#include "lib/json.h"

/* {"code","message"}; the text may be a guest's: it is made valid UTF-8. Ends the request. */
void execd_error(struct http_req *r, int status, const char *code, const char *fmt, ...)
	_printf_(4, 5);
/* The documented error for an agent's refusal. */
void execd_fail_files(struct http_req *r, const struct agent_reply *rep);
void execd_fail(struct http_req *r, const struct agent_reply *rep);
/* Takes a finished JSON text (and frees the buffer's memory). */
void execd_reply_buf(struct http_req *r, int status, const char *type, struct buf *b);

/* One request to the agent on behalf of an HTTP request; when the client leaves it is cancelled. fn gets
 * the agent's answer, also an error, and must end the request or ask again. If the agent cannot be asked,
 * the request is answered here. data: the handler's. */
struct execd_ask;
typedef void (*execd_reply_fn)(struct http_req *r, void *data, const struct agent_reply *rep);
void execd_ask(struct http_req *r, uint16_t type, const struct buf *payload, uint32_t limit_ms,
	execd_reply_fn fn, void *data);

/* fn frees data when the request is freed. At most once for each request. False: no memory, and data was
 * freed. */
bool execd_own(struct http_req *r, void *data, void (*fn)(void *data));

/* The request's body as JSON of one type (cJSON_Object, cJSON_Array), the caller's to free
 * (_cleanup_json_); NULL: answered with 400. An empty body is an empty object if may_be_empty.
 * Strings with a NUL in them are refused: they would be cut. */
cJSON *execd_body(struct http_req *r, int type, bool may_be_empty);
/* Members; null counts as absent. False: wrong type, answered. */
bool execd_str(struct http_req *r, const cJSON *o, const char *key, const char **out);
bool execd_uint(struct http_req *r, const cJSON *o, const char *key, uint64_t max, uint64_t *out,
	bool *given);
bool execd_bool(struct http_req *r, const cJSON *o, const char *key, bool *out);
/* A mode written as decimal digits that are octal ones: 755. 0 or absent: AGENT_NO_MODE. */
bool execd_mode(const cJSON *o, const char *key, uint32_t *mode);
/* For a request about files: reads the ids in /v1/filesystem/{uid}/{gid} (AGENT_NO_ID without them), and checks that {session} is a UUID. False:
 * answered. */
bool execd_files(struct http_req *r, uint32_t *uid, uint32_t *gid);
/* /v1/isolated/session/{session}/...: the agent's name of the session in whose view of the files the request is done. NULL: the sandbox's own view.
 * execd_ask adds it. */
const char *execd_view(struct http_req *r);
/* The agent's names of isolated sessions begin with this, so that no request about another kind of session reaches one. */
#define EXECD_ISOLATED "iso-"
const char *execd_isolated(struct http_req *r, const char *id); /* NULL: not a UUID */
void execd_no_session(struct http_req *r, const char *id);

void execd_new_id(char id[33]);
void execd_time(struct buf *b, int64_t wall); /* RFC 3339, UTC, as a JSON string */

/* route_command.c: also runs what /code and the sessions run */
struct command_start {
	/* session: a shell session or NULL. Its id is the text of the init event, and stderr goes into stdout. */
	const char *command, *session, *cwd;
	uint64_t timeout_ms;
	bool background;
};
void command_run(struct http_req *r, const struct command_start *s);
/* A run in the foreground of an isolated session. */
void command_run_isolated(struct http_req *r, struct agent_exec_spec *s);
/* A log of a background run: in pages, up to 16 MiB. exec_id lives as long as the request. */
void command_logs_isolated(struct http_req *r, const char *exec_id, uint64_t offset);
/* Appends ,"exit_code":N[,"error":"..."] */
void command_put_exit(struct buf *b, uint32_t state, uint32_t code, const char *error);
/* The member "envs" of a body: {name: value}. The strings belong to the body. False: answered. */
struct execd_envs {
	const char **keys, **vals;
	size_t n;
};
bool execd_envs(struct http_req *r, const cJSON *j, struct execd_envs *e);
/* client_generation.c: this client expects text events without line endings. */
bool execd_strips_lines(struct http_req *r);

/* proxy.c: how long a server in the sandbox may take to be connected to, and then until the head of its answer is complete. */
uint64_t execd_backend_limit_ns(const struct http_req *r);

/* route_isolated.c: the documented error for an agent's refusal. Ends the request. */
void isolated_fail(struct http_req *r, const struct agent_reply *rep);

void route_ping(struct http_req *r);
void route_command(struct http_req *r);
void route_interrupt(struct http_req *r);
void route_status(struct http_req *r);
void route_logs(struct http_req *r);
void route_session_new(struct http_req *r);
void route_session_run(struct http_req *r);
void route_session_del(struct http_req *r);
void route_pty_new(struct http_req *r);
void route_pty_get(struct http_req *r);
void route_pty_del(struct http_req *r);
void route_pty_ws(struct http_req *r);
void route_stream(struct http_req *r);
void route_isolated_caps(struct http_req *r);
void route_isolated_new(struct http_req *r);
void route_isolated_list(struct http_req *r);
void route_isolated_get(struct http_req *r);
void route_isolated_del(struct http_req *r);
void route_isolated_run(struct http_req *r);
void route_isolated_status(struct http_req *r);
void route_isolated_logs(struct http_req *r);
void route_isolated_diff(struct http_req *r);
void route_isolated_commit(struct http_req *r);
void route_metrics(struct http_req *r);
void route_metrics_watch(struct http_req *r);
void route_files_info(struct http_req *r);
void route_files_remove(struct http_req *r);
void route_files_permissions(struct http_req *r);
void route_files_mv(struct http_req *r);
void route_files_replace(struct http_req *r);
void route_files_search(struct http_req *r);
void route_files_upload(struct http_req *r);
void route_files_download(struct http_req *r);
void route_dirs_make(struct http_req *r);
void route_dirs_remove(struct http_req *r);
void route_dirs_list(struct http_req *r);
void route_execd_proxy(struct http_req *r);
void route_proxy(struct http_req *r);
