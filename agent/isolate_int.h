/* SPDX-License-Identifier: Apache-2.0
 *
 * isolate_int.h: what isolate.c (life and death of a session) and isolate_run.c (its runs) share.
 */
#pragma once

#include "agent/isolate.h"

/* WAITS: made ahead, for no session yet. MAKES: a request for a session waits for it. LIVES: its
 * shell is ready. DEAD: its shell has ended, or it was deleted. */
enum iso_state { ISO_WAITS, ISO_MAKES, ISO_LIVES, ISO_DEAD };

struct iso {
	struct iso *next; /* in the agent's list, until a job begins to remove its storage */
	struct agent *a;
	struct session *s; /* NULL: deleted, or made ahead */
	struct iso_conf conf;
	enum iso_state state;
	uint64_t conn; /* the connection that waits while the session is made; 0: none */
	uint32_t id;
	struct proc *first; /* process 1 */
	pid_t pid;
	uint64_t cgroup;
	int cmd_fd, status_fd, out_fd, view_fd, root_fd, run_fd;
	int conf_fd;   /* until the first process was told which session it is */
	int mounts_fd; /* of one made ahead: tells that the sandbox's mounts changed since */
	struct watch *status_w, *out_w;
	struct buf line;
	uint64_t nruns;
	size_t background; /* background runs that have not ended */
	/* idle: deletes the session. prod: sends SIGINT until the shell leaves its run. trim: cuts
	 * long logs of background runs. */
	struct timer *idle, *prod, *trim;
	uint64_t idle_at_ns;
	unsigned prods;
	bool storing, stored, tmpfs; /* a job makes DIR; it is there; a tmpfs is mounted on it */
	bool counted;                /* its storage is counted in agent_counters.stores */
	bool finished,
		was_told; /* the first process was told what it is: programs of the image may run */
	uint32_t exit_state, exit_code;
};

/* Called when the shell runs nothing: arms the idle timer. */
void iso_idle(struct iso *i);
/* Reads and drops what programs in the shell's background write between runs. */
void iso_drop_output(struct iso *i);
void iso_run_ended(struct iso *i, struct proc *p, uint32_t state, uint32_t code);
struct proc *iso_background_run(struct iso *i, uint64_t n);
/* Callbacks of the timers idle, prod and trim. */
void iso_idle_fired(void *arg);
void iso_prod_fired(void *arg);
void iso_trim_fired(void *arg);
