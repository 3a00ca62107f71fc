/* SPDX-License-Identifier: Apache-2.0
 *
 * routes.c: /code and /code/contexts: requests are checked, contexts found or made, answers written. mayflyd; bodies, queries and the guest's answers are
 * hostile.
 */
#include "api/code/code.h"

#include <ctype.h>
#include <string.h>

#include "api/code/cell.h"
#include "api/code/contexts.h"
#include "api/exec/execd_int.h"

#define CODE_BODY_MAX (8u * 1024 * 1024)

/* An HTTP request that waits for the Jupyter server. */
struct code_ask {
	struct http_req *r;
	struct jupyter_server server;
	struct context_ask *ask;
	char *code;
};

static void ask_gone(struct http_req *r)
{
	struct code_ask *k = r->user;

	if (k)
		context_cancel(take_ptr(k->ask));
	r->user = NULL;
	http_abort(r);
}

/* NULL: answered. */
static struct code_ask *ask_begin(struct http_req *r, struct contexts **cs)
{
	struct agentc *a = sandbox_agentc(r->sandbox);
	struct code_ask *k;
	int rc;

	if (!a) {
		execd_error(r, 503, "SERVICE_UNAVAILABLE", "the sandbox does not run");
		return NULL;
	}
	*cs = contexts_of(a);
	k = *cs ? http_alloc(r, sizeof(*k)) : NULL;
	if (!k) {
		execd_error(r, 500, "RUNTIME_ERROR", "out of memory");
		return NULL;
	}
	rc = jupyter_server_of(r->sandbox, &k->server);
	if (rc < 0) {
		execd_error(r, 500, "RUNTIME_ERROR", "%s",
			rc == -ENOENT ? "language runtime server not configured"
				      : "JUPYTER_HOST is not an http:// address of the sandbox "
					"itself, such as http://127.0.0.1:44771");
		return NULL;
	}
	k->r = r;
	r->user = k;
	http_on_gone(r, ask_gone);
	return k;
}

/* Answers if the request to the Jupyter server could not be started. */
static void ask_started(struct code_ask *k)
{
	if (k->ask)
		return;
	k->r->user = NULL;
	execd_error(k->r, 500, "RUNTIME_ERROR", "out of memory");
}

static void ask_failed(struct http_req *r, const struct context_answer *a)
{
	switch (a->err) {
	case ENOENT:
		execd_error(r, 404, "CONTEXT_NOT_FOUND", "context %s not found",
			http_param(r, "id") ? http_param(r, "id") : "");
		break;
	case EINVAL:
		execd_error(r, 400, "INVALID_REQUEST_BODY", "%s", a->why);
		break;
	case ECANCELED:
		execd_error(r, 503, "SERVICE_UNAVAILABLE", "%s", a->why);
		break;
	default:
		execd_error(r, 500, "RUNTIME_ERROR", "%s", a->why);
	}
}

/* The Jupyter server has answered. true: with an error, which the client has as the answer. */
static bool ask_has_failed(struct code_ask *k, const struct context_answer *a)
{
	k->ask = NULL;
	k->r->user = NULL;
	if (a->err)
		ask_failed(k->r, a);
	return a->err != 0;
}

/* ---- parameters */

/* In lower case, as it is compared with the kernel specs. "": not given. false: answered. */
static bool read_language(struct http_req *r, const char *given, char out[CONTEXT_LANGUAGE_MAX + 1])
{
	size_t n = strlen(given);

	if (n > CONTEXT_LANGUAGE_MAX) {
		execd_error(r, 400, "INVALID_REQUEST_BODY", "no kernel for the language '%.40s...'",
			given);
		return false;
	}
	for (size_t i = 0; i <= n; i++)
		out[i] = (char)tolower((unsigned char)given[i]);
	return true;
}

/* The working directory of a context: cwd, below the image's working directory if it is relative. NULL: no memory. */
static const char *working_folder(struct http_req *r, const char *cwd)
{
	const char *base = sandbox_workdir(r->sandbox);

	if (*cwd == '/')
		return cwd;
	if (!*base)
		base = "/";
	return *cwd ? http_printf(r, "%s/%s", strcmp(base, "/") ? base : "", cwd) : base;
}

static bool cwd_fits(struct http_req *r, const char *cwd)
{
	if (strlen(cwd) < 900)
		return true;
	execd_error(r, 400, "INVALID_REQUEST_BODY", "cwd is too long");
	return false;
}

