/* SPDX-License-Identifier: Apache-2.0
 *
 * json.c: see json.h. Every text is hostile: a client's, a registry's, a guest's.
 */
#include "lib/json.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXACT_MAX 9007199254740992.0 /* 2^53: above it a double skips whole numbers */

/* ---- reading */

/* One pass before cJSON: NULs and depth. Brackets inside strings do not count. */
static const char *scan_refuses(const char *p, size_t n)
{
	bool in_str = false;
	int depth = 0;

	if (memchr(p, 0, n))
		return "a NUL byte";
	for (size_t i = 0; i < n; i++) {
		if (in_str && p[i] == '\\') {
			if (n - i >= 6 && !memcmp(p + i, "\\u0000", 6))
				return "a NUL character in a string";
			i++;
		} else if (p[i] == '"') {
			in_str = !in_str;
		} else if (!in_str && (p[i] == '{' || p[i] == '[')) {
			if (++depth > JSON_DEPTH_MAX)
				return "too many levels";
		} else if (!in_str && (p[i] == '}' || p[i] == ']')) {
			depth--;
		}
	}
	return NULL;
}

static int by_name(const void *a, const void *b)
{
	const cJSON *const *x = a, *const *y = b;

	return strcmp((*x)->string, (*y)->string);
}

/* 1: two members of o have one name; 0: none have; -ENOMEM. Sorted, so that a long object costs n log n. */
static int has_duplicate(const cJSON *o)
{
	_cleanup_free_ const cJSON **all = NULL;
	size_t n = 0, i = 0;
	const cJSON *v;

	cJSON_ArrayForEach (v, o)
		n++;
	if (n < 2)
		return 0;
	all = calloc(n, sizeof(const cJSON *));
	if (!all)
		return -ENOMEM;
	cJSON_ArrayForEach (v, o)
		all[i++] = v;
	qsort(all, n, sizeof(const cJSON *), by_name);
	for (i = 1; i < n; i++)
		if (!strcmp(all[i - 1]->string, all[i]->string))
			return 1;
	return 0;
}

/* The depth is bounded by scan_refuses. */
static int tree_has_duplicate(const cJSON *o)
{
	int rc = cJSON_IsObject(o) ? has_duplicate(o) : 0;
	const cJSON *v;

	if (!cJSON_IsObject(o) && !cJSON_IsArray(o))
		return 0;
	cJSON_ArrayForEach (v, o) {
		if (rc)
			break;
		rc = tree_has_duplicate(v);
	}
	return rc;
}

static int is_wanted(const cJSON *j, unsigned int want, struct err *e)
{
	if ((cJSON_IsObject(j) && (want & JSON_OBJECT)) ||
		(cJSON_IsArray(j) && (want & JSON_ARRAY)))
		return 0;
	return err_plain(e, EINVAL,
		want & JSON_OBJECT && want & JSON_ARRAY ? "JSON, but neither object nor array"
		: want & JSON_OBJECT                    ? "JSON, but not an object"
							: "JSON, but not an array");
}

int json_read(cJSON **out, const void *p, size_t n, unsigned int want, struct err *e)
{
	const char *text = p, *end = NULL, *why = scan_refuses(text, n);
	cJSON *j = NULL;
	int rc;

	if (!why && !(want & JSON_ANY_BYTES) && !utf8_ok(text, n))
		why = "text that is not UTF-8";
	if (why)
		return err_plain(e, EBADMSG, "JSON with %s", why);
	if (n)
		j = cJSON_ParseWithLengthOpts(text, n, &end, false);
	if (!j)
		return err_plain(e, EBADMSG, "not JSON");
	while (end < text + n && strchr(" \t\r\n", *end))
		end++;
	rc = end != text + n ? err_plain(e, EBADMSG, "bytes after the JSON")
			     : is_wanted(j, want, e);
	if (rc == 0) {
		int twice = tree_has_duplicate(j);

		if (twice)
			rc = err_plain(e, twice < 0 ? ENOMEM : EBADMSG,
				twice < 0 ? "out of memory"
					  : "an object with two members of one name");
	}
	if (rc < 0)
		cJSON_Delete(j);
	else
		*out = j;
	return rc;
}

void json_freep(cJSON **j)
{
	cJSON_Delete(*j);
}

/* ---- members */

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

const cJSON *json_field(const cJSON *o, const char *key)
{
	const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);

	return cJSON_IsNull(v) ? NULL : v;
}

/* Checks the value before the conversion, which is undefined for any other double. */
bool json_whole(const cJSON *v, uint64_t max, uint64_t *out)
{
	if (!cJSON_IsNumber(v) || !(v->valuedouble >= 0) || v->valuedouble > EXACT_MAX ||
		v->valuedouble > (double)max || v->valuedouble != floor(v->valuedouble))
		return false;
	*out = (uint64_t)v->valuedouble;
	return true;
}

int json_u64(const cJSON *o, const char *key, uint64_t *out)
{
	return json_whole(cJSON_GetObjectItemCaseSensitive(o, key), UINT64_MAX, out) ? 0 : -EINVAL;
}

void json_put_i64(cJSON *o, const char *key, int64_t v)
{
	char t[32];

	snprintf(t, sizeof(t), "%lld", (long long)v);
	cJSON_AddStringToObject(o, key, t);
}

int64_t json_get_i64(const cJSON *o, const char *key)
{
	const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);

	if (cJSON_IsNumber(v))
		return fabs(v->valuedouble) <= EXACT_MAX ? (int64_t)v->valuedouble : 0;
	return cJSON_IsString(v) ? strtoll(v->valuestring, NULL, 10) : 0;
}

/* An allocation's own head is counted as two words. The depth was bounded by json_read. */
size_t json_memory(const cJSON *v)
{
	const size_t head = 2 * sizeof(void *);
	size_t n = 0;

	if (!v)
		return 0;
	n += sizeof(*v) + head;
	n += v->string ? strlen(v->string) + 1 + head : 0;
	n += v->valuestring ? strlen(v->valuestring) + 1 + head : 0;
	for (v = v->child; v; v = v->next)
		n += json_memory(v);
	return n;
}
