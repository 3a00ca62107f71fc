/* SPDX-License-Identifier: Apache-2.0
 *
 * resident_pause.h: the second kind of pause: processes frozen, vCPUs stopped, memory where it is. In
 * milliseconds and without writing anything, but it costs its memory, and ends with its monitor or
 * the host. mayflyd's loop.
 */
#pragma once

#include "api/sandbox/sandbox.h"

/* sb->answer waits. Like launch_pause and launch_resume. */
void resident_pause(struct sandbox *sb);
void resident_resume(struct sandbox *sb);
/* At the daemon's start, for an adopted one that was pausing, paused or resuming in this way. */
void resident_take_up(struct sandbox *sb);
