/* SPDX-License-Identifier: Apache-2.0
 *
 * lib_websocket_skim: the frames of a WebSocket that is relayed: what passes, what a close becomes, where a frame may be put, with every way to cut the input.
 */
#include "lib/test.h"

#include "lib/buf.h"
#include "lib/websocket_skim.h"

/* What passes, then "|CODE reason" or "|bad". */
static void skim(const char *in, size_t n, size_t piece, struct buf *out)
{
	struct ws_skim s = {0};
	bool over = false;

	buf_reset(out);
	for (size_t i = 0; i < n; i += piece) {
		size_t left = MIN(piece, n - i), len = 0;
		uint8_t *copy = malloc(left);
		const uint8_t *p = copy, *pass = NULL;
		enum ws_skim_ev ev;

		memcpy(copy, in + i, left);
		do {
			ev = ws_skim_next(&s, &p, &left, &pass, &len);
			CHECK(!over || ev == WS_SKIM_MORE);
			if (ev == WS_SKIM_PASS)
				buf_put(out, pass, len);
			else if (ev == WS_SKIM_CLOSE)
				buf_printf(out, "|%d %s", s.code, s.reason);
			else if (ev == WS_SKIM_BAD)
				buf_printf(out, "|bad");
			over |= ev == WS_SKIM_CLOSE || ev == WS_SKIM_BAD;
		} while (ev != WS_SKIM_MORE);
		CHECK_INT(left, 0);
		free(copy);
	}
}

static void gives(const char *in, size_t n, const char *want, size_t wn)
{
	struct buf out;

	buf_init(&out, MIB(1));
	for (size_t piece = 1; piece <= n; piece++) {
		skim(in, n, piece, &out);
		CHECK_INT(out.len, wn);
		CHECK(out.len == wn && !memcmp(out.p, want, wn));
	}
	buf_fini(&out);
}
#define GIVES(in, want) gives(in, sizeof(in) - 1, want, sizeof(want) - 1)

static void everything_passes_but_a_close(void)
{
	GIVES("\x81\x02hi\x02\x81mmmmx\x80\x00", "\x81\x02hi\x02\x81mmmmx\x80\x00");
	GIVES("\xc1\x7e\x00\x02hi\x8a\x7f\0\0\0\0\0\0\0\x01z",
		"\xc1\x7e\x00\x02hi\x8a\x7f\0\0\0\0\0\0\0\x01z");
	GIVES("\x81\x01x\x88\x05\x03\xe9"
	      "bye\x81\x01y",
		"\x81\x01x|1001 bye");
	GIVES("\x88\x00junk", "|1005 ");
	GIVES("\x88\x82\x01\x02\x03\x04\x02\xea", "|1000 ");
	GIVES("\x88\x01x", "|bad");
	GIVES("\x88\x7e\x00\x80zzzz", "|bad");
}

static void between_frames(void)
{
	struct ws_skim s = {0};
	static const uint8_t in[] = "\x81\x02hi\x88\x00";
	static const bool free_after[] = {false, false, false, true, true, true};

	CHECK(ws_skim_between_frames(&s));
	for (size_t i = 0; i < 6; i++) {
		const uint8_t *p = in + i, *out;
		size_t n = 1, len;

		while (ws_skim_next(&s, &p, &n, &out, &len) == WS_SKIM_PASS)
			;
		CHECK_INT(ws_skim_between_frames(&s), free_after[i]);
	}
}

static void codes_follow_the_protocol(void)
{
	static const int codes[][2] = {{1000, 1000}, {1005, 1000}, {1006, 1001}, {4001, 4001},
		{1004, 1011}, {1015, 1011}, {999, 1011}, {5000, 1011}, {1012, 1012}, {0, 1011}};
	uint8_t frame[WS_CLOSE_MAX + 6];
	char longest[300];
	struct buf out;
	size_t n;

	for (size_t i = 0; i < ARRAY_LEN(codes); i++)
		CHECK_INT(ws_relayed_code(codes[i][0]), codes[i][1]);
	memset(longest, 'r', sizeof(longest));
	longest[299] = 0;
	buf_init(&out, 4096);
	for (int masked = 0; masked < 2; masked++) {
		n = ws_close_frame(frame, 1001, longest, masked);
		CHECK_INT(n, masked ? 131 : 127);
		skim((const char *)frame, n, n, &out);
		CHECK(!strncmp(buf_cstr(&out), "|1001 rrr", 9) && out.len == 6 + 123);
	}
	buf_fini(&out);
}

static const struct test tests[] = {
	{"everything_passes_but_a_close", everything_passes_but_a_close},
	{"between_frames", between_frames},
	{"codes_follow_the_protocol", codes_follow_the_protocol},
};
TEST_MAIN(tests)
