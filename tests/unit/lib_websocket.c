/* SPDX-License-Identifier: Apache-2.0
 *
 * lib_websocket: messages between two ends in memory, a hand-made peer that breaks every rule, and the handshake of both roles.
 */
#include "lib/test.h"

#include "lib/http1.h"
#include "lib/websocket.h"

struct end {
	struct ws *ws;
	struct buf out; /* what it wrote and nobody read */
	struct buf got; /* messages: "t:..." or "b:...", each with a '|' */
	size_t out_max; /* beyond it the wire is broken */
	int code;       /* of closed(); 0: not called */
	int alive;
	char reason[128], protocol[64];
	bool opened, destroy_in_message, close_in_message;
};

static bool end_send(void *to, const void *p, size_t n)
{
	struct end *e = to;

	if (e->out.len + n > e->out_max)
		return false;
	buf_put(&e->out, p, n);
	return true;
}

static void end_opened(void *arg, const char *protocol)
{
	struct end *e = arg;

	e->opened = true;
	snprintf(e->protocol, sizeof(e->protocol), "%s", protocol);
}

static void end_message(void *arg, bool text, const uint8_t *p, size_t n)
{
	struct end *e = arg;

	buf_printf(&e->got, "%c:", text ? 't' : 'b');
	buf_put(&e->got, p, n);
	buf_put(&e->got, "|", 1);
	if (e->destroy_in_message) {
		ws_destroy(e->ws);
		e->ws = NULL;
	} else if (e->close_in_message) {
		ws_close(e->ws, WS_NORMAL, "enough");
	}
}

static void end_alive(void *arg)
{
	((struct end *)arg)->alive++;
}

static void end_closed(void *arg, int code, const char *reason)
{
	struct end *e = arg;

	CHECK(e->code == 0);
	e->code = code;
	snprintf(e->reason, sizeof(e->reason), "%s", reason);
}

static const struct ws_ops end_ops = {end_opened, end_message, end_alive, end_closed};

static struct loop *loop;

static void end_begin(struct end *e, const struct ws_config *c)
{
	struct ws_wire wire = {e, end_send};

	*e = (struct end){.out_max = MIB(64)};
	buf_init(&e->out, MIB(64));
	buf_init(&e->got, MIB(64));
	e->ws = ws_create(loop, c, &wire, &end_ops, e);
	CHECK(e->ws);
}

static void end_fini(struct end *e)
{
	ws_destroy(e->ws);
	buf_fini(&e->out);
	buf_fini(&e->got);
}

static const struct ws_config server_config = {.role = WS_SERVER, .message_max = 70000};
static const struct ws_request request = {
	.target = "/x?y=1", .host = "127.0.0.1:80", .protocols = "a, Chat"};
static const struct ws_config client_config = {
	.role = WS_CLIENT, .message_max = 70000, .request = &request};

/* Hands what one wrote to the other, in pieces of this size. */
static void carry(struct end *from, struct end *to, size_t piece)
{
	struct buf b = from->out;

	buf_init(&from->out, MIB(64));
	for (size_t i = 0; i < b.len && to->ws; i += piece) {
		size_t n = MIN(piece, b.len - i);
		uint8_t *copy = malloc(n);

		memcpy(copy, b.p + i, n);
		ws_input(to->ws, copy, n);
		free(copy);
	}
	buf_fini(&b);
}

/* The server's half of the handshake, as the caller of ws_create(WS_SERVER) does it. */
static void answer_handshake(struct end *client, const char *protocol)
{
	char accept[WS_ACCEPT_CHARS + 1], key[WS_KEY_CHARS + 1], answer[400];
	char *at = strstr(buf_cstr(&client->out), "Sec-WebSocket-Key: ");

	CHECK(at);
	snprintf(key, sizeof(key), "%.24s", at + 19);
	CHECK(!ws_offer_check(&(struct ws_offer){"GET", "websocket", "Upgrade", "13", key}));
	ws_accept(key, accept);
	snprintf(answer, sizeof(answer),
		"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
		"Sec-WebSocket-Accept: %s\r\n%s%s%s\r\n",
		accept, protocol ? "Sec-WebSocket-Protocol: " : "", protocol ? protocol : "",
		protocol ? "\r\n" : "");
	buf_reset(&client->out);
	for (size_t i = 0; answer[i] && client->ws; i++)
		ws_input(client->ws, (const uint8_t *)answer + i, 1);
}

