/* SPDX-License-Identifier: Apache-2.0
 *
 * memplan.h: what of memory goes into a new memory file, and where all of memory is found
 * afterwards. mayfly-vmm. Pure arithmetic on tables: unit-tested without a VM.
 *
 * Rules: pieces closer than 256 KiB are written as one; at most 256 extents, reached by wider gaps;
 * at most SNAP_MAX_FILES files, reached by carrying the file with the fewest live bytes along; a
 * file of which nothing lives is dropped; a file that must not stay is carried along.
 *
 * Place in the new file: an extent is large if it holds a whole aligned 2 MiB of guest memory. It
 * starts where guest address and file offset agree modulo 2 MiB. The kernel can then map 2 MiB with
 * one entry. Small extents fill the gaps before large ones; what stays is a hole.
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

/* w: what has to be written, ascending. base: what everything else stands on (nbase extents in
 * nfiles files; 0: nothing). drop: bit i: base file i must not stay, what lives of it is written. */
int memplan_make(struct memplan *p, const struct pm_list *w, const struct snap_extent *base,
	unsigned int nbase, unsigned int nfiles, uint32_t drop, struct err *e);
