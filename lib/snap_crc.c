/* SPDX-License-Identifier: Apache-2.0
 *
 * snap_crc.c: CRC-32C (Castagnoli), eight bytes a step, with the processor's instruction where
 * there is one. Every process. Finds damage, not forgery: against that, file permissions say who
 * may write the files.
 */
#include <pthread.h>
#include <string.h>

#include "lib/snap.h"

#define POLY 0x82f63b78u /* reflected */

static uint32_t table[8][256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_table(void)
{
	for (uint32_t i = 0; i < 256; i++) {
		uint32_t c = i;

		for (int k = 0; k < 8; k++)
			c = c & 1 ? c >> 1 ^ POLY : c >> 1;
		table[0][i] = c;
	}
	for (uint32_t i = 0; i < 256; i++)
		for (int k = 1; k < 8; k++)
			table[k][i] = table[k - 1][i] >> 8 ^ table[0][table[k - 1][i] & 0xff];
}

static uint32_t crc_table(uint32_t c, const uint8_t *p, size_t n)
{
	pthread_once(&once, make_table);
	for (; n >= 8; n -= 8, p += 8) {
		uint32_t lo, hi;

		memcpy(&lo, p, 4);
		memcpy(&hi, p + 4, 4);
		lo ^= c;
		c = table[7][lo & 0xff] ^ table[6][lo >> 8 & 0xff] ^ table[5][lo >> 16 & 0xff] ^
		    table[4][lo >> 24] ^ table[3][hi & 0xff] ^ table[2][hi >> 8 & 0xff] ^
		    table[1][hi >> 16 & 0xff] ^ table[0][hi >> 24];
	}
	for (; n > 0; n--)
		c = c >> 8 ^ table[0][(c ^ *p++) & 0xff];
	return c;
}

#ifdef __x86_64__
__attribute__((target("sse4.2"))) static uint32_t crc_instruction(
	uint32_t c, const uint8_t *p, size_t n)
{
	uint64_t v = c;

	for (; n >= 8; n -= 8, p += 8) {
		uint64_t w;

		memcpy(&w, p, 8);
		v = __builtin_ia32_crc32di(v, w);
	}
	c = (uint32_t)v;
	for (; n > 0; n--)
		c = __builtin_ia32_crc32qi(c, *p++);
	return c;
}
#endif

uint32_t snap_crc(uint32_t seed, const void *p, size_t n)
{
#ifdef __x86_64__
	if (__builtin_cpu_supports("sse4.2"))
		return ~crc_instruction(~seed, p, n);
#endif
	return ~crc_table(~seed, p, n);
}
