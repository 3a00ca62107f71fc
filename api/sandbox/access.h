/* SPDX-License-Identifier: Apache-2.0
 *
 * access.h: which sandbox a request is about, and whether its principal may know of it. mayflyd's loop.
 */
#pragma once

#include "api/http/router.h"

struct sandbox;

/* The sandbox named by {id}, or NULL with 404 answered. */
struct sandbox *route_sandbox(struct http_req *r);
#define SECURE_ACCESS "OpenSandbox-Secure-Access"
/* Is this the token of a sandbox with secureAccess? In constant time. */
bool access_token_fits(const struct sandbox *sb, const char *token);
/* for the router: endpoints of sandboxes */
extern const struct router_sandboxes sandbox_endpoints;
