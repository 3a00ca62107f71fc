/* SPDX-License-Identifier: Apache-2.0
 *
 * route_pool.c: see route_pool.h. A pool's `template` is a Pod template of Kubernetes, of which the first container's image, command, environment and limits
 * count. It is kept as the create request that says the same, so everything is checked by the one parser of creates. mayflyd's loop. Bodies are
 * hostile.
 */
#include "api/lifecycle/route_pool.h"

#include <cjson/cJSON.h>
#include <string.h>

#include "api/lifecycle/route_lifecycle.h"
#include "api/lifecycle/spec.h"

#define PARAM          "SANDBOX::INVALID_PARAMETER"
#define NAME_MAX_BYTES 253u

int pool_spec_read(struct spec *s, const cJSON *request, const struct config *c, struct refusal *x)
{
	char *text = cJSON_PrintUnformatted(request);
	int rc;

	if (!text) {
		memset(s, 0, sizeof(*s));
		return refuse(x, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
	}
	rc = spec_parse(s, text, strlen(text), c, x);
	cJSON_free(text);
	return rc;
}

/* ---- from a Pod template to a create request */

static void copy_item(cJSON *to, const char *name, const cJSON *v)
{
	if (!v)
		return;
	cJSON_DeleteItemFromObjectCaseSensitive(to, name);
	cJSON_AddItemToObject(to, name, cJSON_Duplicate(v, true));
}

static int env_of(const cJSON *list, cJSON *to, struct refusal *x)
{
	const cJSON *v;

	cJSON_ArrayForEach (v, list) {
		const char *name = json_str(v, "name"), *value = json_str(v, "value");

		if (!name || !value)
			return refuse(x, 400, PARAM,
				"template: an entry of env needs a name and a value.");
		cJSON_DeleteItemFromObjectCaseSensitive(to, name);
		cJSON_AddStringToObject(to, name, value);
	}
	return 0;
}

static const char *const no_entrypoint[] = {"tail", "-f", "/dev/null"};

/* The create request of a Pod template. NULL: x says why. */
static cJSON *request_of(const cJSON *template, const struct config *c, struct refusal *x)
{
	const cJSON *box = cJSON_GetArrayItem(
			    json_arr(json_obj(template, "spec"), "containers"), 0),
		    *command = json_arr(box, "command");
	const cJSON *limits = json_obj(json_obj(box, "resources"), "limits");
	const char *image = json_str(box, "image");
	cJSON *o = cJSON_CreateObject(), *env = cJSON_AddObjectToObject(o, "env");
	struct spec s = {0};
	int rc = 0;

	if (!image)
		rc = refuse(x, 400, PARAM, "template.spec.containers[0].image must be a string.");
	else
		cJSON_AddStringToObject(cJSON_AddObjectToObject(o, "image"), "uri", image);
	if (rc == 0)
		rc = env_of(json_arr(box, "env"), env, x);
	if (cJSON_GetArraySize(command))
		copy_item(o, "entrypoint", command);
	else
		cJSON_AddItemToObject(o, "entrypoint", cJSON_CreateStringArray(no_entrypoint, 3));
	if (limits)
		copy_item(o, "resourceLimits", limits);
	else
		cJSON_AddObjectToObject(o, "resourceLimits");
	if (rc == 0)
		rc = pool_spec_read(&s, o, c, x);
	spec_fini(&s);
	if (rc == 0)
		return o;
	cJSON_Delete(o);
	return NULL;
}

/* ---- a create with poolRef */

static int limits_fit(const cJSON *body, const cJSON *request, struct refusal *x)
{
	const cJSON *mine = json_obj(body, "resourceLimits"),
		    *theirs = json_obj(request, "resourceLimits"), *v;

	cJSON_ArrayForEach (v, mine)
		if (!cJSON_Compare(v, cJSON_GetObjectItemCaseSensitive(theirs, v->string), true))
			return refuse(x, 400, PARAM,
				"resourceLimits.%.60s differs from the pool's.", v->string);
	return 0;
}

static int fits_pool(const cJSON *body, const cJSON *request, struct refusal *x)
{
	static const char *const refused[] = {"snapshotId", "templateId", "volumes", "platform",
		"credentialProxy", "networkPolicy"};
	const char *image = json_str(json_obj(body, "image"), "uri");

	for (size_t i = 0; i < ARRAY_LEN(refused); i++)
		if (json_field(body, refused[i]))
			return refuse(x, 400, PARAM, "%s cannot be used together with poolRef.",
				refused[i]);
	if (json_str(json_obj(body, "extensions"), "mayfly.id"))
		return refuse(x, 400, PARAM,
			"extensions['mayfly.id'] cannot be used together with poolRef.");
	if (image && strcmp(image, json_str(json_obj(request, "image"), "uri")) != 0)
		return refuse(x, 400, PARAM, "image.uri differs from the pool's.");
	return limits_fit(body, request, x);
}

/* The pool's create request, with the members that this request may add. */
static char *merged(const cJSON *body, const cJSON *request)
{
	static const char *const added[] = {
		"entrypoint", "timeout", "metadata", "extensions", "lifecycle", "secureAccess"};
	_cleanup_json_ cJSON *o = cJSON_Duplicate(request, true);
	cJSON *env = cJSON_GetObjectItemCaseSensitive(o, "env");
	const cJSON *theirs = json_field(body, "env"), *v;

	for (size_t i = 0; i < ARRAY_LEN(added); i++)
		copy_item(o, added[i], json_field(body, added[i]));
	cJSON_DeleteItemFromObjectCaseSensitive(
		cJSON_GetObjectItemCaseSensitive(o, "extensions"), "poolRef");
	/* an env that is not an object is refused by the parser */
	if (theirs && !cJSON_IsObject(theirs))
		copy_item(o, "env", theirs);
	else
		cJSON_ArrayForEach (v, theirs)
			copy_item(env, v->string, v);
	return cJSON_PrintUnformatted(o);
}

int pool_of_create(struct http_req *r, struct pool **pool, char **text, struct refusal *x)
{
	_cleanup_json_ cJSON *body = NULL;
	const cJSON *ref;

	*pool = NULL;
	*text = NULL;
	if (!memmem(r->body, r->body_len, "poolRef", strlen("poolRef")))
		return 0;
	body = json_object(r->body, r->body_len, x);
	if (!body)
		return -EINVAL;
	ref = json_field(json_obj(body, "extensions"), "poolRef");
	if (!ref)
		return 0;
	*pool = cJSON_IsString(ref) ? pool_find(r->app, ref->valuestring) : NULL;
	if (!*pool)
		return refuse(x, 404, "KUBERNETES::POOL_NOT_FOUND", "Pool %.64s not found.",
			cJSON_IsString(ref) ? ref->valuestring : "");
	if (fits_pool(body, pool_request(*pool), x) < 0)
		return -EINVAL;
	*text = merged(body, pool_request(*pool));
	return *text ? 0 : refuse(x, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
}

/* ---- the routes */

static void refused(struct http_req *r, const struct refusal *x)
{
	http_error(r, x->status, x->code, "%s", x->msg);
}

static bool name_ok(const char *s)
{
	size_t n = s ? strlen(s) : 0;

	return n && n <= NAME_MAX_BYTES && s[0] != '-' && s[n - 1] != '-' &&
	       strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == n;
}

static int capacity_of(const cJSON *body, struct pool_capacity *c, struct refusal *x)
{
	return pool_capacity_read(json_obj(body, "capacitySpec"), c) == 0
		       ? 0
		       : refuse(x, 400, PARAM,
				 "capacitySpec needs bufferMin, bufferMax, poolMin and poolMax: "
				 "whole "
				 "numbers, no minimum above its maximum. adaptiveSeconds is a "
				 "whole number up to 3600.");
}

/* ---- a change, and the client that waits for it */

struct pool_wait {
	struct http_req *r; /* NULL: the client left, the change goes on */
	unsigned int status;
};

static void change_client_gone(struct http_req *r)
{
	struct pool_wait *w = r->user;

	w->r = NULL;
	http_abort(r);
}

/* NULL: r has its answer. */
static struct pool_wait *change_wait(struct http_req *r, unsigned int status)
{
	struct pool_wait *w = calloc(1, sizeof(*w));

	if (!w) {
		http_error(r, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
		return NULL;
	}
	*w = (struct pool_wait){r, status};
	r->user = w;
	http_on_gone(r, change_client_gone);
	return w;
}

static void change_done(void *arg, const struct pool *p, const struct refusal *x)
{
	struct pool_wait *w = arg;

	if (w->r)
		http_on_gone(w->r, NULL);
	if (w->r && x)
		refused(w->r, x);
	else if (w->r && p)
		http_reply_json(w->r, w->status, pool_json(p));
	else if (w->r)
		http_reply_empty(w->r, w->status);
	free(w);
}

static struct pool *route_pool(struct http_req *r)
{
	struct pool *p = pool_find(r->app, http_param(r, "name"));

	if (!p)
		http_error(r, 404, "KUBERNETES::POOL_NOT_FOUND", "Pool %.64s not found.",
			http_param(r, "name"));
	return p;
}

void route_pool_list(struct http_req *r)
{
	cJSON *o = cJSON_CreateObject(), *items = cJSON_AddArrayToObject(o, "items");

	for (struct pool *p = pool_next(r->app, NULL); p; p = pool_next(r->app, p))
		cJSON_AddItemToArray(items, pool_json(p));
	http_reply_json(r, 200, o);
}

void route_pool_create(struct http_req *r)
{
	struct daemon *d = r->app;
	_cleanup_json_ cJSON *body = NULL;
	struct pool_capacity cap;
	struct pool_wait *w;
	struct refusal x;
	const char *name;
	cJSON *request;

	body = json_object(r->body, r->body_len, &x);
	name = json_str(body, "name");
	if (!body || capacity_of(body, &cap, &x) < 0) {
		refused(r, &x);
	} else if (!name_ok(name)) {
		http_error(r, 400, PARAM,
			"name must have small letters, digits and -, at most %u of them.",
			NAME_MAX_BYTES);
	} else if (pool_find(d, name)) {
		http_error(
			r, 409, "KUBERNETES::POOL_ALREADY_EXISTS", "There is a pool %.64s.", name);
	} else {
		request = request_of(json_obj(body, "template"), &d->cfg, &x);
		w = request ? change_wait(r, 201) : NULL;
		if (w)
			pool_create(d, name, &cap, request, change_done, w);
		else if (request)
			cJSON_Delete(request);
		else
			refused(r, &x);
	}
}

void route_pool_get(struct http_req *r)
{
	const struct pool *p = route_pool(r);

	if (p)
		http_reply_json(r, 200, pool_json(p));
}

void route_pool_put(struct http_req *r)
{
	_cleanup_json_ cJSON *body = NULL;
	const struct pool *p = route_pool(r);
	struct pool_capacity cap;
	struct pool_wait *w;
	struct refusal x;

	if (!p)
		return;
	body = json_object(r->body, r->body_len, &x);
	if (!body || capacity_of(body, &cap, &x) < 0)
		refused(r, &x);
	else if ((w = change_wait(r, 200)))
		pool_resize(r->app, pool_name(p), &cap, change_done, w);
}

void route_pool_delete(struct http_req *r)
{
	const struct pool *p = route_pool(r);
	struct pool_wait *w = p ? change_wait(r, 204) : NULL;

	if (w)
		pool_delete(r->app, pool_name(p), change_done, w);
}
