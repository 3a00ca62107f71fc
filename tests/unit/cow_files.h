/* SPDX-License-Identifier: Apache-2.0
 *
 * cow_files.h: disks in memfds for the tests of lib/cow and of what uses it.
 */
#pragma once

#include <fcntl.h>
#include <sys/mman.h>

#include "lib/cow.h"
#include "lib/test.h"

static inline int cf_file(void)
{
	return memfd_create("cow", MFD_CLOEXEC);
}

/* unit u of the base holds 'a' + u % 26 everywhere, but every fifth is a hole */
static inline uint8_t cf_base_byte(uint64_t unit)
{
	return unit % 5 == 4 ? 0 : (uint8_t)('a' + unit % 26);
}

static inline int cf_base(uint64_t bytes, uint64_t units_filled)
{
	int fd = cf_file();
	uint8_t unit[COW_UNIT];

	if (ftruncate(fd, (off_t)bytes) < 0)
		return -1;
	for (uint64_t u = 0; u < units_filled; u++) {
		if (!cf_base_byte(u))
			continue;
		memset(unit, cf_base_byte(u), sizeof(unit));
		pwrite_full(fd, unit, MIN(sizeof(unit), bytes - u * COW_UNIT), u * COW_UNIT);
	}
	return fd;
}

static inline int cf_dup(int fd)
{
	return fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

/* cow_open takes descriptors: the tests keep their own */
static inline struct cow_fds cf_dup_all(const struct cow_fds *f)
{
	struct cow_fds d = *f;

	d.base = cf_dup(f->base);
	for (unsigned int i = 0; i < f->nfrozen; i++)
		d.frozen[i] = cf_dup(f->frozen[i]);
	d.index = cf_dup(f->index);
	d.data = cf_dup(f->data);
	d.bitmap = cf_dup(f->bitmap);
	return d;
}

static inline void cf_close_all(struct cow_fds *f)
{
	close_fd(&f->base);
	for (unsigned int i = 0; i < f->nfrozen; i++)
		close_fd(&f->frozen[i]);
	close_fd(&f->index);
	close_fd(&f->data);
	close_fd(&f->bitmap);
}

static inline struct cow_fds cf_disk(uint64_t bytes, uint64_t base_bytes)
{
	struct cow_fds f = COW_FDS_NONE;

	f.base = cf_base(base_bytes, MIN(base_bytes / COW_UNIT, 64));
	f.data = cf_file();
	f.bitmap = cf_file();
	if (cow_layer_create(f.data, f.bitmap, bytes, NULL) < 0)
		abort();
	return f;
}

/* all bytes of [off, off+n) are v */
static inline bool cf_all(struct cow *c, uint64_t off, uint64_t n, uint8_t v)
{
	uint8_t b[COW_UNIT];

	while (n > 0) {
		uint64_t k = MIN(n, sizeof(b));

		if (cow_read(c, b, k, off) < 0)
			return false;
		for (uint64_t i = 0; i < k; i++)
			if (b[i] != v)
				return false;
		off += k;
		n -= k;
	}
	return true;
}

static inline int cf_fill(struct cow *c, uint64_t off, uint64_t n, uint8_t v)
{
	_cleanup_free_ uint8_t *b = malloc(n);

	memset(b, v, n);
	return cow_write(c, b, n, off);
}
