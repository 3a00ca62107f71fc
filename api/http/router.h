/* SPDX-License-Identifier: Apache-2.0
 *
 * router.h: from a request to its route: keys, mount points, endpoints of sandboxes. mayflyd's loop. The router knows no other room: what it
 * serves, and how a sandbox is found, is one table (struct router) that api/start fills in and struct daemon points to.
 */
#pragma once

#include "api/http/http.h"

struct router_mount {
	const struct http_table *table;
	bool v1, plain; /* below /v1, below / */
};

/* What a port of a sandbox answers with. A port may have several rows, one after the other; the first row's admit counts. */
struct router_port {
	uint16_t port; /* the last row has 0: every other port */
	const struct http_table *table;
	/* Checks what this port needs besides a route, a token for example. false: answered. May be NULL. */
	bool (*admit)(struct http_req *r);
};

/* The sandboxes, as far as endpoints need them. */
struct router_sandboxes {
	/* Sets r->sandbox, which stays referenced until r is freed. false: answered. id may be "". */
	bool (*enter)(struct http_req *r, const char *id);
	/* May this request reach r->sandbox, if it was made with secureAccess? Not called for the gateway, which checks it itself. false: answered. */
	bool (*admit)(struct http_req *r);
	http_fn counts;   /* r may reach r->sandbox: it is activity from here until it ends */
	http_fn accessed; /* a request reached a route of r->sandbox */
	http_fn when_up; /* calls r->route->fn now or when r->sandbox runs, or answers that it will not */
};

struct router {
	const struct router_mount *mounts;
	size_t nmounts;
	const struct router_port *ports;
	size_t nports;
	const struct router_sandboxes *sandboxes;
};

/* For a request whose sandbox is set (enter) and whose r->path is what the sandbox is asked for: the route of this port, or NULL with an error answered. */
const struct http_route *router_port(struct http_req *r, unsigned int port);
/* The three callbacks of struct http_config; r->app is the struct daemon. */
const struct http_route *router_dispatch(struct http_req *r);
void router_invoke(struct http_req *r);
void router_done(struct http_req *r, int status);
/* Writes the GET /openapi.json answer from the same tables that dispatch. */
void route_openapi(struct http_req *r);
