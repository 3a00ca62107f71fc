/* SPDX-License-Identifier: Apache-2.0
 *
 * snap_mem.c: memory files and working sets; see snap.h. mayfly-vmm writes and maps them, the
 * daemon verifies them. Read: hostile.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/snap.h"

#define MAX_CHUNKS (SNAP_MEM_MAX / SNAP_CHUNK)

static uint64_t chunks_of(uint64_t bytes)
{
	return (bytes + SNAP_CHUNK - 1) / SNAP_CHUNK;
}

int snap_mem_check(int fd, const struct snap_file *want, struct snap_mem_head *h, struct err *e)
{
	struct stat st;
	uint64_t need;
	int rc = pread_full(fd, h, sizeof(*h), 0);

	if (rc < 0 && rc != -EPIPE)
		return err_set(e, -rc, "memory file: read");
	if (rc == -EPIPE || h->magic != SNAP_MEM_MAGIC)
		return err_plain(
			e, EBADMSG, "memory file: magic: not a memory file, or never finished");
	if (h->version != SNAP_VERSION)
		return err_plain(e, EPROTONOSUPPORT, "memory file: version %u, this build reads %u",
			h->version, SNAP_VERSION);
	if (h->crc != snap_crc(0, h, offsetof(struct snap_mem_head, crc)))
		return err_plain(e, EBADMSG, "memory file: crc: the head is damaged");
	if (h->chunk != SNAP_CHUNK || h->data_bytes > SNAP_MEM_MAX || h->data_bytes % PAGE_BYTES ||
		h->nchunks != chunks_of(h->data_bytes))
		return err_plain(e, EBADMSG, "memory file: data_bytes %llu, chunk %u, nchunks %u",
			(unsigned long long)h->data_bytes, h->chunk, h->nchunks);
	if (want &&
		(memcmp(want->id, h->id, sizeof(h->id)) != 0 || want->data_bytes != h->data_bytes))
		return err_plain(e, EBADMSG,
			"memory file: id: not the file that this state needs (swapped?)");
	need = SNAP_HEAD_PAGE + h->data_bytes + h->nchunks * 4ull;
	if (fstat(fd, &st) < 0)
		return err_set(e, errno, "memory file: fstat");
	/* before it is mapped: a page behind the end would be a SIGBUS */
	if ((uint64_t)st.st_size < need)
		return err_plain(e, EBADMSG,
			"memory file: %llu bytes, its head says %llu (truncated)",
			(unsigned long long)st.st_size, (unsigned long long)need);
	return 0;
}

void snap_mark_chunks(
	const struct snap *s, uint64_t gpa, uint64_t len, uint8_t (*map)[SNAP_CHUNK_MAP])
{
	for (unsigned int i = 0; i < s->nextents; i++) {
		const struct snap_extent *x = &s->ext[i];
		uint64_t end = len > UINT64_MAX - gpa ? UINT64_MAX : gpa + len,
			 from = MAX(gpa, x->gpa), to = MIN(end, x->gpa + x->len), last;

		if (from >= to)
			continue;
		/* the map has a bit for each chunk of the longest file */
		last = MIN((x->off + to - x->gpa - 1) / SNAP_CHUNK, (uint64_t)MAX_CHUNKS - 1);
		for (uint64_t c = (x->off + from - x->gpa) / SNAP_CHUNK; c <= last; c++)
			map[x->file][c / 8] |= (uint8_t)(1u << c % 8);
	}
}

int snap_mem_verify(int fd, const struct snap_file *want, struct err *e)
{
	return snap_mem_verify_some(fd, want, NULL, e);
}

