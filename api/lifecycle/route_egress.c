/* SPDX-License-Identifier: Apache-2.0
 *
 * route_egress.c: the egress API: port 18080 of every sandbox, and /networkpolicy. There is no guest process behind it: a policy is in the
 * sandbox's record and in the broker. Errors of port 18080 are plain text, those of /networkpolicy have the lifecycle API's form. Hostile:
 * the documents (api/network/egress_policy.h reads them).
 */
#include "api/lifecycle/route_lifecycle.h"

#include <cjson/cJSON.h>
#include <string.h>

#include "api/http/authenticate.h"
#include "api/network/egress_policy.h"
#include "api/network/network.h"
#include "api/sandbox/access.h"
#include "api/sandbox/launch.h"
#include "api/sandbox/record_writer.h"
#include "api/sandbox/sandbox.h"
#include "lib/netrule.h"

/* An error in the form of the API that was asked. */
static void policy_error(struct http_req *r, int status, const char *text)
{
	if (r->port == EGRESS_PORT)
		http_reply(r, status, "text/plain; charset=utf-8", text, strlen(text));
	else
		http_error(r, status,
			status >= 500 ? "SANDBOX::INTERNAL_ERROR" : "SANDBOX::INVALID_PARAMETER",
			"%s", text);
}

/* A sandbox that was made without a policy has no token. The reference serves no port 18080 for it. Here the port shows that all is allowed.
 * Everything else needs the key that /networkpolicy needs: a program that only knows the id must not change a policy that an owner set later. */
static bool policy_key(struct http_req *r, const struct sandbox *sb)
{
	if (!strcmp(r->method, "GET") && !sb->spec.network_policy)
		return true;
	if (!authenticate(r, false))
		return false;
	if (principal_may(&r->principal, sb->owner))
		return true;
	policy_error(r, 401, "unauthorized");
	return false;
}

/* NULL: answered. A sandbox that was made with a policy has a token, and port 18080 needs it. */
static struct sandbox *policy_sandbox(struct http_req *r)
{
	const char *shown = http_header(r, EGRESS_AUTH);
	struct sandbox *sb = r->port == EGRESS_PORT ? r->sandbox : route_sandbox(r);

	if (!sb || r->port != EGRESS_PORT)
		return sb;
	if (!*sb->egress_token)
		return policy_key(r, sb) ? sb : NULL;
	if (shown && secret_equal(shown, sb->egress_token))
		return sb;
	policy_error(r, 401, "unauthorized");
	return NULL;
}

static void policy_answer(
	struct http_req *r, const struct sandbox *sb, bool whole, const char *reason)
{
	const cJSON *p = sb->spec.network_policy;
	cJSON *o = cJSON_CreateObject(), *none;

	cJSON_AddStringToObject(o, "status", "ok");
	cJSON_AddStringToObject(o, "mode", egress_policy_mode(p));
	/* the reference's word for rules by name and by address */
	cJSON_AddStringToObject(o, "enforcementMode", "dns+nft");
	if (reason)
		cJSON_AddStringToObject(o, "reason", reason);
	if (whole && p) {
		cJSON_AddItemToObject(o, "policy", cJSON_Duplicate(p, true));
	} else if (whole) {
		none = cJSON_AddObjectToObject(o, "policy");
		cJSON_AddStringToObject(none, "defaultAction", "allow");
		cJSON_AddArrayToObject(none, "egress");
	}
	http_reply_json(r, 200, o);
}

/* A change of the policy. It is computed when its turn comes, from the policy that the change before it left. */
struct policy_change {
	struct record_write w;
	cJSON *body; /* NULL: empty */
	int (*read)(struct policy_change *c, cJSON **p, struct err *e);
	cJSON *policy;
	const char *reason; /* in the answer */
};

static struct policy_change *change_of(struct record_write *w)
{
	return container_of(w, struct policy_change, w);
}

