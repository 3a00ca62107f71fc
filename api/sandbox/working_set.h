/* SPDX-License-Identifier: Apache-2.0
 *
 * working_set.h: what the first restores of a point touch, recorded and prefetched by the later ones.
 * mayflyd's loop.
 */
#pragma once

#include "api/checkpoint/checkpoint.h"
#include "api/sandbox/sandbox.h"

/* A restored sandbox runs: what it touches is looked at soon, or when it goes, whichever is first.
 */
void workset_ran(struct sandbox *sb);
/* Before its VM is let go of. */
void workset_sandbox_goes(struct sandbox *sb);