static void pair(struct end *s, struct end *c)
{
	end_begin(s, &server_config);
	end_begin(c, &client_config);
	CHECK(!ws_is_open(c->ws) && !ws_send(c->ws, true, "early", 5));
	answer_handshake(c, NULL);
	CHECK(c->opened && ws_is_open(c->ws));
}

static void messages_cross_in_any_pieces(void)
{
	static const size_t pieces[] = {1, 2, 3, 7, 126, 4096, 100000};
	static char big[65536];

	memset(big, 'x', sizeof(big));
	for (size_t i = 0; i < ARRAY_LEN(pieces); i++) {
		struct end s, c;

		pair(&s, &c);
		CHECK(ws_send(c.ws, true, "h\xc3\xa9", 3));
		CHECK(ws_send(c.ws, false, "\0\xff", 2));
		CHECK(ws_send(c.ws, false, "", 0));
		CHECK(ws_send(c.ws, false, big, sizeof(big)));
		carry(&c, &s, pieces[i]);
		CHECK_INT(s.got.len, 6 + 5 + 3 + 3 + sizeof(big));
		CHECK(!memcmp(s.got.p, "t:h\xc3\xa9|b:\0\xff|b:|b:xxx", 19));
		CHECK(ws_send(s.ws, true, "back", 4));
		carry(&s, &c, pieces[i]);
		CHECK_STR(buf_cstr(&c.got), "t:back|");
		end_fini(&s);
		end_fini(&c);
	}
}

static void either_side_closes(void)
{
	struct end s, c;

	for (int who = 0; who < 2; who++) {
		pair(&s, &c);
		struct end *a = who ? &s : &c, *b = who ? &c : &s;

		ws_close(a->ws, 4001, "TAKEN_OVER");
		CHECK(!ws_is_open(a->ws) && !ws_send(a->ws, true, "late", 4));
		CHECK_INT(a->code, 0);
		carry(a, b, 1);
		CHECK_INT(b->code, 4001);
		CHECK_STR(b->reason, "TAKEN_OVER");
		carry(b, a, 1);
		CHECK_INT(a->code, 4001);
		end_fini(&s);
		end_fini(&c);
	}
}

static void a_peer_without_a_close_is_abnormal(void)
{
	struct end s, c;

	pair(&s, &c);
	ws_input_end(s.ws);
	CHECK_INT(s.code, WS_ABNORMAL);
	ws_input_end(s.ws);
	ws_input(s.ws, (const uint8_t *)"\x88\x80\0\0\0\0", 6);
	/* a close frame that nobody answers: closed() comes all the same */
	ws_close(c.ws, WS_NORMAL, NULL);
	for (int i = 0; i < 40 && !c.code; i++)
		loop_turn(loop, 1000);
	CHECK_INT(c.code, WS_ABNORMAL);
	CHECK_STR(c.reason, "the peer did not answer the close");
	end_fini(&s);
	end_fini(&c);
}

static void destroying_from_inside_a_message(void)
{
	struct end s, c;

	pair(&s, &c);
	s.destroy_in_message = true;
	ws_send(c.ws, true, "one", 3);
	ws_send(c.ws, true, "two", 3);
	carry(&c, &s, 100000);
	CHECK_STR(buf_cstr(&s.got), "t:one|");
	CHECK_INT(s.code, 0);
	end_fini(&s);
	end_fini(&c);
	pair(&s, &c);
	s.close_in_message = true;
	ws_send(c.ws, true, "one", 3);
	ws_send(c.ws, true, "two", 3);
	carry(&c, &s, 100000);
	CHECK_STR(buf_cstr(&s.got), "t:one|");
	carry(&s, &c, 100000);
	CHECK_INT(c.code, WS_NORMAL);
	end_fini(&s);
	end_fini(&c);
}

/* libwslay has read the whole piece, and a malformed frame makes it queue a close. */
static void nothing_is_sent_after_it_was_destroyed(void)
{
	static const char in[] = "\x81\x81\0\0\0\0x\x89\xfe\0\x7e\0\0\0\0";
	static const char too_big[] = "\x81\x81\0\0\0\0x\x82\xff\0\0\x01\0\0\0\0\0\0\0\0\0";
	struct end s;

	for (int i = 0; i < 2; i++) {
		end_begin(&s, &server_config);
		s.destroy_in_message = true;
		ws_input(s.ws, (const uint8_t *)(i ? too_big : in),
			(i ? sizeof(too_big) : sizeof(in)) - 1);
		CHECK_STR(buf_cstr(&s.got), "t:x|");
		CHECK_INT(s.out.len, 0);
		CHECK_INT(s.code, 0);
		end_fini(&s);
	}
}

