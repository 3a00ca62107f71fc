/* SPDX-License-Identifier: Apache-2.0
 *
 * websocket_skim.h: finds the frames in a WebSocket that is relayed byte for byte. Everything passes as it came, of any length and with any extension, except the
 * close frame: its code may have to be another, and after it nothing passes. A relay also learns where it may put a close frame of its own. All bytes are
 * hostile. Nothing is allocated.
 */
#pragma once

#include "lib/base.h"

#define WS_CLOSE_MAX 125 /* payload of a control frame */

struct ws_skim {
	uint8_t head[14], close[WS_CLOSE_MAX + 1];
	size_t have, close_len;
	uint64_t left; /* of the frame's payload */
	bool in_payload, is_close, over;
	/* of the close frame */
	int code;           /* 1005: it has none */
	const char *reason; /* terminated; may hold any bytes */
};

enum ws_skim_ev {
	WS_SKIM_MORE,  /* all input was taken */
	WS_SKIM_PASS,  /* *out, *len: pass these bytes on */
	WS_SKIM_CLOSE, /* a whole close frame: s->code, s->reason; what follows it is dropped */
	WS_SKIM_BAD,   /* a malformed close frame */
};
enum ws_skim_ev ws_skim_next(
	struct ws_skim *s, const uint8_t **p, size_t *n, const uint8_t **out, size_t *len);
/* No frame is half passed on: another may follow here. */
bool ws_skim_between_frames(const struct ws_skim *s);

/* The code that a relay sends on for one that it received: 1005 -> 1000, 1006 -> 1001, what may not be sent -> 1011. */
int ws_relayed_code(int code);
/* A close frame; masked: as a client sends it. reason is cut to what fits. Returns its length. */
size_t ws_close_frame(uint8_t frame[WS_CLOSE_MAX + 6], int code, const char *reason, bool masked);
