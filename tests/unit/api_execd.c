/* SPDX-License-Identifier: Apache-2.0
 *
 * api_execd: the execution API from HTTP to a real process and back: the real server, the real
 * routes, the real agent as an ordinary process on a Unix socket. `api_execd --serve PORT` keeps it
 * up for trying clients by hand. Skipped where the agent is not built.
 */
#include "lib/test.h"

#include <arpa/inet.h>
#include <cjson/cJSON.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "api/agentc.h"
#include "api/execd.h"

static struct {
	struct loop *loop;
	struct http *http;
	struct agentc *agent;
	pthread_t thread;
	pid_t child;
	int port;
	char dir[64], sock[96];
} S;

struct agentc *sandbox_agentc(struct sandbox *sb)
{
	return S.agent;
}

/* The daemon's dispatcher in small: /proxy-of/PORT is what the server proxy's prefix is there. */
static const struct http_route *dispatch(struct http_req *r)
{
	const struct http_route *route;
	int status = 404;

	r->prefix = "";
	if (!strncmp(r->path, "/v1/sandboxes/x/proxy/", 22) || !strncmp(r->path, "/x/", 3)) {
		const char *p = r->path + (r->path[1] == 'x' ? 3 : 22);
		size_t n = strcspn(p, "/");

		r->prefix = http_strdup(r, r->path, (size_t)(p - r->path) + n);
		r->port = (uint16_t)atoi(p);
		r->path = p[n] ? p + n : "/";
		route = http_match(r, &proxy_table, &status);
	} else {
		r->port = EXECD_PORT;
		route = http_match(r, &execd_table, &status);
	}
	if (!route)
		http_error_detail(r, status, status == 404 ? "Not Found" : "Method Not Allowed");
	return route;
}

static void invoke(struct http_req *r)
{
	r->route->fn(r);
}

static void *serve(void *arg)
{
	loop_run(S.loop);
	return NULL;
}

static bool agent_binary(char *out, size_t cap)
{
	char self[512];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	char *slash;

	if (n <= 0)
		return false;
	self[n] = 0;
	for (int i = 0; i < 2; i++) {
		slash = strrchr(self, '/');
		*slash = 0;
	}
	snprintf(out, cap, "%.400s/bin/mayfly-agent", self);
	/* sanitized tests use the plain build's agent */
	if (access(out, X_OK) && (slash = strrchr(self, '/'))) {
		*slash = 0;
		snprintf(out, cap, "%.400s/bin/mayfly-agent", self);
	}
	return !access(out, X_OK);
}

static bool start(int port)
{
	struct sockaddr_in sa = {.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
		.sin_port = htons((uint16_t)port)};
	struct http_config hc = {.connections_max = 200, .dispatch = dispatch, .invoke = invoke};
	char bin[512], run[96];
	socklen_t len = sizeof(sa);
	int one = 1;

	if (!agent_binary(bin, sizeof(bin)))
		return false;
	snprintf(S.dir, sizeof(S.dir), "/tmp/execd-%d", getpid());
	snprintf(S.sock, sizeof(S.sock), "%s/agent", S.dir);
	snprintf(run, sizeof(run), "%s/run", S.dir);
	if (mkdir(S.dir, 0700) || mkdir(run, 0700))
		return false;
	S.child = fork();
	if (!S.child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		execl(bin, bin, "--listen", S.sock, "--run-dir", run, (char *)NULL);
		_exit(127);
	}
	for (int i = 0; i < 500 && access(S.sock, F_OK); i++)
		usleep(2000);
	S.loop = loop_create();
	hc.listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(hc.listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(hc.listen_fd, (void *)&sa, sizeof(sa)) || listen(hc.listen_fd, 64) ||
		getsockname(hc.listen_fd, (void *)&sa, &len))
		return false;
	S.port = ntohs(sa.sin_port);
	S.http = http_create(S.loop, &hc);
	S.agent = agentc_create(S.loop, S.sock, 0);
	agentc_up(S.agent);
	pthread_create(&S.thread, NULL, serve, NULL);
	return true;
}