int snap_mem_verify_some(int fd, const struct snap_file *want, const uint8_t *only, struct err *e)
{
	_cleanup_free_ uint8_t *data = malloc(SNAP_CHUNK);
	_cleanup_free_ uint32_t *sums = NULL;
	struct snap_mem_head h;
	int rc = snap_mem_check(fd, want, &h, e);

	if (rc < 0)
		return rc;
	sums = malloc(h.nchunks * 4u + 1);
	if (!sums || !data)
		return err_set(e, ENOMEM, "memory file");
	rc = pread_full(fd, sums, h.nchunks * 4u, SNAP_HEAD_PAGE + h.data_bytes);
	if (rc < 0)
		return err_set(e, -rc, "memory file: read checksums");
	if (snap_crc(0, sums, h.nchunks * 4u) != h.sums_crc)
		return err_plain(e, EBADMSG, "memory file: sums_crc: the checksums are damaged");
	for (uint32_t i = 0; i < h.nchunks; i++) {
		uint64_t off = (uint64_t)i * SNAP_CHUNK, n = MIN(SNAP_CHUNK, h.data_bytes - off);

		if (only && !(only[i / 8] & 1u << i % 8))
			continue;
		rc = pread_full(fd, data, n, SNAP_HEAD_PAGE + off);
		if (rc < 0)
			return err_set(e, -rc, "memory file: read chunk %u", i);
		if (snap_crc(0, data, n) != sums[i])
			return err_plain(e, EBADMSG,
				"memory file: chunk %u (256 KiB at %llu) is damaged", i,
				(unsigned long long)(SNAP_HEAD_PAGE + off));
	}
	return 0;
}

int snap_mem_begin(struct snap_mem_writer *w, int fd, struct err *e)
{
	*w = (struct snap_mem_writer){.fd = fd,
		.head = {.magic = SNAP_MEM_MAGIC, .version = SNAP_VERSION, .chunk = SNAP_CHUNK}};
	buf_init(&w->sums, MAX_CHUNKS * 4);
	random_bytes(w->head.id, sizeof(w->head.id));
	return 0;
}

int snap_mem_reserve(struct snap_mem_writer *w, uint64_t off, uint64_t n, struct err *e)
{
	/* In a memfd, reserved space would be allocated pages at once. */
	if (w->in_ram)
		return 0;
	/* When six processes wrote to one disk without reserved space, delayed allocation throttled
	 * the sixth. Not every file system can reserve. */
	if (fallocate(w->fd, FALLOC_FL_KEEP_SIZE, (off_t)(SNAP_HEAD_PAGE + off), (off_t)n) < 0 &&
		errno != EOPNOTSUPP)
		return err_set(
			e, errno, "memory file: reserve %llu KiB", (unsigned long long)n >> 10);
	return 0;
}

/* Counts n bytes into the checksums: p, or zeros where p is NULL. */
static void sum_bytes(struct snap_mem_writer *w, const uint8_t *p, uint64_t n)
{
	static const uint8_t zeros[PAGE_BYTES];

	while (n) {
		uint64_t k = MIN(n, p ? SNAP_CHUNK - w->at % SNAP_CHUNK : PAGE_BYTES);

		w->sum = snap_crc(w->sum, p ? p : zeros, k);
		w->at += k;
		p = p ? p + k : NULL;
		n -= k;
		if (w->at % SNAP_CHUNK == 0) {
			buf_u32(&w->sums, w->sum);
			w->sum = 0;
		}
	}
}

static int put_piece(struct snap_mem_writer *w, const void *p, uint64_t n, struct err *e)
{
	int rc = pwrite_full(w->fd, p, n, SNAP_HEAD_PAGE + w->at);

	if (rc < 0)
		return err_set(e, -rc, "memory file: write");
	sum_bytes(w, p, n);
	return 0;
}

int snap_mem_put(struct snap_mem_writer *w, const void *p, uint64_t n, struct err *e)
{
	const uint8_t *at = p;
	int rc = 0;

	ASSERT(n % PAGE_BYTES == 0);
	while (rc == 0 && n) {
		uint64_t k = MIN(n, SNAP_CHUNK - w->at % SNAP_CHUNK);

		rc = put_piece(w, at, k, e);
		at += k;
		n -= k;
	}
	return rc;
}

bool snap_mem_is_huge_place(const struct snap_mem_writer *w)
{
	return (SNAP_HEAD_PAGE + w->at) % SNAP_HUGE == 0;
}

int snap_mem_put_huge(struct snap_mem_writer *w, const void *p, struct err *e)
{
	ASSERT(snap_mem_is_huge_place(w));
	return put_piece(w, p, SNAP_HUGE, e);
}

