/* SPDX-License-Identifier: Apache-2.0
 *
 * The frames of a relayed WebSocket: the first byte says how the rest is cut; cut differently it must give the same.
 */
#include "lib/websocket_skim.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static uint64_t run(const uint8_t *in, size_t n, size_t piece)
{
	struct ws_skim s = {0};
	uint64_t hash = 1469598103934665603ull, passed = 0;

	for (size_t i = 0; i < n; i += piece) {
		size_t left = MIN(piece, n - i), len = 0;
		const uint8_t *at = in + i, *out = NULL;
		enum ws_skim_ev ev;

		do {
			ev = ws_skim_next(&s, &at, &left, &out, &len);
			for (size_t k = 0; ev == WS_SKIM_PASS && k < len; k++)
				hash = (hash ^ out[k]) * 1099511628211ull;
			passed += ev == WS_SKIM_PASS ? len : 0;
			if (ev == WS_SKIM_CLOSE)
				hash = (hash ^ (uint64_t)s.code ^ strlen(s.reason) << 16) *
				       1099511628211ull;
			if (ev == WS_SKIM_BAD)
				hash ^= 77;
		} while (ev != WS_SKIM_MORE);
		ASSERT(!left);
	}
	ASSERT(passed <= n);
	return hash ^ passed;
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	if (n < 1)
		return 0;
	ASSERT(run(p + 1, n - 1, 1 + p[0]) == run(p + 1, n - 1, n));
	return 0;
}
