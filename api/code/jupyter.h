/* SPDX-License-Identifier: Apache-2.0
 *
 * jupyter.h: requests to the Jupyter server inside a guest, each over a dialled connection of its own. mayflyd's loop. The answers are
 * hostile: bounded, checked as JSON before anybody reads them. A request waits for a server that does not listen yet. There is no polling: the guest's
 * agent says when the port is open.
 */
#pragma once

#include "lib/json_slice.h"

struct agentc;
struct sandbox;

#define JUPYTER_BODY_MAX   (1024u * 1024)
#define JUPYTER_LIMIT_S    300u /* for one request, the wait for the server included */
#define JUPYTER_ID_MAX     63u  /* of a session or a kernel */
#define JUPYTER_TOKEN_MAX  256u
#define JUPYTER_PREFIX_MAX 128u

struct jupyter_server {
	uint16_t port; /* of the guest's own 127.0.0.1 */
	char prefix[JUPYTER_PREFIX_MAX], token[JUPYTER_TOKEN_MAX];
};

/* JUPYTER_HOST and JUPYTER_TOKEN of the sandbox's environment, or its image's. 0; -ENOENT: not configured; -EINVAL: not an http:// address of the guest
 * itself. */
int jupyter_server_of(const struct sandbox *sb, struct jupyter_server *s);
/* The same, from the two values; token may be NULL. */
int jupyter_server_read(const char *host, const char *token, struct jupyter_server *s);

struct jupyter_answer {
	int err;                /* 0, or an errno: ECANCELED: the sandbox has ended; others: why */
	const char *why;        /* if err: a text for people */
	int status;             /* err 0 */
	struct json_slice body; /* absent if the body is empty or not JSON; valid during the call */
};
typedef void (*jupyter_fn)(void *arg, const struct jupyter_answer *a);

struct jupyter_call;
/* path: below the prefix, begins with '/'. body NULL: none. NULL: no memory. fn is called once, never before this returns. */
struct jupyter_call *jupyter_ask(struct agentc *a, const struct jupyter_server *s,
	const char *method, const char *path, const char *body, jupyter_fn fn, void *arg);
/* fn will not be called. NULL is fine. */
void jupyter_cancel(struct jupyter_call *c);

/* May this id be part of a path of the server? Letters, digits, '-', '_' and '.', from 1 to JUPYTER_ID_MAX; no '.' first, no "..". */
bool jupyter_id_ok(const char *id);
