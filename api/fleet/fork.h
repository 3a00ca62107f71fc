/* SPDX-License-Identifier: Apache-2.0
 *
 * fork.h: N sandboxes from one moment of another: of a running sandbox (POST /sandboxes/{id}/fork) or of a snapshot. mayflyd's loop.
 *
 * The difference of a running sandbox is written once, to files in RAM that are sealed before anybody receives them. The children are
 * restored from the source's memory files and that difference, so they share its pages. The source's disk layer is frozen once.
 */
#pragma once

#include "api/http/http.h"
#include "api/sandbox/sandbox.h"

struct checkpoint;

#define FORK_COUNT_MAX 100u

/* Checked. The caller keeps env and metadata. */
struct fork_request {
	unsigned int count; /* 1 to FORK_COUNT_MAX */
	bool pause_source;  /* of a running sandbox: it is paused when the point is taken */
	bool has_timeout;   /* else they expire when a running source does; of a snapshot: never */
	uint64_t timeout_s;
	const struct cJSON *env;      /* replaces variables of the source's; NULL: none */
	const struct cJSON *metadata; /* NULL: none */
};

/* Both answer r, sooner or later: 202 with an item for each child, which is a sandbox or an error. If nothing was started they answer 409,
 * 429, 500 or 503: then there is no child. */
void fork_sandbox(struct http_req *r, struct sandbox *source, const struct fork_request *q);
void fork_checkpoint(struct http_req *r, const struct checkpoint *c, const struct fork_request *q);
