/* SPDX-License-Identifier: Apache-2.0
 *
 * metrics.h: counters and histograms that GET /metrics shows. mayflyd's loop thread.
 */
#pragma once

#include "lib/base.h"

enum phase {
	PH_IMAGE,
	PH_TURN,
	PH_DISK,
	PH_BLANK,
	PH_BOOT,
	PH_RESTORE,
	PH_AGENT,
	PH_SETUP,
	PH_COMMIT,
	PH_CREATE,
	PH_PAUSE,
	PH_RESUME,
	PH_SNAPSHOT,
	PH_COUNT
};

#define HIST_BUCKETS    20
#define HIST_BUCKET0_NS 250000ull
struct hist {
	uint64_t bucket[HIST_BUCKETS + 1], count, sum_ns; /* powers of two from 0.25 ms */
};

#define HANDLERS_MAX 256u /* names of the loop's handlers; a power of two. There are about 90. */
struct handler_time {
	const char *name; /* NULL: free */
	uint64_t count, sum_ns, max_ns;
};

/* how a run of a worker ended (api/fleet/worker_run.h) */
enum run_status { RUN_OK, RUN_RETRYABLE, RUN_INVALID_REQUEST, RUN_INVALID_OUTPUT, RUN_STATUSES };

struct metrics {
	struct hist phase[PH_COUNT];
	uint64_t created, create_failed, restored, booted, deleted, expired, ended, refused_full,
		idle_pauses, idle_wakes, disk_pauses, given_back, http_by_class[6], sdk_events,
		sdk_failures, execs, execs_failed, runs[RUN_STATUSES];
	struct hist sdk_create, http;
	struct hist loop; /* turns of the event loop */
	struct handler_time handlers[HANDLERS_MAX];
};

struct daemon;
extern const char *const phase_names[PH_COUNT];
void hist_add(struct hist *h, uint64_t ns);
/* What the event loop tells its observer (lib/loop.h). */
void metrics_turn(void *metrics, uint64_t ns);
void metrics_handler(void *metrics, const char *name, uint64_t ns);
