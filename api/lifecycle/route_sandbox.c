/* SPDX-License-Identifier: Apache-2.0
 *
 * route_sandbox.c: the lifecycle routes: create, get, list, metadata, renew, endpoints, pause, resume, delete. mayflyd's loop. Bodies
 * and queries are hostile.
 */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "api/http/listing.h"
#include "api/sandbox/admission.h"
#include "api/lifecycle/idempotency.h"
#include "api/ingress/gateway.h"
#include "api/sandbox/launch.h"
#include "api/lifecycle/route_lifecycle.h"
#include "api/lifecycle/route_pool.h"
#include "api/lifecycle/spec.h"
#include "api/sandbox/access.h"
#include "api/sandbox/record_writer.h"
#include "api/sandbox/snapshot.h"
#include "api/sandbox/user_template.h"
#include "lib/json.h"
#include "lib/log.h"
#include "lib/opt.h"

#define PARAM "SANDBOX::INVALID_PARAMETER"

static void refused(struct http_req *r, const struct refusal *x)
{
	http_error(r, x->status, x->code, "%s", x->msg);
}

/* ---- create */

void route_records_full(struct http_req *r, const struct account *a)
{
	http_add_header(r, "Retry-After", "5");
	http_error(r, 429, "KUBERNETES::POOL_CAPACITY_EXHAUSTED",
		"%s take %llu of %llu bytes that they may take. Delete sandboxes, snapshots or "
		"templates, or send less environment and metadata.",
		a->whose, (unsigned long long)a->used, (unsigned long long)a->limit);
}

/* May a peer's new sandbox have this id? False: answered. */
static bool id_is_free(struct http_req *r, const char *id)
{
	const struct daemon *d = r->app;
	int rc = index_find(d->index, id) ? 1 : idempotency_id_spent(r->app, id);

	if (rc < 0)
		http_error(r, 500, "SANDBOX::INTERNAL_ERROR", "The id cannot be looked up.");
	else if (rc)
		http_error(r, 409, "SANDBOX::ID_TAKEN",
			"The sandbox with the id %s was deleted. Its id is not given again for a "
			"day.",
			id);
	return rc == 0;
}

/* The id of the new sandbox: ours, or one that a peer chose, which makes its create idempotent by id. false: answered. */
static bool create_id(struct http_req *r, const struct spec *s, char id[37])
{
	const char *want = json_str(s->extensions, "mayfly.id");
	struct sandbox *sb;

	if (!want) {
		uuid_make(id);
		return true;
	}
	if (r->principal.role != ROLE_PEER) {
		http_error(r, 403, "FORBIDDEN",
			"Only a key with the role peer may choose the id of a sandbox "
			"(extensions['mayfly.id']).");
		return false;
	}
	memcpy(id, want, 37);
	sb = sandbox_find(r->app, id);
	if (!sb)
		return id_is_free(r, id);
	if (principal_may(&r->principal, sb->owner))
		idempotency_answer(r, sb);
	else
		http_error(r, 409, "SANDBOX::ID_TAKEN", "Another sandbox has the id %s.", id);
	return false;
}

/* *sb is a waiting machine of the pool or, without one, a new sandbox. false: answered. */
static bool create_machine(
	struct http_req *r, struct pool *pool, const struct spec *s, struct sandbox **sb)
{
	struct refusal x = {0};
	char id[37];

