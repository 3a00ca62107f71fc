/* SPDX-License-Identifier: Apache-2.0
 *
 * ext4.h: a finished tree, whose file data already lies on the disk file, becomes an ext4 file system around that data.
 */
#pragma once

#include "images/build/blocks.h"
#include "images/oci/image_config.h"

/* Tables go before this block: room for 524,288 inodes; what does not fit goes behind the data. It
 * costs virtual size only. */
#define EXT4_DATA_FIRST 49152u

/* Writes everything but file data, sets fd's length, syncs. `id` decides the UUID and the hash seed: equal input, equal disk.
 * Changes the tree: inode numbers, extents of directories. */
int ext4_write(struct tree *t, struct blocks *b, int fd, uint64_t room_bytes,
	const struct digest *id, struct ext4_info *out, struct err *e);
