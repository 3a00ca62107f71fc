/* SPDX-License-Identifier: Apache-2.0
 *
 * index.h: all sandboxes by id, and how many of them use what. mayflyd's loop.
 */
#pragma once

#include "lib/base.h"

struct daemon;
struct sandbox;

/* What sandboxes use together. Kept up to date at every change, so that a create does not look at all of them. */
struct sandbox_load {
	uint64_t mem_mib, vcpus; /* of those for which admission_counts() is true */
	size_t live;             /* sandboxes that count against limits.max_sandboxes */
};

struct sandbox_index *index_create(void); /* NULL: no memory */
void index_add(struct sandbox_index *x, struct sandbox *sb);
void index_remove(struct sandbox_index *x, struct sandbox *sb);
struct sandbox *index_find(const struct sandbox_index *x, const char *id);
/* The phase, operation or size of the sandbox has changed. */
void index_count(struct sandbox_index *x, struct sandbox *sb);
const struct sandbox_load *index_load(const struct sandbox_index *x);
