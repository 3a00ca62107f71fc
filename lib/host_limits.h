/* SPDX-License-Identifier: Apache-2.0
 *
 * host_limits.h: the limits of this host that bound how many sandboxes it can have: descriptors, mappings, processes, cgroups, epoll watches, ports. The
 * daemon names those that are too low when it starts, `mayfly doctor` shows all of them. Reads /proc and /sys only.
 */
#pragma once

#include "lib/base.h"

struct host_limit {
	const char *name; /* "threads" */
	const char *knob; /* what to raise: "sysctl kernel.threads-max" */
	uint64_t have;    /* UINT64_MAX: no limit */
	uint64_t want;    /* for so many sandboxes */
};

#define HOST_LIMITS 8u
/* Fills l with the limits that this host shows; returns how many. */
size_t host_limits_read(struct host_limit l[static HOST_LIMITS], uint64_t sandboxes);
