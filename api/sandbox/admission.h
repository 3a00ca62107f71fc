/* SPDX-License-Identifier: Apache-2.0
 *
 * admission.h: is there room for one more sandbox? mayflyd's loop. A full host refuses creates, so it does not thrash.
 */
#pragma once

#include "api/sandbox/sandbox.h"

/* Does it hold memory and CPU? A sandbox that is paused to disk or has ended does not. */
bool admission_counts(const struct sandbox *sb);
/* Is the memory of all sandboxes that count within the limit, with copies of live snapshots and files in RAM? */
bool admission_has_memory(const struct daemon *d);
/* Most of the limit is promised: a sandbox that becomes idle should be paused to disk at once, not in memory first. */
bool admission_is_tight(const struct daemon *d);
/* sb is in the table already. 0; -EINVAL: x is a 429 that says which limit is reached. */
int admission_check(struct sandbox *sb, struct refusal *x);
/* The same for the resume of a sandbox that is paused to disk. Its disk is there already, so the free space of the host's disk is not checked. */
int admission_check_resume(const struct sandbox *sb, struct refusal *x);
