/* SPDX-License-Identifier: Apache-2.0
 *
 * A worker.md, which may come from anywhere: what its front matter is read into is JSON that is read again.
 */
#include <cjson/cJSON.h>
#include <string.h>

#include "cli/worker_file.h"
#include "lib/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	_cleanup_json_ cJSON *o = NULL, *again = NULL;
	struct err e = {0};
	char *text;

	if (worker_file_read(&o, (const char *)p, n, &e) < 0) {
		ASSERT(!o && *e.msg);
		return 0;
	}
	text = cJSON_PrintUnformatted(o);
	ASSERT(text);
	ASSERT(json_read(&again, text, strlen(text), JSON_OBJECT, &e) == 0);
	free(text);
	return 0;
}
