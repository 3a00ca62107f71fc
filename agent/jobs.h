/* SPDX-License-Identifier: Apache-2.0
 *
 * jobs.h: work on the root's files, in threads of its own, so that a slow or hanging file system does not stall the loop. Other file requests
 * wait only if such jobs hold all threads of the pool. A job sees only what is in it; what it answers goes through the loop's thread to its
 * connection.
 */
#pragma once

#include "agent/agent.h"
#include "agent/frame.h"

struct job {
	struct agent *a;
	uint64_t conn; /* where the answer goes */
	uint32_t id;
	uint16_t type;
	uint32_t uid, gid;          /* AGENT_NO_ID: root's rights */
	void (*run)(struct job *j); /* in a thread; sets out or fails */
	/* in the loop, after the answer was sent; may be NULL */
	void (*done)(struct agent *a, struct job *j);
	void *arg;
	struct buf in;   /* the request's payload */
	struct cur body; /* in it */
	struct buf out;  /* the answer's payload */
	int code;        /* positive errno: AGENT_ERR */
	enum agent_step step;
	char text[300];
	struct envset *env; /* for expansion; read only */
	bool no_answer;     /* of job_own(): there is no request to answer */
	/* A mount namespace in which it works, and the root there; -1: the agent's. They need
	 * own_thread. root_fd is needed because setns() enters the namespace's root. If the agent
	 * runs in a chroot, the namespace's root is not the session's root. */
	int ns_fd, root_fd;
	bool own_thread; /* a thread of its own, not one of the pool's */
	int fd;          /* bulk: the connection's socket, the job's own */
	struct job *next;
};

int jobs_init(struct agent *a);
/* Waits for the threads that run. */
void jobs_fini(struct agent *a);
/* A job for this request, with its payload copied; NULL: it was answered with ENOMEM. */
struct job *job_create(struct agent *a, struct conn *c, uint32_t id, uint16_t type,
	const struct cur *body, void (*run)(struct job *j));
/* A job without a request. NULL: no memory. */
struct job *job_own(struct agent *a, void (*run)(struct job *j));
/* Queues it; it is freed when it is done. -EAGAIN: no thread can be started, the job is still
 * the caller's. */
int job_submit(struct job *j);
void job_free(struct job *j);
/* From the thread: an answer before the last (AGENT_FL_MORE). Empties j->out. */
void job_more(struct job *j);
/* From the thread: fails the job. */
void job_fail(struct job *j, int code, enum agent_step step, const char *fmt, ...) _printf_(4, 5);
size_t jobs_running(const struct agent *a);