/* A text of n fragments of one byte. */
static void fragments(struct end *s, size_t n)
{
	uint8_t frame[7] = {0, 0x81, 0, 0, 0, 0, 'x'};

	end_begin(s, &server_config);
	for (size_t i = 0; i < n && !s->code; i++) {
		frame[0] = (uint8_t)((i ? 0 : 1) | (i + 1 == n ? 0x80 : 0));
		ws_input(s->ws, frame, sizeof(frame));
	}
}

static void fragments_of_a_message_are_bounded(void)
{
	struct end s;

	fragments(&s, 1024);
	CHECK_INT(s.code, 0);
	CHECK_INT(s.got.len, 2 + 1024 + 1);
	CHECK_INT(ws_held(s.ws), 0);
	/* the next message has its own count */
	ws_input(s.ws, (const uint8_t *)"\x01\x80\0\0\0\0\x80\x81\0\0\0\0y", 13);
	CHECK_INT(s.code, 0);
	CHECK_INT(s.got.len, 2 + 1024 + 1 + 4);
	end_fini(&s);
	end_begin(&s, &server_config);
	/* the head of a frame of 60000 bytes, which libwslay allocates at once; a ping does not count */
	ws_input(s.ws,
		(const uint8_t *)"\x01\x80\0\0\0\0\x89\x81\0\0\0\0z\x80\xfe\xea\x60\0\0\0\0x", 22);
	CHECK(ws_held(s.ws) >= 60000 && ws_held(s.ws) < 60000 + 1024);
	end_fini(&s);
	fragments(&s, 1026);
	CHECK_INT(s.code, WS_TOO_BIG);
	CHECK_INT(s.got.len, 0);
	CHECK(s.out.len >= 4 && s.out.p[0] == 0x88 && (s.out.p[2] << 8 | s.out.p[3]) == WS_TOO_BIG);
	end_fini(&s);
}

struct bad {
	const char *what;
	const char *bytes;
	size_t n;
	int code;
};
#define BAD(what, bytes, code)                                                                     \
	{                                                                                          \
		what, bytes, sizeof(bytes) - 1, code                                               \
	}

/* To a server. The mask is zero: what a frame says can be read here. */
#define M "\0\0\0\0"
static const struct bad bad_frames[] = {
	BAD("not masked", "\x81\x01x", WS_PROTOCOL),
	BAD("a reserved bit", "\xc1\x81" M "x", WS_PROTOCOL),
	BAD("an unknown opcode", "\x83\x80" M, WS_PROTOCOL),
	BAD("an unknown control opcode", "\x8b\x80" M, WS_PROTOCOL),
	BAD("a continuation of nothing", "\x80\x80" M, WS_PROTOCOL),
	BAD("a message in a message", "\x01\x81" M "x\x81\x81" M "y", WS_PROTOCOL),
	BAD("a ping in fragments", "\x09\x80" M, WS_PROTOCOL),
	BAD("a ping of 126 bytes", "\x89\xfe\0\x7e" M, WS_PROTOCOL),
	BAD("a length not in its shortest form", "\x81\xfe\0\x01" M "x", WS_PROTOCOL),
	BAD("a length of 2^63", "\x82\xff\x80\0\0\0\0\0\0\0" M, WS_PROTOCOL),
	BAD("a length of 2^40", "\x82\xff\0\0\x01\0\0\0\0\0" M "x", WS_TOO_BIG),
	BAD("a length of 70001", "\x82\xff\0\0\0\0\0\x01\x11\x71" M "x", WS_TOO_BIG),
	BAD("text that is not UTF-8", "\x81\x82" M "\xc3(", 1007),
	/* it ends the WebSocket all the same, and libwslay forgives half a code */
	BAD("a close of one byte", "\x88\x81" M "x", WS_NO_CODE),
	BAD("a close with 1005", "\x88\x82" M "\x03\xed", WS_PROTOCOL),
	BAD("a close with 1006", "\x88\x82" M "\x03\xee", WS_PROTOCOL),
	BAD("a close with 999", "\x88\x82" M "\x03\xe7", WS_PROTOCOL),
};

