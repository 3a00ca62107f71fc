/* SPDX-License-Identifier: Apache-2.0
 *
 * cow_flush.c: what makes a disk's writes durable, in the only right order, and the freeze.
 * mayfly-vmm (device thread), tools. Reads nothing hostile but the index, whose values are bounded
 * by cow_open.
 *
 * Data is durable before the bitmap says so. First cow_flush_begin copies the bitmap pages that
 * changed: a mark made during the flush must not reach the file with them. Then the data file is
 * synced, the copies are written, and the bitmap is synced. A bitmap page that is torn by the power
 * cut is right in each of its bits, because all data that any of them may speak of is durable. A
 * freeze that is not durable yet goes first, in the same way; its bitmap cannot change any more and
 * needs no copy.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "lib/cow_priv.h"

static bool page_next(struct cow *c, const struct cow_map *m, uint8_t flag)
{
	while (c->at_page < m->npages && !(m->pg[c->at_page] & flag))
		c->at_page++;
	return c->at_page < m->npages;
}

static void pending_done(struct cow *c)
{
	close_fd(&c->old.bitmap_fd);
	cow_map_fini(&c->old.map);
	c->old.on = c->old.settled = false;
}

static bool step_map(struct cow *c, const struct cow_map *m, const uint8_t *from, uint8_t flag,
	int fd, struct cow_step *s)
{
	if (!page_next(c, m, flag))
		return false;
	*s = (struct cow_step){COW_STEP_WRITE, fd, from + c->at_page * 4096, 4096,
		COW_HDR_BYTES + c->at_page * 4096};
	return true;
}

/* The operation of the phase that we are in, or false if it has none (left). */
static bool phase_step(struct cow *c, struct cow_step *s)
{
	switch (c->phase) {
	case COW_P_OLD_DATA:
		*s = (struct cow_step){.op = COW_STEP_SYNC, .fd = c->old.data_fd};
		return c->old.on;
	case COW_P_OLD_MAP:
		return c->old.on && step_map(c, &c->old.map, c->old.map.state, COW_PG_DIRTY,
					    c->old.bitmap_fd, s);
	case COW_P_OLD_MAP_SYNC:
		*s = (struct cow_step){.op = COW_STEP_SYNC, .fd = c->old.bitmap_fd};
		return c->old.on;
	case COW_P_INDEX_SYNC:
	case COW_P_INDEX_HDR_SYNC:
		*s = (struct cow_step){.op = COW_STEP_SYNC, .fd = c->old.index_fd};
		return c->old.on;
	case COW_P_INDEX_HDR:
		*s = (struct cow_step){
			COW_STEP_WRITE, c->old.index_fd, &c->old.hdr, sizeof(c->old.hdr), 0};
		return c->old.on;
	case COW_P_DATA:
		*s = (struct cow_step){.op = COW_STEP_SYNC, .fd = c->fds.data};
		return c->data_dirty;
	case COW_P_MAP:
		return step_map(c, &c->map, c->map.shadow, COW_PG_FLUSHING, c->fds.bitmap, s);
	case COW_P_MAP_SYNC:
		*s = (struct cow_step){.op = COW_STEP_SYNC, .fd = c->fds.bitmap};
		return c->map_unsynced;
	case COW_P_IDLE:
	case COW_P_END:
		break;
	}
	return false;
}

static void phase_leave(struct cow *c)
{
	c->at_page = 0;
	if (c->phase == COW_P_INDEX_HDR_SYNC && c->old.on)
		pending_done(c);
	c->phase++;
	if (c->phase == COW_P_DATA && c->finish_only)
		c->phase = COW_P_END;
}

static void flush_begin(struct cow *c, bool finish_only)
{
	ASSERT(c->phase == COW_P_IDLE);
	c->flush_res = c->failed ? c->failed : cow_is_read_only(c) ? -EROFS : 0;
	c->phase = c->flush_res ? COW_P_END : COW_P_OLD_DATA;
	c->finish_only = finish_only;
	c->at_page = 0;
	if (c->flush_res || finish_only)
		return;
	for (uint64_t p = 0; p < c->map.npages; p++) {
		if (!(c->map.pg[p] & COW_PG_DIRTY))
			continue;
		memcpy(c->map.shadow + p * 4096, c->map.state + p * 4096, 4096);
		c->map.pg[p] = (uint8_t)((c->map.pg[p] & ~COW_PG_DIRTY) | COW_PG_FLUSHING);
	}
}

void cow_flush_begin(struct cow *c)
{
	flush_begin(c, false);
}

