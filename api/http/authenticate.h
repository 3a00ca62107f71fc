/* SPDX-License-Identifier: Apache-2.0
 *
 * authenticate.h: who sent a request. mayflyd's loop. Headers are hostile.
 */
#pragma once

#include "api/http/http.h"

/* A daemon without a key trusts whoever reaches its loopback address. A web page reaches it, too, through the user's browser. Such a request has
 * the page's name in Host (its owner makes that name resolve to 127.0.0.1) or in Origin. It is answered with 403, and the result is false.
 * origin_too: look at Origin, too, because the request changes or shows what is the operator's. */
bool request_is_local(struct http_req *r, bool origin_too);

/* Sets r->principal: by OPEN-SANDBOX-API-KEY, by "Authorization: Bearer" if bearer, by the user id at the other end of the Unix socket; the
 * operator where no key is configured. false: answered with 401. */
bool authenticate(struct http_req *r, bool bearer);

/* The principal of the key in OPEN-SANDBOX-API-KEY, or of the user at the other end of the Unix socket. NULL: none. Sends no answer. */
const struct principal *principal_shown(const struct http_req *r);

/* Is this the value of an Authorization header with a key of ours: "KEY", "Bearer KEY"? */
bool holds_our_key(const struct http_req *r, const char *authorization);
