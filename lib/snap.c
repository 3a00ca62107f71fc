/* SPDX-License-Identifier: Apache-2.0
 *
 * snap.c: state files, read and written; see snap.h. mayfly-vmm, mayflyd. What is read is
 * hostile: sizes are compared by subtraction, counts against fixed maxima, every checksum before
 * anything is believed.
 */
#include "lib/snap.h"

#include <string.h>
#include <sys/stat.h>

#define HOLE_START GIB(3) /* vmm/mem.h: no memory between 3 and 4 GiB of guest addresses */
#define HOLE_END   GIB(4)

static bool in_ram(uint64_t mem_bytes, uint64_t gpa, uint64_t len)
{
	uint64_t low = MIN(mem_bytes, HOLE_START), high = mem_bytes - low;

	if (gpa < low)
		return len <= low - gpa;
	return gpa >= HOLE_END && gpa - HOLE_END < high && len <= high - (gpa - HOLE_END);
}

static int check_head(const struct snap_head *h, size_t n, struct err *e)
{
	if (h->magic != SNAP_MAGIC)
		return err_plain(e, EBADMSG, "snapshot state: magic: not a state file");
	if (h->version != SNAP_VERSION)
		return err_plain(e, EPROTONOSUPPORT,
			"snapshot state: version %u, this build reads %u", h->version,
			SNAP_VERSION);
	if (h->head_bytes != sizeof(*h))
		return err_plain(e, EBADMSG, "snapshot state: head_bytes %u", h->head_bytes);
	if (h->crc != snap_crc(0, h, offsetof(struct snap_head, crc)))
		return err_plain(e, EBADMSG, "snapshot state: crc: the head is damaged");
	if (h->total_bytes != n)
		return err_plain(e, EBADMSG,
			"snapshot state: total_bytes %llu in a file of %zu (truncated?)",
			(unsigned long long)h->total_bytes, n);
	if (h->mem_bytes < MIB(2) || h->mem_bytes > SNAP_RAM_MAX || h->mem_bytes % PAGE_BYTES)
		return err_plain(e, EBADMSG, "snapshot state: mem_bytes %llu",
			(unsigned long long)h->mem_bytes);
	if (h->vcpus < 1 || h->vcpus > 16)
		return err_plain(e, EBADMSG, "snapshot state: vcpus %u", h->vcpus);
	if (h->nfiles < 1 || h->nfiles > SNAP_MAX_FILES)
		return err_plain(e, EBADMSG, "snapshot state: nfiles %u", h->nfiles);
	if (h->nsecs > SNAP_MAX_SECS)
		return err_plain(e, EBADMSG, "snapshot state: nsecs %u", h->nsecs);
	if (!memchr(h->cpu_template, 0, sizeof(h->cpu_template)) ||
		!memchr(h->board, 0, sizeof(h->board)))
		return err_plain(
			e, EBADMSG, "snapshot state: cpu_template or board is not terminated");
	for (uint32_t i = 0; i < h->nfiles; i++)
		if (h->file[i].data_bytes > SNAP_MEM_MAX || h->file[i].data_bytes % PAGE_BYTES)
			return err_plain(e, EBADMSG, "snapshot state: file[%u].data_bytes %llu", i,
				(unsigned long long)h->file[i].data_bytes);
	return 0;
}

static int read_sections(struct snap *s, struct cur *c, struct err *e)
{
	for (uint32_t i = 0; i < s->head.nsecs; i++) {
		struct snap_sec h;
		const uint8_t *p;

		cur_copy(c, &h, sizeof(h));
		p = cur_bytes(c, h.bytes);
		cur_bytes(c, ALIGN_UP((size_t)h.bytes, 8) - h.bytes);
		if (c->bad)
			return err_plain(e, EBADMSG, "snapshot state: section %u is cut off", i);
		if (h.type < 1 || h.type > SNAP_S_LAST)
			return err_plain(
				e, EBADMSG, "snapshot state: section %u: type %u", i, h.type);
		if (snap_has(s, h.type, h.id))
			return err_plain(e, EBADMSG,
				"snapshot state: section %u: type %u id %u is there twice", i,
				h.type, h.id);
		if (h.crc != snap_crc(snap_crc(0, &h, offsetof(struct snap_sec, crc)), p, h.bytes))
			return err_plain(e, EBADMSG,
				"snapshot state: section %u (type %u) is damaged", i, h.type);
		s->sec[s->nsecs].type = h.type;
		s->sec[s->nsecs].id = h.id;
		s->sec[s->nsecs].p = p;
		s->sec[s->nsecs++].bytes = h.bytes;
	}
	return cur_done(c) ? 0
			   : err_plain(e, EBADMSG, "snapshot state: bytes behind the last section");
}

