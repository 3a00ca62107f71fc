/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON in place: the reader can walk all that it accepts, and the strict reader accepts each string that it writes again.
 */
#include "lib/json_slice.h"

#include <cjson/cJSON.h>

#include "lib/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static size_t walk(struct json_slice s, unsigned int depth)
{
	struct json_walk w = json_walk_of(s);
	struct json_slice key, value, again;
	size_t members = 0;

	while (json_walk_next(&w, &key, &value)) {
		ASSERT(value.p >= s.p && value.n && value.p + value.n < s.p + s.n);
		ASSERT(json_slice_read(&again, value.p, value.n) && again.n == value.n);
		ASSERT(!key.p || json_slice_kind(key) == '"');
		members++;
		if (depth < 3)
			members += walk(value, depth + 1);
	}
	return members;
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	_cleanup_json_ cJSON *j = NULL;
	struct json_slice s, again;
	struct buf b;

	if (n > 4096)
		return 0;
	if (!json_slice_read(&s, p, n))
		return 0;
	walk(s, 0);
	json_slice_member(s, "content");
	buf_init(&b, 65536);
	buf_put(&b, "[", 1);
	json_slice_put(&b, s);
	buf_put(&b, "]", 1);
	/* no NUL and no half of a pair is left: the strict reader takes it */
	ASSERT(!b.bad && json_slice_read(&again, b.p, b.len));
	ASSERT(json_read(&j, b.p, b.len, JSON_ARRAY, NULL) == 0);
	buf_fini(&b);
	return 0;
}
