/* SPDX-License-Identifier: Apache-2.0
 *
 * api_execd: the execution API (tests/execd_host.h): commands, sessions, metrics and what is not
 * there.
 */
#include "tests/execd_host.h"

static void commands_stream_their_output(void)
{
	ask("POST", "/command",
		"{\"command\":\"echo hi; sleep 0.05; echo err >&2; sleep 0.05; printf "
		"'a\\\\r\\\\nb'; exit 3\",\"cwd\":null}");
	CHECK_INT(R.status, 200);
	CHECK(strcasestr(R.raw, "content-type: text/event-stream"));
	CHECK_STR(short_events(), "init ping out(hi\n) err(err\n) out(a\r\n) out(b) "
				  "CommandExecError(3|exit status 3)");
	CHECK_INT(strlen(first_id), 32);
	ask("POST", "/command", "{\"argv\":[\"echo\",\"$HOME\",\"a b\"]}");
	CHECK_STR(short_events(), "init ping out($HOME a b\n) execution_complete");
	ask("POST", "/command",
		"{\"command\":\"echo $A; pwd\",\"cwd\":\"/usr\",\"envs\":{\"A\":\"x y\"}}");
	CHECK_STR(short_events(), "init ping out(x y\n) out(/usr\n) execution_complete");
	ask("POST", "/command", "{\"command\":\"sleep 30\",\"timeout\":50}");
	CHECK(!strncmp(short_events(), "init ping CommandExecError(-1|", 30));
	ask("POST", "/command", "{\"argv\":[\"/no/such/program\"]}");
	CHECK(!strncmp(short_events(), "init CommandExecError(", 22));
}

static void bad_commands_are_refused(void)
{
	static const char *const bad[] = {"", "{", "[]", "{}", "{\"command\":\"\"}",
		"{\"command\":1}", "{\"command\":\"a\",\"argv\":[\"b\"]}", "{\"argv\":[]}",
		"{\"argv\":[\"\"]}", "{\"argv\":[1]}", "{\"command\":\"a\\u0000b\"}",
		"{\"command\":\"a\",\"timeout\":-1}", "{\"command\":\"a\",\"timeout\":1.5}",
		"{\"command\":\"a\",\"gid\":1}", "{\"command\":\"a\",\"envs\":[]}",
		"{\"command\":\"a\",\"envs\":{\"b\":1}}",
		"{\"command\":\"a\",\"cwd\":\"/no/such/dir\"}",
		"{\"command\":\"a\",\"cwd\":\"$NO_SUCH_VAR/x\"}", "{\"command\":\"a\"} x",
		"{\"command\":\"a\",\"background\":\"yes\"}"};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		ask("POST", "/command", bad[i]);
		if (R.status != 400 || strcmp(code_of(), "INVALID_REQUEST_BODY") != 0)
			printf("for %s: %d %s\n", bad[i], R.status, R.body);
		CHECK_INT(R.status, 400);
		CHECK_STR(code_of(), "INVALID_REQUEST_BODY");
	}
}

