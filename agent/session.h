/* SPDX-License-Identifier: Apache-2.0
 *
 * session.h: the registry of sessions, and sessions of the kind SHELL. A session has an id, a kind and the state of that kind. In a SHELL
 * session each run is a shell of its own. Kept between runs: the working directory, and what the run changed in its environment.
 */
#pragma once

#include "agent/proc.h"

struct envset;
struct exec_req;
struct iso;
struct terminal;

struct session {
	struct agent *a;
	struct session *next;
	char id[64];
	enum agent_session_kind kind;
	char *cwd;
	char *note;                       /* the host's own text; NULL: none */
	uint64_t created_ns, last_run_ns; /* wall clock */

	/* SHELL */
	struct envset *set;   /* variables that runs changed */
	struct envset *unset; /* variables that runs removed */
	struct proc *run;
	bool own_cwd;

	struct terminal *terminal; /* TERMINAL */
	struct iso *iso;           /* ISOLATED; its foreground run is `run` */
};

/* Makes a session and puts it into the registry. 0, -EINVAL, -EEXIST, -ENOMEM. *made may be NULL. */
int session_make(struct agent *a, const char *id, const char *cwd, enum agent_session_kind kind,
	struct session **made);
/* session_make() for a SHELL session. */
int session_create(struct agent *a, const char *id, const char *cwd);
/* Kills what runs in it. -ENOENT: there is none of that id. */
int session_destroy(struct agent *a, const char *id);
/* Takes it out of the registry: the caller's from now on, to be freed with session_drop (NULL is fine). */
struct session *session_take(struct agent *a, const char *id);
void session_drop(struct session *s);
void sessions_free(struct agent *a);
struct session *session_find(struct agent *a, const char *id);
bool session_busy(const struct session *s);
const char *session_cwd(const struct session *s);
/* Applies the session's changes to env. */
int session_apply(const struct session *s, struct envset *env);

/* The script of a run's shell, to be freed: text, and a trap that executes the helper when the
 * shell ends. */
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
