/* SPDX-License-Identifier: Apache-2.0
 *
 * proc.h: the processes that were asked for: their registry, their life from AGENT_EXEC to AGENT_FORGET, signals and time limits.
 * Their bytes are procio.h's.
 */
#pragma once

#include "agent/agent.h"
#include "agent/cgroup.h"

#define PROC_ID_MAX    63
#define PROCS_MAX      4096u /* running or kept */
#define WATCHERS_MAX   32u
#define PROC_ARGV_KEPT (64u * 1024)

/* a flag of the agent's own in proc.flags: pipes whose output is kept as a terminal's is */
#define PROC_X_REPLAY (1u << 31)

struct conn;
struct iso;
struct terminal;

/* Output that the host has not acknowledged: ring.p[0] is the byte at offset `base` of the stream.
 */
struct stream {
	struct buf ring;
	uint64_t base, sent;
	int fd; /* -1: ended */
	struct watch *w;
};

struct proc {
	struct agent *a;
	struct proc *next, **link;
	char id[PROC_ID_MAX + 1];
	uint64_t number;
	uint32_t flags; /* AGENT_X_* */
	pid_t pid;      /* 0: not running */
	enum agent_state state;
	uint32_t code;
	uint64_t started_ns, finished_ns; /* wall clock */
	char error[160];
	struct buf argv; /* u32 argc, argc x str, as AGENT_STATUS gives it */

	struct stream out[2];
	int in_fd;
	struct watch *in_w;
	struct buf in;
	uint64_t in_taken, in_came, in_told; /* bytes of input: written, received, acknowledged */
	uint64_t in_base;  /* of in_came, what earlier holders of a terminal session sent */
	bool in_eof;       /* close in_fd once `in` is empty */
	int file_fd;       /* AGENT_X_BACKGROUND: its output */
	struct conn *conn; /* its EXEC connection */
	/* terminals: others' connections, served as far as they keep up */
	struct conn *watchers[WATCHERS_MAX];
	uint64_t watch_sent[WATCHERS_MAX];
	/* output before the next byte was skipped */
	bool watch_jump[WATCHERS_MAX];
	bool started;        /* AGENT_OK was answered: frames may follow */
	bool exited;         /* reaped; output may still be in the pipe */
	bool ended;          /* and all output is in `out` */
	uint64_t replay_end; /* terminals: output before this offset is a replay for conn */
	bool exit_sent, discard, timed_out, entrypoint;

	struct timer *limit_timer, *kill_timer;
	struct cgroup cgroup;
	bool has_status; /* reaped before its start was known */
	int wait_status;
	struct session *session;
	int dump_fd;
	struct terminal *terminal; /* whose shell it is */
	struct buf
		marks; /* PROC_X_REPLAY: struct mark: which stream the bytes of out[0] came from */
	struct iso *iso;     /* a run of this isolated session, or its first process */
	uint64_t run_number; /* its number there; 0: no such run */
	uint32_t inner_pid;  /* a background run's process, in the session's own numbers */
	/* a run that ended: so many bytes in the session's pipe are still its own */
	size_t drain_left;
	bool forget;          /* nobody knows it any more: destroy it when it ends */
	struct envset *given; /* what a session's shell was started with */
	char *run_cwd;
	void (*on_end)(struct agent *a, struct proc *p); /* for the agent's own modules (hooks.c) */
	void *on_end_arg;
};

struct proc *proc_create(struct agent *a, const char *id, uint32_t flags);
/* Frees the record. A process that still runs continues; its output is dropped. */
void proc_destroy(struct proc *p);
struct proc *proc_find(struct agent *a, const char *id);
struct proc *proc_find_pid(struct agent *a, pid_t pid);

/* Called when it runs: starts its timeout. */
void proc_started(struct proc *p, uint64_t timeout_ms);
/* Called with what waitpid() said. */
void proc_reaped(struct proc *p, int wait_status);
/* Called for a run that has no process of its own, and has ended. */
void proc_ended(struct proc *p, enum agent_state state, uint32_t code);
/* Keeps its arguments, for AGENT_STATUS. */
void proc_keep_argv(struct proc *p, char *const *argv, uint32_t argc);
/* Sends sig to its process group, and SIGKILL also to everything in its cgroup. 0 or -errno (ESRCH:
 * it does not run). For a run of an isolated session: isolate_signal(). */
int proc_signal(struct proc *p, int sig);
/* Kills it after ms, if it still runs; 0: never. */
void proc_kill_after(struct proc *p, uint32_t ms);

/* After SIGCHLD: takes everything that ended. */
void procs_reap(struct agent *a);
/* Destroys the oldest ended processes, if they are many or keep much output. */
void procs_trim(struct agent *a);
void procs_free(struct agent *a);