static void background_commands_have_status_and_logs(void)
{
	char path[128], cursor[32];
	const char *h;

	ask("POST", "/command",
		"{\"command\":\"echo one; echo two >&2; sleep 30\",\"background\":true}");
	CHECK_STR(short_events(), "init execution_complete");
	for (int i = 0; i < 2000; i++) {
		snprintf(path, sizeof(path), "/command/%s/logs", first_id);
		ask("GET", path, NULL);
		if (R.len == 8)
			break;
		usleep(5000);
	}
	CHECK_STR(R.body, "one\ntwo\n");
	h = strcasestr(R.raw, "EXECD-COMMANDS-TAIL-CURSOR: ");
	REQUIRE(h);
	snprintf(cursor, sizeof(cursor), "%d", atoi(h + 28));
	CHECK_STR(cursor, "8");
	snprintf(path, sizeof(path), "/command/%s/logs?cursor=4", first_id);
	ask("GET", path, NULL);
	CHECK_STR(R.body, "two\n");
	snprintf(path, sizeof(path), "/command/status/%s", first_id);
	ask("GET", path, NULL);
	CHECK(strstr(R.body, "\"running\":true") &&
		strstr(R.body, "\"content\":\"echo one; echo two >&2; sleep 30\"") &&
		!strstr(R.body, "exit_code"));
	snprintf(path, sizeof(path), "/command?id=%s", first_id);
	ask("DELETE", path, NULL);
	CHECK_INT(R.status, 200);
	CHECK(strcasestr(R.raw, "content-length: 0"));
	snprintf(path, sizeof(path), "/command/status/%s", first_id);
	for (int i = 0; i < 2000; i++) {
		ask("GET", path, NULL);
		if (strstr(R.body, "\"running\":false"))
			break;
		usleep(5000);
	}
	CHECK(strstr(R.body, "\"exit_code\":-1") && strstr(R.body, "finished_at"));
	snprintf(path, sizeof(path), "/command?id=%s", first_id);
	ask("DELETE", path, NULL);
	CHECK_INT(R.status, 500);
	CHECK_STR(code_of(), "RUNTIME_ERROR");
	ask("DELETE", "/command?id=unknown", NULL);
	CHECK_INT(R.status, 500);
	ask("DELETE", "/command", NULL);
	CHECK_INT(R.status, 400);
	CHECK_STR(code_of(), "MISSING_QUERY");
	ask("GET", "/command/status/unknown", NULL);
	CHECK_INT(R.status, 404);
	ask("GET", "/command/unknown/logs", NULL);
	CHECK_INT(R.status, 400);
	ask("POST", "/command", "{\"argv\":[\"true\",\"a\\\"b\"]}");
	short_events();
	snprintf(path, sizeof(path), "/command/%s/logs", first_id);
	ask("GET", path, NULL);
	CHECK_INT(R.status, 400);
	snprintf(path, sizeof(path), "/command/status/%s", first_id);
	ask("GET", path, NULL);
	CHECK(strstr(R.body, "\"exit_code\":0") &&
		strstr(R.body, "\"content\":\"[\\\"true\\\",\\\"a\\\\\\\"b\\\"]\""));
}

static void sessions_keep_their_state(void)
{
	char run[160], del[128];
	cJSON *j;

	ask("POST", "/session", "{\"cwd\":\"/tmp\"}");
	CHECK_INT(R.status, 200);
	j = cJSON_Parse(R.body);
	REQUIRE(cJSON_GetStringValue(cJSON_GetObjectItem(j, "session_id")));
	snprintf(del, sizeof(del), "/session/%s",
		cJSON_GetStringValue(cJSON_GetObjectItem(j, "session_id")));
	snprintf(run, sizeof(run), "%s/run", del);
	cJSON_Delete(j);
	ask("POST", run, "{\"command\":\"pwd; cd /usr; export FOO=bar; echo e >&2\"}");
	CHECK_STR(short_events(), "init ping out(/tmp\n) out(e\n) execution_complete");
	CHECK(strstr(del, first_id));
	ask("POST", run, "{\"command\":\"pwd; echo $FOO; exit 7\"}");
	CHECK_STR(short_events(),
		"init ping out(/usr\n) out(bar\n) CommandExecError(7|exit status 7)");
	ask("POST", run, "{\"command\":\"pwd\",\"cwd\":\"/var\",\"timeout\":0}");
	CHECK_STR(short_events(), "init ping out(/var\n) execution_complete");
	ask("POST", run, "{}");
	CHECK_INT(R.status, 400);
	ask("DELETE", del, NULL);
	CHECK_INT(R.status, 200);
	ask("DELETE", del, NULL);
	CHECK_INT(R.status, 404);
	ask("POST", run, "{\"command\":\"pwd\"}");
	CHECK_INT(R.status, 500);
	CHECK_STR(code_of(), "RUNTIME_ERROR");
	ask("POST", "/session", NULL);
	CHECK_INT(R.status, 200);
}

static void a_flood_of_newlines_arrives_whole(void)
{
	size_t n = 0;

	ask("POST", "/command",
		"{\"command\":\"yes '' | head -c 20000; head -c 30000 /dev/zero; echo end\"}");
	for (const char *p = R.body; *p; p++)
		n += *p == '"' && !strncmp(p, "\"text\":\"\\n\"", 11);
	CHECK_INT(n, 20000);
	CHECK(strstr(R.body, "end\\n") && strstr(R.body, "execution_complete"));
}

