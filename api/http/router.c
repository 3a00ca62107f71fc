/* SPDX-License-Identifier: Apache-2.0
 *
 * router.c: finds the table and route of a request, and checks its key. mayflyd's loop; every path is
 * hostile. A sandbox's ports are reached at [/v1]/sandboxes/{id}/proxy/{port}/... and at
 * /{id}/{port}/...; both lead to the tables of struct router's ports.
 */
#include "api/http/router.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "api/core/daemon.h"
#include "api/core/text.h"
#include "api/http/authenticate.h"
#include "api/http/upgrade.h"
#include "lib/log.h"
#include "lib/websocket.h"

static const struct router *router_of(const struct http_req *r)
{
	const struct daemon *d = r->app;

	return d->router;
}

static const struct http_route *not_found(struct http_req *r, int status)
{
	http_error_detail(r, status, status == 405 ? "Method Not Allowed" : "Not Found");
	return NULL;
}

/* ---- endpoints */

struct endpoint_path {
	char id[37];
	unsigned int port;
	size_t prefix; /* bytes of the path up to the port's end */
};

static bool port_at(const char *p, unsigned int *port, size_t *n)
{
	*n = strspn(p, "0123456789");
	*port = 0;
	for (size_t i = 0; i < *n && i < 6; i++)
		*port = *port * 10 + (unsigned int)(p[i] - '0');
	return *n > 0 && (p[*n] == '/' || !p[*n]);
}

static bool id_at(const char *p, char id[37])
{
	snprintf(id, 37, "%s", p);
	return uuid_ok(id) && p[36] == '/';
}

/* [/v1]/sandboxes/{id}/proxy/{port} */
static bool is_proxy_path(const char *path, struct endpoint_path *e)
{
	const char *p = strncmp(path, "/v1/", 4) ? path : path + 3;
	size_t n;

	if (strncmp(p, "/sandboxes/", 11) != 0)
		return false;
	p += 11;
	n = strcspn(p, "/");
	if (strncmp(p + n, "/proxy/", 7) != 0)
		return false;
	snprintf(e->id, sizeof(e->id), "%.*s", (int)MIN(n, (size_t)36), p);
	if (n != 36)
		e->id[0] = 0;
	p += n + 7;
	if (!port_at(p, &e->port, &n))
		return false;
	e->prefix = (size_t)(p + n - path);
	return true;
}

/* /{id}/{port} */
static bool is_short_path(const char *path, struct endpoint_path *e)
{
	size_t n;

	if (path[0] != '/' || !id_at(path + 1, e->id) || !port_at(path + 38, &e->port, &n))
		return false;
	e->prefix = 38 + n;
	return true;
}

static bool has_dotdot(const char *path)
{
	for (const char *p = path; (p = strstr(p, "..")); p += 2)
		if ((p == path || p[-1] == '/') && (!p[2] || p[2] == '/'))
			return true;
	return false;
}

static bool is_websocket(struct http_req *r)
{
	struct ws_offer o;

	http_websocket_offer(r, &o);
	return ws_offered(&o);
}

static const struct router_port *port_row(const struct router *t, unsigned int port)
{
	size_t i = 0;

	while (t->ports[i].port && t->ports[i].port != port)
		i++;
	return &t->ports[i];
}

/* Looks through all tables of the row's port. */
static const struct http_route *port_match(
	struct http_req *r, const struct router_port *row, int *status)
{
	const struct http_route *rt = http_match(r, row->table, status);
	int other;

	for (; !rt && row->port && row[1].port == row->port; row++) {
		rt = http_match(r, row[1].table, &other);
		*status = MAX(*status, other);
	}
	return rt;
}

const struct http_route *router_port(struct http_req *r, unsigned int port)
{
	const struct router *t = router_of(r);
	const struct router_port *row = port_row(t, port);
	const struct http_route *rt;
	int status = 404;

	r->port = (uint16_t)port;
	rt = port_match(r, row, &status);
	/* an API of ours: its errors are JSON, and no page of the sandbox has its origin */
	if (row->port) {
		r->error_text = NULL;
		r->own_origin = false;
	}
	if (!rt)
		return not_found(r, status);
	if (row->admit && !row->admit(r))
		return NULL;
	t->sandboxes->counts(r);
	t->sandboxes->accessed(r);
	return rt;
}

/* by_proxy: [/v1]/sandboxes/{id}/proxy/{port}, which asks for a key where there are tenants. */
static const struct http_route *endpoint_route(
	struct http_req *r, const struct endpoint_path *e, bool by_proxy)
{
	const struct daemon *d = r->app;
	const struct router *t = d->router;

