/* SPDX-License-Identifier: Apache-2.0
 *
 * metrics.c: see metrics.h. mayflyd's loop.
 */
#include "api/core/metrics.h"

#include <string.h>

const char *const phase_names[PH_COUNT] = {[PH_IMAGE] = "image",
	[PH_TURN] = "turn",
	[PH_DISK] = "disk",
	[PH_BLANK] = "blank",
	[PH_BOOT] = "boot",
	[PH_RESTORE] = "restore",
	[PH_AGENT] = "agent",
	[PH_SETUP] = "setup",
	[PH_COMMIT] = "commit",
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

void metrics_turn(void *metrics, uint64_t ns)
{
	struct metrics *m = metrics;

	hist_add(&m->loop, ns);
}

/* The place of a name, or a free one; NULL: the table is full. */
static struct handler_time *handler_find(struct metrics *m, const char *name)
{
	uint32_t h = 2166136261u;

	for (const char *p = name; *p; p++)
		h = (h ^ (uint8_t)*p) * 16777619u;
	for (uint32_t i = 0; i < HANDLERS_MAX; i++) {
		struct handler_time *t = &m->handlers[(h + i) % HANDLERS_MAX];

		if (!t->name || t->name == name || !strcmp(t->name, name))
			return t;
	}
	return NULL;
}

void metrics_handler(void *metrics, const char *name, uint64_t ns)
{
	struct handler_time *t = handler_find(metrics, name);

	if (!t)
		return;
	t->name = name;
	t->count++;
	t->sum_ns += ns;
	t->max_ns = MAX(t->max_ns, ns);
}
