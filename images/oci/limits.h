/* SPDX-License-Identifier: Apache-2.0
 *
 * limits.h: what an image may cost. Every limit has a default that real images stay far below, and
 * can be set per job.
 */
#pragma once

#include "lib/base.h"

#define IMAGE_MAX_LAYERS   512u   /* container engines stop at 127 */
#define IMAGE_MAX_MANIFEST MIB(4) /* what the distribution protocol lets registries refuse */
#define IMAGE_MAX_CONFIG   MIB(8)
#define IMAGE_PATH_MAX     4096u        /* as in the guest, with the terminating NUL */
#define IMAGE_NAME_MAX     255u         /* ext4's longest name */
#define IMAGE_XATTR_MAX    (64u * 1024) /* per entry, as read; ext4 takes less */

struct image_limits {
	uint64_t max_bytes;     /* file data of all layers together, deleted ones included */
	uint64_t max_entries;   /* tar entries of all layers together */
	uint64_t max_tar_bytes; /* decompressed size of one layer */
	uint32_t max_ratio; /* decompressed to compressed, once ratio_from bytes are decompressed */
	uint64_t ratio_from;
	uint64_t room_bytes; /* virtual size beyond the content: what a sandbox can write at most */
	uint32_t stall_s;    /* a request fails after so long with less than 1 KiB a second */
};

#define IMAGE_LIMITS_DEFAULT                                                                       \
	{                                                                                          \
		.max_bytes = GIB(64), .max_entries = 2000000, .max_tar_bytes = GIB(64),            \
		.max_ratio = 400, .ratio_from = GIB(1), .room_bytes = GIB(8), .stall_s = 30,       \
	}
