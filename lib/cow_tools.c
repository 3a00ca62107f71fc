/* SPDX-License-Identifier: Apache-2.0
 *
 * cow_tools.c: see cow_tools.h. The daemon and the command line, never the monitor. Hostile: all
 * files.
 */
#include "lib/cow_tools.h"

#include <endian.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/cow_priv.h"

#define CHUNK MIB(1)

/* ---- measure */

static int used_bytes(int fd, uint64_t *n)
{
	struct stat st;

	if (fd < 0)
		return 0;
	if (fstat(fd, &st) < 0)
		return -errno;
	*n = (uint64_t)st.st_blocks * 512;
	return 0;
}

int cow_measure(const struct cow_fds *fds, struct cow_usage *u, struct err *e)
{
	struct cow_fds mine = *fds;
	struct cow_stats st;
	struct cow *c;
	int r;

	*u = (struct cow_usage){0};
	if ((r = cow_open(&c, &mine, e)) < 0)
		return r;
	cow_stats(c, &st);
	u->units_data = st.units_data;
	u->units_zero = st.units_zero;
	for (uint64_t i = 0; c->index && i < cow_units(c->bytes); i++) {
		uint8_t v = c->index[i];

		if (v && v <= c->fds.nfrozen &&
			(!c->map.state || cow_state_get(c->map.state, i) == COW_ABSENT))
			u->live_units[v - 1]++;
	}
	c->fds = COW_FDS_NONE; /* the caller's */
	cow_close(c);
	r = used_bytes(fds->base, &u->base_bytes);
	for (unsigned int i = 0; i < fds->nfrozen && r == 0; i++)
		r = used_bytes(fds->frozen[i], &u->frozen_bytes[i]);
	if (r < 0 || (r = used_bytes(fds->index, &u->index_bytes)) < 0 ||
		(r = used_bytes(fds->data, &u->data_bytes)) < 0 ||
		(r = used_bytes(fds->bitmap, &u->bitmap_bytes)) < 0)
		return err_set(e, -r, "measure a disk");
	u->private_bytes = u->data_bytes + u->bitmap_bytes;
	return 0;
}

/* ---- flatten */

static bool is_zero(const uint8_t *p, size_t n)
{
	return n == 0 || (p[0] == 0 && memcmp(p, p + 1, n - 1) == 0);
}

/* Writes buf to [off, off+n), except its units of zeros. */
static int write_sparse(int fd, const uint8_t *buf, uint64_t off, uint64_t n)
{
	for (uint64_t at = 0; at < n;) {
		uint64_t len = 0;
		int r;

		while (at + len < n &&
			!is_zero(buf + at + len, MIN((uint64_t)COW_UNIT, n - at - len)))
			len += MIN((uint64_t)COW_UNIT, n - at - len);
		if (len && (r = pwrite_full(fd, buf + at, len, off + at)) < 0)
			return r;
		at += len ? len : MIN((uint64_t)COW_UNIT, n - at);
	}
	return 0;
}

struct flatten {
	struct cow *c;
	int out;
	uint8_t *buf;
};

static int flatten_part(void *arg, uint64_t off, uint64_t len)
{
	struct flatten *f = arg;

	while (len > 0) {
		uint64_t n = MIN(len, CHUNK);
		int r = cow_read(f->c, f->buf, n, off);

		if (r == 0)
			r = write_sparse(f->out, f->buf, off, n);
		if (r < 0)
			return r;
		off += n;
		len -= n;
	}
	return 0;
}

int cow_flatten(struct cow *c, int out_fd, void (*progress)(void *arg, uint64_t done, uint64_t all),
	void *arg, struct err *e)
{
	_cleanup_free_ uint8_t *buf = malloc(CHUNK);
	struct flatten f = {c, out_fd, buf};
	struct cow_run run;
	uint64_t len;
	int r = cow_file_bytes(out_fd, "flattened disk", &len, e);

	if (r < 0)
		return r;
	if (len != 0)
		return err_plain(e, EEXIST, "flattened disk: length: not empty");
	if (!buf)
		return err_set(e, ENOMEM, "flatten a disk");
	if (ftruncate(out_fd, (off_t)c->bytes) < 0)
		return err_set(e, errno, "flattened disk: set its length");
	for (uint64_t off = 0; off < c->bytes && r == 0; off += run.len) {
		if ((r = cow_map(c, off, MIB(64), &run)) < 0)
			break;
		if (run.file != COW_ZEROS) /* holes of the file below are not read */
			r = cow_each_data(
				cow_file(c, run.file), off, off + run.len, flatten_part, &f);
		if (progress)
			progress(arg, off + run.len, c->bytes);
	}
	if (r == 0 && fsync(out_fd) < 0)
		r = -errno;
	return r < 0 ? err_set(e, -r, "flatten a disk") : 0;
}

/* ---- check */

struct check {
	int data_fd, bitmap_fd;
	bool repair;
	void (*say)(void *arg, const char *text);
	void *arg;
	int left;
	uint64_t bytes;
	uint64_t bad_states, beyond;
};

