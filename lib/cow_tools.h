/* SPDX-License-Identifier: Apache-2.0
 *
 * cow_tools.h: what is done to layered disks while nothing runs on them: measure, flatten, check
 * and repair, rebuild an index. The command line, and the daemon for checks. Every file may be
 * damaged: these functions exist for such files.
 */
#pragma once

#include "lib/cow.h"

struct cow_usage {
	uint64_t base_bytes, frozen_bytes[COW_MAX_FROZEN], index_bytes, data_bytes,
		bitmap_bytes;                /* really used on the host */
	uint64_t private_bytes;              /* data, bitmap */
	uint64_t units_data, units_zero;     /* of the private layer */
	uint64_t live_units[COW_MAX_FROZEN]; /* of each frozen layer: units that a reader sees */
};
int cow_measure(const struct cow_fds *fds, struct cow_usage *u, struct err *e);

/* Writes what the disk shows to the empty file out_fd, sparse, and makes it durable. progress may
 * be NULL. */
int cow_flatten(struct cow *c, int out_fd, void (*progress)(void *arg, uint64_t done, uint64_t all),
	void *arg, struct err *e);

/* Looks at one layer, calls say for each thing that is wrong; with `repair` mends what can be
 * mended without guessing: a lost header from the other file's, units in an impossible state (they
 * show what is below again), bits beyond the end, a wrong file length. Returns the number of
 * problems that are left, or -errno. */
int cow_layer_check(int data_fd, int bitmap_fd, bool repair,
	void (*say)(void *arg, const char *text), void *arg, struct err *e);

/* Writes the merged index of n frozen layers (oldest first) from their bitmaps into the empty file:
 * for one that is lost or damaged, or was never finished because the host died between freeze and
 * finish. Durable. */
int cow_index_build(
	int index_fd, unsigned int n, const int *data_fds, const int *bitmap_fds, struct err *e);
