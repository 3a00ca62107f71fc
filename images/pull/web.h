/* SPDX-License-Identifier: Apache-2.0
 *
 * web.h: GET, as pulls need it, over libcurl: bounded in size, time and redirects. Runs in a pull
 * job; the peer is hostile.
 */
#pragma once

#include "lib/buf.h"
#include "lib/err.h"

/* One per thread. */
struct web;
/* stall_s: how long a server may send less than 1 KiB a second (0: the default) */
struct web *web_create(uint32_t stall_s, struct err *e);
void web_destroy(struct web *h);

struct web_request {
	const char *url;
	const char *accept;          /* NULL: anything */
	const char *authorization;   /* the header's value; only ever sent to the host of `url` */
	const char *user, *password; /* basic authentication, the same way */
	uint64_t from;               /* Range: bytes=from- */
	bool private_ok;  /* redirects may lead to private addresses (they may anyway if the first
			    host has one) */
	bool elsewhere;   /* the registry chose the URL: treated as a redirect's target */
	bool public_only; /* no private address at all, the first host included */
	bool plain_ok;    /* redirects may lead to http:// */
	/* body of a 2xx: 0, or -errno to stop. start is called first, with the status (206: the range is
	 * honoured). */
	int (*start)(void *arg, long status);
	int (*body)(void *arg, const void *p, size_t n);
	void *arg;
};
struct web_reply {
	long status;
	char type[128];
	char challenge[2048]; /* WWW-Authenticate */
	bool peer_private, redirected;
};

/* 0 when there is a final status, whatever it is; -errno for everything below HTTP. */
int web_get(struct web *h, const struct web_request *q, struct web_reply *out, struct err *e);
/* The same into memory. */
int web_get_buf(struct web *h, const struct web_request *q, struct buf *b, struct web_reply *out,
	struct err *e);

struct sockaddr;
/* loopback, link-local, private, unspecified, multicast: all but public addresses; also IPv4 ones inside of IPv6 ones */
bool address_is_private(const struct sockaddr *sa);
