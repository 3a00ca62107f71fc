/* SPDX-License-Identifier: Apache-2.0
 *
 * terminal.h: sessions of the kind TERMINAL. The session owns the replay: the last megabyte of what its shells wrote. While a shell runs
 * the replay is in the shell's struct proc, so that procio.c serves holder and viewers; afterwards it returns. A new attach to a session
 * whose shell ended starts a new shell behind the same replay.
 */
#pragma once

#include "agent/conn.h"
#include "agent/session.h"

struct terminal;
struct terminal_req {
	char *command; /* "" = a plain shell */
	uint32_t uid, gid;
	char user[128];
	struct envset *env;
};

/* Takes r's command and env. 0 or -ENOMEM. */
int terminal_make(struct session *s, struct terminal_req *r);
/* Kills the shell. NULL is fine. */
void terminal_free(struct terminal *t);
/* Answers the request. */
void terminal_attach(struct session *s, struct conn *c, uint32_t id, uint32_t flags, uint64_t since,
	uint16_t cols, uint16_t rows);
/* Called when p is destroyed: its replay returns to the session. */
void terminal_take_back(struct terminal *t, struct proc *p);

bool terminal_runs(const struct terminal *t);
uint64_t terminal_offset(const struct terminal *t);
void terminal_exit(const struct terminal *t, uint32_t *state, uint32_t *code);
