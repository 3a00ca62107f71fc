/* SPDX-License-Identifier: Apache-2.0
 *
 * worker_run.h: the worker contract (POST /v1/mayfly/runs): one bounded, idempotent task. A run creates a sandbox, runs the task's command in it and
 * deletes it, by the same operations as a client's. mayflyd's loop.
 *
 * A run belongs to its principal and its run_id. While it runs, the same input waits for its answer. Once the task's command was started, the answer is
 * stored, and the same run_id gets it again. A daemon that dies during a run leaves no answer of it. The next daemon deletes the run's sandbox, which
 * is `internal`, and the same run_id then runs again.
 */
#pragma once

#include "api/fleet/pool.h"
#include "api/http/http.h"

struct runs;

/* NULL: no memory. Lives as long as the daemon. parse: checks a create request. */
struct runs *runs_create(struct daemon *d, pool_spec_fn parse);
/* Reads the stored answers. */
void runs_load(struct daemon *d);
/* Answers r, sooner or later: {run_id, status, result}, with HTTP status 200 whatever the run's status is; 429 if
 * a stored answer does not fit into its principal's budget. */
void runs_submit(struct http_req *r);
