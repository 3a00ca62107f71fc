/* SPDX-License-Identifier: Apache-2.0
 *
 * api_isolated: isolated sessions from HTTP to a real shell in namespaces and back (tests/execd_host.h). Needs root.
 */
#include "tests/execd_host.h"

#include "api/exec/client_generation.h"

static char sid[64], at[128];

static const char *member(const char *name)
{
	static char text[256];
	cJSON *j = cJSON_Parse(R.body);
	const cJSON *v = cJSON_GetObjectItem(j, name);
	char *printed = cJSON_IsString(v) ? NULL : cJSON_PrintUnformatted(v);

	snprintf(text, sizeof(text), "%s",
		cJSON_IsString(v) ? v->valuestring
		: printed         ? printed
				  : "none");
	cJSON_free(printed);
	cJSON_Delete(j);
	return text;
}

static const char *in(const char *rest)
{
	static char path[256];

	snprintf(path, sizeof(path), "%s%s", at, rest);
	return path;
}

/* json: with WS for this test's own directory */
static const char *filled(const char *json)
{
	static char text[4096];
	size_t n = 0;

	for (; *json; json++) {
		if (strncmp(json, "WS", 2) != 0) {
			text[n++] = *json;
			continue;
		}
		n += (size_t)snprintf(text + n, sizeof(text) - n, "%s/ws", S.dir);
		json++;
	}
	text[n] = 0;
	return text;
}

static bool make(const char *json)
{
	ask("POST", "/v1/isolated/session", filled(json));
	if (R.status != 201) {
		printf("create: %d %s\n", R.status, R.body);
		return false;
	}
	snprintf(sid, sizeof(sid), "%s", member("session_id"));
	snprintf(at, sizeof(at), "/v1/isolated/session/%s", sid);
	CHECK_INT(strlen(sid), 36);
	return true;
}

static const char *run(const char *json)
{
	ask("POST", in("/run"), filled(json));
	if (R.status != 200)
		return R.body;
	return short_events();
}

static void refused(const char *json, int status, const char *code, const char *words)
{
	ask("POST", "/v1/isolated/session", filled(json));
	if (R.status != status || strcmp(code_of(), code) != 0 || !strstr(R.body, words))
		printf("for %s: %d %s\n", json, R.status, R.body);
	CHECK_INT(R.status, status);
	CHECK_STR(code_of(), code);
	CHECK(strstr(R.body, words));
}

static void capabilities_name_every_layer(void)
{
	ask("GET", "/v1/isolated/capabilities", NULL);
	CHECK_INT(R.status, 200);
	CHECK_STR(member("available"), "true");
	CHECK_STR(member("isolator"), "bwrap");
	CHECK_STR(member("commit_supported"), "true");
	CHECK(strstr(R.body, "\"init_mode\":\"pid1\"") && strstr(R.body, "\"signal_shield\":") &&
		strstr(R.body, "\"cap_drop\":{\"state\":\"disabled\",\"message\":\"not "
			       "configured\"}") &&
		strstr(R.body, "\"ebpf\":{\"state\":\"unsupported\""));
}