void cow_flush_next(struct cow *c, struct cow_step *step)
{
	while (c->phase != COW_P_END && !phase_step(c, step))
		phase_leave(c);
	if (c->phase == COW_P_END) {
		*step = (struct cow_step){.op = COW_STEP_END, .fd = -1};
		return;
	}
	/* The flags change before the operation is issued: a sync does not cover a write that
	 * completes while it runs. */
	if (c->phase == COW_P_DATA)
		c->data_dirty = false;
	if (c->phase == COW_P_MAP_SYNC)
		c->map_unsynced = false;
	if (c->phase == COW_P_MAP)
		c->map_unsynced = true;
}

void cow_flush_did(struct cow *c, int res)
{
	if (c->phase == COW_P_END || c->phase == COW_P_IDLE)
		return;
	if (res < 0) {
		/* A failed write is repeated by the next flush. After a failed sync the kernel
		 * marks the pages clean and their data is lost, so the error is remembered for
		 * ever. */
		if (c->phase != COW_P_MAP && c->phase != COW_P_OLD_MAP &&
			c->phase != COW_P_INDEX_HDR)
			c->failed = res;
		if (c->phase == COW_P_MAP_SYNC)
			c->map_unsynced = true;
		c->flush_res = res;
		c->phase = COW_P_END;
	} else if (c->old.settled) {
		pending_done(c);
		c->at_page = 0;
		c->phase = COW_P_DATA;
	} else if (c->phase == COW_P_OLD_MAP || c->phase == COW_P_MAP) {
		c->at_page++;
	} else {
		phase_leave(c);
	}
}

bool cow_has_failed(const struct cow *c)
{
	return c->failed != 0;
}

void cow_fail(struct cow *c, int res)
{
	if (!c->failed)
		c->failed = res;
}

int cow_flush_end(struct cow *c)
{
	ASSERT(c->phase == COW_P_END);
	for (uint64_t p = 0; p < c->map.npages; p++) {
		if (!(c->map.pg[p] & COW_PG_FLUSHING))
			continue;
		c->map.pg[p] &= (uint8_t)~COW_PG_FLUSHING;
		if (c->flush_res < 0)
			c->map.pg[p] |= COW_PG_DIRTY;
	}
	c->phase = COW_P_IDLE;
	if (c->old.settled)
		pending_done(c);
	return c->flush_res;
}

static int flush_run(struct cow *c, bool finish_only)
{
	struct cow_step s;

	flush_begin(c, finish_only);
	for (;;) {
		cow_flush_next(c, &s);
		if (s.op == COW_STEP_END)
			return cow_flush_end(c);
		cow_flush_did(c, s.op == COW_STEP_SYNC
					 ? c->io.sync(c->io.ctx, s.fd)
					 : c->io.write(c->io.ctx, s.fd, s.p, s.len, s.off));
	}
}

int cow_flush(struct cow *c, struct err *e)
{
	int r = flush_run(c, false);

	return r < 0 ? err_set(e, -r, "flush a disk") : 0;
}

int cow_freeze_finish(struct cow *c, struct err *e)
{
	int r = c->old.on ? flush_run(c, true) : 0;

	return r < 0 ? err_set(e, -r, "make a frozen layer durable") : 0;
}

bool cow_freeze_is_pending(const struct cow *c)
{
	return c->old.on;
}

void cow_freeze_settled(struct cow *c)
{
	if (!c->old.on)
		return;
	/* a flush in one of the freeze's phases waits for an operation on these files */
	if (c->phase == COW_P_IDLE || c->phase >= COW_P_DATA)
		pending_done(c);
	else
		c->old.settled = true;
}

/* ---- freeze */

/* The frozen layer with the fewest units that a reader still sees. */
static unsigned int victim_find(const struct cow *c)
{
	uint64_t live[256] = {0};
	unsigned int best = 0;

	for (uint64_t u = 0; u < cow_units(c->bytes); u++)
		live[c->index[u]] += cow_state_get(c->map.state, u) == COW_ABSENT;
	for (unsigned int i = 1; i < c->fds.nfrozen; i++)
		if (live[i + 1] < live[best + 1])
			best = i;
	return best;
}

/* Does the unit that a reader sees come from this frozen layer? */
static bool is_live(const struct cow *c, uint64_t unit, unsigned int layer)
{
	return c->index[unit] == layer + 1 && cow_state_get(c->map.state, unit) == COW_ABSENT;
}

static int unit_carry(struct cow *c, uint64_t unit)
{
	uint8_t bytes[COW_UNIT];
	int r = cow_read_unit(c, unit, bytes);

	if (r == 0)
		r = c->io.write(c->io.ctx, c->fds.data, bytes, COW_UNIT, unit * COW_UNIT);
	if (r == 0)
		cow_mark_written(c, unit * COW_UNIT, COW_UNIT);
	return r;
}

