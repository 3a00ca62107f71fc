/* SPDX-License-Identifier: Apache-2.0
 *
 * route_egress.c: the egress API (port 18080 of every sandbox) and /networkpolicy, for sandboxes without a policy: the documented answers.
 * There is no guest process behind it. Changing a policy comes with the network and is refused until then.
 */
#include "api/lifecycle/route_lifecycle.h"
#include "api/sandbox/access.h"

#include <string.h>

static const char allow_all[] = "{\"status\":\"ok\",\"mode\":\"allow_all\",\"enforcementMode\":"
				"\"dns\",\"policy\":{\"defaultAction\":\"allow\",\"egress\":[]}}";

static void egress_policy(struct http_req *r)
{
	http_reply(r, 200, "application/json", allow_all, sizeof(allow_all) - 1);
}

static void egress_change(struct http_req *r)
{
	static const char text[] = "egress policies are not available on this server yet\n";

	http_reply(r, 501, "text/plain; charset=utf-8", text, sizeof(text) - 1);
}

static void egress_healthz(struct http_req *r)
{
	http_reply(r, 200, "text/plain; charset=utf-8", "ok", 2);
}

static const struct http_route routes[] = {
	{"GET", "/healthz", egress_healthz, HTTP_BODY_NONE, HTTP_R_NO_KEY, 0},
	{"GET", "/policy", egress_policy, HTTP_BODY_NONE, HTTP_R_NO_KEY | HTTP_R_NO_WAIT, 0},
	{"POST", "/policy", egress_change, HTTP_BODY_WHOLE, HTTP_R_NO_KEY | HTTP_R_NO_WAIT, 0},
	{"PUT", "/policy", egress_change, HTTP_BODY_WHOLE, HTTP_R_NO_KEY | HTTP_R_NO_WAIT, 0},
	{"PATCH", "/policy", egress_change, HTTP_BODY_WHOLE, HTTP_R_NO_KEY | HTTP_R_NO_WAIT, 0},
	{"DELETE", "/policy", egress_change, HTTP_BODY_WHOLE, HTTP_R_NO_KEY | HTTP_R_NO_WAIT, 0},
	{"*", "/credential-vault", egress_change, HTTP_BODY_WHOLE, HTTP_R_NO_KEY | HTTP_R_NO_WAIT,
		0},
	{"*", "/credential-vault/{rest*}", egress_change, HTTP_BODY_WHOLE,
		HTTP_R_NO_KEY | HTTP_R_NO_WAIT, 0},
};
const struct http_table egress_table = {routes, ARRAY_LEN(routes)};

void route_policy_get(struct http_req *r)
{
	if (!route_sandbox(r))
		return;
	if (!strcmp(r->method, "GET"))
		egress_policy(r);
	else
		http_error(r, 501, "SANDBOX::API_NOT_SUPPORTED",
			"Egress policies are not available on this server yet.");
}
