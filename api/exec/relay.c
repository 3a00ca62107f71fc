/* SPDX-License-Identifier: Apache-2.0
 *
 * relay.c: see relay.h. mayflyd's loop.
 */
#include "api/exec/relay.h"

#include <string.h>

#include "lib/websocket.h"

static void relay_tell_client(struct relay *x, int code, const char *reason)
{
	uint8_t frame[WS_CLOSE_MAX + 6];

	if (!x->websocket || x->client_told || !x->client ||
		!ws_skim_between_frames(&x->from_backend))
		return;
	x->client_told = true;
	http_upgrade_send(x->client, frame, ws_close_frame(frame, code, reason, false));
}

static void relay_tell_backend(struct relay *x, int code, const char *reason)
{
	uint8_t frame[WS_CLOSE_MAX + 6];

	if (!x->websocket || x->backend_told || !x->dial ||
		!ws_skim_between_frames(&x->from_client))
		return;
	x->backend_told = true;
	agent_dial_send(x->dial, frame, ws_close_frame(frame, code, reason, true));
}

void relay_end(struct relay *x, int code, const char *reason)
{
	if (x->over)
		return;
	x->over = true;
	relay_tell_client(x, code, reason);
	relay_tell_backend(x, code, reason);
	agent_dial_close(take_ptr(x->dial));
	http_upgrade_close(take_ptr(x->client));
}

/* A raw relay ends when each side has ended and the client's last bytes have left. A WebSocket ends when each side was sent a close frame. */
static void relay_look(struct relay *x)
{
	if (x->client_ended && x->backend_ended && x->dial && agent_dial_ending(x->dial))
		return; /* drained follows */
	if (x->client_ended && x->backend_ended)
		relay_end(x, WS_GOING_AWAY, "");
	else if (x->client_told && x->backend_told)
		relay_end(x, WS_NORMAL, "");
}

/* ---- from the client */

static bool relay_put_backend(struct relay *x, const uint8_t *p, size_t n)
{
	if (!agent_dial_send(x->dial, p, n)) {
		relay_end(
			x, WS_GOING_AWAY, "the connection to the server in the sandbox broke off");
		return false;
	}
	if (agent_dial_full(x->dial))
		http_upgrade_hold(x->client, true);
	return true;
}

static void relay_client_frames(struct relay *x, const uint8_t *p, size_t n)
{
	const uint8_t *out;
	size_t len;

	while (!x->over && n > 0) {
		switch (ws_skim_next(&x->from_client, &p, &n, &out, &len)) {
		case WS_SKIM_PASS:
			if (!x->backend_told)
				relay_put_backend(x, out, len);
			break;
		case WS_SKIM_CLOSE:
			relay_tell_backend(
				x, ws_relayed_code(x->from_client.code), x->from_client.reason);
			relay_look(x);
			break;
		case WS_SKIM_BAD:
			relay_end(x, WS_PROTOCOL, "a malformed close frame");
			break;
		case WS_SKIM_MORE:
			break;
		}
	}
}

static void relay_client_bytes(void *arg, const uint8_t *p, size_t n)
{
	struct relay *x = arg;

	if (x->over)
		return;
	if (n && x->websocket) {
		relay_client_frames(x, p, n);
	} else if (n) {
		relay_put_backend(x, p, n);
	} else if (x->websocket) {
		relay_end(x, WS_GOING_AWAY, "");
	} else {
		x->client_ended = true;
		agent_dial_end(x->dial);
		relay_look(x);
	}
}

static void relay_client_drained(void *arg)
{
	struct relay *x = arg;

	if (x->dial)
		agent_dial_hold(x->dial, false);
}

static void relay_client_leave(void *arg)
{
	relay_end(arg, WS_GOING_AWAY, "the server ends");
}

static void relay_client_closed(void *arg, int err)
{
	struct relay *x = arg;

	x->client = NULL; /* it is gone */
	relay_end(x, WS_GOING_AWAY, "");
}

const struct http_upgrade_ops relay_client_ops = {
	relay_client_bytes, relay_client_drained, relay_client_leave, relay_client_closed};

/* ---- from the backend */

static bool relay_put_client(struct relay *x, const uint8_t *p, size_t n)
{
	if (!http_upgrade_send(x->client, p, n)) {
		relay_end(x, WS_GOING_AWAY, "");
		return false;
	}
	if (http_upgrade_full(x->client))
		agent_dial_hold(x->dial, true);
	return true;
}

/* No caller holds the request here: relay_end() may free x. So return at once after it. */
static void relay_backend_frames(struct relay *x, const uint8_t *p, size_t n)
{
	const uint8_t *out;
	size_t len;

	while (!x->over && n > 0) {
		switch (ws_skim_next(&x->from_backend, &p, &n, &out, &len)) {
		case WS_SKIM_PASS:
			if (!x->client_told && !relay_put_client(x, out, len))
				return;
			break;
		case WS_SKIM_CLOSE:
			relay_tell_client(
				x, ws_relayed_code(x->from_backend.code), x->from_backend.reason);
			relay_look(x);
			return;
		case WS_SKIM_BAD:
			relay_end(x, WS_INTERNAL, "the server in the sandbox broke the protocol");
			return;
		case WS_SKIM_MORE:
			break;
		}
	}
}

void relay_from_backend(struct relay *x, const uint8_t *p, size_t n)
{
	if (x->over)
		return;
	if (n && x->websocket) {
		relay_backend_frames(x, p, n);
	} else if (n) {
		relay_put_client(x, p, n);
	} else if (x->websocket) {
		relay_end(x, WS_GOING_AWAY, "the server in the sandbox closed the connection");
	} else {
		x->backend_ended = true;
		http_upgrade_end(x->client);
		relay_look(x);
	}
}

static void relay_dial_bytes(void *arg, const uint8_t *p, size_t n)
{
	relay_from_backend(arg, p, n);
}

static void relay_dial_drained(void *arg)
{
	struct relay *x = arg;

	if (x->client)
		http_upgrade_hold(x->client, false);
	relay_look(x);
}

/* A sandbox that pauses or ends drops its streams. */
static void relay_dial_closed(void *arg, const struct agent_reply *r)
{
	relay_end(arg, WS_GOING_AWAY, "the connection to the server in the sandbox broke off");
}

static const struct agent_dial_ops relay_dial_ops = {
	.bytes = relay_dial_bytes, .drained = relay_dial_drained, .closed = relay_dial_closed};

void relay_begin(struct relay *x, struct agent_dial *dial, bool websocket)
{
	x->dial = dial;
	x->websocket = websocket;
	agent_dial_give(dial, &relay_dial_ops, x);
}
