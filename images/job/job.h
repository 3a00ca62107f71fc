/* SPDX-License-Identifier: Apache-2.0
 *
 * job.h: the job's side of lib/proto_image.h: one request from the socket, one result to it.
 * Already jailed, or a plain child (--no-jail).
 */
#pragma once

#include "images/pull/import.h"

/* Serves one job on descriptors 3 and 4; the exit code of the process. */
int job_main(void);

/* ---- shared by the kinds of jobs ---- */
struct job {
	int sock, stage;
	uint64_t said_ns; /* when progress was last told */
};
/* Sends one message; a peer that has gone ends the job. */
int job_send(struct job *j, enum job_type type, struct buf *payload);
/* 0 with *fd (or -1: not there). */
int job_need(struct job *j, const struct digest *d, uint64_t size, int *fd, struct err *e);
/* For pulls. 1: the store has it already (and does not show it). 0: it does not; *part is -1, or
 * what an earlier pull left of it. */
int job_have(struct job *j, const struct digest *d, uint64_t size, int *part, struct err *e);
/* At most every 100 ms reaches the other side. */
int job_progress(struct job *j, enum job_phase phase, uint64_t done, uint64_t total);
void job_put_limits(struct buf *b, const struct image_limits *l);
