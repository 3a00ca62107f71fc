/* SPDX-License-Identifier: Apache-2.0
 *
 * admission.h: is there room for one more? mayflyd's loop. A host that is full says so; it does not thrash.
 */
#pragma once

#include "api/sandbox/sandbox.h"

/* Does it hold memory and CPU? What is paused or ended does not. */
bool admission_counts(const struct sandbox *sb);
/* Is what all of them could touch, copies of live snapshots included, within the limit? */
bool admission_has_memory(const struct daemon *d);
/* Most of the limit is promised: what is paused in memory should go to disk. */
bool admission_is_tight(const struct daemon *d);
/* sb is in the table already. 0, or -EINVAL and x (429 with what is used up). */
int admission_check(struct sandbox *sb, struct refusal *x);
/* The same for one that is paused on disk: what it held is counted again when it resumes. Its disk is there already. */
int admission_check_resume(const struct sandbox *sb, struct refusal *x);