static bool change_turn(struct record_write *w)
{
	struct policy_change *c = change_of(w);
	struct err e = {0};
	int rc = c->read(c, &c->policy, &e);

	if (rc == 0 && c->policy && w->sb->d->cfg.network_enabled)
		return true;
	if (!w->r)
		return false;
	if (rc == 0 && c->policy)
		policy_error(w->r, 400,
			"sandboxes have no network on this server: network.enabled is false");
	else if (rc < 0)
		policy_error(w->r, rc == -E2BIG ? 413 : rc == -ENOMEM ? 500 : 400, e.msg);
	else
		policy_answer(w->r, w->sb, false, c->reason);
	return false;
}

static void change_swap(struct record_write *w)
{
	SWAP(change_of(w)->policy, w->sb->spec.network_policy);
}

static void change_ended(struct record_write *w, enum record_end how)
{
	if (how == RECORD_SAVED)
		launch_network_policy(w->sb);
	if (!w->r)
		return;
	if (how == RECORD_SAVED)
		policy_answer(w->r, w->sb, false, change_of(w)->reason);
	else
		policy_error(w->r, 500,
			how == RECORD_GONE ? "the sandbox was deleted meanwhile"
					   : "the policy could not be written; the old one stays");
}

static void change_fini(struct record_write *w)
{
	cJSON_Delete(change_of(w)->body);
	cJSON_Delete(change_of(w)->policy);
}

static const struct record_write_kind change_kind = {.bytes = sizeof(struct policy_change),
	.sync = true,
	.turn = change_turn,
	.swap = change_swap,
	.ended = change_ended,
	.fini = change_fini};

/* The body as JSON. NULL and *bad: it is not JSON. NULL and not *bad: it is empty. */
static cJSON *policy_body(struct http_req *r, bool *bad)
{
	const char *end = NULL;
	cJSON *v;

	*bad = false;
	if (strspn((const char *)r->body, " \t\r\n") >= r->body_len)
		return NULL;
	v = cJSON_ParseWithLengthOpts((const char *)r->body, r->body_len, &end, false);
	if (v && (size_t)(end - (const char *)r->body) + strspn(end, " \t\r\n") < r->body_len) {
		cJSON_Delete(v);
		v = NULL;
	}
	*bad = !v;
	return v;
}

void route_policy_get(struct http_req *r)
{
	const struct sandbox *sb = policy_sandbox(r);

	if (sb)
		policy_answer(r, sb, true, NULL);
}

static int policy_put(struct policy_change *c, cJSON **p, struct err *e)
{
	if (!c->body || cJSON_IsNull(c->body) || (cJSON_IsObject(c->body) && !c->body->child))
		c->reason = "policy reset to default deny-all";
	return egress_policy_read(c->body, p, e);
}

static int policy_patch(struct policy_change *c, cJSON **p, struct err *e)
{
	return egress_policy_patch(c->w.sb->spec.network_policy, c->body, p, e);
}

static int policy_remove(struct policy_change *c, cJSON **p, struct err *e)
{
	bool found = false;
	int rc = egress_policy_remove(c->w.sb->spec.network_policy, c->body, p, &found, e);

	if (rc == 0 && !found) {
		cJSON_Delete(take_ptr(*p));
		c->reason = "no matching targets found";
	}
	return rc;
}

static void policy_change(
	struct http_req *r, int (*read)(struct policy_change *c, cJSON **p, struct err *e))
{
	struct sandbox *sb = policy_sandbox(r);
	struct record_write *w;
	cJSON *body;
	bool bad;

	if (!sb)
		return;
	body = policy_body(r, &bad);
	w = bad ? NULL : record_write_new(&change_kind, sb, r);
	if (!w) {
		cJSON_Delete(body);
		policy_error(r, bad ? 400 : 500, bad ? "the body is not JSON" : "out of memory");
		return;
	}
	change_of(w)->body = body;
	change_of(w)->read = read;
	record_write_submit(w);
}

void route_policy_put(struct http_req *r)
{
	policy_change(r, policy_put);
}

void route_policy_patch(struct http_req *r)
{
	policy_change(r, policy_patch);
}

void route_policy_delete(struct http_req *r)
{
	policy_change(r, policy_remove);
}