/* true: no context can have this id, and the request is answered. */
static bool id_is_known_wrong(struct http_req *r, const char *id, int status)
{
	if (jupyter_id_ok(id))
		return false;
	execd_error(r, status, "CONTEXT_NOT_FOUND", "context %.64s not found", id);
	return true;
}

/* ---- POST /code: the protocol has no 404 for it */

static void run_resolved(void *arg, const struct context_answer *a)
{
	struct code_ask *k = arg;

	if (a->err == ENOENT) {
		k->ask = NULL;
		k->r->user = NULL;
		execd_error(k->r, 400, "CONTEXT_NOT_FOUND", "no context with this id");
	} else if (!ask_has_failed(k, a)) {
		cell_run(k->r, a->ctx, &k->server, k->code);
	}
}

static void run_in_context(
	struct http_req *r, const char *id, const char *language, const char *cwd, const char *code)
{
	struct contexts *cs;
	struct code_ask *k;
	char lang[CONTEXT_LANGUAGE_MAX + 1];

	if ((*id && id_is_known_wrong(r, id, 400)) || !read_language(r, language, lang) ||
		!cwd_fits(r, cwd))
		return;
	/* two copies: k->code, and the cell's */
	if (!http_hold(r, 2 * strlen(code))) {
		http_error_full(r);
		return;
	}
	cwd = working_folder(r, cwd);
	k = ask_begin(r, &cs);
	if (!k)
		return;
	k->code = http_strdup(r, code, strlen(code));
	if (k->code && cwd)
		k->ask = context_resolve(
			cs, &k->server, *id ? id : NULL, lang, cwd, run_resolved, k);
	ask_started(k);
}

static void route_code(struct http_req *r)
{
	_cleanup_json_ cJSON *j = execd_body(r, cJSON_Object, false);
	struct command_start s = {0};
	const char *language = "", *id = "", *cwd = "";
	const cJSON *ctx;

	if (!j || !execd_str(r, j, "code", &s.command))
		return;
	ctx = cJSON_GetObjectItemCaseSensitive(j, "context");
	if (cJSON_IsObject(ctx) &&
		(!execd_str(r, ctx, "language", &language) || !execd_str(r, ctx, "id", &id) ||
			!execd_str(r, ctx, "cwd", &cwd)))
		return;
	if (!s.command[0]) {
		execd_error(r, 400, "INVALID_REQUEST_BODY", "invalid request: code is needed");
		return;
	}
	s.background = !strcmp(language, "background-command");
	if (*id || (*language && !s.background && strcmp(language, "command") != 0)) {
		run_in_context(r, id, language, cwd, s.command);
		return;
	}
	s.cwd = cwd;
	command_run(r, &s);
}

/* ---- contexts */

static void put_context(struct buf *b, const struct context_item *i)
{
	/* The id was checked (jupyter_id_ok). The language may be any text: it comes from a kernel's spec. */
	buf_printf(b, "{\"id\":\"%s\",\"language\":", i->id);
	json_string(b, i->language);
	buf_put(b, "}", 1);
}

static void one_answered(void *arg, const struct context_answer *a)
{
	struct code_ask *k = arg;
	struct buf b;

	if (ask_has_failed(k, a))
		return;
	buf_init(&b, 4096);
	put_context(&b, &a->items[0]);
	execd_reply_buf(k->r, 200, "application/json", &b);
}

static void list_answered(void *arg, const struct context_answer *a)
{
	struct code_ask *k = arg;
	struct buf b;

	if (ask_has_failed(k, a))
		return;
	buf_init(&b, MIB(1));
	buf_put(&b, "[", 1);
	for (size_t i = 0; i < a->n; i++) {
		if (i)
			buf_put(&b, ",", 1);
		put_context(&b, &a->items[i]);
	}
	buf_put(&b, "]", 1);
	execd_reply_buf(k->r, 200, "application/json", &b);
}

static void done_answered(void *arg, const struct context_answer *a)
{
	struct code_ask *k = arg;

	if (!ask_has_failed(k, a))
		http_reply_empty(k->r, 200);
}

static void route_context_new(struct http_req *r)
{
	_cleanup_json_ cJSON *j = execd_body(r, cJSON_Object, false);
	char lang[CONTEXT_LANGUAGE_MAX + 1];
	const char *language, *cwd;
	struct contexts *cs;
	struct code_ask *k;

	if (!j || !execd_str(r, j, "language", &language) || !execd_str(r, j, "cwd", &cwd))
		return;
	if (!*language) {
		execd_error(r, 400, "INVALID_REQUEST_BODY", "invalid request: language is needed");
		return;
	}
	if (!read_language(r, language, lang) || !cwd_fits(r, cwd))
		return;
	cwd = working_folder(r, cwd);
	k = ask_begin(r, &cs);
	if (!k)
		return;
	if (cwd)
		k->ask = context_create(cs, &k->server, lang, cwd, one_answered, k);
	ask_started(k);
}

