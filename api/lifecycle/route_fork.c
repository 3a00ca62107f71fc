/* SPDX-License-Identifier: Apache-2.0
 *
 * route_fork.c: POST /sandboxes/{id}/fork and POST /snapshots/{id}/fork, which are ours, beside the protocol. mayflyd's loop. Bodies are
 * hostile.
 */
#include <cjson/cJSON.h>

#include "api/fleet/fork.h"
#include "api/lifecycle/route_lifecycle.h"
#include "api/lifecycle/spec.h"
#include "api/sandbox/access.h"

#define PARAM "SANDBOX::INVALID_PARAMETER"

/* What the request is read into: q points into the others. */
struct parsed {
	cJSON *body, *env;
	struct fork_request q;
};

static void parsed_free(struct parsed *p)
{
	cJSON_Delete(p->body);
	cJSON_Delete(p->env);
}

static int fork_count(struct parsed *p, const struct config *c, struct refusal *x)
{
	uint64_t n = 0;

	(void)c;
	if (!json_whole(json_field(p->body, "count"), FORK_COUNT_MAX, &n) || !n)
		return refuse(x, 400, PARAM, "count must be a whole number from 1 to %u.",
			FORK_COUNT_MAX);
	p->q.count = (unsigned int)n;
	return 0;
}

static int fork_pause_source(struct parsed *p, const struct config *c, struct refusal *x)
{
	const cJSON *v = json_field(p->body, "pauseSource");

	(void)c;
	if (v && !cJSON_IsBool(v))
		return refuse(x, 400, PARAM, "pauseSource must be true or false.");
	p->q.pause_source = cJSON_IsTrue(v);
	return 0;
}

static int fork_env(struct parsed *p, const struct config *c, struct refusal *x)
{
	const cJSON *v = json_field(p->body, "env");

	(void)c;
	p->env = cJSON_CreateObject();
	p->q.env = p->env;
	return v ? env_check(v, p->env, x) : 0;
}

static int fork_metadata(struct parsed *p, const struct config *c, struct refusal *x)
{
	(void)c;
	p->q.metadata = json_field(p->body, "metadata");
	return p->q.metadata
		       ? metadata_check(p->q.metadata, false, "SANDBOX::INVALID_METADATA_LABEL", x)
		       : 0;
}

static int fork_timeout(struct parsed *p, const struct config *c, struct refusal *x)
{
	const cJSON *v = json_field(p->body, "timeout");

	p->q.has_timeout = v != NULL;
	return v ? timeout_check(v, c, &p->q.timeout_s, x) : 0;
}

/* false: answered. */
static bool fork_parse(struct http_req *r, struct parsed *p)
{
	static int (*const parts[])(
		struct parsed * p, const struct config *c, struct refusal *x) = {
		fork_count, fork_pause_source, fork_env, fork_metadata, fork_timeout};
	const struct daemon *d = r->app;
	struct refusal x;
	int rc;

	*p = (struct parsed){0};
	p->body = json_object(r->body, r->body_len, &x);
	rc = p->body ? 0 : -EINVAL;
	for (size_t i = 0; i < ARRAY_LEN(parts) && rc == 0; i++)
		rc = parts[i](p, &d->cfg, &x);
	if (rc < 0)
		http_error(r, x.status, x.code, "%s", x.msg);
	return rc == 0;
}

void route_sandbox_fork(struct http_req *r)
{
	_cleanup_(parsed_free) struct parsed p = {0};
	struct sandbox *sb = route_sandbox(r);

	if (sb && fork_parse(r, &p))
		fork_sandbox(r, sb, &p.q);
}

void route_snapshot_fork(struct http_req *r)
{
	_cleanup_(parsed_free) struct parsed p = {0};
	const struct checkpoint *c = route_snapshot(r);

	if (!c || !fork_parse(r, &p))
		return;
	if (p.q.pause_source)
		http_error(r, 400, PARAM, "pauseSource: a snapshot has no source that runs.");
	else
		fork_checkpoint(r, c, &p.q);
}
