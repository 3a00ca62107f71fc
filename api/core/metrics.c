/* SPDX-License-Identifier: Apache-2.0
 *
 * metrics.c: see metrics.h. mayflyd's loop.
 */
#include "api/core/metrics.h"

const char *const phase_names[PH_COUNT] = {[PH_IMAGE] = "image",
	[PH_TURN] = "turn",
	[PH_DISK] = "disk",
	[PH_BLANK] = "blank",
	[PH_BOOT] = "boot",
	[PH_RESTORE] = "restore",
	[PH_AGENT] = "agent",
	[PH_SETUP] = "setup",
	[PH_CREATE] = "create",
	[PH_PAUSE] = "pause",
	[PH_RESUME] = "resume",
	[PH_SNAPSHOT] = "snapshot"};

void hist_add(struct hist *h, uint64_t ns)
{
	int i = 0;

	while (i < HIST_BUCKETS && ns > HIST_BUCKET0_NS << i)
		i++;
	h->bucket[i]++;
	h->count++;
	h->sum_ns += ns;
}