/* Reports a problem. did: 0 it was mended; 1 it was not (it cannot be, or `repair` is false); -errno
 * mending failed. Counts it as left unless it was mended. */
static void problem(struct check *k, const char *text, int did)
{
	char line[600];

	snprintf(line, sizeof(line), "%s%s", text,
		did == 0  ? " (mended)"
		: did < 0 ? " (mending it failed)"
			  : "");
	k->say(k->arg, line);
	k->left += did != 0;
}

static int hdr_put(int fd, const char *magic, uint64_t off, uint64_t bytes, const uint8_t *id)
{
	struct cow_layer_hdr h;

	cow_layer_hdr_fill(&h, magic, bytes, id);
	return pwrite_full(fd, &h, sizeof(h), off);
}

static int check_states(void *arg, uint64_t off, uint64_t len)
{
	struct check *k = arg;
	uint64_t at = ALIGN_DOWN(off - COW_HDR_BYTES, 4096ull),
		 end = ALIGN_UP(off - COW_HDR_BYTES + len, 4096ull);
	uint8_t page[4096];

	for (; at < end; at += sizeof(page)) {
		bool changed = false;
		int r = pread_full(k->bitmap_fd, page, sizeof(page), COW_HDR_BYTES + at);

		if (r < 0)
			return r;
		for (uint64_t i = 0; i < sizeof(page) * 4; i++) {
			bool beyond = at * 4 + i >= cow_units(k->bytes);
			enum cow_state s = cow_state_get(page, i);

			if (i % 32 == 0 && cow_zero8(page + i / 4)) {
				i += 31;
				continue;
			}
			if (s == COW_ABSENT || (s != COW_STATE_BAD && !beyond))
				continue;
			k->beyond += beyond;
			k->bad_states += !beyond;
			page[i / 4] &= (uint8_t) ~(3u << (i % 4 * 2));
			changed = true;
		}
		if (changed && k->repair &&
			(r = pwrite_full(k->bitmap_fd, page, sizeof(page), COW_HDR_BYTES + at)) < 0)
			return r;
	}
	return 0;
}

static int fix_length(int fd, uint64_t want, bool repair)
{
	return !repair ? 1 : ftruncate(fd, (off_t)want) < 0 ? -errno : 0;
}

/* Checks both headers, and mends a lost one from the other. 0: k->bytes is known. */
static int check_headers(struct check *k)
{
	uint64_t data_len = 0, map_len = 0, bytes = 0;
	uint8_t did[COW_ID_BYTES], bid[COW_ID_BYTES];
	struct err de = {0}, be = {0}, e = {0};
	bool data_ok, map_ok;

	if (cow_file_bytes(k->data_fd, "data file", &data_len, &e) < 0 ||
		cow_file_bytes(k->bitmap_fd, "bitmap", &map_len, &e) < 0) {
		problem(k, e.msg, 1);
		return -EIO;
	}
	map_ok = cow_bitmap_read_hdr(k->bitmap_fd, "bitmap", &bytes, bid, &be) == 0;
	if (!map_ok && data_len > COW_HDR_BYTES)
		bytes = data_len - COW_HDR_BYTES; /* the only other place that says it */
	data_ok = bytes && cow_data_read_hdr(k->data_fd, "data file", bytes, did, &de) == 0;
	if (!map_ok && !data_ok) {
		problem(k, be.msg, 1);
		problem(k,
			"data file: neither its header nor the bitmap's is there: size and id are "
			"lost",
			1);
		return -EINVAL;
	}
	if (map_ok && data_ok && memcmp(did, bid, sizeof(did)) != 0) {
		problem(k, "id: data file and bitmap are not of one layer", 1);
		return -EINVAL;
	}
	k->bytes = bytes;
	if (!map_ok) {
		if (map_len != COW_HDR_BYTES + cow_bitmap_bytes(bytes))
			problem(k, "bitmap: length",
				fix_length(k->bitmap_fd, COW_HDR_BYTES + cow_bitmap_bytes(bytes),
					k->repair));
		problem(k, be.msg,
			k->repair ? hdr_put(k->bitmap_fd, COW_MAGIC_BITMAP, 0, bytes, did) : 1);
	}
	if (!data_ok) {
		if (data_len != cow_data_file_bytes(bytes))
			problem(k,
				data_len < bytes
					? "data file: length: its end is lost and reads as zeros"
					: "data file: length",
				fix_length(k->data_fd, cow_data_file_bytes(bytes), k->repair));
		problem(k, de.msg,
			k->repair ? hdr_put(k->data_fd, COW_MAGIC_DATA, bytes, bytes, bid) : 1);
	}
	return 0;
}

