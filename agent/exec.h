/* SPDX-License-Identifier: Apache-2.0
 *
 * exec.h: AGENT_EXEC: what was asked for (a parser of the host's bytes), and how it becomes a
 * process.
 */
#pragma once

#include "agent/agent.h"
#include "agent/env.h"
#include "agent/proc.h"
#include "agent/spawn.h"
#include "agent/users.h"

#define EXEC_ARGS_MAX 4096u

/* What the agent itself adds to a request, for the first process of an isolated session. */
struct exec_inner {
	uint64_t new_namespaces;
	int fd[3], as[3]; /* further descriptors, borrowed; -1 none */
};

struct exec_req {
	const struct exec_inner *
		inner; /* NULL: none. Otherwise argv[0] is the agent's own program, env the whole environment */
	char id[PROC_ID_MAX + 1], session[64], user[128];
	uint32_t flags, uid, gid;
	char *cwd;
	uint64_t timeout_ms;
	uint16_t cols, rows;
	uint32_t argc;
	char **argv; /* ends with NULL; one allocation with its strings */
	struct envset *env;
	uint32_t nlimits;
	struct spawn_limit limits[AGENT_LIMITS_MAX];
};

/* version: the connection's. 0, or -errno: then nothing is left to free. Touches nothing but memory. */
int exec_parse(struct cur *c, uint32_t version, struct exec_req *r);
void exec_req_free(struct exec_req *r);
/* u32 argc, argc strings into one block; argc 0 gives an empty list. */
int exec_parse_argv(struct cur *c, uint32_t *argc, char ***argv);

/* Called from the loop, never from within exec_start: the process has started (code 0), or could
 * not (code > 0; p is destroyed afterwards). */
typedef void (*exec_started_fn)(struct agent *a, struct proc *p, void *arg, int code,
	enum agent_step step, const char *text);

/* Begins to start it: 0 (fn will be called once), or -errno with *step and the text: nothing was
 * begun. */
int exec_start(struct agent *a, const struct exec_req *r, exec_started_fn fn, void *arg,
	enum agent_step *step, struct err *e);

/* Who a command runs as: uid and gid if uid is not AGENT_NO_ID, else user if it is not "", else the
 * image's user. */
int exec_user(struct agent *a, const char *user, uint32_t uid, uint32_t gid, struct user *u,
	struct err *e);
/* Variables of every command: of the image, the set-up, the pre-script and the file $EXECD_ENVS,
 * without the agent's own. NULL: no memory. */
struct envset *exec_base_env(struct agent *a);
/* A variable of the set-up or the image, also one of the agent's own. NULL: not set. */
const char *exec_setup_var(const struct agent *a, const char *name);
const char *exec_home(struct agent *a, const struct envset *env);
