/* SPDX-License-Identifier: Apache-2.0
 *
 * route_template.c: user templates, as the protocol has them (1.17). Requests are hostile. mayflyd's loop.
 */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "api/http/listing.h"
#include "api/lifecycle/route_lifecycle.h"
#include "api/lifecycle/template_request.h"
#include "api/sandbox/user_template.h"

/* as the protocol names the states of a template */
static const char *const phases[CP_STATES] = {[CP_PENDING] = "Pending",
	[CP_CREATING] = "Building",
	[CP_READY] = "Succeeded",
	[CP_FAILED] = "Failed"};

static cJSON *to_json(const struct checkpoint *c)
{
	cJSON *o = cJSON_Duplicate(utemplate_of_const(c)->req, true),
	      *st = cJSON_AddObjectToObject(o, "status");
	char at[TIME_TEXT], ref[sizeof(c->id) + 32];

	cJSON_AddStringToObject(o, "templateId", c->id);
	cJSON_AddStringToObject(st, "phase", phases[c->state]);
	if (c->state == CP_READY) {
		snprintf(ref, sizeof(ref), "mayfly://local/%s", c->id);
		cJSON_AddStringToObject(st, "manifestRef", ref);
	}
	if (*c->message)
		cJSON_AddStringToObject(st, "message", c->message);
	cJSON_AddStringToObject(o, "createdAt", time_format(c->created_ns, at));
	cJSON_AddStringToObject(o, "updatedAt", time_format(c->changed_ns, at));
	return o;
}

static void create_ended(struct checkpoint *c, struct http_req *r, const struct err *e)
{
	if (e) {
		checkpoint_forget(c);
		http_error(r, 503, "FSB::API_ERROR", "The template's record cannot be written.");
		return;
	}
	http_reply_json(r, 201, to_json(c));
	utemplate_begin(c);
}

void route_template_create(struct http_req *r)
{
	struct daemon *d = r->app;
	struct account *full = NULL;
	char owner[OWNER_MAX];
	int rc;
	struct refusal x;
	cJSON *req = template_req_parse(r->body, r->body_len, &d->cfg, &x);

	if (!req) {
		http_error(r, x.status, x.code, "%s", x.msg);
		return;
	}
	principal_owner(&r->principal, owner);
	if (utemplates_count(d) >= (unsigned int)d->cfg.template_max) {
		cJSON_Delete(req);
		http_error(r, 409, "FSB::TEMPLATE_CONFLICT",
			"This host keeps at most %lld templates: delete one.",
			(long long)d->cfg.template_max);
		return;
	}
	rc = utemplate_accept(d, req, owner, create_ended, r, &full);
	if (rc == 0)
		return;
	cJSON_Delete(req);
	if (rc == -EDQUOT)
		route_records_full(r, full);
	else
		http_error(r, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
}

void route_template_list(struct http_req *r)
{
	struct list l;

	if (!list_begin(r, &l, true))
		return;
	l.cursor_lives = checkpoint_find(r->app, &user_template_kind, l.cursor_id);
	for (struct checkpoint *c = checkpoint_first(r->app, &user_template_kind); c;
		c = checkpoint_next(c))
		if (list_reached(&l, c->id, c->created_ns) && utemplate_of(c)->made &&
			principal_may(&r->principal, c->owner) &&
			list_wants(&l, NULL,
				cJSON_GetObjectItemCaseSensitive(
					utemplate_of(c)->req, "metadata")) &&
			list_shows(&l, c->id, c->created_ns))
			list_put(&l, to_json(c));
	list_end(&l);
}

static struct utemplate *route_one(struct http_req *r)
{
	struct utemplate *t = utemplate_find(r->app, http_param(r, "id"));

	if (t && principal_may(&r->principal, t->c.owner) &&
		(!t->c.deleting || strcmp(r->method, "DELETE") != 0))
		return t;
	http_error(r, 404, "FSB::TEMPLATE_NOT_FOUND", "Template %.64s not found.",
		http_param(r, "id"));
	return NULL;
}

void route_template_get(struct http_req *r)
{
	struct utemplate *t = route_one(r);

	if (t)
		http_reply_json(r, 200, to_json(&t->c));
}

static void delete_ended(struct checkpoint *c, struct http_req *r, const struct err *e)
{
	if (e) {
		http_error(r, 500, "FSB::API_ERROR",
			"Template %s cannot be deleted: its record cannot be written.", c->id);
		utemplates_go_on(c->d);
		return;
	}
	http_reply_empty(r, 204);
	utemplate_deleted(c);
}

void route_template_delete(struct http_req *r)
{
	struct utemplate *t = route_one(r);

	if (t)
		checkpoint_delete(&t->c, delete_ended, r);
}
