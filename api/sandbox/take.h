/* SPDX-License-Identifier: Apache-2.0
 *
 * take.h: takes a checkpoint of a running sandbox: the agent freezes the guest's processes, and the
 * monitor (VMM_SNAPSHOT) freezes the disk's layer and writes memory and state. For templates and snapshots the source goes on; for a pause its monitor ends.
 * mayflyd's loop. One at a time for each sandbox.
 */
#pragma once

#include "api/sandbox/sandbox.h"

struct cJSON;
struct snap;
struct snapshot;

/* Takes the image's template during a create, before anything of the user's ran. NULL: it cannot begin, and nothing happened. */
struct snap *snap_template(struct sandbox *sb);
/* Begins a snapshot. For operation.c: everybody else calls operation_ask_snapshot(). -EBUSY: it cannot begin; fn is not called. */
int take_snapshot(struct sandbox *sb, snap_fn fn, void *arg);
/* The same for a fork: memory and state go to files in RAM. The new disk layers are usable only together with them. Everybody else calls
 * operation_ask_fork(). */
int take_fork(struct sandbox *sb, snap_fn fn, void *arg);
/* A pause to disk; the client is the operation's. */
void take_pause(struct sandbox *sb);
/* The agent or the monitor did not answer within the deadline of the step. */
void take_late(struct sandbox *sb);
/* The client of a pause of either kind has waited pending_after_seconds: answers that the pause is in progress. */
void pause_is_long(struct sandbox *sb);
/* Starts the timer that calls pause_is_long(). */
void pause_in_time(struct sandbox *sb);

/* The monitor's event at the end of the writing. status: 0 or -errno. kept: bit i: the new checkpoint still refers to memory file i that
 * the VM was restored from. */
void snap_durable(struct sandbox *sb, int status, uint32_t kept, const char *text);
/* The VM has ended. true: as it should have. */
bool snap_vm_ended(struct sandbox *sb, uint32_t reason, const char *text);
/* The sandbox has ended, or is being deleted. A checkpoint that can be finished without it keeps the VM until then. */
void snap_sandbox_gone(struct sandbox *sb);

/* The part of s in the sandbox's record, NULL: none; and the same read back, at the daemon's start. */
struct cJSON *snap_record(const struct snap *s);
void snap_from_record(struct sandbox *sb, const struct cJSON *o);
/* Continues what an earlier daemon began, when the VM was adopted (sb->vm) or is gone. false: nothing was
 * in progress, or it failed: then the sandbox runs if its VM does. */
bool snap_take_up(struct sandbox *sb);
