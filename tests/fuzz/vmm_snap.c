/* SPDX-License-Identifier: Apache-2.0
 *
 * vmm_snap: state files, memory files' heads and working sets. First byte: which. For states the
 * checksums are made right first, so that the fuzzer gets behind them.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "lib/snap.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void fix_sums(uint8_t *p, size_t n)
{
	size_t at = sizeof(struct snap_head);
	struct snap_head h;

	memcpy(&h, p, sizeof(h));
	h.magic = SNAP_MAGIC;
	h.version = SNAP_VERSION;
	h.head_bytes = sizeof(h);
	h.total_bytes = n;
	h.crc = snap_crc(0, &h, offsetof(struct snap_head, crc));
	memcpy(p, &h, sizeof(h));
	for (unsigned int i = 0; i < SNAP_MAX_SECS && n - at >= sizeof(struct snap_sec); i++) {
		struct snap_sec s;

		memcpy(&s, p + at, sizeof(s));
		if (s.bytes > n - at - sizeof(s))
			return;
		s.crc = snap_crc(snap_crc(0, &s, offsetof(struct snap_sec, crc)),
			p + at + sizeof(s), s.bytes);
		memcpy(p + at, &s, sizeof(s));
		at += sizeof(s) + ALIGN_UP((size_t)s.bytes, 8);
		if (at > n)
			return;
	}
}

static void state(const uint8_t *data, size_t n, bool fix)
{
	struct snap *s = calloc(1, sizeof(*s));
	uint8_t *p = malloc(n + 1);
	struct err e;

	memcpy(p, data, n);
	if (fix && n >= sizeof(struct snap_head))
		fix_sums(p, n);
	if (snap_parse(s, p, n, &e) == 0) {
		/* what a restore relies on */
		for (unsigned int i = 0; i < s->nextents; i++)
			ASSERT(s->ext[i].file < s->head.nfiles && s->ext[i].len &&
				s->ext[i].gpa + s->ext[i].len > s->ext[i].gpa &&
				s->ext[i].off + s->ext[i].len <=
					s->head.file[s->ext[i].file].data_bytes);
		static uint8_t map[SNAP_MAX_FILES][SNAP_CHUNK_MAP];

		snap_mark_chunks(s, 0, UINT64_MAX, map);
		if (s->nextents)
			snap_mark_chunks(s, s->ext[0].gpa + s->ext[0].len / 2, s->ext[0].len, map);
		for (unsigned int i = 0; i < s->nsecs; i++)
			ASSERT(snap_crc(0, s->sec[i].p, s->sec[i].bytes) || true);
	} else {
		ASSERT(e.code && e.msg[0]);
	}
	free(p);
	free(s);
}

static void files(const uint8_t *data, size_t n, bool ws)
{
	static struct snap_ws_range r[SNAP_MAX_WS];
	int fd = memfd_create("fuzz", MFD_CLOEXEC);
	struct snap_ws_head wh;
	struct snap_mem_head h;
	uint8_t id[16] = {0};
	uint32_t k = 0;
	struct err e;

	ASSERT(write(fd, data, n) == (ssize_t)n);
	if (ws && n >= sizeof(wh)) {
		memcpy(&wh, data, sizeof(wh));
		wh.magic = SNAP_WS_MAGIC;
		wh.version = SNAP_VERSION;
		memset(wh.id, 0, sizeof(wh.id));
		if (n - sizeof(wh) >= wh.n * sizeof(r[0]) && wh.n <= SNAP_MAX_WS)
			wh.ranges_crc = snap_crc(0, data + sizeof(wh), wh.n * sizeof(r[0]));
		wh.crc = snap_crc(0, &wh, offsetof(struct snap_ws_head, crc));
		ASSERT(pwrite(fd, &wh, sizeof(wh), 0) == sizeof(wh));
	}
	if (ws && snap_ws_read(fd, id, MIB(256), r, &k, &e) == 0)
		for (uint32_t i = 0; i < k; i++)
			ASSERT(r[i].npages &&
				((uint64_t)r[i].page + r[i].npages) * PAGE_BYTES <= MIB(256));
	if (!ws && n >= sizeof(h)) {
		memcpy(&h, data, sizeof(h));
		h.magic = SNAP_MEM_MAGIC;
		h.version = SNAP_VERSION;
		h.crc = snap_crc(0, &h, offsetof(struct snap_mem_head, crc));
		ASSERT(pwrite(fd, &h, sizeof(h), 0) == sizeof(h));
		(void)snap_mem_verify(fd, NULL, &e);
	}
	close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	if (n < 1)
		return 0;
	if (data[0] % 4 < 2)
		state(data + 1, n - 1, data[0] % 4 == 0);
	else
		files(data + 1, n - 1, data[0] % 4 == 2);
	return 0;
}
