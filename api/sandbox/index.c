/* SPDX-License-Identifier: Apache-2.0
 *
 * index.c: see index.h. A table of chains that doubles. The hash has a random seed, because a peer may choose ids.
 * mayflyd's loop.
 */
#include "api/sandbox/index.h"

#include <string.h>

#include "api/sandbox/admission.h"
#include "api/sandbox/sandbox.h"

#define BUCKETS_MIN 256u

struct sandbox_index {
	struct sandbox **bucket;
	size_t nbuckets, n;
	uint64_t seed;
	struct sandbox_load load;
};

static size_t index_slot(const struct sandbox_index *x, const char *id)
{
	uint64_t h = x->seed;

	for (; *id; id++)
		h = (h ^ (uint8_t)*id) * 0x100000001b3ull;
	return (h ^ h >> 29) & (x->nbuckets - 1);
}

struct sandbox_index *index_create(void)
{
	struct sandbox_index *x = calloc(1, sizeof(*x));

	if (!x)
		return NULL;
	x->nbuckets = BUCKETS_MIN;
	x->bucket = calloc(x->nbuckets, sizeof(*x->bucket));
	random_bytes(&x->seed, sizeof(x->seed));
	if (!x->bucket) {
		free(x);
		return NULL;
	}
	return x;
}

static void index_put(struct sandbox_index *x, struct sandbox *sb)
{
	struct sandbox **at = &x->bucket[index_slot(x, sb->id)];

	sb->index_next = *at;
	*at = sb;
}

/* Without memory for more buckets the chains become longer, which is slower and still right. */
static void index_grow(struct sandbox_index *x)
{
	struct sandbox **old = x->bucket;
	size_t n = x->nbuckets;
	struct sandbox **more = calloc(n * 2, sizeof(struct sandbox *));

	if (!more)
		return;
	x->bucket = more;
	x->nbuckets = n * 2;
	for (size_t i = 0; i < n; i++)
		while (old[i]) {
			struct sandbox *sb = old[i];

			old[i] = sb->index_next;
			index_put(x, sb);
		}
	free(old);
}

void index_add(struct sandbox_index *x, struct sandbox *sb)
{
	if (x->n >= x->nbuckets)
		index_grow(x);
	index_put(x, sb);
	x->n++;
	index_count(x, sb);
}

void index_remove(struct sandbox_index *x, struct sandbox *sb)
{
	struct sandbox **at = &x->bucket[index_slot(x, sb->id)];

	while (*at && *at != sb)
		at = &(*at)->index_next;
	if (!*at)
		return;
	*at = sb->index_next;
	x->n--;
	index_count(x, sb);
}

struct sandbox *index_find(const struct sandbox_index *x, const char *id)
{
	struct sandbox *sb = x->bucket[index_slot(x, id)];

	while (sb && strcmp(sb->id, id) != 0)
		sb = sb->index_next;
	return sb;
}

void index_count(struct sandbox_index *x, struct sandbox *sb)
{
	struct sandbox_load *l = &x->load, *had = &sb->counted;
	bool ended = sb->phase == PHASE_FAILED || sb->phase == PHASE_TERMINATED,
	     counts = admission_counts(sb);

	l->mem_mib -= had->mem_mib;
	l->vcpus -= had->vcpus;
	l->live -= had->live;
	*had = (struct sandbox_load){.mem_mib = counts ? sb->cls.mem_mib : 0,
		.vcpus = counts ? sb->cls.vcpus : 0,
		.live = !ended && !sandbox_gone(sb)};
	l->mem_mib += had->mem_mib;
	l->vcpus += had->vcpus;
	l->live += had->live;
}

const struct sandbox_load *index_load(const struct sandbox_index *x)
{
	return &x->load;
}