	r->ws_codes = by_proxy && is_websocket(r);
	if (e->port < 1 || e->port > 65535) {
		http_error(r, 400, "DOCKER::INVALID_PORT", "Port must be between 1 and 65535.");
		return NULL;
	}
	/* not with Authorization, which belongs to the application here */
	if (by_proxy && conf_has_tenants(&d->cfg) && !authenticate(r, false))
		return NULL;
	if (!t->sandboxes->enter(r, e->id) || !t->sandboxes->admit(r))
		return NULL;
	r->prefix = r->log_prefix = http_strdup(r, r->path, e->prefix);
	r->path = r->path[e->prefix] ? r->path + e->prefix : "/";
	if (!r->prefix) {
		http_abort(r);
		return NULL;
	}
	return router_port(r, e->port);
}

/* ---- the API itself */

/* A program in a sandbox gets the execution API of that sandbox, whatever the path says. Its request does not renew the sandbox's expiry. */
static const struct http_route *inward_route(struct http_req *r)
{
	const struct router *t = router_of(r);
	const struct router_port *row = port_row(t, 44772);
	const struct http_route *rt;
	int status = 404;

	if (!t->sandboxes->enter(r, r->inward))
		return NULL;
	r->port = 44772;
	rt = http_match(r, row->table, &status);
	if (!rt)
		return not_found(r, status);
	if (row->admit && !row->admit(r))
		return NULL;
	t->sandboxes->counts(r);
	return rt;
}

static bool slash_redirect(struct http_req *r)
{
	size_t n = strlen(r->path), q = strlen(r->query);
	char *to;

	if (n < 2 || r->path[n - 1] != '/')
		return false;
	to = http_printf(r, "%s%.*s%s%.*s", r->prefix, (int)(n - 1), r->path, q ? "?" : "", (int)q,
		r->query);
	/* only to a path of ours: "//host" would lead elsewhere */
	if (!to || to[1] == '/' || strchr(to, '\\'))
		return false;
	http_add_header(r, "Location", to);
	http_reply_empty(r, 307);
	return true;
}

const struct http_route *router_dispatch(struct http_req *r)
{
	const struct router *t = router_of(r);
	bool v1 = !strncmp(r->path, "/v1/", 4);
	const struct http_route *rt = NULL;
	int status = 404, worst = 404;
	struct endpoint_path e;

	if (r->inward)
		return inward_route(r);
	if (!request_is_local(r, false))
		return NULL;
	if (is_proxy_path(r->path, &e)) {
		if (has_dotdot(r->path) && !authenticate(r, false))
			return NULL;
		return endpoint_route(r, &e, true);
	}
	if (is_short_path(r->path, &e))
		return endpoint_route(r, &e, false);
	if (v1) {
		r->prefix = r->log_prefix = "/v1";
		r->path += 3;
	}
	for (size_t i = 0; i < t->nmounts && !rt; i++) {
		if (v1 ? !t->mounts[i].v1 : !t->mounts[i].plain)
			continue;
		rt = http_match(r, t->mounts[i].table, &status);
		if (!rt)
			worst = MAX(worst, status);
	}
	/* the key first: a client without one must not learn which routes exist */
	if (!(rt && (rt->flags & HTTP_R_NO_KEY)) &&
		(!request_is_local(r, true) || !authenticate(r, true)))
		return NULL;
	if (rt && (rt->flags & HTTP_R_OPERATOR) && r->principal.role != ROLE_OPERATOR) {
		http_error(r, 403, "FORBIDDEN", "This needs the key of an operator.");
		return NULL;
	}
	if (rt)
		return rt;
	if (worst == 404 && slash_redirect(r))
		return NULL;
	return not_found(r, worst);
}

void router_invoke(struct http_req *r)
{
	if (r->sandbox && !(r->route->flags & HTTP_R_NO_WAIT))
		router_of(r)->sandboxes->when_up(r);
	else
		r->route->fn(r);
}

void router_done(struct http_req *r, int status)
{
	struct daemon *d = r->app;
	uint64_t ns = mono_ns() - r->start_ns;

	d->metrics.http_by_class[MIN(status / 100, 5)]++;
	hist_add(&d->metrics.http, ns);
	log_debug("%s %s%s %d %.1f ms by=%s request=%s", r->method, r->log_prefix, r->path, status,
		(double)ns / 1e6, r->principal.role == ROLE_NONE ? "-" : r->principal.name, r->id);
	/* Every change that a principal asked for is in the log. */
	if (!r->sandbox && r->principal.role != ROLE_NONE && strcmp(r->method, "GET") != 0)
		log_info("%s %s%s: %d, by %s/%s, request %s", r->method, r->log_prefix, r->path,
			status, r->principal.namespace, r->principal.name, r->id);
}

