/* SPDX-License-Identifier: Apache-2.0
 *
 * route_volumes.c: claims: make, list, look at and delete them. mayflyd's loop. Bodies and names are hostile.
 */
#include <cjson/cJSON.h>
#include <string.h>

#include "api/core/daemon.h"
#include "api/core/text.h"
#include "api/lifecycle/route_lifecycle.h"
#include "api/lifecycle/spec.h"
#include "api/volumes/volume_request.h"
#include "api/volumes/volumes.h"
#include "lib/json.h"

static cJSON *claim_to_json(const struct claim *c)
{
	cJSON *o = cJSON_CreateObject();
	char t[TIME_TEXT];

	cJSON_AddStringToObject(o, "name", c->name);
	cJSON_AddStringToObject(o, "id", c->folder);
	cJSON_AddStringToObject(o, "owner", c->owner);
	cJSON_AddStringToObject(o, "createdAt", time_format(c->created_ns, t));
	cJSON_AddNumberToObject(o, "sandboxes", c->uses);
	if (c->max_bytes)
		cJSON_AddNumberToObject(o, "storageBytes", (double)c->max_bytes);
	cJSON_AddBoolToObject(o, "deleteOnSandboxTermination", c->delete_after);
	return o;
}

static bool claim_shown(const struct http_req *r, const struct claim *c)
{
	return c->committed && !c->deleting && principal_may(&r->principal, c->owner);
}

/* The claim of {name}: of the caller's namespace, or by its id. NULL: answered with 404. */
static struct claim *route_claim(struct http_req *r)
{
	struct daemon *d = r->app;
	const char *name = http_param(r, "name");
	char owner[OWNER_MAX];
	struct claim *c;

	principal_owner(&r->principal, owner);
	c = claim_find(d->volumes, owner, name);
	if (c && claim_shown(r, c))
		return c;
	http_error(r, 404, "VOLUME::PVC_NOT_FOUND", "Claim '%.100s' does not exist.", name);
	return NULL;
}

void route_volume_list(struct http_req *r)
{
	struct daemon *d = r->app;
	cJSON *o = cJSON_CreateObject(), *items = cJSON_AddArrayToObject(o, "items");

	for (struct claim *c = claims_first(d->volumes); c; c = c->next)
		if (claim_shown(r, c))
			cJSON_AddItemToArray(items, claim_to_json(c));
	http_reply_json(r, 200, o);
}

void route_volume_get(struct http_req *r)
{
	const struct claim *c = route_claim(r);

	if (c)
		http_reply_json(r, 200, claim_to_json(c));
}

static void created(void *arg, const struct claim *c, const struct err *e)
{
	struct http_req *r = arg;

	if (e)
		http_error(
			r, 500, "SANDBOX::INTERNAL_ERROR", "The claim's record cannot be written.");
	else
		http_reply_json(r, 201, claim_to_json(c));
}

void route_volume_create(struct http_req *r)
{
	struct daemon *d = r->app;
	char owner[OWNER_MAX];
	struct refusal x;
	cJSON *body = json_object(r->body, r->body_len, &x);
	const char *name = body ? json_str(body, "name") : NULL;
	struct claim_options options = {0};

	principal_owner(&r->principal, owner);
	if (!body)
		http_error(r, x.status, x.code, "%s", x.msg);
	else if (!name || !claim_name_ok(name))
		http_error(r, 400, "VOLUME::INVALID_PVC_NAME",
			"name must have 1 to 253 of a-z, 0-9, '-' and '.', and begin and end with "
			"a letter "
			"or digit.");
	else if (!claim_storage_read(body, "storage", &options.max_bytes))
		http_error(r, 400, "SANDBOX::INVALID_PARAMETER",
			"storage must be a quantity of at least 1Mi, such as 10Gi.");
	else if (claim_find(d->volumes, owner, name))
		http_error(r, 409, "VOLUME::PVC_EXISTS", "Claim '%.100s' exists already.", name);
	else if (!claims_have_room(d->volumes, owner))
		http_error(r, 429, "VOLUME::PVC_LIMIT_EXCEEDED",
			"There are %u claims already, which is the limit. Delete some.",
			CLAIMS_MAX);
	else if (!claim_new(d->volumes, owner, name, options, created, r))
		http_error(r, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
	cJSON_Delete(body);
}

static void deleted(void *arg, const struct claim *c, const struct err *e)
{
	struct http_req *r = arg;

	(void)c;
	if (e)
		http_error(
			r, 500, "SANDBOX::INTERNAL_ERROR", "The claim's record cannot be written.");
	else
		http_reply_empty(r, 204);
}

void route_volume_delete(struct http_req *r)
{
	struct daemon *d = r->app;
	struct claim *c = route_claim(r);

	if (!c)
		return;
	if (c->uses)
		http_error(r, 409, "VOLUME::PVC_IN_USE",
			"Claim '%s' is used by %u sandboxes. Delete them first.", c->name, c->uses);
	else
		claim_delete(d->volumes, c, deleted, r);
}
