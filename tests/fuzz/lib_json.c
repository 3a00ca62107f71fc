/* SPDX-License-Identifier: Apache-2.0
 *
 * lib_json: any bytes into the one reader of JSON. The first byte says what is wanted. What is taken is of the wanted type, and is taken again
 * when it was printed.
 */
#include "lib/json.h"

#include <cjson/cJSON.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	unsigned int want = n ? p[0] & 7u : 0;
	cJSON *j = NULL, *again = NULL;
	struct err e;
	char *text;

	if (n < 1 || n > 100000 || json_read(&j, p + 1, n - 1, want, &e) < 0)
		return 0;
	ASSERT(cJSON_IsObject(j) ? want & JSON_OBJECT : cJSON_IsArray(j) && (want & JSON_ARRAY));
	text = cJSON_PrintUnformatted(j);
	ASSERT(text);
	ASSERT(!json_read(&again, text, strlen(text), want, &e));
	cJSON_Delete(again);
	cJSON_free(text);
	cJSON_Delete(j);
	return 0;
}