static int read_extents(struct snap *s, struct err *e)
{
	struct cur c = snap_section(s, SNAP_S_EXTENTS, 0);
	size_t n = cur_left(&c);
	uint64_t at = 0;

	if (c.bad || n % sizeof(s->ext[0]) || n / sizeof(s->ext[0]) > SNAP_MAX_EXTENTS)
		return err_plain(e, EBADMSG, "snapshot state: table of extents: %zu bytes", n);
	s->nextents = (unsigned int)(n / sizeof(s->ext[0]));
	cur_copy(&c, s->ext, n);
	for (unsigned int i = 0; i < s->nextents; i++) {
		const struct snap_extent *x = &s->ext[i];

		if ((x->gpa | x->len | x->off) % PAGE_BYTES || x->len == 0 || x->reserved)
			return err_plain(
				e, EBADMSG, "snapshot state: extent %u: not whole pages", i);
		if (x->gpa < at || !in_ram(s->head.mem_bytes, x->gpa, x->len))
			return err_plain(e, EBADMSG,
				"snapshot state: extent %u: outside memory or out of order", i);
		if (x->file >= s->head.nfiles || x->off > s->head.file[x->file].data_bytes ||
			x->len > s->head.file[x->file].data_bytes - x->off)
			return err_plain(
				e, EBADMSG, "snapshot state: extent %u: outside its file", i);
		at = x->gpa + x->len;
	}
	return 0;
}

int snap_parse(struct snap *s, const void *p, size_t n, struct err *e)
{
	struct cur c = cur_of(p, n);
	int rc;

	s->nsecs = s->nextents = 0;
	if (!cur_copy(&c, &s->head, sizeof(s->head)))
		return err_plain(e, EBADMSG, "snapshot state: only %zu bytes", n);
	rc = check_head(&s->head, n, e);
	if (rc == 0)
		rc = read_sections(s, &c, e);
	return rc ? rc : read_extents(s, e);
}

struct cur snap_section(const struct snap *s, uint32_t type, uint32_t id)
{
	for (unsigned int i = 0; i < s->nsecs; i++)
		if (s->sec[i].type == type && s->sec[i].id == id)
			return cur_of(s->sec[i].p, s->sec[i].bytes);
	return (struct cur){.bad = true};
}

bool snap_has(const struct snap *s, uint32_t type, uint32_t id)
{
	return !snap_section(s, type, id).bad;
}

int snap_read_file(int fd, void **to, size_t *n, struct err *e)
{
	struct stat st;
	void *p;
	int rc;

	if (fstat(fd, &st) < 0)
		return err_set(e, errno, "snapshot state: fstat");
	if (st.st_size < (off_t)sizeof(struct snap_head) || st.st_size > (off_t)SNAP_MAX_STATE)
		return err_plain(
			e, EBADMSG, "snapshot state: a file of %lld bytes", (long long)st.st_size);
	p = malloc((size_t)st.st_size);
	if (!p)
		return err_set(e, ENOMEM, "snapshot state");
	rc = pread_full(fd, p, (size_t)st.st_size, 0);
	if (rc < 0) {
		free(p);
		return err_set(e, -rc, "snapshot state: read");
	}
	*to = p;
	*n = (size_t)st.st_size;
	return 0;
}

void snap_write_begin(struct snap_writer *w)
{
	*w = (struct snap_writer){.head = {.magic = SNAP_MAGIC,
					  .version = SNAP_VERSION,
					  .head_bytes = sizeof(w->head)}};
	buf_init(&w->out, SNAP_MAX_STATE);
	buf_put(&w->out, &w->head, sizeof(w->head));
}

size_t snap_sec_begin(struct snap_writer *w, uint32_t type, uint32_t id)
{
	struct snap_sec h = {.type = type, .id = id};
	size_t at = w->out.len;

	buf_put(&w->out, &h, sizeof(h));
	w->head.nsecs++;
	return at;
}

void snap_sec_end(struct snap_writer *w, size_t at)
{
	static const uint8_t zeros[8];
	struct snap_sec h;
	size_t n;

	if (w->out.bad)
		return;
	n = w->out.len - at - sizeof(h);
	memcpy(&h, w->out.p + at, sizeof(h));
	h.bytes = (uint32_t)n;
	h.crc = snap_crc(
		snap_crc(0, &h, offsetof(struct snap_sec, crc)), w->out.p + at + sizeof(h), n);
	memcpy(w->out.p + at, &h, sizeof(h));
	buf_put(&w->out, zeros, ALIGN_UP(n, 8) - n);
}

int snap_write_finish(struct snap_writer *w, struct err *e)
{
	if (w->out.bad || w->head.nsecs > SNAP_MAX_SECS)
		return err_plain(e, E2BIG, "snapshot state: too large");
	w->head.total_bytes = w->out.len;
	w->head.crc = snap_crc(0, &w->head, offsetof(struct snap_head, crc));
	memcpy(w->out.p, &w->head, sizeof(w->head));
	return 0;
}

void snap_write_fini(struct snap_writer *w)
{
	buf_fini(&w->out);
}