void snap_mem_skip(struct snap_mem_writer *w, uint64_t n)
{
	ASSERT(n % PAGE_BYTES == 0);
	sum_bytes(w, NULL, n);
}

int snap_mem_finish(struct snap_mem_writer *w, struct err *e)
{
	int rc;

	if (w->at % SNAP_CHUNK)
		buf_u32(&w->sums, w->sum);
	if (w->sums.bad)
		return err_set(e, ENOMEM, "memory file: checksums");
	w->head.data_bytes = w->at;
	w->head.nchunks = (uint32_t)(w->sums.len / 4);
	w->head.sums_crc = snap_crc(0, w->sums.p, w->sums.len);
	w->head.crc = snap_crc(0, &w->head, offsetof(struct snap_mem_head, crc));
	rc = pwrite_full(w->fd, w->sums.p, w->sums.len, SNAP_HEAD_PAGE + w->at);
	/* give back what the caller reserved beyond the end */
	if (rc == 0 && ftruncate(w->fd, (off_t)(SNAP_HEAD_PAGE + w->at + w->sums.len)) < 0)
		rc = -errno;
	if (rc == 0 && !w->in_ram && fsync(w->fd) < 0)
		rc = -errno;
	if (rc == 0)
		rc = pwrite_full(w->fd, &w->head, sizeof(w->head), 0);
	if (rc == 0 && !w->in_ram && fsync(w->fd) < 0)
		rc = -errno;
	return rc < 0 ? err_set(e, -rc, "memory file: finish") : 0;
}

void snap_mem_fini(struct snap_mem_writer *w)
{
	buf_fini(&w->sums);
}

int snap_ws_write(
	int fd, const uint8_t id[16], const struct snap_ws_range *r, uint32_t n, struct err *e)
{
	struct snap_ws_head h = {.magic = SNAP_WS_MAGIC, .version = SNAP_VERSION, .n = n};
	int rc;

	memcpy(h.id, id, sizeof(h.id));
	h.ranges_crc = snap_crc(0, r, n * sizeof(*r));
	h.crc = snap_crc(0, &h, offsetof(struct snap_ws_head, crc));
	rc = pwrite_full(fd, r, n * sizeof(*r), sizeof(h));
	if (rc == 0)
		rc = pwrite_full(fd, &h, sizeof(h), 0);
	return rc < 0 ? err_set(e, -rc, "working set: write") : 0;
}

int snap_ws_read(int fd, const uint8_t id[16], uint64_t mem_span, struct snap_ws_range *r,
	uint32_t *n, struct err *e)
{
	struct snap_ws_head h;
	uint64_t at = 0;
	int rc = pread_full(fd, &h, sizeof(h), 0);

	if (rc < 0)
		return err_set(e, -rc, "working set: read");
	if (h.magic != SNAP_WS_MAGIC || h.version != SNAP_VERSION ||
		h.crc != snap_crc(0, &h, offsetof(struct snap_ws_head, crc)))
		return err_plain(
			e, EBADMSG, "working set: the head is damaged, or of another version");
	if (memcmp(h.id, id, sizeof(h.id)) != 0)
		return err_plain(e, ESTALE, "working set: of another memory file");
	if (h.n > SNAP_MAX_WS)
		return err_plain(e, EBADMSG, "working set: %u ranges", h.n);
	rc = pread_full(fd, r, h.n * sizeof(*r), sizeof(h));
	if (rc < 0)
		return err_set(e, -rc, "working set: read %u ranges", h.n);
	if (h.ranges_crc != snap_crc(0, r, h.n * sizeof(*r)))
		return err_plain(e, EBADMSG, "working set: the ranges are damaged");
	for (uint32_t i = 0; i < h.n; i++) {
		if (r[i].page < at || r[i].npages == 0 ||
			((uint64_t)r[i].page + r[i].npages) * PAGE_BYTES > mem_span)
			return err_plain(e, EBADMSG,
				"working set: range %u is out of order or outside memory", i);
		at = (uint64_t)r[i].page + r[i].npages;
	}
	*n = h.n;
	return 0;
}
