/* SPDX-License-Identifier: Apache-2.0
 *
 * The handshake of a WebSocket. First byte 0: an answer from a hostile server, read whole. Otherwise: the headers of a request, one a line, in the order of
 * struct ws_offer, and then what a request to a server would be made of.
 */
#include "lib/http1.h"
#include "lib/websocket_handshake.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void answer(const uint8_t *p, size_t n)
{
	static const char key[] = "dGhlIHNhbXBsZSBub25jZQ==";
	static struct http1_response r;
	const uint8_t *data;
	const char *protocol = NULL;
	size_t len;

	http1_init(&r, false);
	r.upgrade_ok = true;
	if (http1_next(&r, &p, &n, &data, &len) == H1_HEAD &&
		!ws_response_check(&r, key, "chat, Super-Chat", &protocol))
		ASSERT(r.status == 101 && (!*protocol || !strcmp(protocol, "chat") ||
						  !strcmp(protocol, "Super-Chat")));
	http1_fini(&r);
}

static void offer(char *text)
{
	const char *field[8] = {NULL};
	char out[WS_ACCEPT_CHARS + 1];
	struct ws_offer o;
	struct ws_request q;
	_cleanup_(buf_fini) struct buf b;

	for (size_t i = 0; i < ARRAY_LEN(field) && text; i++)
		field[i] = strsep(&text, "\n");
	o = (struct ws_offer){field[0] ? field[0] : "", field[1], field[2], field[3], field[4]};
	if (!ws_offer_check(&o)) {
		ASSERT(ws_offered(&o));
		ws_accept(o.key, out);
		ASSERT(strlen(out) == WS_ACCEPT_CHARS);
	}
	q = (struct ws_request){.target = field[5] ? field[5] : "/",
		.host = field[6] ? field[6] : "h",
		.origin = field[7]};
	buf_init(&b, 65536);
	if (ws_request_put(&b, &q, "dGhlIHNhbXBsZSBub25jZQ==")) {
		size_t lines = 0;

		for (size_t i = 0; i < b.len; i++)
			lines += b.p[i] == '\n';
		ASSERT(lines == 7 + !!q.origin);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	char *text;

	if (n < 1)
		return 0;
	if (p[0] == 0) {
		answer(p + 1, n - 1);
		return 0;
	}
	text = malloc(n);
	memcpy(text, p + 1, n - 1);
	text[n - 1] = 0;
	offer(text);
	free(text);
	return 0;
}