static void broken_frames_end_it(void)
{
	for (size_t i = 0; i < ARRAY_LEN(bad_frames); i++) {
		const struct bad *f = &bad_frames[i];

		for (size_t piece = 1; piece <= f->n; piece += f->n - 1) {
			struct end s;

			end_begin(&s, &server_config);
			for (size_t k = 0; k < f->n; k += piece)
				ws_input(s.ws, (const uint8_t *)f->bytes + k, MIN(piece, f->n - k));
			if (s.code != f->code)
				printf("%s: closed with %d\n", f->what, s.code);
			CHECK_INT(s.code, f->code);
			CHECK_INT(s.got.len, 0);
			/* The peer is told. libwslay sends no code where a frame's head is malformed. */
			CHECK(s.out.len >= 2 && s.out.p[0] == 0x88);
			CHECK(s.out.len == 2 ||
				(s.out.len >= 4 && (s.out.p[2] << 8 | s.out.p[3]) == f->code));
			end_fini(&s);
		}
	}
}

static void good_frames_of_rare_kinds(void)
{
	struct end s;

	end_begin(&s, &server_config);
	/* fragments with a ping between them; the ping is answered with its own bytes */
	ws_input(s.ws, (const uint8_t *)"\x01\x81" M "a\x89\x82" M "hi\x80\x81" M "b", 7 + 8 + 7);
	CHECK_STR(buf_cstr(&s.got), "t:ab|");
	CHECK(s.out.len == 4 && !memcmp(s.out.p, "\x8a\x02hi", 4));
	CHECK(s.alive >= 2);
	/* a pong that nobody asked for */
	ws_input(s.ws, (const uint8_t *)"\x8a\x80" M, 6);
	CHECK_INT(s.code, 0);
	/* a close without a code is answered with one without a code */
	buf_reset(&s.out);
	ws_input(s.ws, (const uint8_t *)"\x88\x80" M, 6);
	CHECK_INT(s.code, WS_NO_CODE);
	CHECK(s.out.len == 2 && !memcmp(s.out.p, "\x88\0", 2));
	end_fini(&s);
}

/* A peer that sends pings and reads nothing: the wire's limit ends it. */
static void a_flood_of_pings_is_bounded(void)
{
	struct end s;
	uint8_t pings[6 * 1000];

	for (size_t i = 0; i < sizeof(pings); i += 6)
		memcpy(pings + i, "\x89\x80" M, 6);
	end_begin(&s, &server_config);
	s.out_max = 65536;
	for (int i = 0; i < 100 && !s.code; i++)
		ws_input(s.ws, pings, sizeof(pings));
	CHECK_INT(s.code, WS_ABNORMAL);
	CHECK(s.out.len <= 65536);
	end_fini(&s);
}

static void a_wire_that_is_over_is_told_from_the_loop(void)
{
	struct end s;

	end_begin(&s, &server_config);
	s.out_max = 4;
	CHECK(!ws_send(s.ws, true, "hello", 5));
	CHECK_INT(s.code, 0);
	for (int i = 0; i < 10 && !s.code; i++)
		loop_turn(loop, 1000);
	CHECK_INT(s.code, WS_ABNORMAL);
	end_fini(&s);
}

static void pings_are_sent_and_silence_ends_it(void)
{
	struct ws_config c = {.role = WS_SERVER, .message_max = 100, .ping_s = 1, .dead_s = 3};
	struct end s;
	uint64_t start = mono_ns();

	end_begin(&s, &c);
	for (int i = 0; i < 100 && !s.out.len; i++)
		loop_turn(loop, 1000);
	CHECK(s.out.len >= 2 && !memcmp(s.out.p, "\x89\0", 2));
	for (int i = 0; i < 100 && !s.code; i++)
		loop_turn(loop, 1000);
	CHECK_INT(s.code, WS_ABNORMAL);
	CHECK(mono_ns() - start >= 3000000000ull);
	end_fini(&s);
}

static void refused(const char *answer, const char *reason)
{
	struct end c;

	end_begin(&c, &client_config);
	ws_input(c.ws, (const uint8_t *)answer, strlen(answer));
	CHECK_INT(c.code, WS_ABNORMAL);
	CHECK_STR(c.reason, reason);
	CHECK(!c.opened);
	end_fini(&c);
}