	*sb = pool ? pool_take(pool, &x) : NULL;
	if (x.status) {
		http_add_header(r, "Retry-After", "1");
		refused(r, &x);
		return false;
	}
	if (*sb) {
		sandbox_renew_birth(*sb);
		(*sb)->internal = false;
		spec_fini(&(*sb)->spec);
		return true;
	}
	if (!create_id(r, s, id))
		return false;
	*sb = sandbox_new(r->app, id);
	if (!*sb)
		http_error(r, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
	return *sb != NULL;
}

/* Reads the request, merged with the pool's if it names a pool. false: answered. */
static bool create_spec(struct http_req *r, struct spec *s, struct pool **pool)
{
	const struct daemon *d = r->app;
	struct refusal x;
	char *text;
	int rc;

	memset(s, 0, sizeof(*s));
	rc = pool_of_create(r, pool, &text, &x);
	if (rc == 0 && text)
		rc = spec_parse(s, text, strlen(text), &d->cfg, &x);
	else if (rc == 0)
		rc = spec_parse(s, r->body, r->body_len, &d->cfg, &x);
	if (rc == 0 && *pool)
		s->pool = strdup(pool_name(*pool));
	cJSON_free(text);
	if (rc == 0)
		return true;
	spec_fini(s);
	refused(r, &x);
	return false;
}

void route_create(struct http_req *r)
{
	struct daemon *d = r->app;
	struct pool *pool;
	struct refusal x;
	struct spec s;
	struct sandbox *sb;
	char owner[OWNER_MAX];

	if (idempotency_answered(r))
		return;
	if (d->ending) {
		http_add_header(r, "Retry-After", "5");
		http_error(r, 503, "SANDBOX::INTERNAL_ERROR", "the server is being stopped");
		return;
	}
	if (!create_spec(r, &s, &pool))
		return;
	if (!create_machine(r, pool, &s, &sb)) {
		spec_fini(&s);
		return;
	}
	sb->spec = s;
	principal_owner(&r->principal, owner);
	sandbox_own(sb, owner);
	sb->cls = size_class_of(s.memory_bytes, s.vcpus ? s.vcpus : 1);
	if (snapshot_source(sb, &x) < 0 || utemplate_source(sb, &x) < 0 ||
		(!sb->hold && admission_check(sb, &x) < 0)) {
		if (x.status == 429 || x.status == 503)
			http_add_header(r, "Retry-After", "5");
		refused(r, &x);
		sandbox_delete(sb, "refused");
		return;
	}
	/* also for a policy that a snapshot or template brings */
	if (sb->spec.network_policy)
		random_hex(sb->egress_token, sizeof(sb->egress_token));
	if (sb->spec.secure_access)
		random_hex(sb->secure_token, sizeof(sb->secure_token));
	sandbox_weigh(sb);
	if (!sandbox_fits(sb, 0)) {
		route_records_full(r, &sb->budget->records);
		sandbox_delete(sb, "refused");
		return;
	}
	if (idempotency_remember(r, sb) < 0) {
		http_error(r, 500, "SANDBOX::INTERNAL_ERROR",
			"The Idempotency-Key cannot be written.");
		sandbox_delete(sb, "refused");
		return;
	}
	if (s.has_timeout)
		sandbox_set_expiry(sb, (int64_t)wall_ns() + (int64_t)s.timeout_s * 1000000000);
	operation_client_waits(sb, r);
	if (sb->hold)
		launch_release(sb);
	else
		launch_create(sb);
}

/* ---- get, list */

void route_get(struct http_req *r)
{
	struct sandbox *sb = route_sandbox(r);

	if (sb)
		http_reply_json(r, 200, sandbox_to_json(sb, false));
}

void route_list(struct http_req *r)
{
	struct daemon *d = r->app;
	struct list l;

	if (!list_begin(r, &l, true))
		return;
	l.cursor_lives = sandbox_find(d, l.cursor_id);
	/* the table is in order of creation, newest first */
	for (struct sandbox *sb = d->sandboxes; sb; sb = sb->next)
		if (list_reached(&l, sb->id, sb->created_ns) && !sb->internal &&
			sandbox_listed(sb) && principal_may(&r->principal, sb->owner) &&
			list_wants(&l, sb_state_names[sb->state], sb->spec.metadata) &&
			list_shows(&l, sb->id, sb->created_ns))
			list_put(&l, sandbox_to_json(sb, false));
	list_end(&l);
}

/* ---- metadata, renew */

static void record_not_changed(struct http_req *r, const struct sandbox *sb, enum record_end how)
{
	if (how == RECORD_GONE)
		http_error(r, 404, "DOCKER::SANDBOX_NOT_FOUND", "Sandbox %s not found.", sb->id);
	else
		http_error(r, 500, "SANDBOX::INTERNAL_ERROR",
			"The record of sandbox %s cannot be written.", sb->id);
}

struct metadata_change {
	struct record_write w;
	cJSON *patch, *metadata;
};

static struct metadata_change *metadata_of(struct record_write *w)
{
	return container_of(w, struct metadata_change, w);
}

/* Computes the new metadata. false: refused. */
static bool metadata_turn(struct record_write *w)
{
	struct metadata_change *c = metadata_of(w);
	struct sandbox *sb = w->sb;
	const cJSON *old = sb->spec.metadata, *v;
	struct refusal x;

	c->metadata = old ? cJSON_Duplicate(old, true) : cJSON_CreateObject();
	cJSON_ArrayForEach (v, c->patch) {
		cJSON_DeleteItemFromObjectCaseSensitive(c->metadata, v->string);
		if (cJSON_IsString(v))
			cJSON_AddStringToObject(c->metadata, v->string, v->valuestring);
	}
	if (members_check(c->metadata, "metadata", METADATA_KEYS_MAX, &x) < 0) {
		if (w->r)
			refused(w->r, &x);
		return false;
	}
	/* what makes the record shorter is always taken */
	if (json_memory(c->metadata) > json_memory(old) &&
		!sandbox_fits(sb, json_memory(c->metadata) - json_memory(old))) {
		if (w->r)
			route_records_full(w->r, &sb->budget->records);
		return false;
	}
	return true;
}

static void metadata_swap(struct record_write *w)
{
	SWAP(metadata_of(w)->metadata, w->sb->spec.metadata);
}

static void metadata_ended(struct record_write *w, enum record_end how)
{
	if (w->r && how == RECORD_SAVED)
		http_reply_json(w->r, 200, sandbox_to_json(w->sb, false));
	else if (w->r)
		record_not_changed(w->r, w->sb, how);
}

static void metadata_fini(struct record_write *w)
{
	cJSON_Delete(metadata_of(w)->patch);
	cJSON_Delete(metadata_of(w)->metadata);
}

static const struct record_write_kind metadata_kind = {.bytes = sizeof(struct metadata_change),
	.turn = metadata_turn,
	.swap = metadata_swap,
	.ended = metadata_ended,
	.fini = metadata_fini};

void route_metadata(struct http_req *r)
{
	struct sandbox *sb = route_sandbox(r);
	struct record_write *w;
	struct refusal x;
	cJSON *patch;

	if (!sb)
		return;
	patch = json_object(r->body, r->body_len, &x);
	if (!patch || metadata_check(patch, true, "INVALID_METADATA_LABEL", &x) < 0) {
		cJSON_Delete(patch);
		refused(r, &x);
		return;
	}
	w = record_write_new(&metadata_kind, sb, r);
	if (!w) {
		cJSON_Delete(patch);
		record_not_changed(r, sb, RECORD_FAILED);
		return;
	}
	metadata_of(w)->patch = patch;
	record_write_submit(w);
}

struct renewal {
	struct record_write w;
	int64_t expires_ns, asked_ns;
};

static struct renewal *renewal_of(struct record_write *w)
{
	return container_of(w, struct renewal, w);
}

static void renewal_swap(struct record_write *w)
{
	SWAP(renewal_of(w)->expires_ns, w->sb->expires_ns);
}

static void renewal_ended(struct record_write *w, enum record_end how)
{
	char text[TIME_TEXT];
	cJSON *o;

	if (how == RECORD_SAVED)
		sandbox_due(w->sb);
	if (w->r && how == RECORD_SAVED) {
		o = cJSON_CreateObject();
		cJSON_AddStringToObject(o, "expiresAt", time_format(renewal_of(w)->asked_ns, text));
		http_reply_json(w->r, 200, o);
	} else if (w->r) {
		record_not_changed(w->r, w->sb, how);
	}
}

static const struct record_write_kind renewal_kind = {
	.bytes = sizeof(struct renewal), .swap = renewal_swap, .ended = renewal_ended};

/* RFC 3339. False: answered. */
static bool renewal_read(struct http_req *r, int64_t *t)
{
	struct refusal x;
	cJSON *j = json_object(r->body, r->body_len, &x);
	const cJSON *at = cJSON_GetObjectItemCaseSensitive(j, "expiresAt");
	bool ok = cJSON_IsString(at) && time_parse(at->valuestring, t);

	if (!j)
		refused(r, &x);
	else if (!ok)
		http_error(r, 400, PARAM, "expiresAt must be an RFC 3339 time.");
	cJSON_Delete(j);
	return ok;
}

void route_renew(struct http_req *r)
{
	struct sandbox *sb = route_sandbox(r);
	struct record_write *w;
	int64_t t = 0;

	if (!sb || !renewal_read(r, &t))
		return;
	if (!sb->expires_ns) {
		http_error(r, 409, "DOCKER::INVALID_EXPIRATION",
			"Sandbox %s does not have automatic expiration enabled.", sb->id);
		return;
	}
	if (t <= (int64_t)wall_ns()) {
		http_error(r, 400, "DOCKER::INVALID_EXPIRATION",
			"New expiration time must be in the future.");
		return;
	}
	w = record_write_new(&renewal_kind, sb, r);
	if (!w) {
		record_not_changed(r, sb, RECORD_FAILED);
		return;
	}
	renewal_of(w)->expires_ns = renewal_of(w)->asked_ns = t;
	record_write_submit(w);
}

/* ---- endpoints */

/* Reads when a signed route expires. false: answered. */
static bool endpoint_expires(struct http_req *r, const char *text, uint64_t *expires_s)
{
	const struct daemon *d = r->app;

	if (!d->gateway)
		http_error(r, 400, "SANDBOX::API_NOT_SUPPORTED",
			"Signed endpoints need a gateway, which this server does not have.");
	else if (!uint_parse(text, expires_s))
		http_error(r, 400, PARAM,
			"expires must be a non-negative Unix timestamp of at most 64 bits.");
	else if (*expires_s <= wall_ns() / 1000000000u)
		http_error(
			r, 400, PARAM, "expires (%s) must be greater than the current time.", text);
	else
		return true;
	return false;
}

/* false: answered. */
static bool endpoint_address(struct http_req *r, const struct sandbox *sb, uint16_t port,
	bool server_proxy, uint64_t expires_s, struct ingress_endpoint *to)
{
	const struct daemon *d = r->app;
	const char *host = d->cfg.eip[0] ? d->cfg.eip : http_host(r);
	int rc = 0;

	to->header = "";
	if (server_proxy)
		to->endpoint =
			http_printf(r, "%s%s/sandboxes/%s/proxy/%u", host, r->prefix, sb->id, port);
	else if (d->gateway)
		rc = gateway_endpoint(r, sb->id, port, expires_s, to);
	else
		to->endpoint = http_printf(r, "%s/%s/%u", host, sb->id, port);
	if (rc == -ENOKEY)
		http_error(r, 400, PARAM,
			"Signed endpoints need keys: set ingress.secure_access.keys in the "
			"server's "
			"configuration.");
	else if (rc || !to->endpoint)
		http_error(r, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
	else
		return true;
	return false;
}

static void endpoint_answer(struct http_req *r, const struct sandbox *sb, uint16_t port,
	bool server_proxy, uint64_t expires_s)
{
	struct ingress_endpoint to;
	cJSON *o, *headers;

	if (!endpoint_address(r, sb, port, server_proxy, expires_s, &to))
		return;
	if (sb->spec.source == SRC_TEMPLATE)
		http_add_header(r, "OPEN-SANDBOX-ORIGIN", "template");
	o = cJSON_CreateObject();
	cJSON_AddStringToObject(o, "endpoint", to.endpoint);
	headers = cJSON_CreateObject();
	if (port == EGRESS_PORT && *sb->egress_token)
		cJSON_AddStringToObject(headers, EGRESS_AUTH, sb->egress_token);
	/* not with a signed route: the token opens every port, and never expires */
	if (*sb->secure_token && !expires_s)
		cJSON_AddStringToObject(headers, SECURE_ACCESS, sb->secure_token);
	if (*to.header)
		cJSON_AddStringToObject(headers, "OpenSandbox-Ingress-To", to.header);
	if (headers && headers->child)
		cJSON_AddItemToObject(o, "headers", headers);
	else
		cJSON_Delete(headers);
	http_reply_json(r, 200, o);
}

void route_endpoint(struct http_req *r)
{
	const char *p = http_param(r, "port"), *expires = http_query(r, "expires"),
		   *proxy = http_query(r, "use_server_proxy");
	static const char *const yes[] = {"true", "1", "on", "yes", "t", "y"}, *const no[] = {
										       "false", "0",
										       "off", "no",
										       "f", "n",
										       ""};
	int server_proxy = proxy ? -1 : 0;
	struct sandbox *sb;
	char *end;
	long port = strtol(p, &end, 10);
	uint64_t expires_s = 0;

	for (size_t i = 0; proxy && i < ARRAY_LEN(yes); i++)
		server_proxy = !strcasecmp(proxy, yes[i]) ? 1 : server_proxy;
	for (size_t i = 0; proxy && i < ARRAY_LEN(no); i++)
		server_proxy = !strcasecmp(proxy, no[i]) ? 0 : server_proxy;
	if (*end || p[strspn(p, "0123456789")] || port < 1 || port > 65535) {
		http_error(r, 400, "DOCKER::INVALID_PORT", "Port must be between 1 and 65535.");
		return;
	}
	if (server_proxy < 0 || (server_proxy && expires)) {
		http_error(r, 400, PARAM,
			server_proxy < 0
				? "use_server_proxy must be a boolean."
				: "expires cannot be used together with use_server_proxy.");
		return;
	}
	if (expires && !endpoint_expires(r, expires, &expires_s))
		return;
	sb = route_sandbox(r);
	if (sb)
		endpoint_answer(r, sb, (uint16_t)port, server_proxy, expires_s);
}

/* ---- pause, resume, delete */

void route_pause(struct http_req *r)
{
	struct sandbox *sb = route_sandbox(r);
	const char *mode;

	if (!sb)
		return;
	mode = http_query(r, "mode");
	if (!mode) {
		const cJSON *v =
			cJSON_GetObjectItemCaseSensitive(sb->spec.extensions, "mayfly.pause");

		mode = v ? v->valuestring : "disk";
	}
	if (strcmp(mode, "disk") != 0 && strcmp(mode, "resident") != 0) {
		http_error(r, 400, "SANDBOX::INVALID_PARAMETER", "mode must be disk or resident.");
		return;
	}
	operation_ask(sb, !strcmp(mode, "resident") ? ASK_PAUSE_MEMORY : ASK_PAUSE, r);
}

void route_resume(struct http_req *r)
{
	struct sandbox *sb = route_sandbox(r);

	if (sb)
		operation_ask(sb, ASK_RESUME, r);
}

void route_delete(struct http_req *r)
{
	struct sandbox *sb = route_sandbox(r);

	if (sb)
		sandbox_delete_asked(sb, r);
}
