/* SPDX-License-Identifier: Apache-2.0
 *
 * usage.h: how much a claim with a byte limit holds. Worker threads of mayfly-fs.
 *
 * Other sandboxes may write the same claim, so that only the tree itself can say it. The tree is measured before the first write, after each
 * eighth of the limit that this process wrote, and whenever the limit seems to be reached. Between two measurements this process adds what
 * it writes, and takes nothing off.
 */
#pragma once

#include "fs/nodes.h"

#include <pthread.h>
#include <stdatomic.h>

struct usage {
	uint64_t measured;    /* bytes at the last measurement */
	uint64_t since;       /* bytes that this process wrote since */
	uint64_t measured_ns; /* when; 0: never */
	uint64_t freed;       /* usages.freed at that time */
};

struct usages {
	pthread_mutex_t lock;
	struct usage of[FS_VOLUMES_MAX];
	_Atomic uint64_t freed; /* requests of this guest that may have freed room */
};

/* Room for so many bytes more in a volume with a limit: 0, -ENOSPC, or what went wrong with measuring. */
int usage_take(struct usages *u, struct nodes *n, const struct volume *v, uint64_t bytes);
/* What is left of the limit, as far as it is known without a measurement that is worth waiting for. */
uint64_t usage_left(struct usages *u, struct nodes *n, const struct volume *v);
/* A request of the guest may have freed room. */
void usage_freed(struct usages *u);