static void a_session_is_one_shell(void)
{
	REQUIRE(make("{\"workspace\":{\"path\":\"WS\"}}"));
	CHECK_STR(run("{\"code\":\"echo one; echo two >&2; a=1; export B=2; pwd | sed "
		      "s,.*/,,\"}"),
		"out(one\n) out(two\n) out(ws\n) execution_complete");
	CHECK(!strstr(R.body, "\"init\""));
	CHECK_STR(run("{\"code\":\"echo $a$B$$; (exit 7)\"}"),
		"out(122\n) ExitError(7|exit status 7)");
	CHECK_STR(run("{\"code\":\"echo $X; a=changed\",\"envs\":{\"X\":\"it's\"}}"),
		"out(it's\n) execution_complete");
	CHECK_STR(run("{\"code\":\"echo $a${X-unset}\"}"), "out(1unset\n) execution_complete");
	CHECK(!strncmp(run("{\"code\":\"sleep 30\",\"timeout_seconds\":1}"), "ExitError(-1|", 13));
	CHECK_STR(run("{\"code\":\"echo still\"}"), "out(still\n) execution_complete");
	ask("POST", in("/run"), "{\"code\":\"\"}");
	CHECK_INT(R.status, 400);
	ask("POST", in("/run"), "{\"code\":\"a\",\"envs\":{\"1 x\":\"y\"}}");
	CHECK_INT(R.status, 400);
	ask("DELETE", at, NULL);
	CHECK_INT(R.status, 200);
	ask("DELETE", at, NULL);
	CHECK_INT(R.status, 404);
	CHECK_STR(code_of(), "SESSION_NOT_FOUND");
	ask("POST", in("/run"), "{\"code\":\"true\"}");
	CHECK_INT(R.status, 404);
	ask("GET", in(""), NULL);
	CHECK_INT(R.status, 404);
	ask("GET", "/v1/isolated/session/not-an-id", NULL);
	CHECK_INT(R.status, 404);
}

static void a_client_that_leaves_interrupts_its_run(void)
{
	char head[512], got[4096];
	const char *body = "{\"code\":\"echo begun; sleep 600\"}";
	int fd;

	REQUIRE(make("{\"workspace\":{\"path\":\"WS\",\"mode\":\"rw\"}}"));
	fd = dial();
	snprintf(head, sizeof(head), "POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n%s",
		in("/run"), strlen(body), body);
	CHECK_INT(write_full(fd, head, strlen(head)), 0);
	for (size_t n = 0; n < sizeof(got) - 1;) {
		ssize_t k = read(fd, got + n, sizeof(got) - 1 - n);

		REQUIRE(k > 0);
		n += (size_t)k;
		got[n] = 0;
		if (strstr(got, "begun"))
			break;
	}
	ask("POST", in("/run"), "{\"code\":\"true\"}");
	CHECK_INT(R.status, 503); /* busy */
	close(fd);
	for (int i = 0; i < 2000; i++) {
		ask("POST", in("/run"), "{\"code\":\"echo free\"}");
		if (R.status == 200)
			break;
		usleep(5000);
	}
	CHECK_STR(short_events(), "out(free\n) execution_complete");
	ask("DELETE", at, NULL);
}

