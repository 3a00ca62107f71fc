/* SPDX-License-Identifier: Apache-2.0
 *
 * pool.h: pools (protocol 1.15): machines of one image and size that were restored ahead of their creates. Each waits before its set-up: it has no
 * identity, and nothing of a user's has run in it. A create with extensions.poolRef takes one and gives it its identity, environment
 * and entrypoint. mayflyd's loop.
 */
#pragma once

#include "api/core/create_request.h"
#include "api/core/daemon.h"

struct cJSON;
struct pool;
struct pools;
struct sandbox;

struct pool_capacity {
	uint64_t buffer_min, buffer_max; /* machines that wait */
	uint64_t pool_min, pool_max; /* machines that wait and sandboxes that were made of such */
	/* Not 0: as many wait as were asked for in so many seconds, from buffer_min to buffer_max. */
	uint64_t adapt_s;
};

/* Checks a create request that a pool keeps. From the room above, which has the parser. */
typedef int (*pool_spec_fn)(
	struct spec *s, const struct cJSON *request, const struct config *c, struct refusal *x);

/* NULL: no memory. Lives as long as the daemon. */
struct pools *pools_create(struct daemon *d, pool_spec_fn parse);
/* Reads their records. They are filled from then on. */
void pools_load(struct daemon *d);

struct pool *pool_find(const struct daemon *d, const char *name);
struct pool *pool_next(const struct daemon *d, const struct pool *p); /* p NULL: the first */
/* Called once for each change, now or later. x NULL: the record is written; p is the pool, NULL after a deletion. */
typedef void (*pool_change_fn)(void *arg, const struct pool *p, const struct refusal *x);
/* Takes request, the members of a create that every sandbox of the pool begins with. */
void pool_create(struct daemon *d, const char *name, const struct pool_capacity *cap,
	struct cJSON *request, pool_change_fn done, void *arg);
void pool_resize(struct daemon *d, const char *name, const struct pool_capacity *cap,
	pool_change_fn done, void *arg);
/* Machines that wait end; sandboxes go on. */
void pool_delete(struct daemon *d, const char *name, pool_change_fn done, void *arg);
/* {bufferMin, bufferMax, poolMin, poolMax}, and maybe adaptiveSeconds: 0 or -EINVAL. */
int pool_capacity_read(const struct cJSON *o, struct pool_capacity *c);
struct cJSON *pool_json(const struct pool *p);
const char *pool_name(const struct pool *p);
const struct cJSON *pool_request(const struct pool *p);
/* A machine that waits or is being made: in no list, with the pool's spec, and nobody's. The caller makes it a client's and calls launch_release(). NULL: none waits;
 * x->status is 0 if the pool may have one more, which is then created like any other. */
struct sandbox *pool_take(struct pool *p, struct refusal *x);
