/* SPDX-License-Identifier: Apache-2.0
 *
 * execd.c: the execution API's table and what its handlers share: asking the agent, reading JSON
 * bodies, errors. mayflyd. Bodies and query values are a client's, texts and codes in answers a
 * guest's: both hostile.
 */
#include "api/exec/execd_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "api/core/text.h"
#include "api/http/upgrade.h"
#include "lib/json.h"

#define FILES(prefix)                                                                              \
	{"GET", prefix "/files/info", route_files_info, HTTP_BODY_NONE, 0, 0},                     \
		{"DELETE", prefix "/files", route_files_remove, HTTP_BODY_NONE, 0, 0},             \
		{"POST", prefix "/files/permissions", route_files_permissions, HTTP_BODY_WHOLE, 0, \
			0},                                                                        \
		{"POST", prefix "/files/mv", route_files_mv, HTTP_BODY_WHOLE, 0, 0},               \
		{"POST", prefix "/files/replace", route_files_replace, HTTP_BODY_WHOLE, 0, 0},     \
		{"GET", prefix "/files/search", route_files_search, HTTP_BODY_NONE, 0, 0},         \
		{"POST", prefix "/files/upload", route_files_upload, HTTP_BODY_STREAM, 0, 0},      \
		{"GET", prefix "/files/download", route_files_download, HTTP_BODY_NONE, 0, 0},     \
		{"POST", prefix "/directories", route_dirs_make, HTTP_BODY_WHOLE, 0, 0},           \
		{"DELETE", prefix "/directories", route_dirs_remove, HTTP_BODY_NONE, 0, 0},        \
	{                                                                                          \
		"GET", prefix "/directories/list", route_dirs_list, HTTP_BODY_NONE, 0, 0           \
	}

static const struct http_route execd_routes[] = {
	{"GET", "/ping", route_ping, HTTP_BODY_NONE, 0, 0},
	{"POST", "/command", route_command, HTTP_BODY_WHOLE, 0, 0},
	{"DELETE", "/command", route_interrupt, HTTP_BODY_NONE, 0, 0},
	{"GET", "/command/status/{id}", route_status, HTTP_BODY_NONE, 0, 0},
	{"GET", "/command/{id}/logs", route_logs, HTTP_BODY_NONE, 0, 0},
	{"POST", "/session", route_session_new, HTTP_BODY_WHOLE, 0, 0},
	{"POST", "/session/{id}/run", route_session_run, HTTP_BODY_WHOLE, 0, 0},
	{"DELETE", "/session/{id}", route_session_del, HTTP_BODY_NONE, 0, 0},
	{"GET", "/metrics", route_metrics, HTTP_BODY_NONE, 0, 0},
	{"GET", "/metrics/watch", route_metrics_watch, HTTP_BODY_NONE, 0, 0},
	{"POST", "/pty", route_pty_new, HTTP_BODY_WHOLE, 0, 0},
	{"GET", "/pty/{id}", route_pty_get, HTTP_BODY_NONE, 0, 0},
	{"DELETE", "/pty/{id}", route_pty_del, HTTP_BODY_NONE, 0, 0},
	{"GET", "/pty/{id}/ws", route_pty_ws, HTTP_BODY_NONE, 0, 0},
	{"GET", "/stream", route_stream, HTTP_BODY_NONE, 0, 0},
	{"GET", "/v1/isolated/capabilities", route_isolated_caps, HTTP_BODY_NONE, 0, 0},
	{"POST", "/v1/isolated/session", route_isolated_new, HTTP_BODY_WHOLE, 0, 0},
	{"GET", "/v1/isolated/sessions", route_isolated_list, HTTP_BODY_NONE, 0, 0},
	{"GET", "/v1/isolated/session/{id}", route_isolated_get, HTTP_BODY_NONE, 0, 0},
	{"DELETE", "/v1/isolated/session/{id}", route_isolated_del, HTTP_BODY_NONE, 0, 0},
	{"POST", "/v1/isolated/session/{id}/run", route_isolated_run, HTTP_BODY_WHOLE, 0, 0},
	{"GET", "/v1/isolated/session/{id}/runs/{run}", route_isolated_status, HTTP_BODY_NONE, 0,
		0},
	{"GET", "/v1/isolated/session/{id}/runs/{run}/logs", route_isolated_logs, HTTP_BODY_NONE, 0,
		0},
	{"GET", "/v1/isolated/session/{id}/diff", route_isolated_diff, HTTP_BODY_NONE, 0, 0},
	{"POST", "/v1/isolated/session/{id}/commit", route_isolated_commit, HTTP_BODY_WHOLE, 0, 0},
	FILES("/v1/isolated/session/{session}"),
	FILES(""),
	FILES("/v1/filesystem/{uid}/{gid}"),
	{"*", "/proxy/{port}", route_execd_proxy, HTTP_BODY_STREAM, 0, 0},
	{"*", "/proxy/{port}/{rest*}", route_execd_proxy, HTTP_BODY_STREAM, 0, 0},
};
const struct http_table execd_table = {execd_routes, ARRAY_LEN(execd_routes)};

