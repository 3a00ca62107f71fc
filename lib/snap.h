/* SPDX-License-Identifier: Apache-2.0
 *
 * snap.h: snapshots on disk. mayfly-vmm writes and restores them, the daemon looks at them and
 * verifies them. Every file is hostile: one bounded reader each, which either accepts all of it or
 * names what is wrong; nothing is used before that.
 *
 * State file: struct snap_head, then sections one behind the other (struct snap_sec + bytes, padded
 * to 8), each with its checksum; the head has the checksum of itself. It names the memory files
 * that it needs by id, oldest first, and where each piece of memory is. Memory file: one page
 * (struct snap_mem_head), data, then one checksum for each SNAP_CHUNK of data. Between the pieces
 * of data there may be holes, which no extent names and which count as zeros in the checksums. The
 * head is written last: a file that a crash cut off has none. Immutable afterwards.
 * Working-set file: struct snap_ws_head and ranges.
 * All little endian (the structures are read in place: x86-64 and arm64 are).
 */
#pragma once

#include "lib/buf.h"
#include "lib/err.h"

#define SNAP_MAGIC       0x3153504d5359464dull /* "MFYSMPS1" */
#define SNAP_MEM_MAGIC   0x314d454d5359464dull
#define SNAP_WS_MAGIC    0x3153575f5359464dull
#define SNAP_VERSION     1u
#define SNAP_MAX_FILES   4u
#define SNAP_MAX_EXTENTS 256u
#define SNAP_MAX_SECS    64u
#define SNAP_MAX_STATE   MIB(4)
#define SNAP_MAX_WS      65536u
#define SNAP_CHUNK       KIB(256)
#define SNAP_RAM_MAX     GIB(16) /* of a guest */
/* of a memory file: a gap before each extent may align it for large pages */
#define SNAP_MEM_MAX   (SNAP_RAM_MAX + MIB(2) * (SNAP_MAX_EXTENTS + 1))
#define SNAP_HEAD_PAGE 4096u

enum snap_sec_type {
	SNAP_S_CPU = 1, /* processor: template, TSC, CPUID */
	SNAP_S_VM,      /* interrupt controllers, clock */
	SNAP_S_VCPU,    /* id: number */
	SNAP_S_BOARD,   /* serial port and other devices that are not virtio */
	SNAP_S_DEVICE,  /* id: slot */
	SNAP_S_EXTENTS, /* struct snap_extent[] */
	SNAP_S_DISK,    /* id: number; layer ids, oldest first */
	SNAP_S_LAST = SNAP_S_DISK,
};

struct snap_file {
	uint8_t id[16];
	uint64_t data_bytes;
};

struct snap_head {
	uint64_t magic;
	uint32_t version, head_bytes;
	uint64_t total_bytes; /* of the state file */
	uint64_t mem_bytes;   /* of the guest */
	uint64_t wall_ns;     /* when the vCPUs stopped */
	uint32_t vcpus, nfiles, nsecs, flags;
	char cpu_template[32];
	char board[32];
	struct snap_file file[SNAP_MAX_FILES];
	uint32_t reserved, crc; /* crc: over all before it */
};
static_assert(sizeof(struct snap_head) == 224, "on-disk size");

struct snap_sec {
	uint32_t type, id;
	/* bytes: how many follow this head. crc: over type, id, bytes, and what follows */
	uint32_t bytes, crc;
};

/* A piece of guest memory: [gpa, gpa+len) is [off, off+len) of that file's data. Ascending, not
 * overlapping, whole pages. */
struct snap_extent {
	uint64_t gpa, len, off;
	uint32_t file, reserved;
};
static_assert(sizeof(struct snap_extent) == 32, "on-disk size");

struct snap_mem_head {
	uint64_t magic;
	uint32_t version, chunk;
	uint8_t id[16];
	uint64_t data_bytes; /* data is at SNAP_HEAD_PAGE, the checksums right behind it */
	uint32_t nchunks, sums_crc;
	uint32_t reserved, crc; /* over all before it */
};
static_assert(sizeof(struct snap_mem_head) == 56, "on-disk size");

struct snap_ws_head {
	uint64_t magic;
	uint32_t version, n;
	uint8_t id[16];           /* of the newest memory file it is about */
	uint32_t ranges_crc, crc; /* crc: over all before it */
};
struct snap_ws_range {
	uint32_t page, npages : 31, written : 1;
};
static_assert(sizeof(struct snap_ws_range) == 8, "on-disk size");

