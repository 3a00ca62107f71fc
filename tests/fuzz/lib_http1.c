/* SPDX-License-Identifier: Apache-2.0
 *
 * The response reader: the first byte says how the rest is cut; cut differently it must give the
 * same.
 */
#include "lib/http1.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static uint64_t run(const uint8_t *in, size_t n, size_t piece)
{
	static struct http1_response r;
	uint64_t hash = 1469598103934665603ull;
	enum http1_ev ev = H1_MORE;

	http1_init(&r, false);
	for (size_t i = 0; i < n && ev != H1_BAD && ev != H1_DONE; i += piece) {
		size_t left = MIN(piece, n - i), len = 0;
		const uint8_t *at = in + i, *data = NULL;

		do {
			ev = http1_next(&r, &at, &left, &data, &len);
			for (size_t k = 0; ev == H1_DATA && k < len; k++)
				hash = (hash ^ data[k]) * 1099511628211ull;
			for (size_t k = 0; ev == H1_HEAD && k < r.nheaders; k++)
				hash = (hash ^ strlen(r.headers[k].name) ^
					       (strlen(r.headers[k].value) << 8)) *
				       1099511628211ull;
		} while (ev == H1_DATA || ev == H1_HEAD);
	}
	hash ^= ev == H1_BAD ? 77 : 0;
	http1_fini(&r);
	return hash;
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	if (n < 1)
		return 0;
	ASSERT(run(p + 1, n - 1, 1 + p[0]) == run(p + 1, n - 1, n));
	return 0;
}
