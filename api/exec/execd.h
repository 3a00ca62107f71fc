/* SPDX-License-Identifier: Apache-2.0
 *
 * execd.h: the execution API of a sandbox as tables of routes, for the dispatcher of mayflyd: after
 * an endpoint's prefix was stripped it looks in execd_table for port 44772 and in proxy_table for
 * every other port but 18080 (the egress API). The handlers find the guest through r->sandbox. A handler
 * without HTTP_R_NO_WAIT is called only when the sandbox runs. Clients and guests are hostile.
 */
#pragma once

#include "api/http/http.h"

#define EXECD_PORT 44772

extern const struct http_table execd_table;
extern const struct http_table proxy_table;

/* Does the request show the sandbox's EXECD_ACCESS_TOKEN, if it was made with one in its environment? False: answered with 401. */
bool execd_admit(struct http_req *r);
/* The same with this token. NULL or "": none is needed */
bool execd_token_fits(struct http_req *r, const char *token);