/* Copies the units of a frozen layer that a reader still sees into the private one. No reader sees
 * a difference, so a failure half way harms nothing. */
static int victim_carry(struct cow *c, unsigned int victim, struct err *e)
{
	for (uint64_t u = 0; u < cow_units(c->bytes); u++) {
		int r = is_live(c, u, victim) ? unit_carry(c, u) : 0;

		if (r < 0)
			return err_set(e, -r, "carry frozen layer %u along", victim);
	}
	return 0;
}

#define CARRY_LOOKS 65536u /* units looked at in one call: a fraction of a millisecond */

int cow_carry(struct cow *c, unsigned int units, bool (*busy)(void *ctx, uint64_t unit), void *ctx,
	struct err *e)
{
	uint64_t end, all = cow_units(c->bytes);

	if (cow_is_read_only(c) || c->fds.nfrozen < COW_MAX_FROZEN)
		return 0;
	if (!c->carry.on) {
		c->carry.on = true;
		c->carry.victim = victim_find(c);
		c->carry.at = 0;
	}
	end = MIN(all, c->carry.at + CARRY_LOOKS);
	for (; units && c->carry.at < end; c->carry.at++) {
		int r;

		if (!is_live(c, c->carry.at, c->carry.victim) || busy(ctx, c->carry.at))
			continue;
		r = unit_carry(c, c->carry.at);
		if (r < 0) {
			c->carry.on = false;
			return err_set(e, -r, "carry frozen layer %u along", c->carry.victim);
		}
		units--;
	}
	c->carry.on = c->carry.at < all;
	return c->carry.on;
}

/* Makes 4096 units of the new index: the frozen layers of now plus the private one. True if any
 * byte is not 0. */
static bool merge_page(
	const struct cow *c, uint64_t page, unsigned int drop, uint8_t newest, uint8_t *out)
{
	const uint8_t *state = c->map.state + page * 1024;
	const uint8_t *below = c->index ? c->index + page * 4096 : NULL;
	bool any = false;

	memset(out, 0, 4096);
	for (unsigned int i = 0; i < 4096; i++) {
		uint8_t v = below ? below[i] : 0;
		enum cow_state s = cow_state_get(state, i);

		if (i % 8 == 0 && !state[i / 4] && !state[i / 4 + 1] &&
			(!below || cow_zero8(below + i))) {
			i += 7;
			continue;
		}
		if (v != COW_IX_ZERO && v > drop)
			v--;
		out[i] = s == COW_DATA ? newest : s == COW_ZERO ? COW_IX_ZERO : v;
		any |= out[i] != 0;
	}
	return any;
}

static int index_write(struct cow *c, int fd, unsigned int drop, uint8_t newest, struct err *e)
{
	uint8_t page[4096];

	if (ftruncate(fd, (off_t)(COW_HDR_BYTES + cow_index_bytes(c->bytes))) < 0)
		return err_set(e, errno, "new index: set its length");
	for (uint64_t p = 0; p < cow_index_bytes(c->bytes) / 4096; p++) {
		int r;

		if (!c->index && !(c->map.pg[p * 4096 / COW_UNITS_PER_BITMAP_PAGE] & COW_PG_USED))
			continue;
		if (!merge_page(c, p, drop, newest, page))
			continue;
		r = c->io.write(c->io.ctx, fd, page, sizeof(page), COW_HDR_BYTES + p * 4096);
		if (r < 0)
			return err_set(e, -r, "new index: write it");
	}
	return 0;
}

/* All files are written: switches the disk to them. Cannot fail. */
static void freeze_commit(struct cow *c, int drop, const struct cow_fds *nw, struct cow_map *map,
	const uint8_t *new_id)
{
	unsigned int n = c->fds.nfrozen;

	if (drop >= 0) {
		close_fd(&c->fds.frozen[drop]);
		memmove(&c->fds.frozen[drop], &c->fds.frozen[drop + 1],
			(n - 1 - (unsigned int)drop) * sizeof(int));
		memmove(c->id[drop], c->id[drop + 1], (n - (unsigned int)drop) * COW_ID_BYTES);
		n--;
	}
	c->fds.frozen[n++] = c->fds.data;
	c->fds.nfrozen = n;
	memcpy(c->id[n], new_id, COW_ID_BYTES);
	close_fd(&c->fds.index);
	c->old = (struct cow_pending){.on = true,
		.data_fd = c->fds.data,
		.bitmap_fd = c->fds.bitmap,
		.index_fd = nw->index,
		.map = c->map};
	cow_index_hdr_fill(&c->old.hdr, c->bytes, n, c->id);
	c->fds.index = nw->index;
	c->fds.data = nw->data;
	c->fds.bitmap = nw->bitmap;
	c->map = *map;
	c->units_data = 0;
	c->data_dirty = c->map_unsynced = true;
	c->carry.on = false;
}