static void parameters_are_checked_and_shown_again(void)
{
	static const char *const wrong[] = {"{}", "{\"workspace\":1}", "{\"workspace\":{}}",
		"{\"workspace\":{\"path\":\"rel\"}}", "{\"workspace\":{\"path\":\"/a/../b\"}}",
		"{\"workspace\":{\"path\":\"/a/\"}}", "{\"overlays\":[]}",
		"{\"workspace\":{\"path\":\"WS\",\"mode\":\"x\"}}",
		"{\"overlays\":[{\"path\":\"WS\"},{\"path\":\"WS\"}]}",
		"{\"overlays\":[{\"path\":\"WS\",\"mode\":\"rw\",\"persist\":true}]}",
		"{\"workspace\":{\"path\":\"WS\"},\"profile\":\"x\"}",
		"{\"workspace\":{\"path\":\"WS\"},\"share_net\":1}",
		"{\"workspace\":{\"path\":\"WS\"},\"gid\":1}",
		"{\"workspace\":{\"path\":\"WS\"},\"uid\":-1}",
		"{\"workspace\":{\"path\":\"WS\"},\"uid_mode\":\"x\"}",
		"{\"workspace\":{\"path\":\"WS\"},\"binds\":[{}]}",
		"{\"workspace\":{\"path\":\"WS\"},\"env_passthrough\":{\"mode\":\"x\"}}",
		"{\"workspace\":{\"path\":\"/proc\"}}", "{\"workspace\":{\"path\":\"/\"}}",
		"{\"workspace\":{\"path\":\"/no/such\",\"mode\":\"ro\"}}"};

	for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
		refused(wrong[i], 400, "INVALID_REQUEST_BODY", "");
	refused("{\"workspace\":{\"path\":\"WS\"},\"extra_writable\":[\"/etc\"]}", 400,
		"INVALID_REQUEST_BODY", "allowlist");
	refused("{\"workspace\":{\"path\":\"WS\"},\"binds\":[{\"source\":\"/etc\",\"dest\":\"/"
		"x\"}]}",
		400, "INVALID_REQUEST_BODY", "allowlist");
	refused("{\"workspace\":{\"path\":\"WS\"},\"uid_mode\":\"userns\"}", 503, "NOT_SUPPORTED",
		"userns");
	chmod(S.dir, 0755);
	REQUIRE(make("{\"overlays\":[{\"path\":\"WS/deep\",\"mode\":\"rw\"},{\"path\":\"WS\","
		     "\"persist\":false}],\"profile\":\"balanced\",\"uid\":1000,\"gid\":1001,"
		     "\"idle_timeout_seconds\":600,\"share_net\":false}"));
	ask("GET", at, NULL);
	CHECK_INT(R.status, 200);
	CHECK_STR(member("status"), "active");
	CHECK_STR(member("profile"), "balanced");
	CHECK_STR(member("share_net"), "false");
	CHECK_STR(member("uid"), "1000");
	CHECK_STR(member("idle_timeout_seconds"), "600");
	CHECK(atoi(member("idle_remaining_seconds")) > 590);
	CHECK_STR(member("workspace"), "none");
	CHECK_STR(member("overlays"),
		filled("[{\"path\":\"WS\",\"mode\":\"overlay\",\"persist\":false},{\"path\":\"WS/"
		       "deep\",\"mode\":\"rw\"}]"));
	CHECK_STR(run("{\"code\":\"id -u; id -g; pwd | sed s,.*/,,; sed -n s/:.*//p /proc/net/dev "
		      "| tr -d ' '\"}"),
		"out(1000\n) out(1001\n) out(deep\n) out(lo\n) execution_complete");
	/* documented: no log can be kept in an ephemeral first overlay */
	ask("POST", in("/run"), "{\"code\":\"true\",\"background\":true}");
	CHECK_INT(R.status, 400);
	ask("GET", "/v1/isolated/sessions", NULL);
	CHECK_INT(R.status, 200);
	CHECK(strstr(R.body, sid) && strstr(R.body, "\"last_run_at\":"));
	ask("DELETE", at, NULL);
	ask("GET", "/v1/isolated/sessions", NULL);
	CHECK_STR(R.body, "{\"sessions\":[]}");
}

static void background_runs_are_polled(void)
{
	char rid[64], path[256];
	const char *h;

	REQUIRE(make("{\"workspace\":{\"path\":\"WS\"}}"));
	ask("POST", in("/run"),
		"{\"code\":\"echo one; echo two >&2; exit 4\",\"background\":true,\"envs\":{"
		"\"A\":\"b\"}}");
	CHECK_INT(R.status, 202);
	CHECK_STR(member("session_id"), sid);
	snprintf(rid, sizeof(rid), "%s", member("run_id"));
	CHECK_INT(strlen(rid), 36);
	snprintf(path, sizeof(path), "%s/runs/%s", at, rid);
	for (int i = 0; i < 2000; i++) {
		ask("GET", path, NULL);
		CHECK_INT(R.status, 200);
		if (!strcmp(member("running"), "false"))
			break;
		usleep(5000);
	}
	CHECK_STR(member("exit_code"), "4");
	CHECK(strstr(R.body, "\"finished_at\":\"2"));
	snprintf(path, sizeof(path), "%s/runs/%s/logs?cursor=4", at, rid);
	ask("GET", path, NULL);
	CHECK_INT(R.status, 200);
	CHECK_STR(R.body, "two\n");
	h = strcasestr(R.raw, "EXECD-ISOLATED-TAIL-CURSOR: ");
	CHECK(h && atoi(h + 28) == 8);
	snprintf(path, sizeof(path), "%s/runs/%s/logs?cursor=-1", at, rid);
	ask("GET", path, NULL);
	CHECK_INT(R.status, 400);
	/* another session's run is not this one's, and unknown ones are none */
	snprintf(path, sizeof(path), "%s/runs/00000000-0000-0000-0000-000000000000", at);
	ask("GET", path, NULL);
	CHECK_INT(R.status, 404);
	snprintf(path, sizeof(path),
		"/v1/isolated/session/00000000-0000-0000-0000-000000000000/runs/%s", rid);
	ask("GET", path, NULL);
	CHECK_INT(R.status, 404);
	ask("DELETE", at, NULL);
	snprintf(path, sizeof(path), "%s/runs/%s", at, rid);
	ask("GET", path, NULL);
	CHECK_INT(R.status, 404);
}

