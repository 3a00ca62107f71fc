/* SPDX-License-Identifier: Apache-2.0
 *
 * guesses.h: how often a signature may be guessed. mayflyd's loop. A signature has 32 bits. Without limits somebody would guess one within days.
 * After 30 wrong signatures of a client address only one more a second is checked. After 1,000 wrong ones for a sandbox it is 100 a second. At that rate the
 * first hit takes most of a year, and the operator sees the attempts in the log. The tables have a fixed size: addresses, or sandboxes, with the same
 * place share its guesses.
 */
#pragma once

#include "lib/base.h"

#define GUESSES_PLACES 4096u

struct guesses {
	uint64_t seed;
	struct guess_place {
		uint64_t at_ns;
		uint32_t spent;
	} address[GUESSES_PLACES], sandbox[GUESSES_PLACES];
	/* pairs of sandbox and address that showed a right signature: wrong ones of others do not keep them out */
	uint64_t right[GUESSES_PLACES];
};

void guesses_init(struct guesses *g);
/* May another signature be checked? address: the client's, as text; of an IPv6 address the first 64 bits count. false: too many were wrong; answer 429. */
bool guesses_left(struct guesses *g, const char *sandbox, const char *address, uint64_t now_ns);
/* A signature was right. */
void guesses_right(struct guesses *g, const char *sandbox, const char *address);
/* A signature was wrong. */
void guesses_wrong(struct guesses *g, const char *sandbox, const char *address, uint64_t now_ns);
