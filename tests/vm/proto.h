/* SPDX-License-Identifier: Apache-2.0
 *
 * proto.h: between tests/vm/drive.c (host) and tests/vm/guest.c (PID 1 of a test guest), over vsock
 * port TG_PORT. One build, one machine.
 */
#pragma once

#include "lib/base.h"

#define TG_PORT 5000u

enum tg_cmd {
	TG_FILL = 1,  /* a: first page, b: pages, seed: generation -> */
	TG_CHECK,     /* -> a: pages that hold what they should not, b: pages checked */
	TG_COUNT,     /* -> a: counter, b: times its two halves differed, c: CLOCK_MONOTONIC ns */
	TG_RANDOM,    /* -> a, b: from getrandom in a process that existed before */
	TG_END,       /* a: enum tg_end */
	TG_CPUS,      /* -> a */
	TG_DISK_FILL, /* a: first MiB, b: MiB, seed: written and synced -> a: failures */
	/* a: first MiB, b: MiB, seed -> a: MiB that are not what they should be, b: failed to be
	   read */
	TG_DISK_CHECK,
	TG_BUSY, /* a: writers, b: writes each of them makes in all, then it is done -> */
	/* -> a: writes made, b: what was read back wrong, c: writers still at it, seed: writes made
	 * when a restore reset the streams */
	TG_BUSY_LOOK,
	TG_BUSY_SUM, /* waits for the writers -> a: checksum of all they wrote, b: wrong, c: writes
		      */
	TG_STREAM,   /* no answer: this connection now echoes word()s until it ends */
	TG_USE,      /* a: MiB of new memory, filled: held until -> */
	TG_DROP,     /* frees it -> a: pages that did not hold what was written, b: pages */
	TG_STREAMS,  /* -> a: streams at it, b: wrong bytes seen on any, c: bytes echoed in all */
};
enum tg_end { TG_POWEROFF, TG_RESET, TG_PANIC, TG_EXIT, TG_HANG, TG_TRIPLE };

struct tg_msg {
	uint32_t cmd, seed;
	uint64_t a, b, c;
};
#define TG_ARENA_PAGES 16384u /* 64 MiB */

#define TG_WRITERS     4u
#define TG_BLOCK_BYTES 65536u
#define TG_BLOCKS      64u /* each writer's part of the disk: 4 MiB, written round and round */

/* What stands at 8-byte word i of a page, block or stream, for a generation. */
static inline uint64_t tg_word(uint64_t page, uint32_t seed, unsigned int i)
{
	uint64_t x = (page * 512 + i) * 0x9e3779b97f4a7c15ull + seed * 0xc2b2ae3d27d4eb4full;

	x ^= x >> 29;
	return x * 0xbf58476d1ce4e5b9ull ^ (x >> 32);
}
