/* SPDX-License-Identifier: Apache-2.0
 *
 * websocket.h: WebSocket messages (RFC 6455) over any stream of bytes, in both roles. The daemon
 * and the command line, in the thread of their loop. libwslay reads and writes the frames.
 * Everything that arrives is hostile: a frame out of order, a message longer than its limit, text
 * that is not UTF-8 or a silent peer ends the WebSocket, nothing else.
 *
 * A struct ws owns no socket. It writes through struct ws_wire, and its owner passes what arrives
 * to ws_input() and ws_input_end(). So it works on a client's connection (api/http/upgrade.h,
 * WS_SERVER) and on a stream to a port in a guest (api/links/agent_client.h, WS_CLIENT).
 *
 * Back-pressure. Outgoing: ws_send() never waits. Its caller must stop while the wire is full, and goes
 * on when the wire has drained; a wire at its limit ends the WebSocket. Incoming: the owner stops reading the wire. Messages in
 * bytes that ws_input() got already still arrive.
 */
#pragma once

#include "lib/websocket_handshake.h"
#include "lib/loop.h"

struct ws;

enum ws_role { WS_SERVER, WS_CLIENT };

/* RFC 6455, section 7.4 */
enum ws_code {
	WS_NORMAL = 1000,
	WS_GOING_AWAY = 1001,
	WS_PROTOCOL = 1002,
	WS_NO_CODE = 1005,  /* the peer closed without a code; never sent */
	WS_ABNORMAL = 1006, /* the stream ended or broke without a close; never sent */
	WS_POLICY = 1008,
	WS_TOO_BIG = 1009,
	WS_INTERNAL = 1011,
};

struct ws_wire {
	void *to;
	/* Queues bytes. false: the stream has ended or its limit is reached; the WebSocket then
	 * ends with WS_ABNORMAL. */
	bool (*send)(void *to, const void *p, size_t n);
};

struct ws_ops {
	/* Client role: the server accepted; protocol is the chosen one or "". May be NULL. */
	void (*opened)(void *arg, const char *protocol);
	/* One whole message. p is valid during the call; text is valid UTF-8. */
	void (*message)(void *arg, bool text, const uint8_t *p, size_t n);
	/* A whole message, or a ping, pong or close frame, arrived. May be NULL. */
	void (*alive)(void *arg);
	/* The last call, once: all that is to be sent was given to the wire. The owner calls ws_destroy() and closes the stream. code: the peer's, or
	 * WS_NO_CODE, WS_ABNORMAL, or what was wrong with what it sent; for a refused handshake WS_ABNORMAL. reason: printable, for logs. */
	void (*closed)(void *arg, int code, const char *reason);
};

struct ws_config {
	enum ws_role role;
	size_t message_max; /* bytes of a received message, fragments together; beyond it: WS_TOO_BIG */
	unsigned int ping_s; /* a ping each so many seconds; 0: none */
	unsigned int
		dead_s; /* without a byte from the peer for so long: WS_ABNORMAL; 0: no limit. A client's handshake has 30 s if it is 0. */
	/* Client role: the handshake. Borrowed for ws_create(). */
	const struct ws_request *request;
};

/* Server role: the handshake is done. Client role: writes the handshake's request. Never calls back. NULL: no memory, or a request that cannot be sent
 * (errno EINVAL). */
struct ws *ws_create(struct loop *l, const struct ws_config *c, const struct ws_wire *wire,
	const struct ws_ops *ops, void *arg);
/* Frees it; no call follows. Sends nothing. Also from inside its callbacks. NULL is fine. */
void ws_destroy(struct ws *w);

/* Bytes that arrived on the stream, in order. Calls back. */
void ws_input(struct ws *w, const uint8_t *p, size_t n);
/* The stream ended or broke. closed() follows at once unless it was called. */
void ws_input_end(struct ws *w);

/* hold: the owner does not read the stream, so the peer's silence does not count. */
void ws_hold(struct ws *w, bool hold);

/* What is held of a message that is not whole yet. A frame counts with the length that it announces. */
size_t ws_held(const struct ws *w);

/* Queues one message. false: it is not open (yet, any more), or no memory. Text must be valid UTF-8. Never calls back. */
bool ws_send(struct ws *w, bool text, const void *p, size_t n);
/* Sends a close frame; later messages from the peer are dropped. closed() follows from the loop: when the peer has answered, or after 5 s. reason: at most
 * 123 bytes of UTF-8, NULL for none. */
void ws_close(struct ws *w, int code, const char *reason);
bool ws_is_open(const struct ws *w);

/* May this code be in a close frame (RFC 6455, section 7.4.1)? */
bool ws_code_may_be_sent(int code);
