/* SPDX-License-Identifier: Apache-2.0
 *
 * lib_http1: the reader of responses from inside a guest, with every way to cut the input.
 */
#include "lib/test.h"

#include "lib/http1.h"

static void run(const char *in, size_t n, size_t piece, bool head, char *out, size_t cap)
{
	struct http1_response *r = malloc(sizeof(*r));
	size_t o = 0;
	enum http1_ev ev = H1_MORE;

	http1_init(r, head);
	out[0] = 0;
	for (size_t i = 0; i < n && ev != H1_DONE && ev != H1_BAD; i += piece) {
		size_t left = MIN(piece, n - i), len = 0;
		uint8_t *copy = malloc(left);
		const uint8_t *p = copy, *data = NULL;

		memcpy(copy, in + i, left);
		do {
			ev = http1_next(r, &p, &left, &data, &len);
			if (ev == H1_HEAD) {
				o += (size_t)snprintf(out + o, cap - o, "%d", r->status);
				for (size_t k = 0; k < r->nheaders; k++)
					o += (size_t)snprintf(out + o, cap - o, " %s=%s",
						r->headers[k].name, r->headers[k].value);
				o += (size_t)snprintf(out + o, cap - o, "|");
			} else if (ev == H1_DATA) {
				o += (size_t)snprintf(
					out + o, cap - o, "%.*s", (int)len, (const char *)data);
			}
		} while (ev == H1_HEAD || ev == H1_DATA);
		free(copy);
	}
	if (ev == H1_BAD)
		snprintf(out, cap, "BAD %s", r->why);
	else if (ev == H1_DONE)
		snprintf(out + o, cap - o, "|done");
	else
		snprintf(out + o, cap - o, "|%s", http1_closed(r) ? "closed" : "cut");
	http1_fini(r);
	free(r);
}

static void every_cut(const char *in, bool head, const char *want)
{
	char got[1024];
	size_t n = strlen(in);

	for (size_t piece = 1; piece <= n; piece++) {
		run(in, n, piece, head, got, sizeof(got));
		CHECK_STR(got, want);
	}
}

static void bodies_are_framed(void)
{
	every_cut("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX:  y \r\n\r\nhello", false,
		"200 Content-Length=5 X=y|hello|done");
	every_cut("HTTP/1.0 200\nA: b\n\nuntil the end", false, "200 A=b|until the end|closed");
	every_cut("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0A "
		  "\r\n0123456789\r\n0\r\nT: v\r\n\r\n",
		false, "200 Transfer-Encoding=chunked|abc0123456789|done");
	every_cut("HTTP/1.1 204 No Content\r\n\r\n", false,
		"204|"
		"|done");
	every_cut(
		"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", true, "200 Content-Length=9||done");
	every_cut("HTTP/1.1 100 Continue\r\nA: b\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Length: "
		  "0\r\n\r\n",
		false, "404 Content-Length=0||done");
	every_cut("HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Length: "
		  "2\r\n\r\nx",
		false, "200 Set-Cookie=a=1 Set-Cookie=b=2 Content-Length=2|x|cut");
}

static void nonsense_is_refused(void)
{
#define H "HTTP/1.1 200 OK\r\n"
	every_cut("SSH-2.0-OpenSSH_9\r\n\r\n", false, "BAD a malformed status line");
	every_cut("HTTP/1.1 99 x\r\n\r\n", false, "BAD a malformed status line");
	every_cut("HTTP/2.0 200 x\r\n\r\n", false, "BAD a malformed status line");
	every_cut(H "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", false,
		"BAD both Content-Length and Transfer-Encoding");
	every_cut(H "Content-Length: 5\r\nContent-Length: 6\r\n\r\n", false,
		"BAD a malformed Content-Length");
	every_cut(H "Content-Length: -5\r\n\r\n", false, "BAD a malformed Content-Length");
	every_cut(H "Content-Length: 99999999999999999999\r\n\r\n", false,
		"BAD a malformed Content-Length");
	every_cut(H "Transfer-Encoding: gzip, chunked\r\n\r\n", false,
		"BAD an unknown transfer coding");
	every_cut(H "A: b\r\n c\r\n\r\n", false, "BAD a folded header line");
	every_cut(H "A b: c\r\n\r\n", false, "BAD a malformed header name");
	every_cut(H ": c\r\n\r\n", false, "BAD a malformed header name");
	every_cut(H "A: b\x01\r\n\r\n", false, "BAD a control character in a header");
	every_cut(H "A: b\rC: d\r\n\r\n", false, "BAD a control character in a header");
	every_cut(
		H "Transfer-Encoding: chunked\r\n\r\nxyz\r\n", false, "BAD a malformed chunk size");
	every_cut(H "Transfer-Encoding: chunked\r\n\r\n1\r\nab", false,
		"BAD a chunk longer than its size");
	every_cut(H "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", false,
		"BAD a chunk size too large");
	every_cut("HTTP/1.1 101 Switching Protocols\r\n\r\n", false,
		"BAD an upgrade that nobody asked for");
#define I "HTTP/1.1 100\r\n\r\n"
	every_cut(I I I I I I I I I I I I I I I I I, false, "BAD too many interim responses");
}

static void heads_have_a_limit(void)
{
	static char big[HTTP1_HEAD_MAX + 100];
	char got[128];
	size_t o = (size_t)snprintf(big, sizeof(big), H);

	memset(big + o, 'a', sizeof(big) - o);
	run(big, sizeof(big), 1000, false, got, sizeof(got));
	CHECK_STR(got, "BAD the head is too long");
	for (int i = 0; i < 300; i++)
		o += (size_t)snprintf(big + o, sizeof(big) - o, "A: b\r\n");
	o += (size_t)snprintf(big + o, sizeof(big) - o, "\r\n");
	run(big, o, 1000, false, got, sizeof(got));
	CHECK_STR(got, "BAD too many headers");
}

static const struct test tests[] = {
	{"bodies_are_framed", bodies_are_framed},
	{"nonsense_is_refused", nonsense_is_refused},
	{"heads_have_a_limit", heads_have_a_limit},
};
TEST_MAIN(tests)
