/* SPDX-License-Identifier: Apache-2.0
 *
 * session.h: shell sessions. Each run is a shell of its own; what is kept between runs is the working directory and what the run changed in
 * its environment.
 */
#pragma once

#include "agent/proc.h"

struct envset;
struct exec_req;

int session_create(struct agent *a, const char *id, const char *cwd);
int session_destroy(struct agent *a, const char *id);
void sessions_free(struct agent *a);
struct session *session_find(struct agent *a, const char *id);
bool session_busy(const struct session *s);
const char *session_cwd(const struct session *s);
/* Puts the session's changes over env. */
int session_apply(const struct session *s, struct envset *env);

/* The text that a shell gets for a run, to be freed: it hands the environment to the helper when it
 * ends. */
char *session_script(const char *text);
#define SESSION_HELPER_FD 198
#define SESSION_DUMP_FD   199
/* p runs for s from now on; takes the set it was started with and the descriptor of the dump. */
void session_run_begins(
	struct session *s, struct proc *p, struct envset *given, int dump_fd, bool own_cwd);
void session_run_ended(struct proc *p);
void session_run_lost(struct proc *p);

/* The helper: writes cwd and environment to SESSION_DUMP_FD, ends with `code`. */
int session_helper(const char *code);
/* Takes a dump's bytes (the guest's programs wrote them) into the session; for its fuzzer, too. */
int session_take_dump(struct session *s, const char *bytes, size_t n, const struct envset *given,
	bool own_cwd, const char *run_cwd);
