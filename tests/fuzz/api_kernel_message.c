/* SPDX-License-Identifier: Apache-2.0
 *
 * A kernel's message: whatever it is, what the client gets for it is whole events of valid JSON.
 */
#include "api/code/kernel_message.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	struct kernel_message m;
	struct json_slice event;
	struct buf b;
	char *at, *end;

	if (n > 65536 || kernel_message_read(&m, p, n) < 0)
		return 0;
	buf_init(&b, MIB(1));
	kernel_events_put(&b, &m);
	ASSERT(!b.bad);
	for (at = (char *)(uintptr_t)buf_cstr(&b); (end = strstr(at, "\n\n")); at = end + 2)
		ASSERT(json_slice_read(&event, at, (size_t)(end - at)) &&
			json_slice_kind(event) == '{');
	ASSERT(!*at);
	buf_fini(&b);
	return 0;
}
