/* SPDX-License-Identifier: Apache-2.0
 *
 * gateway.h: the ingress gateway (protocol 1.11): a listener that serves ports of sandboxes and nothing else, and may listen on a public address. mayflyd's loop.
 * Everything that comes to it is hostile. No API key is asked for or believed here.
 *
 * A request names its sandbox and port by a host label, the path or a header (address.h). A sandbox that was made with secureAccess is reached only with its token or a
 * signed route. Both are taken away before the sandbox sees the request.
 */
#pragma once

#include "api/http/http.h"
#include "lib/err.h"

struct config;
struct daemon;

/* Can the signing keys of the configuration, or of OPENSANDBOX_SECURE_ACCESS_KEYS, be used? 0, or -EINVAL: *e says why not. */
int gateway_check(const struct config *c, struct err *e);
/* Makes d->ingress, or reads the keys again. Call it after gateway_check() returned 0. 0, or -ENOMEM. */
int gateway_configure(struct daemon *d);

/* The dispatcher for struct http_config. The other callbacks are the router's. */
const struct http_route *gateway_dispatch(struct http_req *r);

/* Writes where clients reach a port of a sandbox. expires_s: 0, or when the route expires, which is then signed. out->header: what the client must send as
 * OpenSandbox-Ingress-To, or "". The texts live as long as r. 0; -ENOKEY: there is no key to sign with; -ENOMEM. */
struct ingress_endpoint {
	const char *endpoint, *header;
};
int gateway_endpoint(struct http_req *r, const char *sandbox, uint16_t port, uint64_t expires_s,
	struct ingress_endpoint *out);
