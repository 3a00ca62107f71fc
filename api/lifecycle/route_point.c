/* SPDX-License-Identifier: Apache-2.0
 *
 * route_point.c: a checkpoint of any kind by its id: its files, whether they are verified, and verifying them now. Requests are hostile.
 * mayflyd's loop.
 */
#include <cjson/cJSON.h>

#include "api/checkpoint/checkpoint.h"
#include "api/checkpoint/digest.h"
#include "api/checkpoint/verify.h"
#include "api/lifecycle/route_lifecycle.h"

static const struct checkpoint *route_point(struct http_req *r)
{
	const struct checkpoint *c = checkpoint_usable(r->app, http_param(r, "id"));

	if (c && principal_may(&r->principal, c->owner))
		return c;
	http_error(r, 404, "SNAPSHOT::NOT_FOUND", "No snapshot or template %.64s.",
		http_param(r, "id"));
	return NULL;
}

void route_point_get(struct http_req *r)
{
	const struct checkpoint *c = route_point(r);
	struct daemon *d = r->app;
	const char *bad;
	char sum[65];
	cJSON *o, *a, *i;

	if (!c)
		return;
	bad = verify_damage(d, &c->mem);
	o = cJSON_CreateObject();
	cJSON_AddStringToObject(o, "kind", c->kind->word);
	a = cJSON_AddArrayToObject(o, "memoryFiles");
	for (int k = 0; k < c->mem.nmem; k++) {
		i = cJSON_CreateObject();
		cJSON_AddStringToObject(i, "id", c->mem.mem[k]);
		cJSON_AddNumberToObject(i, "bytes", (double)blob_bytes(d->blobs, c->mem.mem[k]));
		digest_read(d->blobs, c->mem.mem[k], "mem", sum);
		if (*sum)
			cJSON_AddStringToObject(i, "sha256", sum);
		cJSON_AddItemToArray(a, i);
	}
	a = cJSON_AddArrayToObject(o, "diskLayers");
	for (int k = 0; k < c->disk.nfrozen; k++) {
		i = cJSON_CreateObject();
		cJSON_AddStringToObject(i, "id", c->disk.frozen[k]);
		cJSON_AddNumberToObject(
			i, "bytes", (double)blob_bytes(d->blobs, c->disk.frozen[k]));
		cJSON_AddItemToArray(a, i);
	}
	cJSON_AddItemToObject(o, "workingSet", workset_to_json(&c->ws_saved));
	cJSON_AddBoolToObject(o, "verifiedSinceBoot", verify_known(d, &c->mem));
	if (bad)
		cJSON_AddStringToObject(o, "damage", bad);
	http_reply_json(r, 200, o);
}

void route_point_verify(struct http_req *r)
{
	const struct checkpoint *c = route_point(r);

	if (c)
		verify_point(r, &c->disk, &c->mem);
}