int cow_freeze(struct cow *c, int index_fd, int new_data_fd, int new_bitmap_fd, int *dropped,
	struct err *e)
{
	struct cow_fds nw = {.index = index_fd, .data = new_data_fd, .bitmap = new_bitmap_fd};
	uint8_t new_id[COW_ID_BYTES];
	struct cow_map map = {0};
	size_t ixlen = 0;
	void *ix = NULL;
	uint64_t len;
	int drop = -1, r;

	ASSERT(c->phase == COW_P_IDLE);
	if (cow_is_read_only(c))
		return err_plain(e, EROFS, "freeze: the disk is read-only");
	if (c->failed)
		return err_set(e, -c->failed, "freeze: an earlier write to the disk was lost");
	if ((r = cow_freeze_finish(c, e)) < 0 ||
		(r = cow_file_bytes(index_fd, "new index", &len, e)) < 0)
		return r;
	if (len != 0)
		return err_plain(e, EEXIST, "new index: length: not empty");
	if ((r = cow_layer_create(new_data_fd, new_bitmap_fd, c->bytes, e)) < 0 ||
		(r = cow_data_read_hdr(new_data_fd, "new layer's data file", c->bytes, new_id, e)) <
			0)
		return r;
	if (c->fds.nfrozen == COW_MAX_FROZEN) {
		drop = (int)victim_find(c);
		if ((r = victim_carry(c, (unsigned int)drop, e)) < 0)
			return r;
	}
	/* a value above `drop + 1` moves down by one; `drop + 1` itself is hidden by the private
	 * layer everywhere */
	r = index_write(c, index_fd, drop < 0 ? COW_IX_ZERO : (unsigned int)drop,
		(uint8_t)(c->fds.nfrozen + (drop < 0)), e);
	if (r < 0 || (r = cow_index_map(index_fd, c->bytes, &ix, &ixlen, e)) < 0)
		return r;
	if ((r = cow_map_init(&map, c->bytes)) < 0) {
		munmap(ix, ixlen);
		return err_set(e, -r, "memory for a bitmap");
	}
	freeze_commit(c, drop, &nw, &map, new_id);
	if (c->index_map)
		munmap(c->index_map, c->index_map_bytes);
	c->index_map = ix;
	c->index_map_bytes = ixlen;
	c->index = (const uint8_t *)ix + COW_HDR_BYTES;
	*dropped = drop;
	return 0;
}

/* ---- write access is given up */

static int same_read_only(int mine, int given, const char *what, struct err *e)
{
	struct stat a, b;
	int fl = fcntl(given, F_GETFL);

	if (fl < 0 || fstat(mine, &a) < 0 || fstat(given, &b) < 0)
		return err_set(e, errno, "%s: read-only descriptor", what);
	if ((fl & O_ACCMODE) != O_RDONLY)
		return err_plain(e, EINVAL, "%s: the descriptor can write", what);
	if (a.st_dev != b.st_dev || a.st_ino != b.st_ino)
		return err_plain(e, EINVAL, "%s: the descriptor is of another file", what);
	return 0;
}

/* dup3 and not close, because a queued operation may name the descriptor's number. Cannot fail for
 * two open descriptors. */
static void replace(int *mine, int given)
{
	ASSERT(dup3(given, *mine, O_CLOEXEC) == *mine);
	close(given);
}

int cow_frozen_read_only(struct cow *c, const int *frozen, unsigned int n, int index, struct err *e)
{
	void *ix = NULL;
	size_t ixlen = 0;
	int r;

	if (c->old.on)
		return err_plain(e, EBUSY, "the last freeze is not durable yet");
	if (n != c->fds.nfrozen)
		return err_plain(e, EINVAL, "layers: %u given, the disk has %u", n, c->fds.nfrozen);
	if (n == 0)
		return 0;
	for (unsigned int i = 0; i < n; i++)
		if ((r = same_read_only(c->fds.frozen[i], frozen[i], "layer", e)) < 0)
			return r;
	/* The index is mapped again, because the old mapping keeps the writable open file. */
	if ((r = same_read_only(c->fds.index, index, "index", e)) < 0 ||
		(r = cow_index_map(index, c->bytes, &ix, &ixlen, e)) < 0)
		return r;
	munmap(c->index_map, c->index_map_bytes);
	c->index_map = ix;
	c->index_map_bytes = ixlen;
	c->index = (const uint8_t *)ix + COW_HDR_BYTES;
	for (unsigned int i = 0; i < n; i++)
		replace(&c->fds.frozen[i], frozen[i]);
	replace(&c->fds.index, index);
	return 0;
}
