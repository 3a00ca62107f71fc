/* SPDX-License-Identifier: Apache-2.0
 *
 * cow_priv.h: the inside of a struct cow, shared by cow.c (lookup, marks), cow_flush.c (flush,
 * freeze) and cow_tools.c.
 */
#pragma once

#include "lib/cow.h"
#include "lib/cow_format.h"

enum { COW_PG_USED = 1, COW_PG_DIRTY = 2, COW_PG_FLUSHING = 4 };

/* The private layer's states in memory: two bits a unit, as in the file. Both maps are address
 * space until they are touched. */
struct cow_map {
	uint8_t *state;  /* now */
	uint8_t *shadow; /* as it was at cow_flush_begin: what may be written once the data is
			    durable */
	uint8_t *pg;     /* COW_PG_* for each 4 KiB of state */
	uint64_t bytes;  /* of state; a multiple of 4096 */
	uint64_t npages;
};

/* The layer that was frozen last, until it is durable. */
struct cow_pending {
	bool on;
	bool settled; /* durable, but a flush has an operation on its files in flight */
	int data_fd, bitmap_fd,
		index_fd; /* data and index belong to fds.frozen / fds.index; bitmap_fd is ours */
	struct cow_map map;
	struct cow_index_hdr hdr;
};

enum cow_phase {
	COW_P_IDLE,
	COW_P_OLD_DATA, /* of the pending freeze */
	COW_P_OLD_MAP,
	COW_P_OLD_MAP_SYNC,
	COW_P_INDEX_SYNC,
	COW_P_INDEX_HDR,
	COW_P_INDEX_HDR_SYNC,
	COW_P_DATA, /* of the private layer */
	COW_P_MAP,
	COW_P_MAP_SYNC,
	COW_P_END,
};

struct cow {
	struct cow_io io;
	struct cow_fds fds;
	uint64_t bytes, base_bytes;
	uint8_t id[COW_MAX_FROZEN + 1]
		  [COW_ID_BYTES]; /* frozen ones, then the private one at [nfrozen] */
	const uint8_t *index;     /* mapped; NULL without frozen layers */
	void *index_map;
	size_t index_map_bytes;
	struct cow_map map;
	uint64_t units_data;  /* of the private layer */
	uint64_t units_limit; /* 0: none */
	bool data_dirty;      /* the data file was written since the last flush began */
	int failed;           /* -errno of a failed sync: for ever */
	struct cow_pending old;
	enum cow_phase phase;
	bool finish_only;  /* stop after the pending freeze */
	bool map_unsynced; /* the bitmap file was written (or made) since it was last durable */
	uint64_t at_page;
	int flush_res;
	struct {
		bool on;
		unsigned int victim;
		uint64_t at; /* the next unit to look at */
	} carry;
};

static inline enum cow_state cow_state_get(const uint8_t *state, uint64_t unit)
{
	return (enum cow_state)(state[unit / 4] >> (unit % 4 * 2) & 3);
}

int cow_map_init(struct cow_map *m, uint64_t disk_bytes);
void cow_map_fini(struct cow_map *m);
void cow_state_set(struct cow *c, uint64_t unit, enum cow_state s);
int cow_index_map(int fd, uint64_t disk_bytes, void **map, size_t *len, struct err *e);
/* one unit as this disk shows it */
int cow_read_unit(const struct cow *c, uint64_t unit, void *to);
