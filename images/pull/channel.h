/* SPDX-License-Identifier: Apache-2.0
 *
 * channel.h: an image job's socket (lib/proto_image.h): what the job sends to whoever started it, and asks for.
 */
#pragma once

#include "images/oci/digest.h"
#include "images/oci/limits.h"
#include "lib/buf.h"
#include "lib/proto_image.h"

struct job {
	int sock, stage;
	uint64_t said_ns; /* when progress was last sent */
};
/* Sends one message; a peer that has gone ends the job. */
int job_send(struct job *j, enum job_type type, struct buf *payload);
struct job_hdr;
/* One message: its head in h, all of it in p, *len bytes of payload. 0 or -errno. */
int job_recv(struct job *j, struct job_hdr *h, uint8_t *p, size_t cap, size_t *len, int *fds,
	size_t *nfds);
/* Asks for a blob: 0 with *fd (-1: the store does not have it). */
int job_need(struct job *j, const struct digest *d, uint64_t size, int *fd, struct err *e);
/* For pulls. 1: the store has the blob, and the job gets no descriptor of it. 0: it does not; *part is -1, or what an
 * earlier pull left of the blob. */
int job_have(struct job *j, const struct digest *d, uint64_t size, int *part, struct err *e);
/* Sends progress, at most once in 100 ms. */
int job_progress(struct job *j, enum job_phase phase, uint64_t done, uint64_t total);
void job_put_limits(struct buf *b, const struct image_limits *l);