static const struct http_route proxy_routes[] = {
	{"*", "/{rest*}", route_proxy, HTTP_BODY_STREAM, 0, 0},
};
const struct http_table proxy_table = {proxy_routes, ARRAY_LEN(proxy_routes)};

/* ---- errors */

void execd_error(struct http_req *r, int status, const char *code, const char *fmt, ...)
{
	char msg[1024];
	struct buf b;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(msg, sizeof(msg), fmt, ap);
	va_end(ap);
	if (http_websocket_error(r, status, msg))
		return;
	if (r->error_text) {
		http_error(r, status, code, "%s", msg);
		return;
	}
	buf_init(&b, 16384);
	buf_printf(&b, "{\"code\":\"%s\",\"message\":", code);
	json_string(&b, msg);
	buf_put(&b, "}", 1);
	execd_reply_buf(r, status, "application/json", &b);
}

void execd_reply_buf(struct http_req *r, int status, const char *type, struct buf *b)
{
	if (b->bad)
		http_error(r, 500, "RUNTIME_ERROR", "the answer is too large");
	else
		http_reply(r, status, type, b->p, b->len);
	buf_fini(b);
}

void execd_no_session(struct http_req *r, const char *id)
{
	execd_error(r, 404, "SESSION_NOT_FOUND",
		"isolated session %s not found, or its shell has ended", id);
}

static const char *reason(const struct agent_reply *rep)
{
	return rep->text[0] ? rep->text : strerror(rep->err);
}

/* Answers if the connection to the sandbox failed, which is not the request's fault. False: it is another failure. */
static bool connection_lost(struct http_req *r, const struct agent_reply *rep)
{
	switch (rep->err) {
	case ECANCELED:
		execd_error(r, 503, "SERVICE_UNAVAILABLE", "the sandbox has ended");
		return true;
	case ECONNRESET:
	case ECONNREFUSED:
	case EPROTO:
		if (rep->text[0])
			return false;
		execd_error(
			r, 503, "SERVICE_UNAVAILABLE", "the connection to the sandbox was lost");
		return true;
	case ETIMEDOUT:
		if (rep->text[0])
			return false;
		execd_error(r, 503, "SERVICE_UNAVAILABLE", "the sandbox did not answer in time");
		return true;
	default:
		return false;
	}
}

void execd_fail(struct http_req *r, const struct agent_reply *rep)
{
	if (connection_lost(r, rep))
		return;
	if (rep->step == AGENT_STEP_CWD || rep->step == AGENT_STEP_USER || rep->err == E2BIG)
		execd_error(r, 400, "INVALID_REQUEST_BODY", "%s", reason(rep));
	else
		execd_error(r, 500, "RUNTIME_ERROR", "%s", reason(rep));
}

void execd_fail_files(struct http_req *r, const struct agent_reply *rep)
{
	bool as_user = http_param(r, "uid") != NULL;

	if (connection_lost(r, rep))
		return;
	if (rep->step == AGENT_STEP_SESSION)
		execd_no_session(r, http_param(r, "session"));
	else if (rep->err == ENOENT && rep->step != AGENT_STEP_USER)
		execd_error(r, 404, "FILE_NOT_FOUND", "%s", reason(rep));
	else if (as_user && (rep->err == EACCES || rep->err == EPERM))
		execd_error(r, 403, "RUNTIME_ERROR", "%s", reason(rep));
	else if (rep->err == EINVAL && rep->step == AGENT_STEP_PATH)
		execd_error(r, 400, "INVALID_REQUEST_BODY", "%s", reason(rep));
	else
		execd_error(r, 500, "RUNTIME_ERROR", "%s", reason(rep));
}

