/* SPDX-License-Identifier: Apache-2.0
 *
 * json.c: see json.h. Image jobs, the daemon's store, the command line.
 */
#include "images/oci/json.h"
#include "images/oci/limits.h"

cJSON *json_parse(const void *p, size_t len, struct err *e)
{
	cJSON *j = NULL;

	if (len > IMAGE_MAX_CONFIG)
		err_plain(e, EFBIG, "JSON of %zu bytes: at most %llu", len,
			(unsigned long long)IMAGE_MAX_CONFIG);
	else
		json_read(&j, p, len, JSON_OBJECT | JSON_ARRAY | JSON_ANY_BYTES, e);
	return j;
}
