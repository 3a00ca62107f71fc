/* SPDX-License-Identifier: Apache-2.0
 *
 * websocket_handshake.h: the two HTTP messages that begin a WebSocket (RFC 6455, section 4), for both roles. The daemon and the command line, in the thread of their loop. Pure functions over
 * headers: nothing here owns a socket. What a client offers and what a server answers is hostile.
 */
#pragma once

#include "lib/buf.h"

struct http1_response;

#define WS_KEY_CHARS       24 /* base64 of 16 bytes */
#define WS_ACCEPT_CHARS    28 /* base64 of a SHA-1 */
#define WS_PROTOCOLS_BYTES 1024

/* Does this comma-separated header value contain the token, in any case of letters? NULL: no. */
bool http_list_has(const char *value, const char *token);

/* ---- server role */

/* What a client sent. NULL: the header is missing. */
struct ws_offer {
	const char *method, *upgrade, *connection, *version, *key;
};
/* Does the request ask for a WebSocket? Says nothing about whether the handshake is correct. */
bool ws_offered(const struct ws_offer *o);
/* NULL: the handshake may be accepted. Otherwise the reason for a 400 (426 if the version is wrong). */
const char *ws_offer_check(const struct ws_offer *o);
/* The Sec-WebSocket-Accept that answers this key. key: checked before. */
void ws_accept(const char *key, char out[WS_ACCEPT_CHARS + 1]);

/* ---- client role */

void ws_new_key(char key[WS_KEY_CHARS + 1]);
struct ws_request {
	const char *target;             /* path and query: "/api/kernels/ID/channels?token=..." */
	const char *host;               /* "127.0.0.1:8888" */
	const char *origin, *protocols; /* NULL: not sent */
	/* more headers, whole lines that end with CRLF; NULL: none */
	const char *headers;
};
/* Appends the request. false: target, host, origin or protocols have a character that cannot be sent, or b is full; b is then unusable.
 * `headers` is not checked. */
bool ws_request_put(struct buf *b, const struct ws_request *q, const char *key);
/* The answer to a request with this key and these offered protocols (NULL: none). NULL: accepted; *protocol is the chosen one, "" for none, in r's memory.
 * Otherwise the reason for a refusal. */
const char *ws_response_check(const struct http1_response *r, const char *key, const char *offered,
	const char **protocol);
