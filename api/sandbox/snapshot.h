/* SPDX-License-Identifier: Apache-2.0
 *
 * snapshot.h: snapshots of the protocol (1.10): disk and memory of a running sandbox, kept by id, and sandboxes made from them. mayflyd's
 * loop.
 */
#pragma once

#include "api/checkpoint/checkpoint.h"
#include "api/sandbox/sandbox.h"

extern const struct checkpoint_kind snapshot_kind;

/* Those that the last daemon was taking are Failed. */
void snapshots_go_on(struct daemon *d);
/* For a create with snapshotId: puts disk, memory, image configuration into sb. Others: 0 and
 * nothing. -EINVAL: x. */
int snapshot_source(struct sandbox *sb, struct refusal *x);

/* What a point's sandboxes need to know of its source (class, digest, configuration, env,
 * entrypoint, image), and how they get it. */
struct cJSON *snapshot_base(const struct sandbox *sb);
void snapshot_disk_into(struct sandbox *sb, const struct disk *disk, const struct cJSON *base);
void snapshot_memory_into(struct sandbox *sb, const struct memory *mem, const struct cJSON *base);
