/* SPDX-License-Identifier: Apache-2.0
 *
 * cow.c: layered disks: open, look up, mark, and the synchronous calls. mayfly-vmm (device thread),
 * tools. Hostile: every file's content (headers by cow_format.c; bitmap and index bodies here), and
 * the offsets, which come from a guest.
 *
 * A unit that enters the private layer is always written whole, so stale bytes in the data file
 * (written, never flushed, then a crash) can never show: the bitmap does not mark the unit, and a
 * later write that marks it has overwritten all of them.
 */
#include "lib/cow.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include "lib/cow_priv.h"

static int real_write(void *ctx, int fd, const void *p, size_t n, uint64_t off)
{
	return pwrite_full(fd, p, n, off);
}

static int real_sync(void *ctx, int fd)
{
	return fdatasync(fd) < 0 ? -errno : 0;
}

static int real_punch(void *ctx, int fd, uint64_t off, uint64_t len)
{
	return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)off, (off_t)len) < 0
		       ? -errno
		       : 0;
}

static const struct cow_io real_io = {real_write, real_sync, real_punch, NULL};

/* ---- the state map */

int cow_map_init(struct cow_map *m, uint64_t disk_bytes)
{
	uint64_t n = cow_bitmap_bytes(disk_bytes), np = n / 4096,
		 total = n * 2 + ALIGN_UP(np, 4096ull);
	uint8_t *p = mmap(NULL, total, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		return -errno;
	*m = (struct cow_map){
		.state = p, .shadow = p + n, .pg = p + n * 2, .bytes = n, .npages = np};
	return 0;
}

void cow_map_fini(struct cow_map *m)
{
	if (m->state)
		munmap(m->state, m->bytes * 2 + ALIGN_UP(m->npages, 4096ull));
	*m = (struct cow_map){0};
}

void cow_state_set(struct cow *c, uint64_t unit, enum cow_state s)
{
	uint8_t *b = &c->map.state[unit / 4];
	uint8_t shift = (uint8_t)(unit % 4 * 2),
		v = (uint8_t)((*b & ~(3u << shift)) | (unsigned int)s << shift);

	if (v == *b)
		return;
	c->units_data += (s == COW_DATA);
	c->units_data -= ((*b >> shift & 3) == COW_DATA);
	*b = v;
	c->map.pg[unit / COW_UNITS_PER_BITMAP_PAGE] |= COW_PG_USED | COW_PG_DIRTY;
}

struct bitmap_load {
	struct cow *c;
	struct err *e;
};

/* one stretch of the bitmap file that is not a hole */
static int bitmap_load_part(void *arg, uint64_t off, uint64_t len)
{
	struct bitmap_load *l = arg;
	struct cow_map *m = &l->c->map;
	uint64_t at = ALIGN_DOWN(off - COW_HDR_BYTES, 4096ull),
		 end = ALIGN_UP(off - COW_HDR_BYTES + len, 4096ull);
	int r = pread_full(l->c->fds.bitmap, m->state + at, end - at, COW_HDR_BYTES + at);

	if (r < 0)
		return err_set(l->e, -r, "bitmap: read it at %llu", (unsigned long long)at);
	for (uint64_t i = at; i < end; i++) {
		uint8_t b = m->state[i];

		if (i % 8 == 0 && cow_zero8(m->state + i))
			i += 7;
		if (!b)
			continue;
		m->pg[i / 4096] |= COW_PG_USED;
		l->c->units_data += (unsigned int)__builtin_popcount(b & 0x55);
		if (b & b >> 1 & 0x55)
			return err_plain(l->e, EINVAL,
				"bitmap: unit %llu or one of the 3 after it: state 3 does not "
				"exist",
				(unsigned long long)i * 4);
		for (unsigned int k = 0; k < 4; k++) {
			unsigned long long unit = i * 4 + k;

			if (unit >= cow_units(l->c->bytes) && (b >> (k * 2) & 3))
				return err_plain(l->e, EINVAL,
					"bitmap: unit %llu is beyond the end of the disk", unit);
		}
	}
	return 0;
}

static int bitmap_load(struct cow *c, struct err *e)
{
	struct bitmap_load l = {c, e};
	int r = cow_map_init(&c->map, c->bytes);

	if (r < 0)
		return err_set(e, -r, "memory for the bitmap of a disk of %llu MiB",
			(unsigned long long)(c->bytes >> 20));
	return cow_each_data(
		c->fds.bitmap, COW_HDR_BYTES, COW_HDR_BYTES + c->map.bytes, bitmap_load_part, &l);
}

/* ---- open */

static int index_check_part(void *arg, uint64_t off, uint64_t len)
{
	struct bitmap_load *l = arg;
	const struct cow *c = l->c;
	uint64_t at = off - COW_HDR_BYTES, end = MIN(at + len, cow_index_bytes(c->bytes));

	for (uint64_t i = at; i < end; i++) {
		if (i % 8 == 0 && i + 8 <= end && cow_zero8(c->index + i)) {
			i += 7;
			continue;
		}
		if (c->index[i] > c->fds.nfrozen && c->index[i] != COW_IX_ZERO)
			return err_plain(l->e, EINVAL, "index: unit %llu: layer %u, there are %u",
				(unsigned long long)i, c->index[i], c->fds.nfrozen);
		if (c->index[i] && i >= cow_units(c->bytes))
			return err_plain(l->e, EINVAL,
				"index: unit %llu is beyond the end of the disk",
				(unsigned long long)i);
	}
	return 0;
}

int cow_index_map(int fd, uint64_t disk_bytes, void **map, size_t *len, struct err *e)
{
	size_t n = COW_HDR_BYTES + cow_index_bytes(disk_bytes);
	void *p = mmap(NULL, n, PROT_READ, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		return err_set(e, errno, "index: map it");
	*map = p;
	*len = n;
	return 0;
}

static int open_frozen(struct cow *c, struct err *e)
{
	uint8_t listed[COW_MAX_FROZEN][COW_ID_BYTES];
	struct bitmap_load l = {c, e};
	unsigned int n;
	uint64_t bytes;
	char what[32];
	int r = cow_index_read_hdr(c->fds.index, "index", &bytes, &n, listed, e);

	if (r < 0)
		return r;
	if (c->bytes && bytes != c->bytes)
		return err_plain(e, EINVAL, "index: size: %llu, the private layer has %llu",
			(unsigned long long)bytes, (unsigned long long)c->bytes);
	c->bytes = bytes;
	if (n != c->fds.nfrozen)
		return err_plain(
			e, EINVAL, "index: layers: %u, %u files were given", n, c->fds.nfrozen);
	for (unsigned int i = 0; i < n; i++) {
		snprintf(what, sizeof(what), "frozen layer %u", i);
		if ((r = cow_data_read_hdr(c->fds.frozen[i], what, bytes, c->id[i], e)) < 0)
			return r;
		if (memcmp(c->id[i], listed[i], COW_ID_BYTES) != 0)
			return err_plain(
				e, EINVAL, "%s: id: the index was made for another file", what);
	}
	if ((r = cow_index_map(c->fds.index, bytes, &c->index_map, &c->index_map_bytes, e)) < 0)
		return r;
	c->index = (const uint8_t *)c->index_map + COW_HDR_BYTES;
	/* check the whole index once, so that damage is found before the guest runs: it is small
	 * and never changes */
	return cow_each_data(c->fds.index, COW_HDR_BYTES, c->index_map_bytes, index_check_part, &l);
}

static int open_files(struct cow *c, struct err *e)
{
	uint8_t id[COW_ID_BYTES];
	int r = cow_file_bytes(c->fds.base, "base", &c->base_bytes, e);

	if (r < 0)
		return r;
	if (c->base_bytes == 0 || c->base_bytes % COW_SECTOR || c->base_bytes > COW_MAX_BYTES)
		return err_plain(e, EINVAL, "base: length: %llu is not a possible disk size",
			(unsigned long long)c->base_bytes);
	if (c->fds.data >= 0 && (r = cow_bitmap_read_hdr(c->fds.bitmap, "bitmap", &c->bytes,
					 c->id[c->fds.nfrozen], e)) < 0)
		return r;
	if (c->fds.nfrozen && (r = open_frozen(c, e)) < 0)
		return r;
	if (c->bytes && c->base_bytes > c->bytes)
		return err_plain(e, EINVAL, "base: length: %llu bytes, the layers above have %llu",
			(unsigned long long)c->base_bytes, (unsigned long long)c->bytes);
	if (!c->bytes)
		c->bytes = c->base_bytes;
	if (c->fds.data < 0)
		return 0;
	if ((r = cow_data_read_hdr(c->fds.data, "data file", c->bytes, id, e)) < 0)
		return r;
	if (memcmp(id, c->id[c->fds.nfrozen], COW_ID_BYTES) != 0)
		return err_plain(e, EINVAL, "data file: id: the bitmap belongs to another file");
	c->data_dirty = c->map_unsynced = true; /* the last writer may have died before its flush */
	return bitmap_load(c, e);
}

int cow_open_io(struct cow **out, const struct cow_fds *fds, const struct cow_io *io, struct err *e)
{
	_cleanup_(cow_closep) struct cow *c = calloc(1, sizeof(*c));
	int r;

	if (!c)
		return err_set(e, ENOMEM, "disk");
	c->io = io ? *io : real_io;
	c->fds = *fds;
	c->old.bitmap_fd = -1;
	if (fds->base < 0)
		r = err_plain(e, EINVAL, "base: not given");
	else if (fds->nfrozen > COW_MAX_FROZEN)
		r = err_plain(e, EINVAL, "layers: %u, at most %u", fds->nfrozen, COW_MAX_FROZEN);
	else if ((fds->nfrozen > 0) != (fds->index >= 0))
		r = err_plain(e, EINVAL, "index: %s",
			fds->nfrozen ? "not given" : "given without layers");
	else if ((fds->data >= 0) != (fds->bitmap >= 0))
		r = err_plain(e, EINVAL, "data file and bitmap: one without the other");
	else
		r = open_files(c, e);
	if (r < 0) {
		c->fds = COW_FDS_NONE; /* still the caller's */
		return r;
	}
	*out = take_ptr(c);
	return 0;
}

int cow_open(struct cow **out, const struct cow_fds *fds, struct err *e)
{
	return cow_open_io(out, fds, NULL, e);
}

void cow_close(struct cow *c)
{
	if (!c)
		return;
	close_fd(&c->fds.base);
	for (unsigned int i = 0; i < c->fds.nfrozen; i++)
		close_fd(&c->fds.frozen[i]);
	close_fd(&c->fds.index);
	close_fd(&c->fds.data);
	close_fd(&c->fds.bitmap);
	close_fd(&c->old.bitmap_fd);
	if (c->index_map)
		munmap(c->index_map, c->index_map_bytes);
	cow_map_fini(&c->map);
	cow_map_fini(&c->old.map);
	free(c);
}

void cow_closep(struct cow **c)
{
	cow_close(*c);
}

uint64_t cow_bytes(const struct cow *c)
{
	return c->bytes;
}

bool cow_is_read_only(const struct cow *c)
{
	return c->fds.data < 0;
}

/* ---- lookup */

int cow_data_file(const struct cow *c)
{
	return (int)c->fds.nfrozen + 1;
}

int cow_file(const struct cow *c, int file)
{
	if (file == 0)
		return c->fds.base;
	if (file > 0 && file <= (int)c->fds.nfrozen)
		return c->fds.frozen[file - 1];
	return file == cow_data_file(c) ? c->fds.data : -1;
}

/* The file that holds a unit, COW_ZEROS, or < COW_ZEROS for an index that lies. */
static int unit_file(const struct cow *c, uint64_t unit)
{
	if (c->map.state) {
		enum cow_state s = cow_state_get(c->map.state, unit);

		if (s == COW_DATA)
			return cow_data_file(c);
		if (s == COW_ZERO)
			return COW_ZEROS;
	}
	if (c->index) {
		/* read once: the file behind the mapping could change */
		uint8_t v = c->index[unit];

		if (v == COW_IX_ZERO)
			return COW_ZEROS;
		return v <= c->fds.nfrozen ? v : COW_ZEROS - 1;
	}
	return 0;
}

int cow_map(const struct cow *c, uint64_t off, uint64_t max, struct cow_run *run)
{
	uint64_t end, unit = off / COW_UNIT, at;
	int file;

	if (max == 0 || off >= c->bytes)
		return -EINVAL;
	end = off + MIN(max, c->bytes - off);
	file = unit_file(c, unit);
	if (file < COW_ZEROS)
		return -EIO;
	for (at = (unit + 1) * COW_UNIT; at < end && unit_file(c, at / COW_UNIT) == file;
		at += COW_UNIT)
		;
	at = MIN(at, end);
	if (file == 0 && off >= c->base_bytes)
		file = COW_ZEROS;
	else if (file == 0 && at > c->base_bytes)
		at = c->base_bytes;
	*run = (struct cow_run){.file = file, .off = off, .len = at - off};
	return 0;
}

/* ---- marks */

static bool unit_is_private(const struct cow *c, uint64_t unit)
{
	return cow_state_get(c->map.state, unit) == COW_DATA;
}

bool cow_write_plan(const struct cow *c, uint64_t off, uint64_t max, uint64_t *len)
{
	uint64_t end = off + max, at = off;

	/* stops before the first unit that would be copied up */
	while (at < end) {
		uint64_t unit = at / COW_UNIT, next = MIN((unit + 1) * COW_UNIT, end);

		if (next - at < COW_UNIT && !unit_is_private(c, unit)) {
			if (at > off)
				break;
			*len = next - at;
			return false;
		}
		at = next;
	}
	*len = at - off;
	return true;
}

void cow_limit(struct cow *c, uint64_t bytes)
{
	c->units_limit = bytes / COW_UNIT + (bytes % COW_UNIT != 0);
}

bool cow_has_room(const struct cow *c, uint64_t off, uint64_t len)
{
	uint64_t more = 0;

	if (!c->units_limit || !len)
		return true;
	for (uint64_t u = off / COW_UNIT; u <= (off + len - 1) / COW_UNIT; u++)
		more += !unit_is_private(c, u);
	return more == 0 || c->units_data + more <= c->units_limit;
}

void cow_mark_written(struct cow *c, uint64_t off, uint64_t len)
{
	c->data_dirty = true;
	for (uint64_t u = off / COW_UNIT; len && u <= (off + len - 1) / COW_UNIT; u++)
		cow_state_set(c, u, COW_DATA);
}

uint64_t cow_mark_zero(struct cow *c, uint64_t off, uint64_t len)
{
	uint64_t u = (off + COW_UNIT - 1) / COW_UNIT, end = (off + len) / COW_UNIT, n = 0;

	for (; u < end; u++) {
		n += unit_is_private(c, u) ? COW_UNIT : 0;
		cow_state_set(c, u, COW_ZERO);
	}
	return n;
}

/* ---- synchronous */

static int range_check(const struct cow *c, uint64_t n, uint64_t off)
{
	return off > c->bytes || n > c->bytes - off ? -EINVAL : 0;
}

int cow_read(struct cow *c, void *to, uint64_t n, uint64_t off)
{
	uint8_t *p = to;
	int r = range_check(c, n, off);

	while (n > 0 && r == 0) {
		struct cow_run run;

		if ((r = cow_map(c, off, n, &run)) < 0)
			break;
		if (run.file == COW_ZEROS)
			memset(p, 0, run.len);
		else
			r = pread_full(cow_file(c, run.file), p, run.len, run.off);
		p += run.len;
		off += run.len;
		n -= run.len;
	}
	return r == -EPIPE ? -EIO : r; /* a file that became shorter */
}

int cow_read_unit(const struct cow *c, uint64_t unit, void *to)
{
	return cow_read((struct cow *)(uintptr_t)c, to, COW_UNIT, unit * COW_UNIT);
}

/* Writes [off, off+n) of one unit that is not private: reads the unit and writes it whole. */
static int copy_up(struct cow *c, const void *from, uint64_t n, uint64_t off)
{
	uint8_t unit[COW_UNIT];
	uint64_t at = ALIGN_DOWN(off, (uint64_t)COW_UNIT);
	int r = cow_read_unit(c, at / COW_UNIT, unit);

	if (r < 0)
		return r;
	memcpy(unit + (off - at), from, n);
	return c->io.write(c->io.ctx, c->fds.data, unit, COW_UNIT, at);
}

int cow_write(struct cow *c, const void *from, uint64_t n, uint64_t off)
{
	const uint8_t *p = from;
	int r = range_check(c, n, off);

	if (r == 0 && cow_is_read_only(c))
		return -EROFS;
	if (r == 0 && !cow_has_room(c, off, n))
		return -EDQUOT;
	while (n > 0 && r == 0) {
		uint64_t len;

		if (cow_write_plan(c, off, n, &len))
			r = c->io.write(c->io.ctx, c->fds.data, p, len, off);
		else
			r = copy_up(c, p, len, off);
		if (r == 0)
			cow_mark_written(c, off, len);
		p += len;
		off += len;
		n -= len;
	}
	return r;
}

int cow_zero(struct cow *c, uint64_t off, uint64_t n)
{
	static const uint8_t zeros[COW_UNIT];
	uint64_t end = off + n, first = ALIGN_UP(off, (uint64_t)COW_UNIT),
		 last = ALIGN_DOWN(end, (uint64_t)COW_UNIT);
	int r = range_check(c, n, off);

	if (r < 0)
		return r;
	if (cow_is_read_only(c))
		return -EROFS;
	if (first > last) /* inside one unit */
		return cow_write(c, zeros, n, off);
	if ((r = cow_write(c, zeros, first - off, off)) < 0 ||
		(r = cow_write(c, zeros, end - last, last)) < 0)
		return r;
	if (cow_mark_zero(c, first, last - first)) {
		c->data_dirty = true;
		/* only gives space back: where the file system cannot, the units are zeros all the
		 * same */
		(void)c->io.punch(c->io.ctx, c->fds.data, first, last - first);
	}
	return 0;
}

unsigned int cow_descriptors(const struct cow *c, int *fds)
{
	const int one[] = {c->fds.base, c->fds.index, c->fds.data, c->fds.bitmap,
		c->old.on ? c->old.bitmap_fd : -1};
	unsigned int n = 0;

	for (size_t i = 0; i < ARRAY_LEN(one); i++)
		if (one[i] >= 0)
			fds[n++] = one[i];
	for (unsigned int i = 0; i < c->fds.nfrozen; i++)
		fds[n++] = c->fds.frozen[i];
	return n;
}

unsigned int cow_layer_ids(const struct cow *c, uint8_t (*ids)[COW_ID_BYTES])
{
	unsigned int n = c->fds.nfrozen + (c->fds.data >= 0);

	memcpy(ids, c->id, (size_t)n * COW_ID_BYTES);
	return n;
}

void cow_stats(const struct cow *c, struct cow_stats *s)
{
	*s = (struct cow_stats){
		.bytes = c->bytes, .nfrozen = c->fds.nfrozen, .failed = c->failed != 0};
	for (uint64_t p = 0; p < c->map.npages; p++) {
		if (!(c->map.pg[p] & COW_PG_USED))
			continue;
		for (uint64_t i = p * 4096; i < (p + 1) * 4096; i++) {
			uint8_t b = c->map.state[i];

			s->units_data += (unsigned int)__builtin_popcount(b & 0x55);
			s->units_zero += (unsigned int)__builtin_popcount(b & 0xaa);
		}
	}
}
