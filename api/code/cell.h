/* SPDX-License-Identifier: Apache-2.0
 *
 * cell.h: one run of code in a context: from the request to the kernel's last message, as a stream of events to the client. mayflyd's loop. The kernel's
 * messages and the client are hostile: a client that does not read stops the kernel's stream, not the daemon; one that leaves does not stop the cell, whose
 * output is then dropped, and whose context stays busy until it ends.
 */
#pragma once

#include "api/http/http.h"

struct cell;
struct context;
struct jupyter_server;

/* Runs code in x for r, and ends r. If the context is busy, the client gets an event that says so, as the protocol has it. */
void cell_run(
	struct http_req *r, struct context *x, const struct jupyter_server *s, const char *code);
/* The context's kernel or sandbox has gone: ends the client's stream with an error. Frees the cell; its context has none then. */
void cell_lost(struct cell *c, int err, const char *why);
