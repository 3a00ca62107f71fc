/* SPDX-License-Identifier: Apache-2.0
 *
 * dial.h: a connection to the daemon that becomes something else than HTTP (a terminal, a forwarded port). `mayfly` only. libcurl finds and connects; the bytes
 * are the caller's.
 */
#pragma once

#include "cli/client.h"

/* A connected socket that blocks, or -errno. Only http:// and unix:// daemons: the bytes after an upgrade would need TLS. */
int client_dial(const struct client *c, struct err *e);
