/* SPDX-License-Identifier: Apache-2.0
 *
 * router.h: from a request to its route: keys, mount points, endpoints of sandboxes. mayflyd's loop.
 */
#pragma once

#include "api/http/http.h"

struct daemon;

const struct http_route *router_dispatch(struct http_req *r);
void router_invoke(struct http_req *r);
void router_done(struct http_req *r, int status);
/* Writes the GET /openapi.json answer from the same tables that dispatch. */
void route_openapi(struct http_req *r);
/* The sandbox named by {id} and known, or NULL with 404 answered. */
struct sandbox *route_sandbox(struct http_req *r);

extern const struct http_table lifecycle_table; /* at "" and "/v1" */
extern const struct http_table root_table;      /* at "" only */
extern const struct http_table v1_table;        /* at "/v1" only */
extern const struct http_table egress_table;    /* behind endpoints, port 18080 */
#define EGRESS_PORT 18080
