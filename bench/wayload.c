/* SPDX-License-Identifier: Apache-2.0
 *
 * wayload: a server for the bench's scenarios ways-*. It runs in a guest: `wayload PORT` listens on 127.0.0.1. A request is a line and, for a WebSocket, the
 * rest of its head: "GET /source/N", "GET /sink/N" or "GET /idle" with a key, or the same without headers for a raw connection. N counts bytes on the wire.
 * One connection at a time is served; idle ones stay open. Static, so that the guest needs nothing else.
 */
#include <arpa/inet.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define GUID  "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
#define FRAME 65536u /* bytes of a message that the source sends */

static uint8_t block[1u << 18];

/* ---- the answer to a WebSocket's key: base64 of SHA-1 (FIPS 180-4) */

static uint32_t rotated(uint32_t v, int n)
{
	return v << n | v >> (32 - n);
}

static void sha1_block(uint32_t h[5], const uint8_t *p)
{
	static const uint32_t k[4] = {0x5a827999, 0x6ed9eba1, 0x8f1bbcdc, 0xca62c1d6};
	uint32_t w[80], v[5];

	for (int i = 0; i < 16; i++)
		w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
		       (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
	for (int i = 16; i < 80; i++)
		w[i] = rotated(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
	memcpy(v, h, sizeof(v));
	for (int i = 0; i < 80; i++) {
		uint32_t f = i < 20   ? (v[1] & v[2]) | (~v[1] & v[3])
			     : i < 40 ? v[1] ^ v[2] ^ v[3]
			     : i < 60 ? (v[1] & v[2]) | (v[1] & v[3]) | (v[2] & v[3])
				      : v[1] ^ v[2] ^ v[3];
		uint32_t t = rotated(v[0], 5) + f + v[4] + k[i / 20] + w[i];

		v[4] = v[3];
		v[3] = v[2];
		v[2] = rotated(v[1], 30);
		v[1] = v[0];
		v[0] = t;
	}
	for (int i = 0; i < 5; i++)
		h[i] += v[i];
}

/* key: 24 characters. The text to hash has 60 bytes: two blocks with the padding. */
static void accept_of(const char *key, char out[29])
{
	static const char digits[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	uint32_t h[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
	uint8_t text[128] = {0}, sum[21] = {0};

	memcpy(text, key, 24);
	memcpy(text + 24, GUID, 36);
	text[60] = 0x80;
	text[126] = 60 * 8 >> 8;
	text[127] = (uint8_t)(60 * 8);
	sha1_block(h, text);
	sha1_block(h, text + 64);
	for (int i = 0; i < 20; i++)
		sum[i] = (uint8_t)(h[i / 4] >> (24 - 8 * (i % 4)));
	for (int i = 0; i < 7; i++) {
		uint32_t v =
			(uint32_t)sum[3 * i] << 16 | (uint32_t)sum[3 * i + 1] << 8 | sum[3 * i + 2];

		for (int c = 0; c < 4; c++)
			out[4 * i + c] = digits[v >> (18 - 6 * c) & 63];
	}
	out[27] = '=';
	out[28] = 0;
}

/* ---- connections */

static bool all_out(int fd, const void *p, size_t n)
{
	const uint8_t *at = p;

	while (n) {
		ssize_t k = send(fd, at, n, MSG_NOSIGNAL);

		if (k <= 0)
			return false;
		at += k;
		n -= (size_t)k;
	}
	return true;
}

/* Sends n bytes on the wire. By a WebSocket: whole frames, each a head of ten bytes and FRAME bytes. */
static void source(int fd, uint64_t n, bool websocket)
{
	size_t piece = sizeof(block);

	memset(block, 'y', sizeof(block));
	if (websocket) {
		memcpy(block, "\x82\x7f\0\0\0\0\0\1\0\0", 10);
		piece = 10 + FRAME;
	}
	for (; n >= piece; n -= piece)
		if (!all_out(fd, block, piece))
			return;
	all_out(fd, block, websocket ? 0 : n);
}

static void sink(int fd, uint64_t n, bool websocket)
{
	while (n) {
		ssize_t k = recv(fd, block, n < sizeof(block) ? n : sizeof(block), 0);

		if (k <= 0)
			return;
		n -= (uint64_t)k;
	}
	all_out(fd, websocket ? "\x82\x01k" : "k", websocket ? 3 : 1);
}

/* Reads the head of a request: up to an empty line or, if the request has no headers, up to the end of its first line. */
static bool head_read(int fd, char *head, size_t cap)
{
	size_t n = 0;

	while (n + 1 < cap && recv(fd, head + n, 1, 0) == 1) {
		head[++n] = 0;
		if (head[n - 1] == '\n' && (!strstr(head, "HTTP/1.1") || strstr(head, "\r\n\r\n")))
			return true;
	}
	return false;
}

/* true: the connection stays open. */
static bool serve(int fd)
{
	static const char named[] = "\nSec-WebSocket-Key: ";
	char head[8192] = "", answer[300], sum[29];
	const char *key;
	uint64_t n;

	if (!head_read(fd, head, sizeof(head)))
		return false;
	key = strcasestr(head, named);
	if (key) {
		accept_of(key + sizeof(named) - 1, sum);
		snprintf(answer, sizeof(answer),
			"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
			"Connection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n",
			sum);
		if (!all_out(fd, answer, strlen(answer)))
			return false;
	}
	n = strtoull(head + strcspn(head, "0123456789"), NULL, 10);
	if (!strncmp(head, "GET /source/", 12))
		source(fd, n, key);
	else if (!strncmp(head, "GET /sink/", 10))
		sink(fd, n, key);
	return !strncmp(head, "GET /idle", 9);
}

int main(int argc, char **argv)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct rlimit files = {4096, 4096};
	int l = socket(AF_INET, SOCK_STREAM, 0);

	setrlimit(RLIMIT_NOFILE, &files);
	setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
	a.sin_port = htons(argc > 1 ? (uint16_t)strtoul(argv[1], NULL, 10) : 9100);
	if (bind(l, (struct sockaddr *)&a, sizeof(a)) || listen(l, 128)) {
		perror("wayload");
		return 1;
	}
	for (;;) {
		int fd = accept(l, NULL, NULL);

		if (fd >= 0 && !serve(fd))
			close(fd);
	}
}
