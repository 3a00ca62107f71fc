/* SPDX-License-Identifier: Apache-2.0
 *
 * api_worker: the input of a run and the part of JSON Schema that the worker contract uses. What a run does: test_runs_host.py.
 */
#include "lib/test.h"

#include <cjson/cJSON.h>

#include "api/core/config.h"
#include "api/fleet/schema.h"
#include "api/fleet/worker_task.h"
#include "lib/json.h"

static cJSON *parsed(const char *text)
{
	cJSON *j = cJSON_Parse(text);

	ASSERT(j);
	return j;
}

static int checked(const char *schema, struct err *e)
{
	_cleanup_json_ cJSON *s = parsed(schema);

	*e = (struct err){0};
	return schema_check(s, "schema", e);
}

static int matched(const char *schema, const char *value, struct err *e)
{
	_cleanup_json_ cJSON *s = parsed(schema), *v = parsed(value);

	*e = (struct err){0};
	CHECK_INT(schema_check(s, "schema", e), 0);
	return schema_match(s, v, "value", e);
}

static void schemas_of_this_part_are_taken(void)
{
	static const char *const rows[] = {"{}", "{\"type\":\"object\"}",
		"{\"type\":[\"string\",\"null\"]}",
		"{\"properties\":{\"a\":{\"items\":{\"enum\":[1,\"x\",null]}}},\"required\":[\"a\"]"
		","
		"\"additionalProperties\":false}",
		"{\"const\":true,\"title\":\"t\",\"description\":7,\"default\":{},\"$schema\":"
		"\"x\"}",
		"{\"minLength\":0,\"maxLength\":9,\"minItems\":1,\"maxItems\":2,\"minimum\":-1,"
		"\"maximum\":1.5}"};
	struct err e;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		CHECK_INT(checked(rows[i], &e), 0);
}

static void other_schemas_are_refused(void)
{
	static const struct {
		const char *schema, *why;
	} rows[] = {{"[]", "schema must be an object"},
		{"{\"pattern\":\"a\"}",
			"schema.pattern is not supported: docs/api.md lists the keywords that are"},
		{"{\"properties\":{\"a\":{\"$ref\":\"b\"}}}",
			"schema.properties.a.$ref is not supported: docs/api.md lists the keywords "
			"that are"},
		{"{\"items\":[{}]}", "schema.items must be an object"},
		{"{\"additionalProperties\":{}}",
			"schema.additionalProperties must be true or false"},
		{"{\"enum\":[]}",
			"schema.enum must be a list of texts, numbers, true, false or null"},
		{"{\"enum\":[{}]}",
			"schema.enum must be a list of texts, numbers, true, false or null"},
		{"{\"required\":[1]}", "schema.required must be a list of names"},
		{"{\"minItems\":-1}", "schema.minItems must be a whole number from 0 to 2^30"},
		{"{\"maximum\":\"1\"}", "schema.maximum must be a number"},
		{"{\"properties\":[]}", "schema.properties must be an object of schemas"}};
	static const char *const types[] = {
		"{\"type\":\"text\"}", "{\"type\":[]}", "{\"type\":[1]}", "{\"type\":{}}"};
	struct err e;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		CHECK_INT(checked(rows[i].schema, &e), -EINVAL);
		CHECK_STR(e.msg, rows[i].why);
	}
	for (size_t i = 0; i < ARRAY_LEN(types); i++)
		CHECK_INT(checked(types[i], &e), -EINVAL);
}

/* n times `head`, `middle`, n times `tail`. */
static char *nested(unsigned int n, const char *head, const char *middle, const char *tail)
{
	struct buf b;
	char *text;

	buf_init(&b, MIB(16));
	for (unsigned int i = 0; i < n; i++)
		buf_put(&b, head, strlen(head));
	buf_put(&b, middle, strlen(middle));
	for (unsigned int i = 0; i < n; i++)
		buf_put(&b, tail, strlen(tail));
	text = strdup(buf_cstr(&b));
	buf_fini(&b);
	ASSERT(text);
	return text;
}

static void deep_and_long_schemas_are_refused(void)
{
	_cleanup_free_ char *ok = nested(SCHEMA_DEPTH_MAX, "{\"items\":", "{}", "}");
	_cleanup_free_ char *deep = nested(SCHEMA_DEPTH_MAX + 1, "{\"items\":", "{}", "}");
	_cleanup_free_ char *wide = nested(SCHEMA_PARTS_MAX, "1,", "1]}", "");
	_cleanup_free_ char *list = NULL;
	struct err e;

	CHECK_INT(checked(ok, &e), 0);
	CHECK_INT(checked(deep, &e), -EINVAL);
	ASSERT(asprintf(&list, "{\"enum\":[%s", wide) > 0);
	CHECK_INT(checked(list, &e), -EINVAL);
}

