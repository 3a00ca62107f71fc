/* SPDX-License-Identifier: Apache-2.0
 *
 * isolate.h: sessions of the kind ISOLATED, the agent's side. First a job makes the storage. The
 * first process is cloned and executes isolate_init.c. Its shell says that it is ready, and runs
 * follow one another. The shell ends or is killed. A job removes the storage.
 */
#pragma once

#include "agent/conn.h"
#include "agent/exec.h"
#include "agent/isolate_conf.h"
#include "agent/session.h"

struct iso;

/* Of a run in the background: how much of its output is kept. */
#define ISO_LOG_MAX MIB(16)

/* Takes r. The request is answered when the session is ready or failed; on failure the session is gone. 0, or
 * -errno: nothing was answered, and the caller destroys the session. */
int isolate_make(struct session *s, struct conn *c, uint32_t id, struct iso_req *r, struct err *e);
/* Deletes it: kills everything in it and removes its storage. NULL is fine. */
void isolate_free(struct iso *i);

/* For the agent's end: deletes the session made ahead. */
void isolate_fini(struct agent *a);
/* As exec_start, for a run in an isolated session. */
int isolate_run(struct session *s, const struct exec_req *r, exec_started_fn fn, void *arg,
	enum agent_step *step, struct err *e);
/* Sends sig to a run's processes. With SIGINT, SIGTERM and SIGKILL the shell leaves a foreground
 * run, too: it gets SIGINT until it does. If it never does, the session is killed (PROD_* in
 * isolate_run.c). 0, -ESRCH, or -EAGAIN (a background run that is about to start). */
int isolate_signal(struct proc *p, int sig);
/* The timeout of a run has expired. */
void isolate_timeout(struct proc *p);
/* All of a run's output was taken. */
void isolate_drained(struct proc *p);
/* p is being destroyed. */
void isolate_lost(struct proc *p);

bool isolate_is_dead(const struct iso *i);
bool isolate_runs(const struct iso *i);
uint64_t isolate_idle_left_ms(const struct iso *i);
void isolate_exit(const struct iso *i, uint32_t *state, uint32_t *code);
/* Descriptors of its mount namespace and of its root. The caller closes them, also after -EMFILE.
 * -ESRCH: its shell is not ready yet, or it is dead. */
int isolate_view_fds(const struct iso *i, int *ns, int *root);
/* Was there ever an isolated session? */
bool isolate_was_any(const struct agent *a);
/* Is or was this the cgroup of a session? True also for 0 (unknown), and while the cgroup of some
 * session is unknown: it could be this one. */
bool isolate_has_cgroup(const struct agent *a, uint64_t cgroup);
/* Where the overlay at dest ("" = the first) keeps its changes, and the directory below it. id is
 * the device and inode number of that directory. -ENOENT: there is no such overlay. */
int isolate_overlay(const struct iso *i, const char *dest, char upper[700],
	char lower[AGENT_PATH_MAX], char id[64]);
