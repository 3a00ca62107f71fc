/* SPDX-License-Identifier: Apache-2.0
 *
 * working_set.h: records which pages the first restores of a checkpoint touch, so that later ones prefetch them.
 * mayflyd's loop.
 */
#pragma once

#include "api/checkpoint/checkpoint.h"
#include "api/sandbox/sandbox.h"

/* To be called when a restored sandbox runs. The pages that it touched are recorded soon, or at its end,
 * whichever is first. */
void workset_ran(struct sandbox *sb);
/* To be called before its VM is abandoned. It may keep the VM until the recording is done: then sb->vm is NULL. */
void workset_sandbox_goes(struct sandbox *sb);