uint32_t snap_crc(uint32_t seed, const void *p, size_t n); /* CRC-32C; seed 0 to begin */

/* ---- reading a state: `p` stays the caller's and is pointed into */
struct snap {
	struct snap_head head;
	unsigned int nsecs, nextents;
	struct {
		uint32_t type, id;
		const uint8_t *p;
		uint32_t bytes;
	} sec[SNAP_MAX_SECS];
	struct snap_extent ext[SNAP_MAX_EXTENTS];
};
/* p must be aligned to 8. Checks all checksums and limits, and that extents are inside memory and
 * inside their files. */
int snap_parse(struct snap *s, const void *p, size_t n, struct err *e);
/* The section as a cursor; an empty bad one if there is none. */
struct cur snap_section(const struct snap *s, uint32_t type, uint32_t id);
bool snap_has(const struct snap *s, uint32_t type, uint32_t id);
/* Reads a whole state file into *to (malloc'd, the caller's). */
int snap_read_file(int fd, void **to, size_t *n, struct err *e);

/* ---- writing a state */
struct snap_writer {
	struct buf out; /* head is filled in by _finish */
	struct snap_head head;
};
void snap_write_begin(struct snap_writer *w);
/* Opens a section; append to w->out; close it. */
size_t snap_sec_begin(struct snap_writer *w, uint32_t type, uint32_t id);
void snap_sec_end(struct snap_writer *w, size_t at);
int snap_write_finish(struct snap_writer *w, struct err *e);
void snap_write_fini(struct snap_writer *w);

/* ---- memory files */
/* Checks the head, and that the file is at least as long as the head says. want: the id and size it must
 * have, or NULL. */
int snap_mem_check(int fd, const struct snap_file *want, struct snap_mem_head *h, struct err *e);
/* Reads it all and compares the checksums. Slow. */
int snap_mem_verify(int fd, const struct snap_file *want, struct err *e);
/* The same for some chunks: bit i of `only` (SNAP_CHUNK_MAP bytes) is chunk i. */
int snap_mem_verify_some(int fd, const struct snap_file *want, const uint8_t *only, struct err *e);
#define SNAP_CHUNK_MAP (SNAP_MEM_MAX / SNAP_CHUNK / 8)
/* Marks in map[file] the chunks that hold [gpa, gpa + len); map is SNAP_MAX_FILES x SNAP_CHUNK_MAP.
 */
void snap_mark_chunks(
	const struct snap *s, uint64_t gpa, uint64_t len, uint8_t (*map)[SNAP_CHUNK_MAP]);

struct snap_mem_writer {
	int fd;
	bool in_ram; /* a memfd: no space is reserved and nothing is synced. Set after snap_mem_begin(). */
	struct snap_mem_head head;
	uint64_t at;  /* data bytes so far */
	uint32_t sum; /* of the chunk under way */
	struct buf sums;
};
int snap_mem_begin(struct snap_mem_writer *w, int fd, struct err *e);
/* Reserves disk space for n bytes of data at off, which will be put there. A file system without
 * fallocate: nothing happens. */
int snap_mem_reserve(struct snap_mem_writer *w, uint64_t off, uint64_t n, struct err *e);
/* Appends n bytes, whole pages. */
int snap_mem_put(struct snap_mem_writer *w, const void *p, uint64_t n, struct err *e);
/* Appends SNAP_HUGE bytes in one write, at a file offset that is a multiple of them: the page cache
 * of some file systems then holds them in one folio. */
#define SNAP_HUGE MIB(2)
int snap_mem_put_huge(struct snap_mem_writer *w, const void *p, struct err *e);
bool snap_mem_is_huge_place(const struct snap_mem_writer *w);
/* Appends n bytes of zeros, whole pages, as a hole of the file. */
void snap_mem_skip(struct snap_mem_writer *w, uint64_t n);
/* Writes the checksums, syncs, writes the head, syncs. */
int snap_mem_finish(struct snap_mem_writer *w, struct err *e);
void snap_mem_fini(struct snap_mem_writer *w);

/* ---- working sets */
int snap_ws_write(
	int fd, const uint8_t id[16], const struct snap_ws_range *r, uint32_t n, struct err *e);
/* Reads the ranges into r (SNAP_MAX_WS), checked against mem_span bytes of guest-physical
 * addresses. -ESTALE: the set is of another memory file. */
int snap_ws_read(int fd, const uint8_t id[16], uint64_t mem_span, struct snap_ws_range *r,
	uint32_t *n, struct err *e);
