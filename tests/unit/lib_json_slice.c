/* SPDX-License-Identifier: Apache-2.0
 *
 * lib_json_slice: the reader of JSON in place: what it takes and refuses, members, text as it is written again.
 */
#include "lib/test.h"

#include "lib/json.h"
#include "lib/json_slice.h"

#include <cjson/cJSON.h>

static struct json_slice S;

static bool reads(const char *text)
{
	return json_slice_read(&S, text, strlen(text));
}

static void takes_what_is_json(void)
{
	static const char *const good[] = {"0", "-1.5e+7", "\"\"", "[]", "{}",
		" [1 , 2,{\"a\":[]}] ", "{\"a\":{\"b\":[null,true,false]},\"c\":\"\\u00e4\\n\"}",
		"NaN", "[-Infinity]"};
	static const char *const bad[] = {"", " ", "01", "1.", "-", "+1", "[1,]", "{\"a\":1,}",
		"{a:1}", "[1 2]", "{\"a\" 1}", "\"a", "\"\\x\"", "\"\\u12g4\"", "[1]]", "[}", "{]",
		"tru", "\"\n\"", "{\"a\":1}x", "\xff", "\"\xc3\"", "[,1]", "{,}", "{\"a\":}", "1e",
		"\"\\"};
	char deep[2 * JSON_SLICE_DEPTH_MAX + 3];

	for (size_t i = 0; i < ARRAY_LEN(good); i++)
		CHECK(reads(good[i]));
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		CHECK(!reads(bad[i]));
	CHECK(!json_slice_read(&S, "\"a\0b\"", 5));
	memset(deep, '[', JSON_SLICE_DEPTH_MAX);
	memset(deep + JSON_SLICE_DEPTH_MAX, ']', JSON_SLICE_DEPTH_MAX);
	deep[2 * JSON_SLICE_DEPTH_MAX] = 0;
	CHECK(reads(deep));
	memset(deep, '[', JSON_SLICE_DEPTH_MAX + 1);
	memset(deep + JSON_SLICE_DEPTH_MAX + 1, ']', JSON_SLICE_DEPTH_MAX + 1);
	deep[2 * JSON_SLICE_DEPTH_MAX + 2] = 0;
	CHECK(!reads(deep));
}

static void finds_members(void)
{
	struct json_slice v, k;
	struct json_walk w;
	char text[8];
	uint64_t n;

	CHECK(reads(" {\"a\" : {\"b\":[1,{\"c\":\"}\"}]} , \"n\":17,\"s\":\"x\\\"\",\"a\":2, "
		    "\"t\":\"abc\"} "));
	v = json_slice_member(S, "a");
	CHECK(v.n == 19 && *v.p == '{');
	w = json_walk_of(json_slice_member(v, "b"));
	CHECK(json_walk_next(&w, &k, &v) && !k.p && v.n == 1);
	CHECK(json_walk_next(&w, NULL, &v) && *v.p == '{' &&
		json_slice_is(json_slice_member(v, "c"), "}"));
	CHECK(!json_walk_next(&w, NULL, &v) && !json_walk_next(&w, NULL, &v));
	CHECK(json_slice_whole(json_slice_member(S, "n"), 17, &n) && n == 17);
	CHECK(!json_slice_whole(json_slice_member(S, "n"), 16, &n));
	CHECK(!json_slice_member(S, "c").p && !json_slice_member(v, "x").p);
	CHECK(json_slice_copy(json_slice_member(S, "t"), text, 4) && !strcmp(text, "abc"));
	CHECK(!json_slice_copy(json_slice_member(S, "t"), text, 3));
	CHECK(!json_slice_copy(json_slice_member(S, "s"), text, 8));
	CHECK(!json_slice_copy(json_slice_member(S, "n"), text, 8));
}

static const char *put(const char *text)
{
	static struct buf b;

	buf_fini(&b);
	buf_init(&b, 4096);
	CHECK(reads(text));
	json_slice_put(&b, S);
	return buf_cstr(&b);
}

static void writes_values_as_strings(void)
{
	CHECK_STR(put(" \"a\\n\\u0000b\\\\u0000\" "), "\"a\\n\\ufffdb\\\\u0000\"");
	CHECK_STR(put("\"\\ud83d\\ude00 \\ud83d \\ude00\\ud83d\\u0041\""),
		"\"\\ud83d\\ude00 \\ufffd \\ufffd\\ufffd\\u0041\"");
	CHECK_STR(put("{\"a\": [1, \"x\"]}"), "\"{\\\"a\\\": [1, \\\"x\\\"]}\"");
	CHECK_STR(put("null"), "\"null\"");
}

static const struct test tests[] = {
	{"takes_what_is_json", takes_what_is_json},
	{"finds_members", finds_members},
	{"writes_values_as_strings", writes_values_as_strings},
};
TEST_MAIN(tests)
