/* SPDX-License-Identifier: Apache-2.0
 *
 * snapshot.h: snapshots of the protocol (1.10): disk and memory of a running sandbox, kept by id, and sandboxes made from them. mayflyd's
 * loop.
 */
#pragma once

#include "api/sandbox/sandbox.h"

void snapshots_load(struct daemon *d);
void snapshots_destroy(struct daemon *d);
/* Does one stand on the image of that digest (hex)? True while one is being taken: of what is known
 * when it is done. */
bool snapshots_stand_on(const struct daemon *d, const char *image);
/* For a create with snapshotId: puts disk, memory, image configuration into sb. Others: 0 and
 * nothing. -EINVAL: x. */
int snapshot_source(struct sandbox *sb, struct refusal *x);

/* This file is damaged: nothing is started from those that stand on it. */
void snapshots_damaged(struct daemon *d, const char *blob, const char *text);

/* What a point's sandboxes need to know of its source (class, digest, configuration, env,
 * entrypoint, image), and how they get it. */
struct cJSON *snapshot_base(const struct sandbox *sb);
void snapshot_disk_into(struct sandbox *sb, const struct disk *disk, const struct cJSON *base);
void snapshot_memory_into(struct sandbox *sb, const struct memory *mem, const struct cJSON *base);
