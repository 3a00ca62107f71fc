/* SPDX-License-Identifier: Apache-2.0
 *
 * cow_format.h: the files of lib/cow, byte by byte. Little endian. All of it is hostile to whoever
 * reads it: a file may be damaged.
 *
 *   data file    [0, bytes): units at their own offsets, sparse; at `bytes`: a block that begins
 *                with struct cow_layer_hdr
 *   bitmap file  block 0: struct cow_layer_hdr (same id); then two bits a unit, lowest first: enum
 *                cow_state; padded to a block
 *   index file   block 0: struct cow_index_hdr; then one byte a unit: 0 base, 1..nfrozen layer,
 *                COW_IX_ZERO zeros; padded to a block
 *
 * Headers are written once. An index's header is written last, when the body is durable. Unused
 * bytes are zero.
 */
#pragma once

#include <string.h>

#include "lib/base.h"
#include "lib/cow.h"

#define COW_VERSION               1u
#define COW_MAGIC_DATA            "mfcowdat"
#define COW_MAGIC_BITMAP          "mfcowbit"
#define COW_MAGIC_INDEX           "mfcowidx"
#define COW_IX_ZERO               0xffu
#define COW_HDR_BYTES             4096u
#define COW_UNITS_PER_BITMAP_PAGE (4096u * 4)

enum cow_state { COW_ABSENT = 0, COW_DATA = 1, COW_ZERO = 2, COW_STATE_BAD = 3 };

struct cow_layer_hdr {
	uint8_t magic[8];
	uint32_t version_le, unit_le;
	uint64_t bytes_le;
	uint8_t id[COW_ID_BYTES];
	uint32_t reserved;
	uint32_t crc_le; /* of all bytes before it */
};
static_assert(sizeof(struct cow_layer_hdr) == 48, "format");

struct cow_index_hdr {
	uint8_t magic[8];
	uint32_t version_le, unit_le;
	uint64_t bytes_le;
	uint32_t nfrozen_le, reserved;
	uint8_t id[COW_MAX_FROZEN][COW_ID_BYTES]; /* oldest first */
	uint32_t reserved2;
	uint32_t crc_le;
};
static_assert(sizeof(struct cow_index_hdr) == 168, "format");

uint32_t cow_crc32(const void *p, size_t n);

/* Maps are mostly zero: whoever walks one passes over eight such bytes at a time. */
static inline bool cow_zero8(const uint8_t *p)
{
	uint64_t w;

	memcpy(&w, p, sizeof(w));
	return w == 0;
}

static inline uint64_t cow_units(uint64_t bytes)
{
	return bytes / COW_UNIT;
}
static inline uint64_t cow_data_file_bytes(uint64_t bytes)
{
	return bytes + COW_HDR_BYTES;
}
static inline uint64_t cow_bitmap_bytes(uint64_t bytes) /* the body */
{
	return ALIGN_UP(cow_units(bytes), (uint64_t)COW_UNITS_PER_BITMAP_PAGE) / 4;
}
static inline uint64_t cow_index_bytes(uint64_t bytes) /* the body */
{
	return ALIGN_UP(cow_units(bytes), 4096ull);
}

void cow_layer_hdr_fill(
	struct cow_layer_hdr *h, const char *magic, uint64_t bytes, const uint8_t *id);
void cow_index_hdr_fill(
	struct cow_index_hdr *h, uint64_t bytes, unsigned int n, uint8_t (*ids)[COW_ID_BYTES]);

/* Readers: everything of the header and the file's size is checked. `what` names the file in the
 * error. */
int cow_data_read_hdr(int fd, const char *what, uint64_t bytes_wanted, uint8_t *id,
	struct err *e); /* bytes_wanted: of the disk */
int cow_bitmap_read_hdr(int fd, const char *what, uint64_t *bytes, uint8_t *id, struct err *e);
int cow_index_read_hdr(int fd, const char *what, uint64_t *bytes, unsigned int *n,
	uint8_t (*ids)[COW_ID_BYTES], struct err *e);
/* Length of a regular file or block device. */
int cow_file_bytes(int fd, const char *what, uint64_t *bytes, struct err *e);
/* Calls fn for each stretch of [from, to) that may hold data (SEEK_DATA). Where the file system
 * cannot tell, once for all of it. */
int cow_each_data(int fd, uint64_t from, uint64_t to,
	int (*fn)(void *arg, uint64_t off, uint64_t len), void *arg);
