/* SPDX-License-Identifier: Apache-2.0
 *
 * isolate_conf.h: what makes an isolated session: the host's request, and what the agent hands to the session's first process. Both are
 * read by the same bounded reader.
 */
#pragma once

#include "agent/env.h"
#include "agent/users.h"
#include "lib/err.h"
#include "lib/proto_agent.h"

struct iso_mount {
	uint32_t mode, flags;
	char *source, *dest;
};

struct iso_req {
	uint32_t profile, flags, uid, gid, pids, env_mode;
	char user[128];
	uint64_t idle_ms, memory_bytes, upper_bytes;
	char *allowed[AGENT_ALLOWED_MAX], *names[AGENT_NAMES_MAX];
	struct iso_mount mounts[AGENT_MOUNTS_MAX];
	size_t nallowed, nnames, nmounts;
	struct envset *env;
	char *note;
};

/* From the fields after the kind. 0 or -errno; it frees what it made on failure. */
int iso_req_parse(struct cur *c, struct iso_req *r);
void iso_req_free(struct iso_req *r);

/* From the agent to a session's first process, in a memfd. It begins with the path of the session's
 * storage, ended by a 0. The process may begin before anybody asked for a session, and needs only
 * this path until then. Everything else begins at ISO_CONF_AT. The process may read that after
 * ISO_GO came on ISO_FD_CMD. */
#define ISO_CONF_AT 512
#define ISO_GO      "g\n"
/* In the storage, which comments call DIR: root, where the session's root is mounted; run, the files
 * of runs. Of the overlay on mount N: uN, the changes; wN, the kernel's work directory; iN, a link
 * that says which directory is below. eN is a file system in memory, with uN and wN of an overlay
 * that is not kept. */
struct iso_conf {
	struct user user;
	char dir[ISO_CONF_AT]; /* the session's storage */
	char state_dir[512];   /* storage of all sessions: hidden in each */
	char env_file[512];    /* $EXECD_ENVS: hidden, as its variables were filtered */
	char cwd[AGENT_PATH_MAX];
	struct envset *env; /* the shell's */
	struct iso_req r;   /* sent without env_mode, names, env and note */
};
void iso_conf_put(struct buf *b, const struct iso_conf *c);
int iso_conf_parse(struct cur *b, struct iso_conf *c);
void iso_conf_free(struct iso_conf *c);

/* The environment of a session's shell: base filtered as r says, then r's own. NULL: no memory. */
struct envset *iso_env(const struct envset *base, const struct iso_req *r, const char *home);
/* Is this a variable that sessions get only if AGENT_EM_ALLOW names it? */
bool iso_env_is_private(const char *name, size_t n);

/* Lines on ISO_FD_STATUS, from the first process or the shell. The session's programs can write
 * there, too. */
enum iso_word {
	ISO_READY = 'r',   /* the shell waits for work */
	ISO_FAILED = 'f',  /* a = errno, text */
	ISO_DONE = 'd',    /* a = exit code of the foreground run */
	ISO_STARTED = 'p', /* background run a is process b of the session */
	ISO_ENDED = 'b',   /* background run a, exit code b */
	ISO_GONE = 'x',    /* the shell ended: wait status a */
};
struct iso_line {
	enum iso_word word;
	uint32_t a, b;
	const char *text; /* into the line */
};
#define ISO_LINE_MAX 600u
/* false: no such line. */
bool iso_line_parse(const char *s, struct iso_line *l);

/* descriptors of the first process */
#define ISO_FD_CONF   197
#define ISO_FD_CMD    196
#define ISO_FD_STATUS 195
/* of the shell: one digit, which every shell can name */
#define ISO_SHELL_CMD    8
#define ISO_SHELL_STATUS 9
#define ISO_RUN_DIR      "/run/.execd" /* where the session sees DIR/run */

/* The session's first process (mayfly-agent --isolate). Returns its exit code. */
int isolate_main(void);
/* Called in the session's first process: builds the file system that the session sees, and enters it
 * as the root. 0 or -errno with a text in e. _begin makes what is the same for all sessions and
 * needs only dir, _end makes the rest. */
struct iso_view {
	const char *dir;
	const struct iso_conf *c; /* _end */
	int old, root;            /* O_PATH of the sandbox's root and of the session's */
	struct err *e;
};
int isolate_view_begin(struct iso_view *v);
int isolate_view_end(struct iso_view *v, const struct iso_conf *c);
