/* SPDX-License-Identifier: Apache-2.0
 *
 * snapshot.h: snapshots of the protocol: disk and memory of a running sandbox, kept by id, and sandboxes made from them. mayflyd's
 * loop.
 */
#pragma once

#include "api/checkpoint/checkpoint.h"
#include "api/sandbox/sandbox.h"

extern const struct checkpoint_kind snapshot_kind;

struct snapshot {
	struct checkpoint c;
	char sandbox_id[37], name[128];
};

static inline struct snapshot *snapshot_of(struct checkpoint *c)
{
	return container_of(c, struct snapshot, c);
}

static inline const struct snapshot *snapshot_of_const(const struct checkpoint *c)
{
	return (const struct snapshot *)(const void *)c;
}

/* A new snapshot of a running sandbox. fn is called when its record is committed as Creating, or could not be. -ENOMEM, or -EDQUOT and the
 * account that is full: fn is not called. */
int snapshot_accept(struct sandbox *sb, const char *name, checkpoint_fn fn, struct http_req *r,
	struct account **full);
/* To be called when the record is committed: asks the sandbox for the snapshot operation. -errno: the sandbox does not run any more, or
 * another snapshot is being taken. */
int snapshot_take(struct checkpoint *c);
void snapshot_failed(struct checkpoint *c, const char *text);
/* One whose creation is not committed is shown to nobody. */
bool snapshot_is_visible(const struct checkpoint *c);

/* Snapshots that the last daemon was taking become Failed. */
void snapshots_go_on(struct daemon *d);
/* For a create with snapshotId: puts disk, memory and image configuration into sb. For other creates
 * it does nothing. 0; -EINVAL: x says why. */
int snapshot_source(struct sandbox *sb, struct refusal *x);

/* What sandboxes of a snapshot or template need to know of its source (class, digest, configuration,
 * env, entrypoint, image); and the functions that put it into them. */
struct cJSON *snapshot_base(const struct sandbox *sb);
void snapshot_disk_into(struct sandbox *sb, const struct disk *disk, const struct cJSON *base);
void snapshot_memory_into(struct sandbox *sb, const struct memory *mem, const struct cJSON *base);
