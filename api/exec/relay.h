/* SPDX-License-Identifier: Apache-2.0
 *
 * relay.h: two streams become one: a client's upgraded connection and a stream to a server in its sandbox. mayflyd's loop. Both ends are hostile. Bytes pass as
 * they come, with back-pressure both ways and half-closes. Of a WebSocket the frames are found as they pass, so that close codes follow the protocol's rules and
 * a sandbox that pauses closes it with 1001.
 */
#pragma once

#include "api/http/upgrade.h"
#include "api/links/agent_client.h"
#include "lib/websocket_skim.h"

struct relay {
	struct http_upgrade *client; /* set by the caller, after relay_begin */
	struct agent_dial *dial;     /* taken */
	bool websocket;
	struct ws_skim from_client, from_backend;
	bool client_told, backend_told; /* a close frame was sent there */
	bool client_ended, backend_ended, over;
};

extern const struct http_upgrade_ops relay_client_ops; /* their arg is the struct relay */

/* x is zeroed and lives as long as the request. dial is open and is taken. The caller then upgrades the client and, if that fails, calls relay_end. */
void relay_begin(struct relay *x, struct agent_dial *dial, bool websocket);
/* Bytes that the server in the sandbox sent after its 101. */
void relay_from_backend(struct relay *x, const uint8_t *p, size_t n);
/* Ends both sides. code: for the close frames of a WebSocket. */
void relay_end(struct relay *x, int code, const char *reason);
