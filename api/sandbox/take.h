/* SPDX-License-Identifier: Apache-2.0
 *
 * take.h: taking a point of a running sandbox: quiet agent, VMM_SNAPSHOT, disk layer frozen, memory
 * and state written. For templates and snapshots the source goes on; for a pause its process ends.
 * mayflyd's loop. One at a time for each sandbox.
 */
#pragma once

#include "api/sandbox/launch.h"

struct cJSON;
struct snap;
struct snapshot;

/* While it is launched, before anything of the user's ran. NULL: not now (nothing happened). */
struct snap *snap_template(struct sandbox *sb);
/* At once, or when the sandbox's own template is written. -EBUSY: another one is under way; fn is
 * not called. */
int snap_live(struct sandbox *sb, snap_fn fn, void *arg);
/* Whoever waits for this pause (sb->answer) hears in time that it is under way. */
void pause_in_time(struct sandbox *sb);
void snap_cancel(struct snap *s); /* the launch that waits for it is over; NULL is fine */

/* kept: bit i = memory file i that the VM was restored from is still stood on */
void snap_durable(struct sandbox *sb, int status, uint32_t kept, const char *text);
/* The VM has ended. true: as it should have. */
bool snap_vm_ended(struct sandbox *sb, uint32_t reason, const char *text);
/* The sandbox is cleared away: what can still be finished without it keeps the VM until it is. */
void snap_sandbox_gone(struct sandbox *sb);

/* What of it stands in the sandbox's record, NULL: nothing; and back, at the daemon's start. */
struct cJSON *snap_record(const struct snap *s);
void snap_from_record(struct sandbox *sb, const struct cJSON *o);
/* The VM was adopted (sb->vm), or is gone. false: nothing was under way, or it came to nothing and
 * the sandbox is what its VM is. */
bool snap_take_up(struct sandbox *sb);