int cow_layer_check(int data_fd, int bitmap_fd, bool repair,
	void (*say)(void *arg, const char *text), void *arg, struct err *e)
{
	struct check k = {.data_fd = data_fd,
		.bitmap_fd = bitmap_fd,
		.repair = repair,
		.say = say,
		.arg = arg};
	char line[120];
	int r;

	if (check_headers(&k) < 0)
		return k.left;
	r = cow_each_data(bitmap_fd, COW_HDR_BYTES, COW_HDR_BYTES + cow_bitmap_bytes(k.bytes),
		check_states, &k);
	if (r == -EPIPE && !repair) /* shorter than it should be: reported already */
		r = 0;
	if (r < 0)
		return err_set(e, -r, "bitmap: check it");
	if (k.bad_states) {
		snprintf(line, sizeof(line), "bitmap: %llu units in state 3, which does not exist",
			(unsigned long long)k.bad_states);
		problem(&k, line, repair ? 0 : 1);
	}
	if (k.beyond) {
		snprintf(line, sizeof(line), "bitmap: %llu units beyond the end of the disk",
			(unsigned long long)k.beyond);
		problem(&k, line, repair ? 0 : 1);
	}
	if (repair && (fsync(data_fd) < 0 || fsync(bitmap_fd) < 0))
		return err_set(e, errno, "make the repair durable");
	return k.left;
}

/* ---- index */

struct index_build {
	int index_fd, bitmap_fd;
	uint8_t layer;
	uint64_t units;
};

static int index_part(void *arg, uint64_t off, uint64_t len)
{
	struct index_build *b = arg;
	uint64_t at = ALIGN_DOWN(off - COW_HDR_BYTES, 1024ull), end = off - COW_HDR_BYTES + len;
	uint8_t state[1024], page[4096];

	for (; at < end; at += sizeof(state)) {
		bool any = false;
		int r = pread_full(b->bitmap_fd, state, sizeof(state), COW_HDR_BYTES + at);

		if (r < 0 || (r = is_zero(state, sizeof(state)) ? 1 : 0))
			goto next;
		r = pread_full(b->index_fd, page, sizeof(page), COW_HDR_BYTES + at * 4);
		if (r < 0)
			return r;
		for (unsigned int i = 0; i < 4096; i++) {
			enum cow_state s = cow_state_get(state, i);

			if (i % 32 == 0 && cow_zero8(state + i / 4))
				i += 31;
			if (s == COW_ABSENT)
				continue;
			if (s == COW_STATE_BAD || at * 4 + i >= b->units)
				return -EINVAL;
			page[i] = s == COW_ZERO ? COW_IX_ZERO : b->layer;
			any = true;
		}
		r = any ? pwrite_full(b->index_fd, page, sizeof(page), COW_HDR_BYTES + at * 4) : 0;
	next:
		if (r < 0)
			return r;
	}
	return 0;
}

int cow_index_build(
	int index_fd, unsigned int n, const int *data_fds, const int *bitmap_fds, struct err *e)
{
	uint8_t ids[COW_MAX_FROZEN][COW_ID_BYTES], id[COW_ID_BYTES];
	uint64_t bytes = 0, b, len;
	struct cow_index_hdr h;
	char what[40];
	int r;

	if (n == 0 || n > COW_MAX_FROZEN)
		return err_plain(e, EINVAL, "layers: %u, must be 1 to %u", n, COW_MAX_FROZEN);
	if ((r = cow_file_bytes(index_fd, "new index", &len, e)) < 0)
		return r;
	if (len != 0)
		return err_plain(e, EEXIST, "new index: length: not empty");
	for (unsigned int i = 0; i < n; i++) {
		snprintf(what, sizeof(what), "bitmap of layer %u", i);
		if ((r = cow_bitmap_read_hdr(bitmap_fds[i], what, &b, ids[i], e)) < 0)
			return r;
		if (bytes && b != bytes)
			return err_plain(e, EINVAL, "%s: size: %llu, the layers below have %llu",
				what, (unsigned long long)b, (unsigned long long)bytes);
		bytes = b;
		snprintf(what, sizeof(what), "data file of layer %u", i);
		if ((r = cow_data_read_hdr(data_fds[i], what, bytes, id, e)) < 0)
			return r;
		if (memcmp(id, ids[i], sizeof(id)) != 0)
			return err_plain(
				e, EINVAL, "%s: id: the bitmap belongs to another file", what);
	}
	if (ftruncate(index_fd, (off_t)(COW_HDR_BYTES + cow_index_bytes(bytes))) < 0)
		return err_set(e, errno, "new index: set its length");
	for (unsigned int i = 0; i < n; i++) {
		struct index_build k = {
			index_fd, bitmap_fds[i], (uint8_t)(i + 1), cow_units(bytes)};

		r = cow_each_data(bitmap_fds[i], COW_HDR_BYTES,
			COW_HDR_BYTES + cow_bitmap_bytes(bytes), index_part, &k);
		if (r < 0)
			return err_set(e, -r, "index from the bitmap of layer %u", i);
	}
	cow_index_hdr_fill(&h, bytes, n, ids);
	if (fsync(index_fd) < 0)
		return err_set(e, errno, "new index: make it durable");
	if ((r = pwrite_full(index_fd, &h, sizeof(h), 0)) < 0 ||
		(r = fsync(index_fd) < 0 ? -errno : 0) < 0)
		return err_set(e, -r, "new index: write the header");
	return 0;
}
