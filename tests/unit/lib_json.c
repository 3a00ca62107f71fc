/* SPDX-License-Identifier: Apache-2.0
 *
 * lib_json: what the one reader of JSON takes, what it refuses, and which numbers it believes.
 */
#include "lib/test.h"

#include <cjson/cJSON.h>

#include "lib/json.h"

static int read_text(const char *text, unsigned int want)
{
	cJSON *j = NULL;
	int rc = json_read(&j, text, strlen(text), want, NULL);

	CHECK((rc == 0) == (j != NULL));
	cJSON_Delete(j);
	return rc;
}

static void takes_and_refuses(void)
{
	static const struct {
		const char *text;
		unsigned int want;
		int rc;
	} t[] = {
		{"{}", JSON_OBJECT, 0},
		{" {\"a\":[1,2,{\"b\":null}]} \r\n", JSON_OBJECT, 0},
		{"[]", JSON_OBJECT, -EINVAL},
		{"[]", JSON_OBJECT | JSON_ARRAY, 0},
		{"1", JSON_OBJECT | JSON_ARRAY, -EINVAL},
		{"", JSON_OBJECT, -EBADMSG},
		{"{", JSON_OBJECT, -EBADMSG},
		{"{} x", JSON_OBJECT, -EBADMSG},
		{"{}{}", JSON_OBJECT, -EBADMSG},
		/* a NUL would cut a string behind a check */
		{"{\"a\":\"b\\u0000c\"}", JSON_OBJECT, -EBADMSG},
		{"{\"a\\u0000\":1}", JSON_OBJECT, -EBADMSG},
		{"{\"a\":\"b\\\\u0000c\"}", JSON_OBJECT, 0},
		/* of two members of one name every parser takes another */
		{"{\"a\":1,\"a\":2}", JSON_OBJECT, -EBADMSG},
		{"{\"a\":1,\"A\":2}", JSON_OBJECT, 0},
		{"{\"a\":1,\"\\u0061\":2}", JSON_OBJECT, -EBADMSG},
		{"[{\"x\":{\"b\":1,\"c\":2,\"b\":3}}]", JSON_ARRAY, -EBADMSG},
		/* bytes that are no text */
		{"{\"a\":\"\xff\"}", JSON_OBJECT, -EBADMSG},
		{"{\"a\":\"\xff\"}", JSON_OBJECT | JSON_ANY_BYTES, 0},
		{"{\"a\":\"\xed\xa0\x80\"}", JSON_OBJECT, -EBADMSG},
		{"{\"a\":\"\\ud800\"}", JSON_OBJECT, -EBADMSG},
		/* brackets inside strings are no levels */
		{"{\"a\":\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["
		 "\"}",
			JSON_OBJECT, 0},
	};

	for (size_t i = 0; i < ARRAY_LEN(t); i++)
		CHECK_INT(read_text(t[i].text, t[i].want), t[i].rc);
}

static void depth_is_bounded(void)
{
	char text[2 * JSON_DEPTH_MAX + 8] = "";

	memset(text, '[', JSON_DEPTH_MAX);
	memset(text + JSON_DEPTH_MAX, ']', JSON_DEPTH_MAX);
	CHECK_INT(read_text(text, JSON_ARRAY), 0);
	memset(text, '[', JSON_DEPTH_MAX + 1);
	memset(text + JSON_DEPTH_MAX + 1, ']', JSON_DEPTH_MAX + 1);
	CHECK_INT(read_text(text, JSON_ARRAY), -EBADMSG);
}

static void nul_bytes_are_refused(void)
{
	static const char inside[] = "{\"a\":\"b\0c\"}", behind[] = "{\"a\":\"b\"}\0";
	static const unsigned int wants[] = {JSON_OBJECT, JSON_OBJECT | JSON_ANY_BYTES};
	cJSON *j = NULL;

	for (size_t i = 0; i < ARRAY_LEN(wants); i++) {
		CHECK_INT(json_read(&j, inside, sizeof(inside) - 1, wants[i], NULL), -EBADMSG);
		CHECK_INT(json_read(&j, behind, sizeof(behind) - 1, wants[i], NULL), -EBADMSG);
	}
}

/* 40,000 members, the last one twice: looked at in n log n */
static void long_objects_are_no_trap(void)
{
	struct buf b;
	cJSON *j = NULL;

	buf_init(&b, MIB(4));
	for (int i = 0; i < 40000; i++)
		buf_printf(&b, "%c\"k%d\":1", i ? ',' : '{', i);
	buf_printf(&b, ",\"k39999\":1}");
	CHECK_INT(json_read(&j, b.p, b.len, JSON_OBJECT, NULL), -EBADMSG);
	buf_fini(&b);
}

static void numbers_are_exact_or_refused(void)
{
	static const struct {
		const char *text;
		int rc;
		uint64_t v;
	} t[] = {{"0", 0, 0}, {"9007199254740992", 0, 9007199254740992ull},
		{"9007199254740994", -EINVAL, 0}, {"1e3", 0, 1000}, {"-1", -EINVAL, 0},
		{"1.5", -EINVAL, 0}, {"1e400", -EINVAL, 0}, {"\"1\"", -EINVAL, 0},
		{"true", -EINVAL, 0}};

	for (size_t i = 0; i < ARRAY_LEN(t); i++) {
		_cleanup_json_ cJSON *j = NULL;
		char text[64];
		uint64_t v = 0;

		snprintf(text, sizeof(text), "{\"n\":%s}", t[i].text);
		CHECK_INT(json_read(&j, text, strlen(text), JSON_OBJECT, NULL), 0);
		CHECK_INT(json_u64(j, "n", &v), t[i].rc);
		CHECK_INT(v, t[i].v);
		CHECK_INT(json_u64(j, "m", &v), -EINVAL);
	}
}

static void sixty_four_bits_come_back(void)
{
	static const int64_t t[] = {0, -1, INT64_MAX, INT64_MIN, 9007199254740993};

	for (size_t i = 0; i < ARRAY_LEN(t); i++) {
		_cleanup_json_ cJSON *o = cJSON_CreateObject(), *back = NULL;
		char *text;

		json_put_i64(o, "v", t[i]);
		text = cJSON_PrintUnformatted(o);
		CHECK_INT(json_read(&back, text, strlen(text), JSON_OBJECT, NULL), 0);
		CHECK(json_get_i64(back, "v") == t[i]);
		cJSON_free(text);
	}
}

static const struct test tests[] = {
	{"takes_and_refuses", takes_and_refuses},
	{"depth_is_bounded", depth_is_bounded},
	{"nul_bytes_are_refused", nul_bytes_are_refused},
	{"long_objects_are_no_trap", long_objects_are_no_trap},
	{"numbers_are_exact_or_refused", numbers_are_exact_or_refused},
	{"sixty_four_bits_come_back", sixty_four_bits_come_back},
};
TEST_MAIN(tests)
