/* SPDX-License-Identifier: Apache-2.0
 *
 * cli_worker_file: the front matter of a worker.md as JSON: the part of YAML that is read, and that everything else is an error with its line.
 */
#include "lib/test.h"

#include <cjson/cJSON.h>
#include <stdio.h>

#include "cli/worker_file.h"
#include "lib/json.h"

static void front_matter_becomes_json(void)
{
	static const struct {
		const char *text, *json;
	} rows[] = {{"---\n---\n", "{}"}, {"---\r\na: 1\r\n---\r\nrest", "{\"a\":1}"},
		{"---\nname: Count words # of a text\nversion: 1.0.0\n---",
			"{\"name\":\"Count words\",\"version\":\"1.0.0\"}"},
		{"---\na:\n  b: [x, 2, \"c\\td\", 'e: f', {g: true, h: null}]\n  i:\nj: "
		 "-1.5\n---\n",
			"{\"a\":{\"b\":[\"x\",2,\"c\\td\",\"e: "
			"f\",{\"g\":true,\"h\":null}],\"i\":null},"
			"\"j\":-1.5}"},
		{"---\na:\n- x\n- 1\nb:\n  - {c: d}\n---\n",
			"{\"a\":[\"x\",1],\"b\":[{\"c\":\"d\"}]}"},
		{"---\na: |\n  one\n\n    two # no comment\nb: |-\n  three\n\n---\n",
			"{\"a\":\"one\\n\\n  two # no comment\\n\",\"b\":\"three\"}"},
		{"---\n# a comment\n\n  \"q r\": http://x/#y\n---\n", "{\"q r\":\"http://x/#y\"}"}};
	struct err e;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		_cleanup_json_ cJSON *o = NULL;
		_cleanup_free_ char *text = NULL;

		CHECK_INT(worker_file_read(&o, rows[i].text, strlen(rows[i].text), &e), 0);
		text = cJSON_PrintUnformatted(o);
		CHECK_STR(text ? text : "", rows[i].json);
	}
}

static void anything_else_is_an_error(void)
{
	static const struct {
		const char *text, *why;
	} rows[] = {{"", "no front matter: it begins with a line '---' and ends with another"},
		{"---\na: 1\n",
			"no front matter: it begins with a line '---' and ends with another"},
		{"\n---\n---\n",
			"no front matter: it begins with a line '---' and ends with another"},
		{"---\na: 1\na: 2\n---\n", "line 3: this name is there twice"},
		{"---\na: {b: 1, b: 2}\n---\n", "line 2: this name is there twice"},
		{"---\na: 1\n  b: 2\n---\n", "line 3: the indentation does not fit"},
		{"---\n  a: 1\nb: 2\n---\n", "line 3: the indentation does not fit"},
		{"---\na:\n\tb: 1\n---\n", "line 3: indentation must be blanks"},
		{"---\na\n---\n", "line 2: a name and ': ' are expected"},
		{"---\na: [1\n---\n", "line 2: a bracket is not closed on its line"},
		{"---\na: [1 {2}]\n---\n", "line 2: ',' or the closing bracket is expected"},
		{"---\na: \"x\n---\n", "line 2: a text in quotes does not end on its line"},
		{"---\na: \"\\x\"\n---\n",
			"line 2: a text in quotes has an escape that JSON does not have"},
		{"---\na: \"x\" y\n---\n", "line 2: something follows the value"},
		{"---\na: *b\n---\n",
			"line 2: a plain text cannot begin with this character: put it in quotes"},
		{"---\na: >\n  b\n---\n",
			"line 2: a plain text cannot begin with this character: put it in quotes"},
		{"---\na:\n  - b: c\n---\n",
			"line 3: a text with ': ' must be in quotes, and a mapping in {}"},
		{"---\na:\n  - b\n  c: d\n---\n", "line 4: the indentation does not fit"},
		{"---\n- a\n---\n", "line 2: the front matter must be names with values"},
		{"---\na: \xff\n---\n", "not a text in UTF-8"}};
	struct err e;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		cJSON *o = NULL;

		e = (struct err){0};
		CHECK_INT(worker_file_read(&o, rows[i].text, strlen(rows[i].text), &e), -EINVAL);
		CHECK_STR(e.msg, rows[i].why);
		CHECK(!o);
	}
}

static void deep_and_long_files_are_refused(void)
{
	static char text[WORKER_FILE_MAX + 1];
	cJSON *o = NULL;
	struct err e;

	memcpy(text, "---\na: ", 7);
	memset(text + 7, '[', 1000);
	memcpy(text + 1007, "\n---\n", 5);
	CHECK_INT(worker_file_read(&o, text, 1012, &e), -EINVAL);
	CHECK_STR(e.msg, "line 2: this is too deep");
	memset(text + 7, 'x', sizeof(text) - 7);
	CHECK_INT(worker_file_read(&o, text, sizeof(text), &e), -EINVAL);
	CHECK(!o);
}

static const struct test tests[] = {
	{"front_matter_becomes_json", front_matter_becomes_json},
	{"anything_else_is_an_error", anything_else_is_an_error},
	{"deep_and_long_files_are_refused", deep_and_long_files_are_refused},
};
TEST_MAIN(tests)
