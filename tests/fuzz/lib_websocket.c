/* SPDX-License-Identifier: Apache-2.0
 *
 * WebSocket frames in both roles. The first byte: bit 0 the role (a client's handshake is answered first), the rest how the input is cut. Cut differently it
 * must give the same messages. The end may differ: libwslay skips two bytes of each piece of a close frame when it looks whether its reason is UTF-8.
 */
#include "lib/websocket.h"

#include <stdio.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

struct end {
	uint64_t hash;
	size_t sent;
	int code;
	char key[WS_KEY_CHARS + 1];
};

static void mix(struct end *e, const void *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		e->hash = (e->hash ^ ((const uint8_t *)p)[i]) * 1099511628211ull;
}

static bool end_send(void *to, const void *p, size_t n)
{
	struct end *e = to;
	const char *key = n > 100 ? memmem(p, n, "Sec-WebSocket-Key: ", 19) : NULL;

	if (key && !*e->key)
		snprintf(e->key, sizeof(e->key), "%.24s", key + 19);
	e->sent += n;
	return e->sent < 65536;
}

static void end_message(void *arg, bool text, const uint8_t *p, size_t n)
{
	struct end *e = arg;

	ASSERT(n <= 10000 && !e->code);
	mix(e, &text, sizeof(text));
	mix(e, p, n);
}

static void end_closed(void *arg, int code, const char *reason)
{
	struct end *e = arg;

	ASSERT(!e->code);
	e->code = code;
}

static const struct ws_ops ops = {.message = end_message, .closed = end_closed};

static void answer(struct ws *w, const char *key)
{
	char accept[WS_ACCEPT_CHARS + 1], text[200];

	ws_accept(key, accept);
	snprintf(text, sizeof(text),
		"HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: "
		"Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n",
		accept);
	ws_input(w, (const uint8_t *)text, strlen(text));
	ASSERT(ws_is_open(w));
}

static uint64_t run(struct loop *l, bool client, const uint8_t *in, size_t n, size_t piece)
{
	static const struct ws_request request = {.target = "/", .host = "h"};
	struct ws_config c = {
		.role = client ? WS_CLIENT : WS_SERVER, .message_max = 10000, .request = &request};
	struct end e = {.hash = 1469598103934665603ull};
	struct ws_wire wire = {&e, end_send};
	struct ws *w = ws_create(l, &c, &wire, &ops, &e);

	ASSERT(w);
	if (client)
		answer(w, e.key);
	for (size_t i = 0; i < n; i += piece)
		ws_input(w, in + i, MIN(piece, n - i));
	ws_input_end(w);
	ASSERT(e.code);
	ws_destroy(w);
	return e.hash;
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	static struct loop *l;

	if (!l)
		l = loop_create();
	if (n < 1)
		return 0;
	ASSERT(run(l, p[0] & 1, p + 1, n - 1, 1 + p[0] / 2) == run(l, p[0] & 1, p + 1, n - 1, n));
	return 0;
}
