/* SPDX-License-Identifier: Apache-2.0
 *
 * routes.c: the tables of what mayflyd serves itself, and the few routes that have no file of their own. The routes behind a sandbox's
 * endpoints are in execd.h, code.h and route_egress.c.
 */
#include <cjson/cJSON.h>
#include <string.h>

#include "api/core/daemon.h"
#include "api/fleet/worker_run.h"
#include "api/fleet/worker_task.h"
#include "api/lifecycle/route_lifecycle.h"
#include "api/http/router.h"
#include "api/lifecycle/spec.h"

static void route_health(struct http_req *r)
{
	static const char ok[] = "{\"status\":\"healthy\"}";

	http_reply(r, 200, "application/json", ok, sizeof(ok) - 1);
}

static void route_version(struct http_req *r)
{
	static const char v[] =
		"{\"version\":\"" PROTOCOL_VERSION "\",\"server\":\"mayfly " MAYFLY_VERSION "\"}";

	http_reply(r, 200, "application/json", v, sizeof(v) - 1);
}

static void route_docs(struct http_req *r)
{
	static const char page[] = "<!doctype html><title>mayfly</title><p>The API is described by "
				   "<a href=\"/openapi.json\">/openapi.json</a>.";

	http_reply(r, 200, "text/html; charset=utf-8", page, sizeof(page) - 1);
}

/* What the SDKs report about their creates, as the Sandbox Protocol has it. */
static void route_sdk_event(struct http_req *r)
{
	struct daemon *d = r->app;
	struct refusal x;
	cJSON *j = json_object(r->body, r->body_len, &x);
	const cJSON *type, *ms, *ok;

	if (!j) {
		http_error(r, x.status, x.code, "%s", x.msg);
		return;
	}
	type = cJSON_GetObjectItemCaseSensitive(j, "eventType");
	ms = cJSON_GetObjectItemCaseSensitive(j, "createDurationMs");
	ok = cJSON_GetObjectItemCaseSensitive(j, "success");
	if (!cJSON_IsString(type) || strcmp(type->valuestring, "sandbox.create") != 0 ||
		!cJSON_IsNumber(ms) || !(ms->valuedouble >= 0) || !cJSON_IsBool(ok)) {
		http_error_detail(r, 422, "not an event that is known here");
	} else {
		d->metrics.sdk_events++;
		d->metrics.sdk_failures += cJSON_IsFalse(ok);
		if (ms->valuedouble < 1e9)
			hist_add(&d->metrics.sdk_create, (uint64_t)(ms->valuedouble * 1e6));
		http_reply_empty(r, 204);
	}
	cJSON_Delete(j);
}

#define NONE  HTTP_BODY_NONE, 0, 0
#define WHOLE HTTP_BODY_WHOLE, 0, 0
#define OPEN  HTTP_BODY_NONE, HTTP_R_NO_KEY, 0
/* about the host, or about what all clients share: image templates show which images others use */
#define OPERATORS       HTTP_BODY_NONE, HTTP_R_OPERATOR, 0
#define OPERATORS_WHOLE HTTP_BODY_WHOLE, HTTP_R_OPERATOR, 0

static const struct http_route root[] = {
	{"GET", "/health", route_health, OPEN},
	{"GET", "/version", route_version, OPEN},
	{"GET", "/openapi.json", route_openapi, OPEN},
	{"GET", "/docs", route_docs, OPEN},
	{"GET", "/redoc", route_docs, OPEN},
	{"GET", "/metrics", route_prometheus, OPERATORS},
};
const struct http_table root_table = {root, ARRAY_LEN(root)};

