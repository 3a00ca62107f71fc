/* SPDX-License-Identifier: Apache-2.0
 *
 * usage.h: how much a claim with a byte limit holds. Worker threads of mayfly-fs.
 *
 * Other sandboxes may write the same claim, so only the tree itself shows how much it holds. The tree is measured before the first write, after each
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

/* Takes so many bytes of a volume's limit: 0, -ENOSPC, or why the volume could not be measured. */
int usage_take(struct usages *u, struct nodes *n, const struct volume *v, uint64_t bytes);
/* What is left of the limit. Measures again if the last measurement is older than a second. */
uint64_t usage_left(struct usages *u, struct nodes *n, const struct volume *v);
/* A request of the guest may have freed room. */
void usage_freed(struct usages *u);