static void route_contexts_list(struct http_req *r)
{
	const char *language = http_query(r, "language");
	char lang[CONTEXT_LANGUAGE_MAX + 1];
	struct contexts *cs;
	struct code_ask *k;

	if (!read_language(r, language ? language : "", lang))
		return;
	k = ask_begin(r, &cs);
	if (!k)
		return;
	k->ask = context_list(cs, &k->server, *lang ? lang : NULL, list_answered, k);
	ask_started(k);
}

static void route_contexts_del(struct http_req *r)
{
	const char *language = http_query(r, "language");
	char lang[CONTEXT_LANGUAGE_MAX + 1];
	struct contexts *cs;
	struct code_ask *k;

	if (!language || !*language) {
		execd_error(r, 400, "MISSING_QUERY", "missing query parameter 'language'");
		return;
	}
	if (!read_language(r, language, lang))
		return;
	k = ask_begin(r, &cs);
	if (!k)
		return;
	k->ask = context_delete_all(cs, &k->server, lang, done_answered, k);
	ask_started(k);
}

static void about_one(struct http_req *r,
	struct context_ask *(*fn)(struct contexts *cs, const struct jupyter_server *s,
		const char *id, context_fn told, void *arg),
	context_fn told)
{
	const char *id = http_param(r, "id");
	struct jupyter_server s;
	struct contexts *cs;
	struct code_ask *k;

	if (id_is_known_wrong(r, id, 404))
		return;
	if (jupyter_server_of(r->sandbox, &s) == -ENOENT) {
		execd_error(r, 404, "CONTEXT_NOT_FOUND", "context %s not found", id);
		return;
	}
	k = ask_begin(r, &cs);
	if (!k)
		return;
	k->ask = fn(cs, &k->server, id, told, k);
	ask_started(k);
}

static void route_context_get(struct http_req *r)
{
	about_one(r, context_get, one_answered);
}

static void route_context_del(struct http_req *r)
{
	about_one(r, context_delete, done_answered);
}

/* ---- DELETE /code */

static void interrupted(void *arg, const struct context_answer *a)
{
	struct code_ask *k = arg;

	k->ask = NULL;
	k->r->user = NULL;
	if (a->err == ENOENT)
		/* not a context's id: a command's or a session's, perhaps */
		route_interrupt(k->r);
	else if (a->err)
		ask_failed(k->r, a);
	else
		http_reply_empty(k->r, 200);
}

/* Commands have ids of 32 hexadecimal digits. The Jupyter server is asked about other ids only. */
static bool is_command_id(const char *id)
{
	return strlen(id) == 32 && strspn(id, "0123456789abcdef") == 32;
}

static void route_code_interrupt(struct http_req *r)
{
	const char *id = http_query(r, "id");
	struct jupyter_server s;
	struct contexts *cs;
	struct code_ask *k;

	if (!id || !jupyter_id_ok(id) || is_command_id(id) ||
		jupyter_server_of(r->sandbox, &s) < 0) {
		route_interrupt(r);
		return;
	}
	k = ask_begin(r, &cs);
	if (!k)
		return;
	k->ask = context_interrupt(cs, &k->server, id, interrupted, k);
	ask_started(k);
}

static const struct http_route code_routes[] = {
	{"POST", "/code", route_code, HTTP_BODY_WHOLE, 0, CODE_BODY_MAX},
	{"DELETE", "/code", route_code_interrupt, HTTP_BODY_NONE, 0, 0},
	{"POST", "/code/context", route_context_new, HTTP_BODY_WHOLE, 0, 0},
	{"GET", "/code/contexts", route_contexts_list, HTTP_BODY_NONE, 0, 0},
	{"DELETE", "/code/contexts", route_contexts_del, HTTP_BODY_NONE, 0, 0},
	{"GET", "/code/contexts/{id}", route_context_get, HTTP_BODY_NONE, 0, 0},
	{"DELETE", "/code/contexts/{id}", route_context_del, HTTP_BODY_NONE, 0, 0},
};
const struct http_table code_table = {code_routes, ARRAY_LEN(code_routes)};