static void stop_now(void *arg)
{
	loop_stop(S.loop, 0);
}

static void stop(void)
{
	char cmd[128];

	loop_defer(S.loop, stop_now, NULL);
	loop_wake(S.loop);
	pthread_join(S.thread, NULL);
	agentc_destroy(S.agent);
	http_destroy(S.http);
	loop_destroy(S.loop);
	kill(S.child, SIGKILL);
	waitpid(S.child, NULL, 0);
	snprintf(cmd, sizeof(cmd), "rm -rf '%s'", S.dir);
	CHECK_INT(system(cmd), 0);
}

/* ---- a client: one request, the whole answer */

static struct {
	char raw[4 << 20];
	size_t len;
	int status;
	const char *body;
} R;

static int dial(void)
{
	struct sockaddr_in sa = {.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
		.sin_port = htons((uint16_t)S.port)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	ASSERT(!connect(fd, (void *)&sa, sizeof(sa)));
	return fd;
}

/* Undoes chunked coding in place. */
static void unchunk(char *b)
{
	char *to = b, *end;
	size_t n;

	while ((n = strtoul(b, &end, 16)) > 0 && end != b) {
		memmove(to, end + 2, n);
		to += n;
		b = end + 2 + n + 2;
	}
	*to = 0;
	R.len = (size_t)(to - R.body);
}

static void ask_raw(const char *head, const char *body, size_t n)
{
	int fd = dial();
	ssize_t got;
	char *sep;

	R.len = 0;
	R.status = 0;
	R.body = "";
	ASSERT(!write_full(fd, head, strlen(head)) && !write_full(fd, body, n));
	while ((got = read(fd, R.raw + R.len, sizeof(R.raw) - 1 - R.len)) > 0)
		R.len += (size_t)got;
	close(fd);
	R.raw[R.len] = 0;
	sep = strstr(R.raw, "\r\n\r\n");
	if (!sep)
		return;
	R.status = atoi(R.raw + 9);
	R.body = sep + 4;
	*sep = 0;
	R.len -= (size_t)(R.body - R.raw);
	if (strcasestr(R.raw, "transfer-encoding: chunked"))
		unchunk(sep + 4);
}

static void ask(const char *method, const char *path, const char *json)
{
	char head[2048];

	snprintf(head, sizeof(head),
		"%s %s HTTP/1.1\r\nHost: a:1\r\nConnection: close\r\nContent-Type: "
		"application/json\r\nContent-Length: %zu\r\n\r\n",
		method, path, json ? strlen(json) : 0);
	ask_raw(head, json ? json : "", json ? strlen(json) : 0);
}

/* The events of a stream in short: init ping out(text) err(text) done / error(evalue|traceback).
 * Timestamps are checked. */
static char events[1 << 20], first_id[64];
static const char *short_events(void)
{
	const char *p = R.body, *e;
	size_t o = 0;

	events[0] = 0;
	while ((e = strstr(p, "\n\n"))) {
		cJSON *j = cJSON_ParseWithLength(p, (size_t)(e - p));
		const char *type = cJSON_GetStringValue(cJSON_GetObjectItem(j, "type"));
		const char *text = cJSON_GetStringValue(cJSON_GetObjectItem(j, "text"));
		const cJSON *err = cJSON_GetObjectItem(j, "error");

		if (!type || cJSON_GetNumberValue(cJSON_GetObjectItem(j, "timestamp")) < 1.6e12)
			return "BAD EVENT";
		if (!strcmp(type, "init"))
			snprintf(first_id, sizeof(first_id), "%s", text);
		if (!strcmp(type, "stdout") || !strcmp(type, "stderr"))
			o += (size_t)snprintf(
				events + o, sizeof(events) - o, "%s(%s) ", type + 3, text);
		else if (err)
			o += (size_t)snprintf(events + o, sizeof(events) - o, "%s(%s|%s)",
				cJSON_GetStringValue(cJSON_GetObjectItem(err, "ename")),
				cJSON_GetStringValue(cJSON_GetObjectItem(err, "evalue")),
				cJSON_GetStringValue(cJSON_GetArrayItem(
					cJSON_GetObjectItem(err, "traceback"), 0)));
		else
			o += (size_t)snprintf(events + o, sizeof(events) - o, "%s%s", type,
				strcmp(type, "execution_complete") ? " " : "");
		cJSON_Delete(j);
		p = e + 2;
	}
	return *p ? "TRAILING" : events;
}

static const char *code_of(void)
{
	static char code[64];
	cJSON *j = cJSON_Parse(R.body);
	const char *c = cJSON_GetStringValue(cJSON_GetObjectItem(j, "code"));

	snprintf(code, sizeof(code), "%s", c && cJSON_GetObjectItem(j, "message") ? c : "none");
	cJSON_Delete(j);
	return code;
}

/* ---- tests */

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
		if (R.status != 400 || strcmp(code_of(), "INVALID_REQUEST_BODY"))
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
	for (int i = 0; i < 100; i++) {
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
	for (int i = 0; i < 100; i++) {
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
	for (int i = 0; i < 200 && access(path, F_OK); i++)
		usleep(5000);
	CHECK(!access(path, F_OK));
	CHECK(read(slow, got, sizeof(got)) > 0);
	close(slow);
}

static void what_is_not_there_says_so(void)
{
	ask("GET", "/ping", NULL);
	CHECK_INT(R.status, 200);
	CHECK(strcasestr(R.raw, "content-length: 0"));
	ask("POST", "/code", "{\"context\":{\"language\":\"python\"},\"code\":\"1\"}");
	CHECK_INT(R.status, 500);
	CHECK_STR(code_of(), "RUNTIME_ERROR");
	ask("POST", "/code", "{\"code\":\"echo x\"}");
	CHECK_STR(short_events(), "init ping out(x\n) execution_complete");
	ask("DELETE", "/code/contexts", NULL);
	CHECK_INT(R.status, 400);
	CHECK_STR(code_of(), "MISSING_QUERY");
	ask("DELETE", "/code/contexts/x", NULL);
	CHECK_STR(code_of(), "CONTEXT_NOT_FOUND");
	ask("GET", "/v1/isolated/capabilities", NULL);
	CHECK_INT(R.status, 200);
	CHECK(strstr(R.body, "\"available\":false"));
	ask("POST", "/v1/isolated/session", "{}");
	CHECK_INT(R.status, 503);
	CHECK_STR(code_of(), "SERVICE_UNAVAILABLE");
	ask("GET", "/pty/x", NULL);
	CHECK_INT(R.status, 404);
	ask("GET", "/nothing", NULL);
	CHECK_INT(R.status, 404);
	ask("PUT", "/command", NULL);
	CHECK_INT(R.status, 405);
}

static const struct test tests[] = {
	{"commands_stream_their_output", commands_stream_their_output},
	{"bad_commands_are_refused", bad_commands_are_refused},
	{"background_commands_have_status_and_logs", background_commands_have_status_and_logs},
	{"sessions_keep_their_state", sessions_keep_their_state},
	{"a_flood_of_newlines_arrives_whole", a_flood_of_newlines_arrives_whole},
	{"a_client_that_does_not_read_or_leaves_stops_nobody",
		a_client_that_does_not_read_or_leaves_stops_nobody},
	{"what_is_not_there_says_so", what_is_not_there_says_so},
};

int main(int argc, char **argv)
{
	int rc;

	signal(SIGPIPE, SIG_IGN);
	if (!start(argc > 2 ? atoi(argv[2]) : 0)) {
		puts("mayfly-agent is not built");
		return 77;
	}
	if (argc > 2) {
		printf("127.0.0.1:%d\n", S.port);
		fflush(stdout);
		pause();
	}
	rc = test_main(argc, argv, tests, ARRAY_LEN(tests));
	stop();
	return rc;
}