static void files_are_those_of_the_merged_view(void)
{
	char path[512];

	REQUIRE(make("{\"workspace\":{\"path\":\"WS\"}}"));
	CHECK_STR(run("{\"code\":\"echo inside >made\"}"), "execution_complete");
	snprintf(path, sizeof(path), "%s/files/download?path=%s/ws/made", at, S.dir);
	ask("GET", path, NULL);
	CHECK_INT(R.status, 200);
	CHECK_STR(R.body, "inside\n");
	snprintf(path, sizeof(path), "/files/download?path=%s/ws/made", S.dir);
	ask("GET", path, NULL);
	CHECK_INT(R.status, 404);
	snprintf(path, sizeof(path), "%s/files/info?path=%s/ws/made", at, S.dir);
	ask("GET", path, NULL);
	CHECK_INT(R.status, 200);
	CHECK(strstr(R.body, "\"size\":7"));
	snprintf(path, sizeof(path), "%s/directories/list?path=%s/ws", at, S.dir);
	ask("GET", path, NULL);
	CHECK(strstr(R.body, "/made\""));
	/* read-only outside of the workspace */
	ask("POST", in("/directories"), "{\"/etc/made-here\":{}}");
	CHECK_INT(R.status, 500);
	CHECK(strstr(R.body, "Read-only"));
	/* diff and commit */
	ask("GET", in("/diff"), NULL);
	CHECK_INT(R.status, 200);
	CHECK(strstr(
		R.body, "[{\"change\":\"added\",\"path\":\"made\",\"type\":\"file\",\"size\":7,"));
	ask("POST", in("/commit"), NULL);
	CHECK_INT(R.status, 200);
	CHECK_STR(R.body, "{\"committed\":1}");
	snprintf(path, sizeof(path), "/files/download?path=%s/ws/made", S.dir);
	ask("GET", path, NULL);
	CHECK_STR(R.body, "inside\n");
	ask("GET", in("/diff?path=/no/overlay"), NULL);
	CHECK_INT(R.status, 400);
	ask("DELETE", at, NULL);
	ask("GET", in("/diff"), NULL);
	CHECK_INT(R.status, 404);
	snprintf(path, sizeof(path), "%s/files/info?path=/", at);
	ask("GET", path, NULL);
	CHECK_INT(R.status, 404);
	CHECK_STR(code_of(), "SESSION_NOT_FOUND");
	ask("GET", "/v1/isolated/session/x/files/info?path=/", NULL);
	CHECK_INT(R.status, 404);
}

/* What names one kind of session does not reach another. */
static void kinds_of_sessions_are_apart(void)
{
	char path[128], id[64];

	ask("POST", "/session", NULL);
	snprintf(id, sizeof(id), "%s", member("session_id"));
	snprintf(path, sizeof(path), "/v1/isolated/session/%.8s-%.4s-%.4s-%.4s-%.12s", id, id + 8,
		id + 12, id + 16, id + 20);
	ask("GET", path, NULL);
	CHECK_INT(R.status, 404);
	ask("GET", "/v1/isolated/sessions", NULL);
	CHECK_STR(R.body, "{\"sessions\":[]}");
	snprintf(path, sizeof(path), "/session/%s", id);
	ask("DELETE", path, NULL);
	CHECK_INT(R.status, 200);
}

