/* SPDX-License-Identifier: Apache-2.0
 *
 * api_event_stream: JSON strings from any bytes, events, and lines that keep their ending however the stream is cut.
 */
#include "lib/test.h"

#include <cjson/cJSON.h>

#include "api/http/event_stream.h"

static void escaped(const void *in, size_t n, const char *want)
{
	struct buf b;

	buf_init(&b, 4096);
	json_escape(&b, in, n);
	CHECK_STR(buf_cstr(&b), want);
	buf_fini(&b);
}

static void strings_are_valid_utf8(void)
{
#define E(in, want) escaped(in, sizeof(in) - 1, want)
	E("plain", "plain");
	E("a\"b\\c\n\r\t\x01\x7f", "a\\\"b\\\\c\\n\\r\\t\\u0001\\u007f");
	E("a\0b", "a\\u0000b");
	E("\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80");
	E("\xff", "\xef\xbf\xbd");
	E("\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"); /* overlong */
	E("\xe2\x82", "\xef\xbf\xbd");             /* cut */
	E("\xe2\x82x", "\xef\xbf\xbdx");
	E("\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"); /* a surrogate */
	E("\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
	E("\x80", "\xef\xbf\xbd");
}

/* The texts of the events in b, each followed by '|'. */
static void texts(struct buf *b, char *out, size_t cap)
{
	const char *p = buf_cstr(b), *e;

	out[0] = 0;
	while ((e = strstr(p, "\n\n"))) {
		cJSON *j = cJSON_ParseWithLength(p, (size_t)(e - p));
		const cJSON *t = cJSON_GetObjectItem(j, "text");

		REQUIRE(j && cJSON_IsNumber(cJSON_GetObjectItem(j, "timestamp")));
		CHECK(!memchr(p, '\n', (size_t)(e - p)));
		if (t && strlen(out) + strlen(t->valuestring) + 2 < cap) {
			strncat(out, t->valuestring, cap - strlen(out) - 1);
			strncat(out, "|", cap - strlen(out) - 1);
		}
		cJSON_Delete(j);
		p = e + 2;
	}
	CHECK_STR(p, "");
}

static void feed_in(const char *in, size_t piece, const char *want)
{
	struct sse_lines l;
	struct buf b;
	char got[512];
	size_t n = strlen(in);

	buf_init(&b, 1 << 20);
	sse_lines_init(&l, "stdout");
	for (size_t i = 0; i < n; i += piece)
		sse_lines_feed(&l, (const uint8_t *)in + i, MIN(piece, n - i), &b);
	sse_lines_flush(&l, &b);
	texts(&b, got, sizeof(got));
	CHECK_STR(got, want);
	sse_lines_fini(&l);
	buf_fini(&b);
}

static void lines_keep_their_endings_however_cut(void)
{
	const char *in = "a\nbc\r\n\r\nd\r\re\n\n\xe2\x82\xac\nlast";

	for (size_t piece = 1; piece < 24; piece++)
		feed_in(in, piece, "a\n|bc\r\n|\r\n|d\r|\r|e\n|\n|\xe2\x82\xac\n|last|");
	feed_in("x\r", 1, "x\r|");
	feed_in("", 1, "");
}

/* strstr in a loop is quadratic under a sanitizer, which measures the whole string each time */
static size_t count(const struct buf *b, const char *what)
{
	size_t n = 0, len = strlen(what);

	for (size_t i = 0; i + len <= b->len; i++)
		n += b->p[i] == (uint8_t)what[0] && !memcmp(b->p + i, what, len);
	return n;
}

static void long_lines_come_in_pieces_of_whole_characters(void)
{
	struct sse_lines l;
	struct buf b;

	buf_init(&b, 8 << 20);
	sse_lines_init(&l, "stderr");
	for (size_t i = 0; i < 700000; i++)
		sse_lines_feed(&l, (const uint8_t *)"\xe2\x82\xac" + i % 3, 1, &b);
	CHECK(l.carry.len < SSE_LINE_MAX);
	sse_lines_flush(&l, &b);
	CHECK_INT(count(&b, "\"type\":\"stderr\""), 11);
	CHECK_INT(count(&b, "\xe2\x82\xac"), 233333);
	CHECK(!b.bad && !l.carry.bad);
	sse_lines_fini(&l);
	buf_fini(&b);
}

static void ends_are_as_documented(void)
{
	struct buf b;

	buf_init(&b, 4096);
	sse_error(&b, "CommandExecError", "3", "exit status 3");
	CHECK(!strncmp(buf_cstr(&b),
		"{\"type\":\"error\",\"error\":{\"ename\":\"CommandExecError\",\"evalue\":\"3\","
		"\"traceback\":[\"exit status 3\"]},"
		"\"timestamp\":",
		100));
	buf_reset(&b);
	sse_complete(&b, 12);
	CHECK(!strncmp(buf_cstr(&b),
		"{\"type\":\"execution_complete\",\"execution_time\":12,\"timestamp\":", 60));
	CHECK(!strcmp(buf_cstr(&b) + b.len - 3, "}\n\n"));
	buf_fini(&b);
}

static const struct test tests[] = {
	{"strings_are_valid_utf8", strings_are_valid_utf8},
	{"lines_keep_their_endings_however_cut", lines_keep_their_endings_however_cut},
	{"long_lines_come_in_pieces_of_whole_characters",
		long_lines_come_in_pieces_of_whole_characters},
	{"ends_are_as_documented", ends_are_as_documented},
};
TEST_MAIN(tests)
