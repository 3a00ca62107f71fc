/* SPDX-License-Identifier: Apache-2.0
 *
 * pool.h: pools of the protocol: machines of one image and size that were restored ahead of their creates. Each waits before its set-up: it has no
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
	uint64_t pool_min, pool_max;     /* the same, and sandboxes that were made of them */
	/* Not 0: between buffer_min and buffer_max, as many machines wait as were asked for in the last adapt_s seconds. */
	uint64_t adapt_s;
};

/* Checks the create request of a pool. api/lifecycle, which has the parser, passes this function down. */
typedef int (*pool_spec_fn)(
	struct spec *s, const struct cJSON *request, const struct config *c, struct refusal *x);

/* NULL: no memory. Lives as long as the daemon. */
struct pools *pools_create(struct daemon *d, pool_spec_fn parse);
/* Reads the records of pools, and begins to fill the pools. */
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
/* Deletes the machines that wait. Sandboxes of clients are kept. */
void pool_delete(struct daemon *d, const char *name, pool_change_fn done, void *arg);
/* {bufferMin, bufferMax, poolMin, poolMax}, and maybe adaptiveSeconds: 0 or -EINVAL. */
int pool_capacity_read(const struct cJSON *o, struct pool_capacity *c);
struct cJSON *pool_json(const struct pool *p);
const char *pool_name(const struct pool *p);
const struct cJSON *pool_request(const struct pool *p);
/* Returns a machine that waits or is being made. It is internal, and has the pool's spec. The caller gives it to a client and calls
 * launch_release(). NULL: there is none. Then x->status is 0 if the pool may have one more, which the caller creates like any other. */
struct sandbox *pool_take(struct pool *p, struct refusal *x);
