/* SPDX-License-Identifier: Apache-2.0
 *
 * json.c: bounded JSON. Image jobs, the daemon's store, the command line. The text is hostile: cJSON recurses, so its depth is
 * measured before it is let at it, and a NUL inside would end strings early, so it is refused.
 */
#include "images/oci/json.h"
#include "images/oci/limits.h"

#include <math.h>
#include <string.h>

static bool too_deep(const char *p, size_t len)
{
	bool in_str = false;
	int depth = 0;

	for (size_t i = 0; i < len; i++) {
		if (in_str) {
			if (p[i] == '\\')
				i++;
			else if (p[i] == '"')
				in_str = false;
		} else if (p[i] == '"') {
			in_str = true;
		} else if (p[i] == '{' || p[i] == '[') {
			if (++depth > IMAGE_MAX_DEPTH)
				return true;
		} else if (p[i] == '}' || p[i] == ']') {
			depth--;
		}
	}
	return false;
}

/* "\u0000" becomes an early end in cJSON's C strings: what is checked would not be what was sent.
 */
static bool has_nul(const char *p, size_t len)
{
	return memchr(p, 0, len) || memmem(p, len, "\\u0000", 6);
}

cJSON *json_parse(const void *p, size_t len, struct err *e)
{
	const char *end = NULL, *text = p;
	cJSON *j;

	if (len > IMAGE_MAX_CONFIG) {
		err_plain(e, EFBIG, "JSON of %zu bytes", len);
		return NULL;
	}
	if (has_nul(text, len) || too_deep(text, len)) {
		err_plain(e, EBADMSG, "JSON is too deep or has NUL bytes");
		return NULL;
	}
	j = cJSON_ParseWithLengthOpts(text, len, &end, false);
	if (!j) {
		err_plain(e, EBADMSG, "not JSON");
		return NULL;
	}
	while (end < text + len && strchr(" \t\r\n", *end))
		end++;
	if (end != text + len || (!cJSON_IsObject(j) && !cJSON_IsArray(j))) {
		cJSON_Delete(j);
		err_plain(e, EBADMSG,
			end != text + len ? "bytes after the JSON"
					  : "JSON, but neither object nor array");
		return NULL;
	}
	return j;
}

const char *json_str(const cJSON *o, const char *key)
{
	const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);

	return cJSON_IsString(v) ? v->valuestring : NULL;
}

const cJSON *json_obj(const cJSON *o, const char *key)
{
	const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);

	return cJSON_IsObject(v) ? v : NULL;
}

const cJSON *json_arr(const cJSON *o, const char *key)
{
	const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);

	return cJSON_IsArray(v) ? v : NULL;
}

int json_u64(const cJSON *o, const char *key, uint64_t *out)
{
	const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);

	if (!cJSON_IsNumber(v) || !(v->valuedouble >= 0) || v->valuedouble > 9007199254740992.0 ||
		v->valuedouble != floor(v->valuedouble))
		return -EINVAL;
	*out = (uint64_t)v->valuedouble;
	return 0;
}
