/* SPDX-License-Identifier: Apache-2.0
 *
 * websocket_handshake.c: see websocket_handshake.h.
 */
#include "lib/websocket_handshake.h"

#include <openssl/evp.h>
#include <string.h>
#include <strings.h>

#include "lib/http1.h"

/* RFC 6455, section 1.3 */
#define WS_GUID "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

bool http_list_has(const char *value, const char *token)
{
	size_t n = strlen(token);

	while (value && *value) {
		size_t k;

		value += strspn(value, " \t,");
		k = strcspn(value, " \t,");
		if (k == n && !strncasecmp(value, token, n))
			return true;
		value += k;
	}
	return false;
}

/* As http_list_has(), but "Chat" is not "chat": names of subprotocols are case-sensitive. */
static bool protocol_was_offered(const char *offered, const char *protocol)
{
	size_t n = strlen(protocol);

	while (offered && *offered) {
		size_t k;

		offered += strspn(offered, " \t,");
		k = strcspn(offered, " \t,");
		if (k == n && !strncmp(offered, protocol, n))
			return true;
		offered += k;
	}
	return false;
}

/* 22 characters of base64 and "==", as 16 bytes have them. */
static bool key_ok(const char *key)
{
	static const char alphabet[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

	return key && strlen(key) == WS_KEY_CHARS && strspn(key, alphabet) == 22 &&
	       !strcmp(key + 22, "==");
}

bool ws_offered(const struct ws_offer *o)
{
	return http_list_has(o->upgrade, "websocket") && http_list_has(o->connection, "upgrade");
}

const char *ws_offer_check(const struct ws_offer *o)
{
	if (!ws_offered(o))
		return "The request does not ask for a WebSocket. Send \"Upgrade: websocket\" and "
		       "\"Connection: Upgrade\".";
	if (strcmp(o->method, "GET") != 0)
		return "A WebSocket begins with a GET request.";
	if (!o->version || strcmp(o->version, "13") != 0)
		return "Sec-WebSocket-Version must be 13.";
	if (!key_ok(o->key))
		return "Sec-WebSocket-Key must be 16 bytes in base64.";
	return NULL;
}

void ws_accept(const char *key, char out[WS_ACCEPT_CHARS + 1])
{
	char text[WS_KEY_CHARS + sizeof(WS_GUID)];
	unsigned char sum[EVP_MAX_MD_SIZE];
	unsigned int n = 0;
	size_t len = strnlen(key, WS_KEY_CHARS);

	memcpy(text, key, len);
	memcpy(text + len, WS_GUID, sizeof(WS_GUID) - 1);
	ASSERT(EVP_Digest(text, len + sizeof(WS_GUID) - 1, sum, &n, EVP_sha1(), NULL) && n == 20);
	EVP_EncodeBlock((unsigned char *)out, sum, (int)n);
}

void ws_new_key(char key[WS_KEY_CHARS + 1])
{
	unsigned char raw[16];

	random_bytes(raw, sizeof(raw));
	EVP_EncodeBlock((unsigned char *)key, raw, sizeof(raw));
}

/* No control character and, in a request line or a host, no blank. */
static bool is_clean(const char *s, bool blanks)
{
	for (const unsigned char *p = (const unsigned char *)s; *p; p++)
		if (*p < 0x20 || *p == 0x7f || (*p == ' ' && !blanks))
			return false;
	return true;
}

static bool put_header(struct buf *b, const char *name, const char *value)
{
	if (!value)
		return true;
	buf_printf(b, "%s: %s\r\n", name, value);
	return is_clean(value, true);
}

bool ws_request_put(struct buf *b, const struct ws_request *q, const char *key)
{
	if (!is_clean(q->target, false) || !is_clean(q->host, false) || q->target[0] != '/')
		return false;
	buf_printf(b,
		"GET %s HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %s\r\n",
		q->target, q->host, key);
	if (!put_header(b, "Origin", q->origin) ||
		!put_header(b, "Sec-WebSocket-Protocol", q->protocols))
		return false;
	buf_printf(b, "%s\r\n", q->headers ? q->headers : "");
	return !b->bad;
}

/* The header of that name; NULL: none. If there are several, *twice is set. */
static const char *single(const struct http1_response *r, const char *name, bool *twice)
{
	const char *v = NULL;

	for (size_t i = 0; i < r->nheaders; i++) {
		if (strcasecmp(r->headers[i].name, name) != 0)
			continue;
		*twice |= v != NULL;
		v = r->headers[i].value;
	}
	return v;
}

const char *ws_response_check(
	const struct http1_response *r, const char *key, const char *offered, const char **protocol)
{
	bool twice = false;
	const char *upgrade = single(r, "Upgrade", &twice);
	const char *accept = single(r, "Sec-WebSocket-Accept", &twice);
	const char *chosen = single(r, "Sec-WebSocket-Protocol", &twice);
	const char *extensions = single(r, "Sec-WebSocket-Extensions", &twice);
	char want[WS_ACCEPT_CHARS + 1];
	bool connection = false;

	for (size_t i = 0; i < r->nheaders; i++)
		connection |= !strcasecmp(r->headers[i].name, "Connection") &&
			      http_list_has(r->headers[i].value, "upgrade");
	ws_accept(key, want);
	if (r->status != 101)
		return "the server does not accept WebSockets here";
	if (twice)
		return "the server's handshake has a header twice";
	if (!upgrade || strcasecmp(upgrade, "websocket") != 0 || !connection)
		return "the server upgrades to another protocol";
	if (!accept || strcmp(accept, want) != 0)
		return "the server's Sec-WebSocket-Accept is wrong";
	if (extensions && *extensions)
		return "the server uses an extension that was not offered";
	if (chosen && !protocol_was_offered(offered, chosen))
		return "the server chose a subprotocol that was not offered";
	*protocol = chosen ? chosen : "";
	return NULL;
}