/* ---- openapi.json: what is served, from the tables */

static void describe_method(
	cJSON *p, const struct http_route *rt, const char *path, const char *method, bool open)
{
	cJSON *op, *params;

	op = cJSON_AddObjectToObject(p, method);
	params = cJSON_AddArrayToObject(op, "parameters");
	for (const char *s = path; (s = strchr(s, '{')); s++) {
		cJSON *q = cJSON_CreateObject();
		char name[32];

		snprintf(name, sizeof(name), "%.*s", (int)strcspn(s + 1, "}"), s + 1);
		cJSON_AddStringToObject(q, "name", name);
		cJSON_AddStringToObject(q, "in", "path");
		cJSON_AddTrueToObject(q, "required");
		cJSON_AddStringToObject(cJSON_AddObjectToObject(q, "schema"), "type", "string");
		cJSON_AddItemToArray(params, q);
	}
	if (rt->body == HTTP_BODY_WHOLE)
		cJSON_AddObjectToObject(
			cJSON_AddObjectToObject(
				cJSON_AddObjectToObject(op, "requestBody"), "content"),
			"application/json");
	cJSON_AddStringToObject(
		cJSON_AddObjectToObject(cJSON_AddObjectToObject(op, "responses"), "default"),
		"description", "the answer, or {code, message}");
	if (!open && !(rt->flags & HTTP_R_NO_KEY)) {
		cJSON *sec = cJSON_AddArrayToObject(op, "security"), *o = cJSON_CreateObject();

		cJSON_AddArrayToObject(o, "apiKey");
		cJSON_AddItemToArray(sec, o);
	}
}

/* open: behind an endpoint, where no key is asked for */
static void describe(cJSON *paths, const struct http_table *t, const char *mount, bool open)
{
	static const char *const any[] = {"get", "post", "put", "delete", "patch"};

	for (size_t i = 0; i < t->n; i++) {
		const struct http_route *rt = &t->routes[i];
		char path[256], method[16], *star;
		size_t n = 0;
		cJSON *p;

		snprintf(path, sizeof(path), "%s%s", mount, rt->path);
		/* {rest*} is ours: a parameter's name has no star */
		while ((star = strchr(path, '*')))
			memmove(star, star + 1, strlen(star));
		p = cJSON_GetObjectItemCaseSensitive(paths, path);
		if (!p)
			p = cJSON_AddObjectToObject(paths, path);
		for (; n < sizeof(method) - 1 && rt->method[n]; n++)
			method[n] = (char)(rt->method[n] | 0x20);
		method[n] = 0;
		for (size_t m = 0; m < ARRAY_LEN(any) && rt->method[0] == '*'; m++)
			describe_method(p, rt, path, any[m], open);
		if (rt->method[0] != '*')
			describe_method(p, rt, path, method, open);
	}
}

void route_openapi(struct http_req *r)
{
	const struct router *t = router_of(r);
	cJSON *o = cJSON_CreateObject(), *info, *paths, *key;

	cJSON_AddStringToObject(o, "openapi", "3.1.0");
	info = cJSON_AddObjectToObject(o, "info");
	cJSON_AddStringToObject(info, "title", "mayfly: the Sandbox Protocol");
	cJSON_AddStringToObject(info, "version", PROTOCOL_VERSION);
	key = cJSON_AddObjectToObject(
		cJSON_AddObjectToObject(
			cJSON_AddObjectToObject(o, "components"), "securitySchemes"),
		"apiKey");
	cJSON_AddStringToObject(key, "type", "apiKey");
	cJSON_AddStringToObject(key, "in", "header");
	cJSON_AddStringToObject(key, "name", "OPEN-SANDBOX-API-KEY");
	paths = cJSON_AddObjectToObject(o, "paths");
	for (size_t i = 0; i < t->nmounts; i++)
		describe(paths, t->mounts[i].table, t->mounts[i].v1 ? "/v1" : "", false);
	for (size_t i = 0; i < t->nports; i++) {
		char mount[80];

		snprintf(mount, sizeof(mount),
			t->ports[i].port ? "/v1/sandboxes/{id}/proxy/%u"
					 : "/v1/sandboxes/{id}/proxy/{port}",
			t->ports[i].port);
		describe(paths, t->ports[i].table, mount, true);
	}
	http_reply_json(r, 200, o);
}