static const struct http_route v1[] = {
	{"POST", "/metrics/events", route_sdk_event, WHOLE},
	/* ours, beside the protocol */
	{"GET", "/mayfly/sandboxes/{id}/egress", route_egress_seen, NONE},
	{"GET", "/mayfly/templates", route_auto_templates, OPERATORS},
	{"GET", "/mayfly/points/{id}", route_point_get, NONE},
	{"POST", "/mayfly/points/{id}/verify", route_point_verify, NONE},
	{"POST", "/mayfly/templates", route_auto_template_create, OPERATORS_WHOLE},
	{"GET", "/mayfly/templates/{id}", route_auto_template_get, OPERATORS},
	{"DELETE", "/mayfly/templates/{id}", route_auto_template_delete, OPERATORS},
	{"GET", "/mayfly/images", route_image_list, OPERATORS},
	{"POST", "/mayfly/images", route_image_pull, OPERATORS_WHOLE},
	{"DELETE", "/mayfly/images", route_image_delete, OPERATORS},
	{"GET", "/mayfly/volumes", route_volume_list, NONE},
	{"POST", "/mayfly/volumes", route_volume_create, WHOLE},
	{"GET", "/mayfly/volumes/{name}", route_volume_get, NONE},
	{"DELETE", "/mayfly/volumes/{name}", route_volume_delete, NONE},
	{"POST", "/mayfly/runs", runs_submit, HTTP_BODY_WHOLE, 0, WORKER_INPUT_MAX},
	{"GET", "/mayfly/quarantine", route_quarantine_list, OPERATORS},
	{"DELETE", "/mayfly/quarantine/{table}/{id}", route_quarantine_delete, OPERATORS},
};
const struct http_table v1_table = {v1, ARRAY_LEN(v1)};

static const struct http_route lifecycle[] = {
	{"POST", "/sandboxes", route_create, WHOLE},
	{"GET", "/sandboxes", route_list, NONE},
	{"GET", "/sandboxes/{id}", route_get, NONE},
	{"DELETE", "/sandboxes/{id}", route_delete, NONE},
	{"PATCH", "/sandboxes/{id}/metadata", route_metadata, WHOLE},
	{"POST", "/sandboxes/{id}/pause", route_pause, NONE},
	{"POST", "/sandboxes/{id}/resume", route_resume, NONE},
	{"POST", "/sandboxes/{id}/renew-expiration", route_renew, WHOLE},
	{"GET", "/sandboxes/{id}/endpoints/{port}", route_endpoint, NONE},
	{"POST", "/sandboxes/{id}/snapshots", route_snapshot_create, WHOLE},
	{"GET", "/snapshots", route_snapshot_list, NONE},
	{"GET", "/snapshots/{id}", route_snapshot_get, NONE},
	{"DELETE", "/snapshots/{id}", route_snapshot_delete, NONE},
	/* the next three are ours, beside the protocol */
	{"POST", "/sandboxes/{id}/fork", route_sandbox_fork, WHOLE},
	{"POST", "/sandboxes/{id}/restore", route_sandbox_restore, WHOLE},
	{"POST", "/snapshots/{id}/fork", route_snapshot_fork, WHOLE},
	{"GET", "/sandboxes/{id}/networkpolicy", route_policy_get, NONE},
	{"PUT", "/sandboxes/{id}/networkpolicy", route_policy_put, WHOLE},
	{"PATCH", "/sandboxes/{id}/networkpolicy", route_policy_patch, WHOLE},
	{"DELETE", "/sandboxes/{id}/networkpolicy", route_policy_delete, WHOLE},
	{"POST", "/templates", route_template_create, WHOLE},
	{"GET", "/templates", route_template_list, NONE},
	{"GET", "/templates/{id}", route_template_get, NONE},
	{"DELETE", "/templates/{id}", route_template_delete, NONE},
	{"GET", "/sandboxes/{id}/diagnostics/logs", route_diag_logs, NONE},
	{"GET", "/sandboxes/{id}/diagnostics/events", route_diag_events, NONE},
	{"GET", "/sandboxes/{id}/diagnostics/context", route_diag_context, NONE},
	{"GET", "/sandboxes/{id}/diagnostics/inspect", route_diag_inspect, NONE},
	{"GET", "/sandboxes/{id}/diagnostics/summary", route_diag_summary, NONE},
	{"POST", "/pools", route_pool_create, OPERATORS_WHOLE},
	{"GET", "/pools", route_pool_list, OPERATORS},
	{"GET", "/pools/{name}", route_pool_get, OPERATORS},
	{"PUT", "/pools/{name}", route_pool_put, OPERATORS_WHOLE},
	{"DELETE", "/pools/{name}", route_pool_delete, OPERATORS},
};
const struct http_table lifecycle_table = {lifecycle, ARRAY_LEN(lifecycle)};
