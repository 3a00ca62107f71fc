/* SPDX-License-Identifier: Apache-2.0
 *
 * route_pool.h: pools as the protocol has them (1.15), and what a create with extensions.poolRef asks for. mayflyd's loop.
 */
#pragma once

#include "api/fleet/pool.h"
#include "api/http/http.h"

/* The parser for pools_create(). */
int pool_spec_read(
	struct spec *s, const struct cJSON *request, const struct config *c, struct refusal *x);
/* 0 and *pool NULL: r names no pool. 0 and a pool: *text is the create request merged with the pool's, to be freed. -EINVAL: x says why. */
int pool_of_create(struct http_req *r, struct pool **pool, char **text, struct refusal *x);
