/* SPDX-License-Identifier: Apache-2.0
 *
 * isolate.h: sessions of the kind ISOLATED, the agent's side. Life: storage is made (a job), the first process is cloned and executes
 * isolate_init.c, its shell says that it is ready, runs follow one another, the shell ends or is killed, the storage is removed (a job).
 */
#pragma once

#include "agent/conn.h"
#include "agent/exec.h"
#include "agent/isolate_conf.h"
#include "agent/session.h"

struct iso;

/* Of a run in the background: how much of its output is kept. */
#define ISO_LOG_MAX MIB(16)

/* Takes r. The request is answered when the session is ready or failed; on failure the session is gone. 0, or -errno: nothing was begun. */
int isolate_make(struct session *s, struct conn *c, uint32_t id, struct iso_req *r, struct err *e);
/* The session goes: kills everything in it and removes what it stored. NULL is fine. */
void isolate_free(struct iso *i);

/* The one made ahead goes, too. */
void isolate_fini(struct agent *a);
/* As exec_start, for a run. */
int isolate_run(struct session *s, const struct exec_req *r, exec_started_fn fn, void *arg,
	enum agent_step *step, struct err *e);
/* To a run's processes, not to the session's shell. SIGINT makes the shell leave the run. 0 or -ESRCH. */
int isolate_signal(struct proc *p, int sig);
/* The time of a run is over. */
void isolate_timeout(struct proc *p);
/* All of a run's output was taken. */
void isolate_drained(struct proc *p);
/* p goes away. */
void isolate_lost(struct proc *p);

bool isolate_is_dead(const struct iso *i);
bool isolate_runs(const struct iso *i);
uint64_t isolate_idle_left_ms(const struct iso *i);
void isolate_exit(const struct iso *i, uint32_t *state, uint32_t *code);
/* Descriptors of its mount namespace and of its root, the caller's; -ESRCH: it is dead. */
int isolate_view_fds(const struct iso *i, int *ns, int *root);
/* Was there ever an isolated session? */
bool isolate_was_any(const struct agent *a);
/* Is or was this the cgroup of a session? True for 0, a cgroup that nobody knows, and while a session has none: that could be any. */
bool isolate_has_cgroup(const struct agent *a, uint64_t cgroup);
/* Where the overlay at dest ("" = the first) keeps its changes, and what is below it. -ENOENT: there is no such overlay. */
/* id: what the directory below is known by. */
int isolate_overlay(const struct iso *i, const char *dest, char upper[700],
	char lower[AGENT_PATH_MAX], char id[64]);