static void handshakes_are_checked(void)
{
	struct end c;

	refused("HTTP/1.1 403 Forbidden\r\nContent-Length: 3\r\n\r\nno!",
		"the server does not accept WebSockets here");
	refused("HTTP/1.1 101 X\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
		"the server upgrades to another protocol");
	refused("HTTP/1.1 101 X\r\nUpgrade: websocket\r\n\r\n",
		"the server upgrades to another protocol");
	refused("HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
		"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
		"the server's Sec-WebSocket-Accept is wrong");
	refused("HTTP/1.1 101 X\r\nUpgrade: websocket\r\nUpgrade: websocket\r\n\r\n",
		"the server's handshake has a header twice");
	refused("nonsense\r\n\r\n", "a malformed status line");
	end_begin(&c, &client_config);
	answer_handshake(&c, "chat");
	CHECK_STR(c.reason, "the server chose a subprotocol that was not offered");
	end_fini(&c);
	end_begin(&c, &client_config);
	answer_handshake(&c, "Chat");
	CHECK(c.opened);
	CHECK_STR(c.protocol, "Chat");
	end_fini(&c);
}

static void the_example_of_the_rfc(void)
{
	char accept[WS_ACCEPT_CHARS + 1];

	ws_accept("dGhlIHNhbXBsZSBub25jZQ==", accept);
	CHECK_STR(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
}

static void offers_are_checked(void)
{
	static const char key[] = "dGhlIHNhbXBsZSBub25jZQ==";
	struct ws_offer good = {"GET", "WebSocket", "keep-alive, upgrade", "13", key}, o;

	CHECK(!ws_offer_check(&good));
	o = good;
	o.method = "POST";
	CHECK(ws_offer_check(&o));
	o = good;
	o.upgrade = "websockets";
	CHECK(ws_offer_check(&o) && !ws_offered(&o));
	o = good;
	o.connection = NULL;
	CHECK(ws_offer_check(&o));
	o = good;
	o.version = "8";
	CHECK(ws_offer_check(&o));
	o = good;
	o.key = "dGhlIHNhbXBsZSBub25jZQ=";
	CHECK(ws_offer_check(&o));
	o.key = "dGhlIHNhbXBsZSBub25jZQ!=";
	CHECK(ws_offer_check(&o));
	o.key = NULL;
	CHECK(ws_offer_check(&o));
}

static void requests_that_cannot_be_sent(void)
{
	static const struct ws_request bad[] = {
		{.target = "/a b", .host = "h"},
		{.target = "a", .host = "h"},
		{.target = "/a\r\nX: y", .host = "h"},
		{.target = "/", .host = "h\r\nX: y"},
		{.target = "/", .host = "h", .origin = "o\r\nX: y"},
		{.target = "/", .host = "h", .protocols = "p\nq"},
	};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		_cleanup_(buf_fini) struct buf b;

		buf_init(&b, 4096);
		CHECK(!ws_request_put(&b, &bad[i], "dGhlIHNhbXBsZSBub25jZQ=="));
	}
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		{"messages_cross_in_any_pieces", messages_cross_in_any_pieces},
		{"either_side_closes", either_side_closes},
		{"a_peer_without_a_close_is_abnormal", a_peer_without_a_close_is_abnormal},
		{"destroying_from_inside_a_message", destroying_from_inside_a_message},
		{"nothing_is_sent_after_it_was_destroyed", nothing_is_sent_after_it_was_destroyed},
		{"fragments_of_a_message_are_bounded", fragments_of_a_message_are_bounded},
		{"broken_frames_end_it", broken_frames_end_it},
		{"good_frames_of_rare_kinds", good_frames_of_rare_kinds},
		{"a_flood_of_pings_is_bounded", a_flood_of_pings_is_bounded},
		{"a_wire_that_is_over_is_told_from_the_loop",
			a_wire_that_is_over_is_told_from_the_loop},
		{"pings_are_sent_and_silence_ends_it", pings_are_sent_and_silence_ends_it},
		{"handshakes_are_checked", handshakes_are_checked},
		{"the_example_of_the_rfc", the_example_of_the_rfc},
		{"offers_are_checked", offers_are_checked},
		{"requests_that_cannot_be_sent", requests_that_cannot_be_sent},
	};
	loop = loop_create();
	return test_main(argc, argv, tests, ARRAY_LEN(tests));
}
