/* SPDX-License-Identifier: Apache-2.0
 *
 * memplan.h: plans which pieces of guest memory go into a new memory file, and in which file each
 * piece is afterwards. mayfly-vmm. Pure arithmetic on tables: unit-tested without a VM.
 *
 * Rules:
 * - Pieces closer than 256 KiB are one extent. If there are more than 256 extents, pieces farther
 *   apart are joined, too.
 * - If there are more than SNAP_MAX_FILES files, the one with the fewest live bytes is carried
 *   along: its live bytes are written into the new file. So is a file that must not stay.
 * - A file without live bytes is dropped.
 *
 * Place in the new file: an extent is large if it holds a whole aligned 2 MiB of guest memory. It
 * starts where guest address and file offset agree modulo 2 MiB. The kernel can then map 2 MiB
 * with one entry. Small extents fill the gaps before large ones; what stays is a hole.
 */
#pragma once

#include "lib/snap.h"
#include "vmm/pagemap.h"

#define MEMPLAN_GAP KIB(256)

struct memplan {
	struct snap_extent
		ext[SNAP_MAX_EXTENTS]; /* file numbers already those of the new snapshot */
	unsigned int n;
	unsigned int nfiles, new_file; /* the new one is last */
	uint32_t kept;                 /* bit i: base file i stays */
	uint64_t bytes; /* of the new file's data, with the holes between its pieces */
	uint64_t pages; /* to write */
	unsigned int nnew;
	uint16_t order[SNAP_MAX_EXTENTS]; /* the new file's extents by their place in it */
};

/* w: what must be written, ascending. base: where all other memory is now (nbase extents in nfiles
 * files; 0: nowhere). drop: bit i: base file i must not stay. */
int memplan_make(struct memplan *p, const struct pm_list *w, const struct snap_extent *base,
	unsigned int nbase, unsigned int nfiles, uint32_t drop, struct err *e);