static void values_are_matched(void)
{
	static const struct {
		const char *schema, *value;
		const char *why; /* NULL: it matches */
	} rows[] = {{"{}", "[1,{}]", NULL}, {"{\"type\":\"integer\"}", "2.0", NULL},
		{"{\"type\":\"integer\"}", "2.5", "value is not of the type integer"},
		{"{\"type\":\"number\"}", "\"2\"", "value is not of the type number"},
		{"{\"type\":[\"string\",\"null\"]}", "null", NULL},
		{"{\"type\":[\"string\",\"null\"]}", "1",
			"value is of no type that its schema has"},
		{"{\"enum\":[1,\"a\",null,true]}", "true", NULL},
		{"{\"enum\":[1,\"a\",null,true]}", "false",
			"value is not a value that its schema lists"},
		{"{\"const\":\"a\"}", "{\"a\":1}", "value is not a value that its schema lists"},
		{"{\"required\":[\"a\"]}", "{\"b\":1}", "value.a is missing"},
		{"{\"required\":[\"a\"]}", "{\"a\":null}", NULL},
		{"{\"required\":[\"a\"]}", "7", NULL},
		{"{\"properties\":{\"a\":{}}}", "{\"b\":1}", NULL},
		{"{\"properties\":{\"a\":{}},\"additionalProperties\":false}", "{\"b\":1}",
			"value.b is a member that its schema does not have"},
		{"{\"properties\":{\"a\":{\"items\":{\"type\":\"string\"}}}}", "{\"a\":[\"x\",1]}",
			"value.a[1] is not of the type string"},
		{"{\"maxLength\":2}", "\"\xc3\xa4\xc3\xb6\"", NULL},
		{"{\"maxLength\":2}", "\"abc\"",
			"value is shorter or longer than its schema allows"},
		{"{\"minItems\":1}", "[]",
			"value has fewer or more entries than its schema allows"},
		{"{\"minimum\":1,\"maximum\":2}", "3",
			"value is outside of its schema's minimum and maximum"}};
	struct err e;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		CHECK_INT(matched(rows[i].schema, rows[i].value, &e), rows[i].why ? -EINVAL : 0);
		CHECK_STR(e.msg, rows[i].why ? rows[i].why : "");
	}
}

/* 200 names for each of 10,000 entries are more than may be compared. */
static void too_much_work_is_refused(void)
{
	_cleanup_free_ char *names = nested(200, "\"x\",", "\"y\"]}}", "");
	_cleanup_free_ char *entries = nested(10000, "\"y\",", "\"y\"]", "");
	_cleanup_free_ char *schema = NULL, *value = NULL;
	struct err e;

	ASSERT(asprintf(&schema, "{\"items\":{\"enum\":[%s", names) > 0 &&
		asprintf(&value, "[%s", entries) > 0);
	CHECK_INT(matched(schema, value, &e), -E2BIG);
	CHECK_STR(e.msg, "value is too large to be checked against its schema");
}

static int task_read(struct worker_task *t, const char *text, struct err *e)
{
	static struct config c;

	if (!c.runs_max_attempts)
		conf_defaults(&c);
	*e = (struct err){0};
	return worker_task_read(t, text, strlen(text), &c, e);
}

static void a_task_is_read(void)
{
	static const char text[] =
		"{\"run_id\":\"r\",\"task\":\"print(1)\",\"context\":{\"a\":[1],\"worker\":{"
		"\"image\":\"base\",\"language\":\"python\",\"env\":{\"A\":\"1\"},\"timeout_"
		"seconds\":5,"
		"\"resource_limits\":{\"cpu\":\"1\"}}}}";
	struct worker_task t;
	struct err e;

	CHECK_INT(task_read(&t, text, &e), 0);
	CHECK_STR(t.run_id, "r");
	CHECK_STR(t.context, "{\"a\":[1]}");
	CHECK_INT(t.timeout_s, 5);
	CHECK_INT(t.attempts, 2);
	CHECK_INT(t.argc, 3);
	CHECK_STR(t.argv[0], "python3");
	CHECK_STR(t.argv[2], "print(1)");
	CHECK(!t.shell);
	CHECK_STR(json_str(json_obj(t.create, "image"), "uri"), "base");
	CHECK_STR(json_str(t.env, "A"), "1");
	CHECK_INT(strlen(t.digest), 64);
	worker_task_fini(&t);
	CHECK_INT(task_read(&t,
			  "{\"run_id\":\"r\",\"task\":\"x\",\"context\":{\"worker\":{\"template\":"
			  "\"tpl-1\"}}}",
			  &e),
		0);
	CHECK(t.shell && t.argc == 1 && !strcmp(t.argv[0], "x"));
	CHECK_INT(t.timeout_s, 30);
	CHECK_STR(json_str(t.create, "templateId"), "tpl-1");
	CHECK(!json_field(t.create, "entrypoint") && !t.env && !t.output_schema);
	worker_task_fini(&t);
}

