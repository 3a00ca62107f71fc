/* SPDX-License-Identifier: Apache-2.0
 *
 * proto_machine.h: between `mayfly machine` on the host and the exec server in the appliance: one
 * TCP connection a command. Frames: u8 type, 3 zero bytes, u32 length (little endian), payload. The
 * first frame is the token (a new one at each start, handed to the appliance through fw_cfg). After
 * it, and after any MACHINE_CLOCK, one frame says what to do. Both ends treat the other's bytes as
 * hostile: the port of the appliance can be reached by whatever runs in it, and the appliance runs
 * what nobody trusts.
 */
#pragma once

#include "lib/base.h"

#define MACHINE_TOKEN_BYTES 32u
#define MACHINE_FRAME_MAX   65536u
#define MACHINE_ARGS_MAX    1024u
#define MACHINE_EXEC_PORT   7001 /* inside the appliance */
#define MACHINE_API_PORT    8080 /* inside the appliance: the daemon */

enum machine_frame {
	MACHINE_TOKEN = 1, /* client first: MACHINE_TOKEN_BYTES */
	MACHINE_EXEC,   /* u32 flags, u16 rows, u16 cols, str cwd, u32 n, n str argv, u32 n, n str
			   environment */
	MACHINE_HALT,   /* sync, unmount, power off; answered with EXIT when it begins */
	MACHINE_PING,   /* answered with EXIT 0 */
	MACHINE_STDIN,  /* bytes; empty: end of file */
	MACHINE_WINCH,  /* u16 rows, u16 cols */
	MACHINE_SIGNAL, /* u32 signal, to the command's process group */
	MACHINE_STDOUT, /* server: bytes */
	MACHINE_STDERR, /* server: bytes */
	MACHINE_EXIT,   /* server, last: u32 exit code (128 + signal when it was killed) */
	MACHINE_ERROR,  /* server, last: str; nothing was run */
	MACHINE_CLOCK,  /* u64 nanoseconds, two's complement, to move its wall clock by; answered
			   with a CLOCK that holds what it shows then. May come several times,
			   after the token and before the frame that says what to do */
	MACHINE_FRAME_COUNT,
};
enum { MACHINE_TTY = 1 }; /* exec flags */

struct machine_hdr {
	uint8_t type, zero[3];
	uint32_t len_le;
};
static_assert(sizeof(struct machine_hdr) == 8, "on the wire");
