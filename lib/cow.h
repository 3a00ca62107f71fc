/* SPDX-License-Identifier: Apache-2.0
 *
 * cow.h: a disk made of a read-only raw base, up to COW_MAX_FROZEN frozen layers and one private
 * layer. mayfly-vmm (device thread), tools, the daemon. Files come as descriptors, never as paths;
 * every header is checked, whatever a file holds. Formats: lib/cow_format.h.
 *
 * A layer is a data file (sparse, each unit at its own offset) and a bitmap file (per unit: not
 * here, data here, zeros). A frozen layer never changes; one merged index per set of frozen layers
 * says which file holds a unit, and is mapped shared by all clones. What was flushed survives a
 * power cut; of what was not, each sector is old or new. One thread at a time. The calls that do no
 * I/O themselves (map, mark, flush_next) are for a device that does it asynchronously.
 */
#pragma once

#include "lib/base.h"
#include "lib/err.h"

#define COW_UNIT       4096u
#define COW_SECTOR     512u
#define COW_MAX_FROZEN 8u
#define COW_MAX_BYTES  (4ull << 40)
#define COW_ID_BYTES   16u

/* The files of a disk, in the order of proto_vmm.h. -1 = not there. A read-only disk may have only
 * `base`, or frozen layers too. */
struct cow_fds {
	int base; /* may be shorter than the disk: zeros follow */
	unsigned int nfrozen;
	int frozen[COW_MAX_FROZEN]; /* data files, oldest first */
	int index;                  /* if nfrozen > 0 */
	int data, bitmap;           /* private layer; -1 = read-only disk */
};
#define COW_FDS_NONE                                                                               \
	((struct cow_fds){.base = -1,                                                              \
		.frozen = {-1, -1, -1, -1, -1, -1, -1, -1},                                        \
		.index = -1,                                                                       \
		.data = -1,                                                                        \
		.bitmap = -1})

/* How bytes get to the files: real system calls if NULL is given to cow_open_io; the tests cut the
 * power here. 0 if everything was done, else -errno. */
struct cow_io {
	int (*write)(void *ctx, int fd, const void *p, size_t n, uint64_t off);
	int (*sync)(void *ctx, int fd);
	int (*punch)(void *ctx, int fd, uint64_t off, uint64_t len); /* reads zeros afterwards */
	void *ctx;
};

struct cow;

/* Makes an empty private layer in two empty files, in constant time; durable with the first flush.
 * bytes: a multiple of COW_UNIT. */
int cow_layer_create(int data_fd, int bitmap_fd, uint64_t bytes, struct err *e);

/* Checks all files against each other and against their sizes. Takes the descriptors on success; on
 * failure the caller still owns them, *out is untouched and e names the file and the field. */
int cow_open(struct cow **out, const struct cow_fds *fds, struct err *e);
int cow_open_io(
	struct cow **out, const struct cow_fds *fds, const struct cow_io *io, struct err *e);
/* Does not flush. NULL is fine. */
void cow_close(struct cow *c);
void cow_closep(struct cow **c);

uint64_t cow_bytes(const struct cow *c);
bool cow_is_read_only(const struct cow *c);

/* ---- lookup: for a device that reads by itself */

/* Where bytes come from. file: -1 = zeros, else an index for cow_file() (0 base, 1.. frozen,
 * cow_data_file() the private layer). */
struct cow_run {
	int file;
	uint64_t off; /* in that file; the same as on the disk */
	uint64_t len; /* > 0 */
};
#define COW_ZEROS (-1)
/* The run at `off`, at most max bytes of it. -EINVAL beyond the end or max 0; -EIO if the index
 * names a layer that is not there. */
int cow_map(const struct cow *c, uint64_t off, uint64_t max, struct cow_run *run);
int cow_file(const struct cow *c, int file); /* its descriptor; still ours */
int cow_data_file(const struct cow *c);      /* the private layer's index for cow_file */

/* ---- writing, for a device that writes by itself: to the data file at the disk's own offset, then
 * cow_mark_written or cow_mark_zero */

/* How the write [off, off+max) has to begin. true: *len bytes may go straight to the data file.
 * false: the unit that holds `off` is not in the private layer and is not covered whole: *len bytes
 * fall into it; the device reads the unit through cow_map, changes it in memory and writes the unit
 * whole. */
bool cow_write_plan(const struct cow *c, uint64_t off, uint64_t max, uint64_t *len);
/* At most so many bytes of data in the private layer; 0: no limit. The limit also holds for each private layer that a later freeze makes. What is there
 * already stays. */
void cow_limit(struct cow *c, uint64_t bytes);
/* Would the write [off, off+len) stay within the limit? Units that are private already cost nothing, and those of writes in flight are not
 * counted yet. cow_write() answers -EDQUOT. */