static void a_bad_task_says_why(void)
{
	static const struct {
		const char *text, *id, *why;
	} rows[] = {{"x", "", "not JSON"},
		{"{\"run_id\":\"r\",\"task\":\"x\",\"context\":{},\"more\":1}", "r",
			"the input has the member 'more'; known are run_id, task and context"},
		{"{\"run_id\":\"r\",\"task\":\"x\",\"context\":[]}", "r",
			"context must be an object"},
		{"{\"run_id\":\"r\",\"task\":\"x\",\"context\":{}}", "r",
			"context.worker must be an object that names an image or a template"},
		{"{\"run_id\":\"r\",\"task\":\"x\",\"context\":{\"worker\":{\"image\":\"a\","
		 "\"input_schema\":{\"required\":[\"y\"]}}}}",
			"r", "input.y is missing"}};
	struct worker_task t;
	struct err e;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		CHECK_INT(task_read(&t, rows[i].text, &e), -EINVAL);
		CHECK_STR(t.run_id, rows[i].id);
		CHECK_STR(e.msg, rows[i].why);
		worker_task_fini(&t);
	}
}

static void a_sandbox_of_a_run_lives_no_longer_than_others(void)
{
	static const char text[] = "{\"run_id\":\"r\",\"task\":\"x\",\"context\":{\"worker\":{"
				   "\"image\":\"i\"%s}}}";
	struct worker_task t;
	struct config c;
	struct err e;
	char s[200];

	conf_defaults(&c);
	c.max_sandbox_timeout_seconds = 20;
	snprintf(s, sizeof(s), text, "");
	CHECK_INT(worker_task_read(&t, s, strlen(s), &c, &e), 0);
	CHECK_INT(t.timeout_s, 20);
	worker_task_fini(&t);
	snprintf(s, sizeof(s), text, ",\"timeout_seconds\":21");
	CHECK_INT(worker_task_read(&t, s, strlen(s), &c, &e), -EINVAL);
	CHECK_STR(e.msg, "context.worker.timeout_seconds must be a whole number from 1 to 20");
	worker_task_fini(&t);
}

static size_t taken; /* bytes that cJSON asked for */

static void *count_taken(size_t n)
{
	taken += n;
	return malloc(n);
}

/* What reading this text as a task asks for beyond its parsed form. */
static size_t taken_beyond_parsing(const char *text, int want)
{
	cJSON_Hooks counting = {count_taken, free};
	struct worker_task t;
	cJSON *o = NULL;
	struct err e;
	size_t parsing;

	cJSON_InitHooks(&counting);
	taken = 0;
	CHECK_INT(json_read(&o, text, strlen(text), JSON_OBJECT, NULL), 0);
	cJSON_Delete(o);
	parsing = taken;
	taken = 0;
	CHECK_INT(task_read(&t, text, &e), want);
	worker_task_fini(&t);
	cJSON_InitHooks(NULL);
	CHECK(taken >= parsing);
	return taken - parsing;
}

/* A long input that is refused by a cheap check is parsed, and nothing else; one that is taken is printed, and not copied. */
static void a_long_input_costs_little_beyond_parsing(void)
{
	static const char form[] =
		"{\"run_id\":\"r\",\"task\":\"x\",\"context\":{\"a\":1,\"worker\":{\"image\":\"i\","
		"\"timeout_seconds\":%d,\"input_schema\":{\"default\":[%s}}}}";
	_cleanup_free_ char *zeros = nested(50000, "0,", "0]", "");
	_cleanup_free_ char *wrong = NULL, *right = NULL;

	ASSERT(asprintf(&wrong, form, 0, zeros) > 0 && asprintf(&right, form, 1, zeros) > 0);
	CHECK(taken_beyond_parsing(wrong, -EINVAL) < KIB(8));
	CHECK(taken_beyond_parsing(right, 0) < MIB(1));
}

static const struct test tests[] = {
	{"schemas_of_this_part_are_taken", schemas_of_this_part_are_taken},
	{"other_schemas_are_refused", other_schemas_are_refused},
	{"deep_and_long_schemas_are_refused", deep_and_long_schemas_are_refused},
	{"values_are_matched", values_are_matched},
	{"too_much_work_is_refused", too_much_work_is_refused},
	{"a_task_is_read", a_task_is_read},
	{"a_bad_task_says_why", a_bad_task_says_why},
	{"a_sandbox_of_a_run_lives_no_longer_than_others",
		a_sandbox_of_a_run_lives_no_longer_than_others},
	{"a_long_input_costs_little_beyond_parsing", a_long_input_costs_little_beyond_parsing},
};
TEST_MAIN(tests)
