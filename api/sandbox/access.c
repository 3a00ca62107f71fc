/* SPDX-License-Identifier: Apache-2.0
 *
 * access.c: see access.h. mayflyd's loop. Ids are a client's.
 */
#include "api/sandbox/access.h"

#include <string.h>

#include "api/http/authenticate.h"
#include "api/sandbox/sandbox.h"

struct sandbox *route_sandbox(struct http_req *r)
{
	const char *id = http_param(r, "id");
	struct sandbox *sb = id && uuid_ok(id) ? sandbox_find(r->app, id) : NULL;

	/* a sandbox of another namespace is answered as if it did not exist */
	if (sb && principal_may(&r->principal, sb->owner))
		return sb;
	http_error(r, 404, "DOCKER::SANDBOX_NOT_FOUND", "Sandbox %.64s not found.", id ? id : "");
	return NULL;
}

static void access_ends(struct http_req *r)
{
	if (r->counts)
		idle_left(r->sandbox);
	sandbox_unref(r->sandbox);
}

static bool access_enter(struct http_req *r, const char *id)
{
	struct sandbox *sb = uuid_ok(id) ? sandbox_find(r->app, id) : NULL;

	/* A request with a key reaches sandboxes of its namespace only. Without a key the id alone is enough. */
	if (!sb || (r->principal.role != ROLE_NONE && !principal_may(&r->principal, sb->owner))) {
		http_error(r, 404, "DOCKER::SANDBOX_NOT_FOUND", "Sandbox not found.");
		return false;
	}
	sandbox_ref(sb);
	r->sandbox = sb;
	r->account = &sb->traffic;
	r->connections = &sb->budget->guest_connections;
	http_on_free(r, access_ends);
	return true;
}

bool access_token_fits(const struct sandbox *sb, const char *token)
{
	return *sb->secure_token && secret_equal(token, sb->secure_token);
}

/* A key of the owner's namespace is accepted, too: whoever has it could get the token. */
static bool access_admit(struct http_req *r)
{
	const struct sandbox *sb = r->sandbox;
	const char *token = http_header(r, SECURE_ACCESS);
	const struct principal *p;

	if (!sb->spec.secure_access || (token && access_token_fits(sb, token)))
		return true;
	p = principal_shown(r);
	if (p && principal_may(p, sb->owner))
		return true;
	http_error(r, 401, "MISSING_OR_INVALID_SECURE_ACCESS",
		"The header " SECURE_ACCESS
		" is missing or wrong. The endpoint's answer has it among its headers.");
	return false;
}

/* Called after the request was admitted: refused requests do not keep a sandbox awake. */
static void access_counts(struct http_req *r)
{
	r->counts = true;
	idle_entered(r->sandbox);
}

static void access_renews(struct http_req *r)
{
	const char *renew = http_header(r, "OpenSandbox-Access-Renew");

	if (!renew || strcmp(renew, "skip") != 0)
		sandbox_renew_on_access(r->sandbox);
}

static void access_when_up(struct http_req *r)
{
	sandbox_when_up(r->sandbox, r);
}

const struct router_sandboxes sandbox_endpoints = {
	access_enter, access_admit, access_counts, access_renews, access_when_up};
