/* SPDX-License-Identifier: Apache-2.0
 *
 * proto.h: between tests/vm/drive.c (host) and tests/vm/guest.c (PID 1 of a test guest), over vsock
 * port TG_PORT. One build, one machine.
 */
#pragma once

#include "lib/base.h"

#define TG_PORT 5000u

enum tg_cmd {
	TG_FILL = 1,   /* a: first page, b: pages, seed: generation -> */
	TG_CHECK,      /* -> a: pages that hold what they should not, b: pages checked */
	TG_COUNT,      /* -> a: counter, b: times its two halves differed, c: CLOCK_MONOTONIC ns */
	TG_RANDOM,     /* -> a, b: from getrandom in a process that existed before */
	TG_END,        /* a: enum tg_end */
	TG_CPUS,       /* -> a */
	TG_DISK_FILL,  /* a: first MiB, b: MiB, seed: written and synced -> a: failures */
	TG_DISK_CHECK, /* a: first MiB, b: MiB, seed -> a: MiB that are not what they should be */
};
enum tg_end { TG_POWEROFF, TG_RESET, TG_PANIC, TG_EXIT, TG_HANG, TG_TRIPLE };

struct tg_msg {
	uint32_t cmd, seed;
	uint64_t a, b, c;
};
#define TG_ARENA_PAGES 16384u /* 64 MiB */
