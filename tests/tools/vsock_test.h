/* SPDX-License-Identifier: Apache-2.0
 *
 * vsock_test.h: what the guest's half (guest/initramfs/testinit_vsock.c) and the host's half
 * (tests/tools/vsockload.c) of the stream test say to each other. A stream begins with struct
 * vt_request; byte i of stream `seed` is vt_byte(seed, i).
 */
#pragma once

#include <stdint.h>
#include <string.h>

#define VT_PORT  2000u
#define VT_TABLE 65521u /* prime: no power of two fits it */

enum { VT_ECHO = 1, VT_SINK = 2, VT_SOURCE = 3 };

struct vt_request {
	uint32_t mode, seed;
	uint64_t bytes;
};

/* twice the table, so that a run from anywhere in it is one copy or one comparison */
static inline void vt_fill(uint8_t *t)
{
	uint32_t x = 12345;

	for (uint32_t i = 0; i < VT_TABLE; i++) {
		x = x * 1664525u + 1013904223u;
		t[i] = t[i + VT_TABLE] = (uint8_t)(x >> 24);
	}
}

static inline const uint8_t *vt_at(const uint8_t *t, uint32_t seed, uint64_t i)
{
	return t + (i + seed * 7919ull) % VT_TABLE;
}