bool cow_has_room(const struct cow *c, uint64_t off, uint64_t len);
/* Marks what a finished write has put into the data file. A unit that was not private yet must have
 * been written whole. */
void cow_mark_written(struct cow *c, uint64_t off, uint64_t len);
/* Makes the whole units inside [off, off+len) read as zeros; returns how many bytes of them were in
 * the private layer and may be punched out of the data file now (the caller may skip that). Partial
 * units at the ends are not touched. */
uint64_t cow_mark_zero(struct cow *c, uint64_t off, uint64_t len);

/* ---- flush: the data is made durable, then the bitmap is written and made durable. One flush at a
 * time; what is marked after _begin waits for the next flush */

struct cow_step {
	enum { COW_STEP_END, COW_STEP_SYNC, COW_STEP_WRITE } op;
	int fd;
	const void *p; /* COW_STEP_WRITE; stays valid until cow_flush_did */
	uint32_t len;
	uint64_t off;
};
void cow_flush_begin(struct cow *c);
/* The next thing to do, one at a time; COW_STEP_END: all durable, or failed: cow_flush_end says
 * which. */
void cow_flush_next(struct cow *c, struct cow_step *step);
void cow_flush_did(struct cow *c, int res); /* 0 or -errno */
/* 0 or -errno. A failed sync is remembered for ever: the kernel may have dropped the pages,
 * so no later flush may succeed. */
int cow_flush_end(struct cow *c);
/* Has a sync failed, so that no later flush can succeed? */
bool cow_has_failed(const struct cow *c);
/* Records that a sync failed in a forked child: the kernel reports the error to only one of the
 * processes that share an open file. */
void cow_fail(struct cow *c, int res);

/* ---- the same, synchronous */

int cow_read(struct cow *c, void *to, uint64_t n, uint64_t off);
int cow_write(struct cow *c, const void *from, uint64_t n, uint64_t off);
int cow_zero(struct cow *c, uint64_t off, uint64_t n); /* exact, partial units included */
int cow_flush(struct cow *c, struct err *e);

/* ---- freeze */

/* The private layer becomes the newest frozen one, the two empty files the new private layer, and
 * the merged index is written to the empty index_fd. No I/O in flight, no flush running. It syncs
 * nothing: cow_freeze_finish (or the next flush) makes it durable. Only if the last freeze is not
 * durable yet (cow_freeze_is_pending), that one is made durable first. With COW_MAX_FROZEN layers
 * already there, the frozen layer with the fewest live units is carried into the layer being frozen
 * and drops out: *dropped is its position (oldest = 0), else -1; its descriptor is closed. Takes
 * the three descriptors on success; on failure the disk is as before, still usable, and the files
 * given are garbage. */
int cow_freeze(struct cow *c, int index_fd, int new_data_fd, int new_bitmap_fd, int *dropped,
	struct err *e);
/* Does that carrying in advance, a little at a time, while the disk is used: at most `units` units,
 * and none for which busy(ctx, unit) says that a write is in flight. 1: call again; 0: the next
 * cow_freeze has next to nothing to carry, or need not; -errno: the disk is as before. */
int cow_carry(struct cow *c, unsigned int units, bool (*busy)(void *ctx, uint64_t unit), void *ctx,
	struct err *e);
/* Makes the last freeze durable; also right in a forked child, on its copy. Nothing to do is fine.
 */
int cow_freeze_finish(struct cow *c, struct err *e);
/* Is the last freeze not durable yet? Then the next freeze would wait for a disk: flush before it. */
bool cow_freeze_is_pending(const struct cow *c);
/* A forked child made the last freeze durable. */
void cow_freeze_settled(struct cow *c);
/* Gives up write access to everything that is frozen. `frozen` (n of them, oldest first) and `index` are read-only descriptors of
 * the very files that this disk has; they are taken on success. The disk's own descriptors keep their numbers, because
 * operations in flight may name them. -EBUSY: the last freeze is not durable yet. */
int cow_frozen_read_only(
	struct cow *c, const int *frozen, unsigned int n, int index, struct err *e);
/* The ids of the layers, oldest first, the private one last (if there is one): [COW_MAX_FROZEN +
 * 1]. Returns how many. */
unsigned int cow_layer_ids(const struct cow *c, uint8_t (*ids)[COW_ID_BYTES]);

/* All descriptors it has open: at most COW_FDS_MAX. Returns how many. */
#define COW_FDS_MAX (COW_MAX_FROZEN + 5u)
unsigned int cow_descriptors(const struct cow *c, int *fds);

/* Numbers for statistics and tools. bytes: the size of the disk. */
struct cow_stats {
	uint64_t bytes, units_data, units_zero; /* units: of the private layer */
	unsigned int nfrozen;
	bool failed; /* a sync failed */
};
void cow_stats(const struct cow *c, struct cow_stats *s);
