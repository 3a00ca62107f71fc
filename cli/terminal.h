/* SPDX-License-Identifier: Apache-2.0
 *
 * terminal.h: a command in a sandbox with our standard input, by a terminal session and its WebSocket: `mayfly exec -i`, `-t`, `-it`,
 * `mayfly attach`.
 */
#pragma once

#include "cli/client.h"

struct terminal_opts {
	bool tty;           /* with a terminal; ours becomes raw */
	bool input;         /* the command reads our standard input */
	uint64_t timeout_s; /* kill the command after so long; 0: never */
	/* NULL: a new session. Else this one, which runs: taken over, or only looked at without `input`. */
	const char *session;
};
/* body (borrowed): of POST /pty; NULL with o->session. Returns the command's exit code; or EXIT_OURS, with the reason on standard error. */
int terminal_run(const struct client *c, const char *sandbox, const cJSON *body,
	const struct terminal_opts *o);
