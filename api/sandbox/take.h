/* SPDX-License-Identifier: Apache-2.0
 *
 * take.h: taking a point of a running sandbox: quiet agent, VMM_SNAPSHOT, disk layer frozen, memory
 * and state written. For templates and snapshots the source goes on; for a pause its process ends.
 * mayflyd's loop. One at a time for each sandbox.
 */
#pragma once

#include "api/sandbox/sandbox.h"

struct cJSON;
struct snap;
struct snapshot;

/* While it is launched, before anything of the user's ran. NULL: not now (nothing happened). */
struct snap *snap_template(struct sandbox *sb);
/* -EBUSY: it cannot begin; fn is not called. Ask with operation_ask_snapshot(). */
int take_snapshot(struct sandbox *sb, snap_fn fn, void *arg);
/* The same for a fork: memory and state go to files in RAM, and nothing but a restore can use them. Ask with operation_ask_fork(). */
int take_fork(struct sandbox *sb, snap_fn fn, void *arg);
/* A pause to disk; the client is the operation's. */
void take_pause(struct sandbox *sb);
/* The monitor did not copy the machine within the deadline of the step. */
void take_late(struct sandbox *sb);
/* The client of a pause of either kind has waited pending_after_seconds: it hears that the pause is under way. */
void pause_is_long(struct sandbox *sb);
/* From here on that is to be told in time. */
void pause_in_time(struct sandbox *sb);

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
