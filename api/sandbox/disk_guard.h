/* SPDX-License-Identifier: Apache-2.0
 *
 * disk_guard.h: one sandbox must not take the disk away from the others. mayflyd's loop.
 *
 * Each sandbox has a limit of bytes, kept by the file system where that has project quotas, and by its monitor when the operator sets one.
 * The file system counts all layers of the sandbox, the monitor only the private one. A changed limit reaches running sandboxes within seconds.
 * When the disk is nearly full all the same, the sandbox that writes most is paused in memory.
 */
#pragma once

#include "api/sandbox/sandbox.h"

/* Starts the watch over the disk of state_dir. false: no memory. */
bool disk_guard_start(struct daemon *d);
void disk_guard_stop(struct daemon *d);
/* Puts the files of a private layer under the sandbox's quota, before a monitor gets them. Does not wait for the helper's answer. */
void disk_guard_layer(struct sandbox *sb, int data_fd, int bitmap_fd);
/* Sends the monitor its limit, after the request to boot or restore. */
void disk_guard_monitor(struct sandbox *sb);
