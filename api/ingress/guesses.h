/* SPDX-License-Identifier: Apache-2.0
 *
 * guesses.h: how often a signature may be guessed. mayflyd's loop. A signature has 32 bits, so a gateway that answers as fast as it can would have one guessed within
 * days. Each client address has 30 wrong ones and gets one more a second; each sandbox 1,000, and 100 more a second. At that rate one guess of 2^32 takes
 * most of a year for the first hit, and the operator sees it in the log. The table has a fixed size: what shares a place shares its guesses.
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
	uint64_t right
		[GUESSES_PLACES]; /* pairs of sandbox and address: whoever showed a right signature is not kept out by the wrong ones of others */
};

void guesses_init(struct guesses *g);
/* address: text of the client's; of an IPv6 address the first 64 bits count. false: too many were wrong; answer 429 and check nothing. */
bool guesses_left(struct guesses *g, const char *sandbox, const char *address, uint64_t now_ns);
/* One was right. */
void guesses_right(struct guesses *g, const char *sandbox, const char *address);
/* One was wrong. */
void guesses_wrong(struct guesses *g, const char *sandbox, const char *address, uint64_t now_ns);
