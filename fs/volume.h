/* SPDX-License-Identifier: Apache-2.0
 *
 * volume.h: the volumes of one sandbox, as mayfly-fs is given them: an open folder or file each, and its rules. Fixed when the
 * process starts.
 */
#pragma once

#include "lib/err.h"
#include "lib/proto_fs.h"

#include <sys/stat.h>

/* a bit of statx(), which headers before glibc 2.33 do not name */
#define VOLUME_MNT_ID 0x1000u

struct volume {
	unsigned int number; /* its index in volumes.v */
	int root_fd;         /* O_PATH, or open for more */
	bool read_only;
	/* Owners: a claim keeps the guest's user and group ids as they are (mayfly-fs has a range of ids of its own). On a host
	 * path every file belongs to the user of this process, whatever the guest asks for, and the guest sees it as its root's. */
	bool keep_ids;
	/* how much of the disk everything below root_fd may take; 0: no limit */
	uint64_t max_bytes;
	uint64_t root_ino, mnt_id;
	int64_t root_btime_ns;
	bool is_folder;
};

struct volumes {
	struct volume v[FS_VOLUMES_MAX];
	unsigned int n;
};

/* Adds a volume at the end. Takes root_fd. */
int volumes_add(struct volumes *v, int root_fd, bool read_only, bool keep_ids, struct err *e);
void volumes_close(struct volumes *v);
