/* SPDX-License-Identifier: Apache-2.0
 *
 * Any output of a program, cut anywhere: every event must be JSON that cJSON accepts, ended by one
 * blank line.
 */
#include "api/http/event_stream.h"

#include <string.h>
#include <cjson/cJSON.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	struct sse_lines l;
	struct buf out;
	size_t piece = n ? 1 + p[0] : 1;
	const char *at, *e;

	buf_init(&out, 64 << 20);
	sse_lines_init(&l, "stdout");
	for (size_t i = 0; i < n; i += piece)
		sse_lines_feed(&l, p + i, MIN(piece, n - i), &out);
	sse_lines_flush(&l, &out);
	for (at = buf_cstr(&out); (e = strstr(at, "\n\n")); at = e + 2) {
		cJSON *j = cJSON_ParseWithLengthOpts(at, (size_t)(e - at), NULL, 0);

		ASSERT(j && cJSON_IsString(cJSON_GetObjectItem(j, "text")));
		cJSON_Delete(j);
	}
	ASSERT(!*at);
	sse_lines_fini(&l);
	buf_fini(&out);
	return 0;
}
