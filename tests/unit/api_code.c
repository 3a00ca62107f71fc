/* SPDX-License-Identifier: Apache-2.0
 *
 * api_code: what a Jupyter kernel says becomes a client's events; how the server is found. From client to kernel: tests/e2e/test_code_host.py.
 */
#include "lib/test.h"

#include <cjson/cJSON.h>

#include "api/code/jupyter.h"
#include "api/code/kernel_message.h"
#include "lib/json.h"

struct agentc;
struct sandbox;
const char *sandbox_env(const struct sandbox *sb, const char *name);
const char *sandbox_image_env(const struct sandbox *sb, const char *name);

static struct kernel_message M;

static int reads(const char *type, const char *content)
{
	static char text[4096]; /* the message's slices point into it */

	snprintf(text, sizeof(text),
		"{\"header\":{\"msg_id\":\"k_1\",\"msg_type\":\"%s\"},\"parent_header\":{\"msg_"
		"id\":\"mine\"},\"metadata\":{},\"content\":%s,"
		"\"buffers\":[],\"channel\":\"iopub\"}",
		type, content);
	return kernel_message_read(&M, text, strlen(text));
}

/* The events of a message, without their times; each must be JSON by itself. */
static const char *events(const char *type, const char *content)
{
	static char out[4096];
	size_t n = 0;
	struct buf b;
	char *p, *e;

	CHECK_INT(reads(type, content), 0);
	buf_init(&b, 65536);
	kernel_events_put(&b, &M);
	out[0] = 0;
	for (p = (char *)(uintptr_t)buf_cstr(&b); (e = strstr(p, "\n\n")); p = e + 2) {
		cJSON *j = NULL;
		char *t;

		*e = 0;
		CHECK_INT(json_read(&j, p, strlen(p), JSON_OBJECT, NULL), 0);
		CHECK(cJSON_GetNumberValue(cJSON_GetObjectItem(j, "timestamp")) > 1.6e12);
		cJSON_DeleteItemFromObject(j, "timestamp");
		t = cJSON_PrintUnformatted(j);
		n += (size_t)snprintf(out + n, sizeof(out) - n, "%s\n", t);
		free(t);
		cJSON_Delete(j);
	}
	CHECK(!*p);
	buf_fini(&b);
	return out;
}

static void messages_become_events(void)
{
	CHECK_STR(events("stream", "{\"name\":\"stdout\",\"text\":\"a\\n\\u0000\"}"),
		"{\"type\":\"stdout\",\"text\":\"a\\n\xef\xbf\xbd\"}\n");
	CHECK(json_slice_is(M.parent, "mine"));
	CHECK_STR(events("stream", "{\"name\":\"stderr\",\"text\":\"b\"}"),
		"{\"type\":\"stderr\",\"text\":\"b\"}\n");
	CHECK_STR(events("execute_input", "{\"code\":\"1\",\"execution_count\":7}"),
		"{\"type\":\"execution_count\",\"execution_count\":7}\n");
	CHECK_STR(
		events("execute_result",
			"{\"data\":{\"text/plain\":\"2\",\"text\\/"
			"x\":{\"a\":[1]},\"text\":\"no\"},\"metadata\":{},\"execution_count\":7}"),
		"{\"type\":\"result\",\"results\":{\"text\":\"2\",\"text/"
		"x\":\"{\\\"a\\\":[1]}\"}}\n");
	CHECK_INT(M.count, 7);
	CHECK_STR(events("display_data", "{\"data\":{\"image/png\":\"aGk=\"}}"),
		"{\"type\":\"result\",\"results\":{\"image/png\":\"aGk=\"}}\n");
	CHECK_STR(events("error",
			  "{\"ename\":\"E\",\"evalue\":\"v\",\"traceback\":[\"one\",\"two\",3]}"),
		"{\"type\":\"error\",\"error\":{\"ename\":\"E\",\"evalue\":\"v\",\"traceback\":["
		"\"one\",\"two\",\"3\"]}}\n");
	CHECK_STR(events("execute_reply", "{\"status\":\"ok\",\"execution_count\":7}"), "");
	CHECK(M.kind == KERNEL_REPLY && !M.failed);
	CHECK_STR(events("execute_reply", "{\"status\":\"aborted\"}"),
		"{\"type\":\"error\",\"error\":{\"ename\":\"ExecutionError\",\"evalue\":\"the "
		"cell has failed\","
		"\"traceback\":[\"the kernel sent no traceback\"]}}\n");
	CHECK_STR(events("status", "{\"execution_state\":\"idle\"}"), "");
	CHECK(M.kind == KERNEL_IDLE);
	CHECK_STR(events("status", "{\"execution_state\":\"restarting\"}"), "");
	CHECK(M.kind == KERNEL_DIED);
	CHECK_STR(events("clear_output", "{\"wait\":false}"), "");
}

