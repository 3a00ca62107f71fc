/* SPDX-License-Identifier: Apache-2.0
 *
 * The upload reader: the first byte says how the rest is cut. Whatever is cut differently must give
 * the same bodies.
 */
#include "api/http/multipart.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static uint64_t run(const uint8_t *in, size_t n, size_t piece)
{
	struct multipart m;
	uint64_t hash = 1469598103934665603ull;
	enum multipart_ev ev = MP_MORE;

	if (multipart_init(&m, "multipart/form-data; boundary=b"))
		return 0;
	for (size_t i = 0; i < n && ev != MP_BAD; i += piece) {
		size_t left = MIN(piece, n - i), len = 0;
		const uint8_t *at = in + i, *data = NULL;

		do {
			ev = multipart_next(&m, &at, &left, &data, &len);
			for (size_t k = 0; ev == MP_DATA && k < len; k++)
				hash = (hash ^ data[k]) * 1099511628211ull;
			if (ev != MP_DATA && ev != MP_MORE)
				hash = (hash ^ (0x100u + ev)) * 1099511628211ull;
		} while (ev != MP_MORE && ev != MP_BAD);
	}
	multipart_fini(&m);
	return hash;
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	if (n < 1)
		return 0;
	ASSERT(run(p + 1, n - 1, 1 + p[0]) == run(p + 1, n - 1, n));
	return 0;
}
