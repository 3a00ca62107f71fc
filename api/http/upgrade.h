/* SPDX-License-Identifier: Apache-2.0
 *
 * upgrade.h: a client's connection after "101 Switching Protocols": bytes both ways. mayflyd's loop
 * thread. What arrives is hostile. Its owner sees the same shape as a stream to a port in a guest
 * (struct agent_dial).
 *
 * The request lives until the connection is closed for good, and with it r->sandbox, r->principal
 * and r's memory. http_on_gone() is not called any more. The connection counts against the server's
 * limits all the time.
 */
#pragma once

#include "api/http/http.h"

struct http_upgrade;

#define HTTP_UPGRADE_HIGH (256u * 1024)  /* unsent bytes from which http_upgrade_full() is true */
#define HTTP_UPGRADE_MAX  (1024u * 1024) /* unsent bytes at which a send is refused */

struct http_upgrade_ops {
	/* n = 0: the client sends no more. It may still read. */
	void (*bytes)(void *arg, const uint8_t *p, size_t n);
	/* Less than a quarter of HTTP_UPGRADE_HIGH is unsent, after http_upgrade_full() was true. May be NULL. */
	void (*drained)(void *arg);
	/* The daemon ends: say goodbye and close. May be NULL; http_upgrade_close() is then called. */
	void (*leave)(void *arg);
	/* The connection broke; or its client took nothing for the server's write limit; or the
	 * owner took nothing for that long from a client that has left. The last call: u is invalid
	 * when it returns. */
	void (*closed)(void *arg, int err);
};

/* Answers 101 with "Upgrade: protocol" and the headers of http_add_header(). Instead of a reply.
 * Makes no callback before it returns. Bytes may be sent at once: they follow the answer. The
 * request must have no body. NULL: no memory, or not HTTP/1.1; r then still needs a reply. */
struct http_upgrade *http_upgrade(
	struct http_req *r, const char *protocol, const struct http_upgrade_ops *ops, void *arg);
/* Queues bytes. false: HTTP_UPGRADE_MAX is reached, the request's account is full, or the connection is over. */
bool http_upgrade_send(struct http_upgrade *u, const void *p, size_t n);
bool http_upgrade_full(const struct http_upgrade *u);
/* Half-close: sends the end of file after what is queued. */
void http_upgrade_end(struct http_upgrade *u);
/* Stops or resumes reading: what the client sends stays in the kernel. */
void http_upgrade_hold(struct http_upgrade *u, bool hold);
/* Ends it: what is queued is still sent, for at most 5 s. No callback follows; u is invalid. NULL is fine. */
void http_upgrade_close(struct http_upgrade *u);

/* Refuses a WebSocket where clients expect a close code instead of an HTTP status: accepts the
 * handshake and closes with this code. A malformed handshake is answered with 400 or 426. Ends the
 * request. */
void http_websocket_refuse(struct http_req *r, int code, const char *reason);
/* The same for an HTTP error: 1008 for 401 and 403, 1011 otherwise. false: r->ws_codes is not set. */
bool http_websocket_error(struct http_req *r, int status, const char *text);
/* The headers of r as the handshake's reader wants them. */
struct ws_offer;
void http_websocket_offer(const struct http_req *r, struct ws_offer *o);
/* 400 or 426 for a malformed handshake. true: it may be accepted. */
bool http_websocket_ok(struct http_req *r);
/* Answers 101 with the accepted key and, if it is not NULL or "", the subprotocol. Otherwise as http_upgrade(). */
struct http_upgrade *http_websocket_accept(
	struct http_req *r, const char *subprotocol, const struct http_upgrade_ops *ops, void *arg);
