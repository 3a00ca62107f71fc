/* SPDX-License-Identifier: Apache-2.0
 *
 * snapshot.h: snapshots of the protocol (1.10): disk and memory of a running sandbox, kept by id, and sandboxes made from them. mayflyd's
 * loop.
 */
#pragma once

#include "api/sandbox.h"

void snapshots_load(struct daemon *d);
void snapshots_destroy(struct daemon *d);
/* Does one stand on the image of that digest (hex)? True while one is being taken: of what is known when it is done. */
bool snapshots_stand_on(const struct daemon *d, const char *image);
/* For a create with snapshotId: puts disk, memory, image configuration into sb. Others: 0 and nothing. -EINVAL: x. */
int snapshot_source(struct sandbox *sb, struct refusal *x);
