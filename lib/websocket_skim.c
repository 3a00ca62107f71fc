/* SPDX-License-Identifier: Apache-2.0
 *
 * websocket_skim.c: see websocket_skim.h.
 */
#include "lib/websocket_skim.h"

#include <string.h>

#include "lib/websocket.h"

#define OPCODE_CLOSE 8u

static size_t head_need(const struct ws_skim *s)
{
	uint8_t len = s->head[1] & 0x7f;

	if (s->have < 2)
		return 2;
	return 2u + (len == 126 ? 2u : len == 127 ? 8u : 0u) + (s->head[1] & 0x80 ? 4u : 0u);
}

static uint64_t head_length(const struct ws_skim *s)
{
	uint8_t len = s->head[1] & 0x7f;
	size_t bytes = len == 126 ? 2 : len == 127 ? 8 : 0;
	uint64_t v = 0;

	if (!bytes)
		return len;
	for (size_t i = 0; i < bytes; i++)
		v = v << 8 | s->head[2 + i];
	return v;
}

static void frame_ends(struct ws_skim *s)
{
	s->in_payload = false;
	s->have = 0;
}

/* The payload of a close frame is whole. */
static enum ws_skim_ev close_ends(struct ws_skim *s)
{
	/* The length is below 126, so the mask follows it at once. A malformed frame may write such a length in more
	 * bytes: then only its own code and reason come out wrong. */
	const uint8_t *mask = s->head + 2;

	if (s->head[1] & 0x80)
		for (size_t i = 0; i < s->close_len; i++)
			s->close[i] ^= mask[i & 3];
	s->close[s->close_len] = 0;
	s->over = true;
	if (s->close_len == 1)
		return WS_SKIM_BAD;
	s->code = s->close_len ? s->close[0] << 8 | s->close[1] : WS_NO_CODE;
	s->reason = s->close_len ? (const char *)s->close + 2 : "";
	return WS_SKIM_CLOSE;
}

/* One byte of a frame's head. */
static void head_byte(struct ws_skim *s, uint8_t c)
{
	if (s->have == 0)
		s->is_close = (c & 0x0f) == OPCODE_CLOSE;
	s->head[s->have++] = c;
	if (s->have < 2 || s->have < head_need(s))
		return;
	s->in_payload = true;
	s->left = head_length(s);
	if (!s->left && !s->is_close)
		frame_ends(s);
}

/* Takes the bytes of a close frame, whose first byte may have been taken before. */
static enum ws_skim_ev take_close(struct ws_skim *s, const uint8_t **p, size_t *n)
{
	for (;;) {
		if (s->in_payload && s->left > WS_CLOSE_MAX) {
			s->over = true;
			return WS_SKIM_BAD;
		}
		if (s->in_payload && s->close_len == s->left)
			return close_ends(s);
		if (!*n)
			return WS_SKIM_MORE;
		if (s->in_payload)
			s->close[s->close_len++] = **p;
		else
			head_byte(s, **p);
		(*p)++;
		(*n)--;
	}
}

/* How many of these bytes belong to other frames than a close. */
static size_t run_of_frames(struct ws_skim *s, const uint8_t *p, size_t n)
{
	size_t at = 0;

	while (at < n) {
		if (s->in_payload) {
			size_t k = s->left < n - at ? (size_t)s->left : n - at;

			at += k;
			s->left -= k;
			if (!s->left)
				frame_ends(s);
			continue;
		}
		if (s->have == 0 && (p[at] & 0x0f) == OPCODE_CLOSE)
			break;
		head_byte(s, p[at++]);
	}
	return at;
}

enum ws_skim_ev ws_skim_next(
	struct ws_skim *s, const uint8_t **p, size_t *n, const uint8_t **out, size_t *len)
{
	if (s->over) {
		*p += *n;
		*n = 0;
		return WS_SKIM_MORE;
	}
	if (!*n)
		return WS_SKIM_MORE;
	if ((s->have || s->in_payload) && s->is_close)
		return take_close(s, p, n);
	*out = *p;
	*len = run_of_frames(s, *p, *n);
	*p += *len;
	*n -= *len;
	return *len ? WS_SKIM_PASS : take_close(s, p, n);
}

bool ws_skim_between_frames(const struct ws_skim *s)
{
	/* nothing of a close frame was passed on */
	return (!s->have && !s->in_payload) || s->is_close;
}

int ws_relayed_code(int code)
{
	if (code == WS_NO_CODE)
		return WS_NORMAL;
	if (code == WS_ABNORMAL)
		return WS_GOING_AWAY;
	return ws_code_may_be_sent(code) ? code : WS_INTERNAL;
}

size_t ws_close_frame(uint8_t frame[WS_CLOSE_MAX + 6], int code, const char *reason, bool masked)
{
	size_t n = strnlen(reason, WS_CLOSE_MAX - 2), at = 2;
	uint8_t mask[4] = {0};

	frame[0] = 0x80 | OPCODE_CLOSE;
	frame[1] = (uint8_t)((masked ? 0x80 : 0) | (2 + n));
	if (masked) {
		random_bytes(mask, sizeof(mask));
		memcpy(frame + 2, mask, sizeof(mask));
		at += sizeof(mask);
	}
	frame[at] = (uint8_t)(code >> 8);
	frame[at + 1] = (uint8_t)(code & 0xff);
	memcpy(frame + at + 2, reason, n);
	for (size_t i = 0; i < n + 2; i++)
		frame[at + i] ^= mask[i & 3];
	return at + 2 + n;
}