static void older_clients_get_lines_without_endings(void)
{
	static const char *const agents[] = {"OpenSandbox-Python-SDK/0.1.16",
		"OpenSandbox-Python-SDK/1.1.1", "OpenSandbox-JS-SDK/0.1.11"};
	static const struct {
		const char *agent;
		bool older;
	} rows[] = {{"OpenSandbox-Python-SDK/1.1.0", true}, {"OpenSandbox-Python-SDK/1.1", true},
		{"OpenSandbox-Python-SDK/1.0.99", true}, {"OpenSandbox-Python-SDK/1.1.1", false},
		{"OpenSandbox-Python-SDK/1.1.2.dev20261020", false},
		{"OpenSandbox-Python-SDK/2.0", false}, {"OpenSandbox-Python-SDK/", false},
		{"OpenSandbox-Python-SDK/x", false}, {"OpenSandbox-Python-SDK/99999999999", false},
		{"OpenSandbox-JS-SDK/0.1.12", false}, {"OpenSandbox-JS-SDK/1.0.0", false},
		{"OpenSandbox-Kotlin-SDK/1.0.0", true}, {"OpenSandbox-Kotlin-SDK/1.0.77", true},
		{"OpenSandbox-Kotlin-SDK/1.1.0", false}, {"OpenSandbox-CSharp-SDK/0.1.9", true},
		{"OpenSandbox-CSharp-SDK/0.2", false}, {"OpenSandbox-Go-SDK/1.0.5", true},
		{"OpenSandbox-Go-SDK/1.0.6", false}, {"OpenSandbox-Python-SDK/1.", true},
		{"OpenSandbox-Python-SDK/2.", false}, {"curl/8.0", false}, {"", false}};
	const char *body = "{\"command\":\"printf 'a\\\\n\\\\nb\\\\r\\\\nc'\"}";
	char head[512];

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		if (client_is_older(rows[i].agent) != rows[i].older)
			printf("%s\n", rows[i].agent);
		CHECK(client_is_older(rows[i].agent) == rows[i].older);
	}
	for (size_t i = 0; i < ARRAY_LEN(agents); i++) {
		snprintf(head, sizeof(head),
			"POST /command HTTP/1.1\r\nHost: a\r\nConnection: close\r\nUser-Agent: "
			"%s\r\nContent-Length: %zu\r\n\r\n",
			agents[i], strlen(body));
		ask_raw(head, body, strlen(body));
		CHECK_STR(short_events(), i == 1 ? "init ping out(a\n) out(\n) out(b\r\n) out(c) "
						   "execution_complete"
						 : "init ping out(a) out(\n) out(b) out(c) "
						   "execution_complete");
	}
	snprintf(test_config.line_endings, sizeof(test_config.line_endings), "strip");
	ask("POST", "/command", "{\"command\":\"echo a\"}");
	CHECK_STR(short_events(), "init ping out(a) execution_complete");
	snprintf(test_config.line_endings, sizeof(test_config.line_endings), "auto");
}

static const struct test tests[] = {
	{"capabilities_name_every_layer", capabilities_name_every_layer},
	{"a_session_is_one_shell", a_session_is_one_shell},
	{"a_client_that_leaves_interrupts_its_run", a_client_that_leaves_interrupts_its_run},
	{"parameters_are_checked_and_shown_again", parameters_are_checked_and_shown_again},
	{"background_runs_are_polled", background_runs_are_polled},
	{"files_are_those_of_the_merged_view", files_are_those_of_the_merged_view},
	{"kinds_of_sessions_are_apart", kinds_of_sessions_are_apart},
	{"older_clients_get_lines_without_endings", older_clients_get_lines_without_endings},
};

int main(int argc, char **argv)
{
	if (geteuid() != 0) {
		puts("needs root: sessions are namespaces");
		return 77;
	}
	return execd_main(argc, argv, tests, ARRAY_LEN(tests));
}
