/* SPDX-License-Identifier: Apache-2.0
 *
 * disk_guard.h: one sandbox must not take the disk away from the others. mayflyd's loop.
 *
 * Each sandbox has a limit of bytes, kept by the file system where that has project quotas, and by its monitor when the operator sets one.
 * A limit that the operator changes holds for running sandboxes within seconds.
 * When the disk is nearly full all the same, the sandbox that writes most is paused in memory.
 */
#pragma once

#include "api/sandbox/sandbox.h"

/* Starts the watch over the disk of state_dir. false: no memory. */
bool disk_guard_start(struct daemon *d);
void disk_guard_stop(struct daemon *d);
/* The files of a private layer, before a monitor gets them. The answer is not waited for: the helper serves in order, and starts no guest. */
void disk_guard_layer(struct sandbox *sb, int data_fd, int bitmap_fd);
/* The monitor has been asked to boot or restore: it gets its limit. */
void disk_guard_monitor(struct sandbox *sb);
