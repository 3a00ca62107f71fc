/* SPDX-License-Identifier: Apache-2.0
 *
 * working_set.h: what the first restores of a point touch, recorded and prefetched by the later ones; and points by id, whatever they belong to.
 * mayflyd's loop.
 */
#pragma once

#include "api/sandbox/sandbox.h"

struct workset {
	unsigned int rounds;    /* recorded so often */
	uint64_t read, written; /* pages, at the last one */
	bool recording;
};

/* A point and its owner: an automatic template, one of the user's, a snapshot. */
struct point_view {
	const char *kind;
	const struct disk *disk;
	struct memory *mem;
	struct workset *ws;
	const char *owned_by; /* whose it is: api/core/principal.h */
	void *owner;
	void (*save)(void *owner);
};
bool point_find(struct daemon *d, const char *id, struct point_view *v);
/* the owners' */
bool template_view(struct daemon *d, const char *id, struct point_view *v);
bool utemplate_view(struct daemon *d, const char *id, struct point_view *v);
bool snapshot_view(struct daemon *d, const char *id, struct point_view *v);

/* A restored sandbox runs: what it touches is looked at soon, or when it goes, whichever is first.
 */
void workset_ran(struct sandbox *sb);
/* Before its VM is let go of. */
void workset_sandbox_goes(struct sandbox *sb);

struct cJSON *workset_to_json(const struct workset *w);
void workset_from_json(struct workset *w, const struct cJSON *o);