bool execd_token_fits(struct http_req *r, const char *token)
{
	static const char body[] =
		"{\"error\":\"Unauthorized: invalid or missing header X-EXECD-ACCESS-TOKEN\"}";
	const char *given = http_header(r, "X-EXECD-ACCESS-TOKEN");

	if (!token || !*token || (given && secret_equal(given, token)))
		return true;
	http_reply(r, 401, "application/json", body, sizeof(body) - 1);
	return false;
}

bool execd_admit(struct http_req *r)
{
	return execd_token_fits(r, sandbox_env(r->sandbox, "EXECD_ACCESS_TOKEN"));
}

/* ---- asking */

struct execd_ask {
	struct http_req *r;
	struct agent_call *call;
	execd_reply_fn fn;
	void *data, *owned;
	void (*owned_free)(void *data);
};

static void ask_gone(struct http_req *r);

static struct execd_ask *ask_of(struct http_req *r)
{
	struct execd_ask *a = r->user;

	if (a)
		return a;
	a = http_alloc(r, sizeof(*a));
	if (!a)
		return NULL;
	a->r = r;
	r->user = a;
	http_on_gone(r, ask_gone);
	return a;
}

static void ask_free(struct http_req *r)
{
	struct execd_ask *a = r->user;

	a->owned_free(a->owned);
}

bool execd_own(struct http_req *r, void *data, void (*fn)(void *data))
{
	struct execd_ask *a = ask_of(r);

	if (!a) {
		fn(data);
		return false;
	}
	a->owned = data;
	a->owned_free = fn;
	http_on_free(r, ask_free);
	return true;
}

static void ask_gone(struct http_req *r)
{
	struct execd_ask *a = r->user;

	agent_call_cancel(take_ptr(a->call));
	http_abort(r);
}

static void ask_reply(void *arg, const struct agent_reply *rep)
{
	struct execd_ask *a = arg;

	if (!rep->more)
		a->call = NULL;
	a->fn(a->r, a->data, rep);
}

void execd_ask(struct http_req *r, uint16_t type, const struct buf *payload, uint32_t limit_ms,
	execd_reply_fn fn, void *data)
{
	struct agentc *agent = sandbox_agentc(r->sandbox);
	struct execd_ask *a = ask_of(r);

	if (!a) {
		http_error(r, 500, "RUNTIME_ERROR", "out of memory");
		return;
	}
	a->fn = fn;
	a->data = data;
	errno = ENOTCONN;
	a->call =
		agent ? agentc_call_in(agent, execd_view(r), type, payload, limit_ms, ask_reply, a)
		      : NULL;
	if (a->call)
		return;
	if (errno == EMSGSIZE)
		execd_error(r, 400, "INVALID_REQUEST_BODY", "the request is too long");
	else if (errno == EBUSY)
		execd_error(r, 503, "SERVICE_UNAVAILABLE",
			"too many requests at one time for this sandbox");
	else
		execd_error(r, 503, "SERVICE_UNAVAILABLE", "the sandbox does not run");
}

/* ---- reading the request */

cJSON *execd_body(struct http_req *r, int type, bool may_be_empty)
{
	cJSON *j = NULL;

	if (may_be_empty && r->body_len == 0)
		return cJSON_CreateObject();
	if (json_read(&j, r->body, r->body_len, type == cJSON_Array ? JSON_ARRAY : JSON_OBJECT,
		    NULL) == 0)
		return j;
	execd_error(
		r, 400, "INVALID_REQUEST_BODY", "error parsing request, MAYBE invalid body format");
	return NULL;
}

static void wrong_type(struct http_req *r, const char *key, const char *want)
{
	execd_error(r, 400, "INVALID_REQUEST_BODY", "error parsing request: '%s' must be %s", key,
		want);
}

