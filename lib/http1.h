/* SPDX-License-Identifier: Apache-2.0
 *
 * http1.h: a bounded reader of HTTP/1.1 responses (RFC 9112). mayflyd reads servers inside a guest
 * with it, the command line reads the daemon. All input is hostile. Pulled: each call takes some of the input and yields at most one
 * event. One response a connection: nothing is reused, so there is nothing to smuggle behind it.
 */
#pragma once

#include "lib/buf.h"

#define HTTP1_HEAD_MAX    65536u
#define HTTP1_HEADERS_MAX 200u

enum http1_ev {
	H1_MORE, /* all input was taken */
	H1_HEAD, /* status and headers are there (final ones: 1xx are dropped) */
	H1_DATA, /* *data, *len: bytes of the body */
	H1_DONE, /* the body is whole; after a 101: what is left of the input is the other protocol's */
	H1_BAD, /* r->why */
};

struct http1_header {
	char *name, *value;
};

struct http1_response {
	int status;
	char *reason;
	struct http1_header headers[HTTP1_HEADERS_MAX];
	size_t nheaders;
	bool has_length, chunked, no_body, until_close;
	uint64_t length; /* of the body, if has_length */
	const char *why;

	bool to_head; /* the request was HEAD: no body comes */
	bool upgrade_ok; /* the request asked for an upgrade: a 101 is the answer. Set after http1_init. */
	int state;
	uint64_t left;
	uint32_t digits, skipped, interim;
	struct buf head;
};

void http1_init(struct http1_response *r, bool request_was_head);
void http1_fini(struct http1_response *r);
enum http1_ev http1_next(
	struct http1_response *r, const uint8_t **p, size_t *n, const uint8_t **data, size_t *len);
/* The peer closed: true if the response was whole (or its end is the close). */
bool http1_closed(struct http1_response *r);
/* a token of RFC 9110; for header names */
bool http1_token(const char *s, size_t n);