static void a_client_that_does_not_read_or_leaves_stops_nobody(void)
{
	int slow = dial(), leaver = dial();
	char head[512], path[128], got[4096];
	const char *body = "{\"command\":\"yes | head -c 8000000; echo end\"}";
	char filled[256];
	ssize_t n;

	snprintf(head, sizeof(head),
		"POST /command HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n%s", strlen(body),
		body);
	CHECK_INT(write_full(slow, head, strlen(head)), 0);
	snprintf(filled, sizeof(filled),
		"{\"command\":\"echo begin; sleep 0.3; echo still > "
		"$OUT/left\",\"envs\":{\"OUT\":\"%s\"}}",
		S.dir);
	snprintf(head, sizeof(head),
		"POST /command HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n%s",
		strlen(filled), filled);
	CHECK_INT(write_full(leaver, head, strlen(head)), 0);
	n = read(leaver, got, sizeof(got));
	CHECK(n > 0);
	close(leaver);
	ask("POST", "/command", "{\"command\":\"echo quick\"}");
	CHECK_STR(short_events(), "init ping out(quick\n) execution_complete");
	snprintf(path, sizeof(path), "%s/left", S.dir);
	for (int i = 0; i < 2000 && access(path, F_OK); i++)
		usleep(5000);
	CHECK(!access(path, F_OK));
	CHECK(read(slow, got, sizeof(got)) > 0);
	close(slow);
}

static void a_token_is_wanted_where_one_was_set(void)
{
	static const char *const given[] = {"", "X-EXECD-ACCESS-TOKEN: s3cre\r\n",
		"X-EXECD-ACCESS-TOKEN: s3crets3cret\r\n", "X-EXECD-ACCESS-TOKEN: s3cret\r\n"};
	char head[256];

	for (size_t i = 0; i < ARRAY_LEN(given); i++) {
		snprintf(head, sizeof(head),
			"GET /ping HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Wants-Token: "
			"1\r\n%s\r\n",
			given[i]);
		ask_raw(head, "", 0);
		CHECK_INT(R.status, i == 3 ? 200 : 401);
		CHECK(i == 3 || strstr(R.body, "{\"error\":\"Unauthorized: invalid or missing "
					       "header X-EXECD-ACCESS-TOKEN\"}"));
	}
}

static void what_is_not_there_says_so(void)
{
	ask("GET", "/ping", NULL);
	CHECK_INT(R.status, 200);
	CHECK(strcasestr(R.raw, "content-length: 0"));
	ask("GET", "/pty/x", NULL);
	CHECK_INT(R.status, 404);
	ask("GET", "/nothing", NULL);
	CHECK_INT(R.status, 404);
	ask("PUT", "/command", NULL);
	CHECK_INT(R.status, 405);
}

static void metrics_are_in_their_ranges(void)
{
	cJSON *j;

	ask("GET", "/metrics", NULL);
	CHECK_INT(R.status, 200);
	j = cJSON_Parse(R.body);
	CHECK(cJSON_GetNumberValue(cJSON_GetObjectItem(j, "cpu_count")) >= 1);
	CHECK(cJSON_GetNumberValue(cJSON_GetObjectItem(j, "cpu_used_pct")) >= 0);
	CHECK(cJSON_GetNumberValue(cJSON_GetObjectItem(j, "mem_total_mib")) > 0);
	CHECK(cJSON_GetNumberValue(cJSON_GetObjectItem(j, "timestamp")) > 1.6e12);
	cJSON_Delete(j);
}

static const struct test tests[] = {
	{"commands_stream_their_output", commands_stream_their_output},
	{"bad_commands_are_refused", bad_commands_are_refused},
	{"background_commands_have_status_and_logs", background_commands_have_status_and_logs},
	{"sessions_keep_their_state", sessions_keep_their_state},
	{"a_flood_of_newlines_arrives_whole", a_flood_of_newlines_arrives_whole},
	{"a_client_that_does_not_read_or_leaves_stops_nobody",
		a_client_that_does_not_read_or_leaves_stops_nobody},
	{"a_token_is_wanted_where_one_was_set", a_token_is_wanted_where_one_was_set},
	{"what_is_not_there_says_so", what_is_not_there_says_so},
	{"metrics_are_in_their_ranges", metrics_are_in_their_ranges},
};

int main(int argc, char **argv)
{
	return execd_main(argc, argv, tests, ARRAY_LEN(tests));
}