/* In the order of enum net_counter. */
static const char *const counter_names[NET_C_COUNT] = {
	[NET_C_TCP_OPENED] = "tcpOpened",
	[NET_C_UDP_OPENED] = "udpOpened",
	[NET_C_ICMP_OPENED] = "icmpOpened",
	[NET_C_OPEN] = "open",
	[NET_C_BYTES_OUT] = "bytesOut",
	[NET_C_BYTES_IN] = "bytesIn",
	[NET_C_QUERIES] = "queries",
	[NET_C_QUERIES_DENIED] = "queriesDenied",
	[NET_C_QUERIES_FAILED] = "queriesFailed",
	[NET_C_REBINDING] = "rebinding",
	[NET_C_DENIED] = "denied",
	[NET_C_LIMITED] = "limited",
	[NET_C_SHUT] = "shut",
	[NET_C_REFUSED] = "refused",
};

/* The counters, and the destinations that were denied. c NULL: the sandbox has sent nothing since it runs, or the broker
 * did not answer. */
static void egress_seen(void *arg, struct cur *c)
{
	struct http_req *r = arg;
	cJSON *o = cJSON_CreateObject(), *counters = cJSON_AddObjectToObject(o, "counters"),
	      *list = cJSON_AddArrayToObject(o, "denied"), *i;
	uint32_t n = c ? cur_u32(c) : 0;

	for (uint32_t k = 0; k < n && !c->bad; k++) {
		double v = (double)cur_u64(c);

		if (k < NET_C_COUNT && !c->bad)
			cJSON_AddNumberToObject(counters, counter_names[k], v);
	}
	n = c ? cur_u32(c) : 0;
	for (uint32_t k = 0; k < n && !c->bad; k++) {
		char place[NET_NAME_MAX], why[32];
		uint64_t times;

		cur_str(c, place, sizeof(place));
		cur_str(c, why, sizeof(why));
		times = cur_u64(c);
		if (c->bad)
			break;
		i = cJSON_CreateObject();
		cJSON_AddStringToObject(i, "destination", place);
		cJSON_AddStringToObject(i, "reason", why);
		cJSON_AddNumberToObject(i, "count", (double)times);
		cJSON_AddItemToArray(list, i);
	}
	http_reply_json(r, 200, o);
}

static void egress_forget(struct http_req *r)
{
	network_forget(((struct daemon *)r->app)->networks, r);
}

void route_egress_seen(struct http_req *r)
{
	struct sandbox *sb = route_sandbox(r);

	if (!sb)
		return;
	http_on_free(r, egress_forget);
	if (network_counters(sb->d->networks, sb->vm, egress_seen, r) < 0)
		egress_seen(r, NULL);
}

static void egress_vault(struct http_req *r)
{
	static const char text[] = "the credential vault is not available on this server yet\n";

	http_reply(r, 501, "text/plain; charset=utf-8", text, sizeof(text) - 1);
}

static void egress_healthz(struct http_req *r)
{
	http_reply(r, 200, "text/plain; charset=utf-8", "ok", 2);
}

#define OWN_KEY (HTTP_R_NO_KEY | HTTP_R_NO_WAIT)
static const struct http_route routes[] = {
	{"GET", "/healthz", egress_healthz, HTTP_BODY_NONE, HTTP_R_NO_KEY, 0},
	{"GET", "/policy", route_policy_get, HTTP_BODY_NONE, OWN_KEY, 0},
	{"POST", "/policy", route_policy_put, HTTP_BODY_WHOLE, OWN_KEY, 0},
	{"PUT", "/policy", route_policy_put, HTTP_BODY_WHOLE, OWN_KEY, 0},
	{"PATCH", "/policy", route_policy_patch, HTTP_BODY_WHOLE, OWN_KEY, 0},
	{"DELETE", "/policy", route_policy_delete, HTTP_BODY_WHOLE, OWN_KEY, 0},
	{"*", "/credential-vault", egress_vault, HTTP_BODY_WHOLE, OWN_KEY, 0},
	{"*", "/credential-vault/{rest*}", egress_vault, HTTP_BODY_WHOLE, OWN_KEY, 0},
};
const struct http_table egress_table = {routes, ARRAY_LEN(routes)};