static void odd_messages_are_refused_or_empty(void)
{
	static const char *const bad[] = {"", "[]", "1", "{}", "{\"header\":{},\"content\":[]}",
		"{\"header\":1,\"content\":{}}", "{\"content\":{}}", "{\"header\":{}}"};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		CHECK_INT(kernel_message_read(&M, bad[i], strlen(bad[i])), -EBADMSG);
	CHECK_STR(events("stream", "{\"text\":5}"), "");
	CHECK_STR(events("execute_result", "{\"data\":[1]}"), "");
	CHECK_STR(events("execute_result", "{\"data\":{}}"),
		"{\"type\":\"result\",\"results\":{}}\n");
	CHECK_STR(events("execute_input", "{\"execution_count\":-1}"),
		"{\"type\":\"execution_count\",\"execution_count\":0}\n");
	CHECK_STR(events("error", "{\"ename\":{},\"traceback\":\"x\"}"),
		"{\"type\":\"error\",\"error\":{\"ename\":\"ExecutionError\",\"evalue\":\"the "
		"cell has failed\","
		"\"traceback\":[\"the kernel sent no traceback\"]}}\n");
	/* as bash's kernel has it */
	CHECK_STR(events("error", "{\"ename\":\"\",\"evalue\":\"1\",\"traceback\":[]}"),
		"{\"type\":\"error\",\"error\":{\"ename\":\"ExecutionError\",\"evalue\":\"1\","
		"\"traceback\":[\"1\"]}}\n");
	CHECK_STR(events("nosuch", "{}"), "");
	CHECK(M.kind == KERNEL_OTHER);
}

static void requests_are_json(void)
{
	cJSON *j = NULL;
	struct buf b;

	buf_init(&b, 65536);
	kernel_execute_put(&b, "id1", "s1", "print(\"\\n\")\n\x01\xff");
	CHECK_INT(json_read(&j, b.p, b.len, JSON_OBJECT, NULL), 0);
	CHECK_STR(json_str(json_obj(j, "header"), "msg_id"), "id1");
	CHECK_STR(json_str(json_obj(j, "content"), "code"), "print(\"\\n\")\n\x01\xef\xbf\xbd");
	cJSON_Delete(j);
	buf_reset(&b);
	kernel_probe_put(&b, "id2", "s1");
	j = NULL;
	CHECK_INT(json_read(&j, b.p, b.len, JSON_OBJECT, NULL), 0);
	cJSON_Delete(j);
	buf_fini(&b);
}

static void the_server_is_in_the_sandbox(void)
{
	static const struct {
		const char *host;
		int rc;
		uint16_t port;
		const char *prefix;
	} cases[] = {
		{NULL, -ENOENT, 0, ""},
		{"", -ENOENT, 0, ""},
		{"http://127.0.0.1:44771", 0, 44771, ""},
		{"http://localhost:1/", 0, 1, ""},
		{"http://0.0.0.0", 0, 80, ""},
		{"http://localhost:8888/a/b/", 0, 8888, "/a/b"},
		{"https://127.0.0.1:1", -EINVAL, 0, ""},
		{"http://example.com", -EINVAL, 0, ""},
		{"http://localhost.evil:1", -EINVAL, 0, ""},
		{"http://127.0.0.1:0", -EINVAL, 0, ""},
		{"http://127.0.0.1:65536", -EINVAL, 0, ""},
		{"http://127.0.0.1:+1", -EINVAL, 0, ""},
		{"http://127.0.0.1:", -EINVAL, 0, ""},
		{"http://127.0.0.1:1x", -EINVAL, 0, ""},
		{"http://127.0.0.1:1/a?b", -EINVAL, 0, ""},
		{"http://127.0.0.1:1/a\r\nX: y", -EINVAL, 0, ""},
	};
	char longer[JUPYTER_TOKEN_MAX + 8];
	struct jupyter_server s;

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		CHECK_INT(jupyter_server_read(cases[i].host, "t", &s), cases[i].rc);
		if (cases[i].rc)
			continue;
		CHECK_INT(s.port, cases[i].port);
		CHECK_STR(s.prefix, cases[i].prefix);
	}
	CHECK_INT(jupyter_server_read("http://localhost", "a\r\nb", &s), -EINVAL);
	memset(longer, 'x', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = 0;
	CHECK_INT(jupyter_server_read("http://localhost", longer, &s), -EINVAL);
	CHECK_INT(jupyter_server_read("http://localhost", NULL, &s), 0);
}

static void ids_stay_in_their_path(void)
{
	CHECK(jupyter_id_ok("0eda1952-9e5a-4a42-9f80-ca2cf9bf3ab6") && jupyter_id_ok("a.b_c"));
	CHECK(!jupyter_id_ok("") && !jupyter_id_ok("..") && !jupyter_id_ok("a/b") &&
		!jupyter_id_ok("a..b") && !jupyter_id_ok("a%2f") && !jupyter_id_ok(".a") &&
		!jupyter_id_ok("a b"));
	CHECK(!jupyter_id_ok("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"));
}

static const struct test tests[] = {
	{"messages_become_events", messages_become_events},
	{"odd_messages_are_refused_or_empty", odd_messages_are_refused_or_empty},
	{"requests_are_json", requests_are_json},
	{"the_server_is_in_the_sandbox", the_server_is_in_the_sandbox},
	{"ids_stay_in_their_path", ids_stay_in_their_path},
};
TEST_MAIN(tests)