bool execd_str(struct http_req *r, const cJSON *o, const char *key, const char **out)
{
	const cJSON *v = json_field(o, key);

	if (v && !cJSON_IsString(v)) {
		wrong_type(r, key, "a string");
		return false;
	}
	*out = v ? v->valuestring : "";
	return true;
}

bool execd_uint(struct http_req *r, const cJSON *o, const char *key, uint64_t max, uint64_t *out,
	bool *given)
{
	const cJSON *v = json_field(o, key);

	*given = v != NULL;
	*out = 0;
	if (!v)
		return true;
	if (json_whole(v, max, out))
		return true;
	wrong_type(r, key, "a whole number within its range");
	return false;
}

bool execd_bool(struct http_req *r, const cJSON *o, const char *key, bool *out)
{
	const cJSON *v = json_field(o, key);

	if (v && !cJSON_IsBool(v)) {
		wrong_type(r, key, "true or false");
		return false;
	}
	*out = cJSON_IsTrue(v);
	return true;
}

bool execd_mode(const cJSON *o, const char *key, uint32_t *mode)
{
	const cJSON *v = json_field(o, key);
	uint32_t digits, m = 0;

	*mode = AGENT_NO_MODE;
	if (!v)
		return true;
	if (!cJSON_IsNumber(v) || !(v->valuedouble >= 0) || v->valuedouble > 7777 ||
		v->valuedouble != (double)(int)v->valuedouble)
		return false;
	digits = (uint32_t)v->valuedouble;
	for (uint32_t unit = 1; digits; digits /= 10, unit *= 8) {
		if (digits % 10 > 7)
			return false;
		m += digits % 10 * unit;
	}
	if (m)
		*mode = m;
	return true;
}

static bool take_id(const char *s, uint32_t *out)
{
	uint64_t v = 0;

	if (!s) {
		*out = AGENT_NO_ID;
		return true;
	}
	if (!*s || strlen(s) > 10)
		return false;
	for (; *s; s++) {
		if (*s < '0' || *s > '9')
			return false;
		v = v * 10 + (uint64_t)(*s - '0');
	}
	*out = (uint32_t)v;
	return v < AGENT_NO_ID;
}

const char *execd_isolated(struct http_req *r, const char *id)
{
	return id && uuid_ok(id) ? http_printf(r, EXECD_ISOLATED "%s", id) : NULL;
}

const char *execd_view(struct http_req *r)
{
	return execd_isolated(r, http_param(r, "session"));
}

static bool take_ids(struct http_req *r, uint32_t *uid, uint32_t *gid)
{
	if (take_id(http_param(r, "uid"), uid) && take_id(http_param(r, "gid"), gid))
		return true;
	execd_error(
		r, 400, "INVALID_REQUEST_BODY", "uid and gid must be numbers from 0 to 4294967294");
	return false;
}

bool execd_files(struct http_req *r, uint32_t *uid, uint32_t *gid)
{
	const char *session = http_param(r, "session");

	if (session && !uuid_ok(session)) {
		execd_no_session(r, session);
		return false;
	}
	return take_ids(r, uid, gid);
}

void execd_new_id(char id[33])
{
	uint8_t raw[16];

	random_bytes(raw, sizeof(raw));
	for (size_t i = 0; i < sizeof(raw); i++)
		snprintf(id + 2 * i, 3, "%02x", raw[i]);
}

void execd_time(struct buf *b, int64_t wall)
{
	time_t s = (time_t)(wall / 1000000000);
	long ns = (long)(wall % 1000000000);
	struct tm tm;
	char text[32];

	if (ns < 0) {
		ns += 1000000000;
		s--;
	}
	/* a guest may claim any time: only years with four digits are dates that clients can read
	 */
	if (s < 0 || s > 253402300799)
		s = 0;
	gmtime_r(&s, &tm);
	strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm);
	buf_printf(b, "\"%s.%09ldZ\"", text, ns);
}

void route_ping(struct http_req *r)
{
	/* called when the sandbox runs, which means that its agent has answered: see HTTP_R_NO_WAIT
	 */
	http_reply_empty(r, 200);
}
