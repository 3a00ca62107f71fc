/* SPDX-License-Identifier: Apache-2.0
 *
 * route_image_template.c: the templates that images get by themselves; ours, beside the protocol. Requests are hostile. mayflyd's loop.
 */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "api/lifecycle/route_lifecycle.h"
#include "api/lifecycle/spec.h"
#include "api/lifecycle/template_request.h"
#include "api/sandbox/image_template.h"
#include "lib/json.h"

static cJSON *to_json(const struct checkpoint *c)
{
	const struct image_template *t = template_of_const(c);
	cJSON *i = cJSON_CreateObject();
	char text[TIME_TEXT];

	cJSON_AddStringToObject(i, "id", c->id);
	cJSON_AddStringToObject(i, "image", t->image);
	cJSON_AddStringToObject(i, "key", t->key);
	cJSON_AddStringToObject(i, "state", cp_state_names[c->state]);
	if (c->state == CP_READY) {
		cJSON_AddStringToObject(i, "createdAt", time_format(c->created_ns, text));
		cJSON_AddStringToObject(i, "usedAt", time_format(t->used_ns, text));
		cJSON_AddNumberToObject(i, "bytes", (double)template_bytes(c));
		cJSON_AddNumberToObject(i, "uses", (double)t->uses);
		/* all about it: GET /mayfly/points/{id} */
		cJSON_AddBoolToObject(i, "workingSet", *c->mem.ws != 0);
	}
	return i;
}

void route_auto_templates(struct http_req *r)
{
	cJSON *o = cJSON_CreateObject(), *items = cJSON_AddArrayToObject(o, "items");

	for (struct checkpoint *c = checkpoint_first(r->app, &image_template_kind); c;
		c = checkpoint_next(c))
		cJSON_AddItemToArray(items, to_json(c));
	http_reply_json(r, 200, o);
}

static struct checkpoint *route_one(struct http_req *r)
{
	struct checkpoint *c = checkpoint_find(r->app, &image_template_kind, http_param(r, "id"));

	if (!c)
		http_error(r, 404, "FSB::TEMPLATE_NOT_FOUND", "Template %.64s not found.",
			http_param(r, "id"));
	return c;
}

void route_auto_template_get(struct http_req *r)
{
	struct checkpoint *c = route_one(r);

	if (c)
		http_reply_json(r, 200, to_json(c));
}

void route_auto_template_delete(struct http_req *r)
{
	struct checkpoint *c = route_one(r);

	if (!c)
		return;
	if (c->state < CP_READY || c->ws.recording) {
		http_error(r, 409, "FSB::TEMPLATE_CONFLICT", "Template %s is being made.", c->id);
	} else {
		template_remove(template_of(c));
		http_reply_empty(r, 204);
	}
}

/* ---- POST /mayfly/templates: starts a sandbox of the image to take its template */

struct template_create {
	struct template_wait wait; /* while another sandbox makes the template: b is NULL */
	struct http_req *r;
	struct build *b;
};

static void create_answer(struct template_create *a, const struct image_template *t)
{
	if (t && template_is_ready(t))
		http_reply_json(a->r, 201, to_json(&t->c));
	else
		http_error(a->r, 503, "FSB::TEMPLATE_FAILED",
			"The template could not be taken in time; the log says why. Try again.");
	free(a);
}

static void create_settled(struct template_wait *w, const struct image_template *t)
{
	create_answer(container_of(w, struct template_create, wait), t);
}

static void create_built(
	void *arg, int err, const char *text, struct disk *disk, struct memory *mem, cJSON *base)
{
	struct template_create *a = arg;
	struct daemon *d = a->r->app;
	const char *key = json_str(base, "template");
	const struct image_template *t = key ? template_find(d, key) : NULL;

	a->b = NULL;
	if (t && t->c.state < CP_READY) {
		snprintf(a->wait.key, sizeof(a->wait.key), "%s", key);
		a->wait.settled = create_settled;
		template_wait(d, &a->wait);
	} else if (err) {
		http_error(a->r, 500, "FSB::TEMPLATE_FAILED", "%s", text);
		free(a);
	} else {
		create_answer(a, t);
	}
	cJSON_Delete(base);
}

static void create_gone(struct http_req *r)
{
	struct template_create *a = r->user;

	if (a->b)
		build_cancel(a->b);
	else
		template_wait_cancel(r->app, &a->wait);
	free(a);
	http_abort(r);
}

void route_auto_template_create(struct http_req *r)
{
	struct daemon *d = r->app;
	struct refusal x;
	struct probe p;
	struct spec s = {0};
	struct template_create *a = NULL;
	cJSON *req = json_object(r->body, r->body_len, &x);
	int rc = req ? template_req_spec(req, &d->cfg, &s, &p, &x) : -EINVAL;

	cJSON_Delete(req);
	if (rc == 0 && (!d->cfg.templates || !d->cfg.template_max))
		rc = refuse(&x, 409, "FSB::TEMPLATE_CONFLICT",
			"This server keeps no templates: runtime.templates is false, or "
			"runtime.template_max is 0.");
	if (rc == 0 && !(a = calloc(1, sizeof(*a))))
		rc = refuse(&x, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
	if (a) {
		char owner[OWNER_MAX];

		principal_owner(&r->principal, owner);
		a->r = r;
		a->b = build_start(d, &s, owner, NULL, create_built, a, &x);
		rc = a->b ? 0 : -EINVAL;
	}
	spec_fini(&s);
	if (rc < 0) {
		free(a);
		http_error(r, x.status, x.code, "%s", x.msg);
	} else {
		r->user = a;
		http_on_gone(r, create_gone);
	}
}
