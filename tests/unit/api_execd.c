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

void sandbox_count_exec(struct sandbox *sb, bool failed)
{
}

static _Atomic int held;

static void released(struct http_req *r)
{
	held--;
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
	if (route && http_header(r, "X-Wants-Token") && !execd_admit(r, "s3cret"))
		return NULL;
	if (route) {
		held++;
		http_on_free(r, released);
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

static void a_token_is_wanted_where_one_was_set(void)
{
	static const char *const given[] = {"", "X-EXECD-ACCESS-TOKEN: s3cre\r\n", "X-EXECD-ACCESS-TOKEN: s3crets3cret\r\n", "X-EXECD-ACCESS-TOKEN: s3cret\r\n"};
	char head[256];

	for (size_t i = 0; i < ARRAY_LEN(given); i++) {
		snprintf(head, sizeof(head), "GET /ping HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Wants-Token: 1\r\n%s\r\n", given[i]);
		ask_raw(head, "", 0);
		CHECK_INT(R.status, i == 3 ? 200 : 401);
		CHECK(i == 3 || strstr(R.body, "{\"error\":\"Unauthorized: invalid or missing header X-EXECD-ACCESS-TOKEN\"}"));
	}
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

/* ---- files. $D in a path or body is the test's folder. */

static char *fill(const char *s)
{
	static char out[8][4096];
	static int k;
	char *to = out[k++ % 8];
	size_t n = 0;

	for (; *s && n < 4000; s++) {
		if (s[0] == '$' && s[1] == 'D') {
			n += (size_t)sprintf(to + n, "%s", S.dir);
			s++;
		} else {
			to[n++] = *s;
		}
	}
	to[n] = 0;
	return to;
}

static void upload(const char *path, const char *body, bool chunked, int uid)
{
	char head[1024], *text = fill(body);
	char prefix[64] = "";

	if (uid >= 0)
		snprintf(prefix, sizeof(prefix), "/v1/filesystem/%d/%d", uid, uid);
	if (!chunked) {
		snprintf(head, sizeof(head),
			"POST %s%s HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: "
			"multipart/form-data; boundary=BB\r\nContent-Length: %zu\r\n\r\n",
			prefix, path, strlen(text));
		ask_raw(head, text, strlen(text));
		return;
	}
	/* as the Python SDK does: chunks, and here each of 7 bytes */
	{
		char all[16384];
		size_t o = 0, n = strlen(text);

		snprintf(head, sizeof(head),
			"POST %s%s HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: "
			"multipart/form-data; boundary=BB\r\nTransfer-Encoding: chunked\r\n\r\n",
			prefix, path);
		for (size_t i = 0; i < n; i += 7)
			o += (size_t)sprintf(
				all + o, "%zx\r\n%.7s\r\n", MIN((size_t)7, n - i), text + i);
		o += (size_t)sprintf(all + o, "0\r\n\r\n");
		ask_raw(head, all, o);
	}
}

#define META(json)                                                                                 \
	"--BB\r\nContent-Disposition: form-data; name=\"metadata\"; "                              \
	"filename=\"metadata\"\r\nContent-Type: application/json\r\n\r\n" json "\r\n"
#define DATA(text)                                                                                 \
	"--BB\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\n" text "\r"  \
											     "\n"
#define END "--BB--\r\n"

static void files_are_uploaded_and_read_back(void)
{
	for (int chunked = 0; chunked < 2; chunked++) {
		upload("/files/upload",
			META("{\"path\":\"$D/new/dir/a.txt\",\"owner\":null,\"mode\":600}")
				DATA("line 1\nline 2\nline 3\n") META("{\"path\":\"$D/b\"}")
					DATA("") END,
			chunked, -1);
		CHECK_INT(R.status, 200);
		if (R.status != 200)
			puts(R.body);
		CHECK(strcasestr(R.raw, "content-length: 0"));
		ask("GET", fill("/files/download?path=$D/new/dir/a.txt"), NULL);
		CHECK_INT(R.status, 200);
		CHECK_STR(R.body, "line 1\nline 2\nline 3\n");
		CHECK(strcasestr(R.raw, "content-disposition: attachment; filename=\"a.txt\"") &&
			strcasestr(R.raw, "content-length: 21"));
		ask("GET", fill("/files/info?path=$D/new/dir/a.txt&path=$D/b"), NULL);
		CHECK_INT(R.status, 200);
		CHECK(strstr(R.body, "\"mode\":600") && strstr(R.body, "\"size\":21") &&
			strstr(R.body, "\"type\":\"file\"") &&
			strstr(R.body, "\"owner\":\"root\""));
	}
	ask("GET", fill("/files/download?path=$D/new/dir/a.txt&offset=2&limit=1"), NULL);
	CHECK_INT(R.status, 200);
	CHECK_STR(R.body, "line 2\n");
	CHECK(strcasestr(R.raw, "content-type: text/plain"));
	ask("GET", fill("/files/download?path=$D/nothing"), NULL);
	CHECK_INT(R.status, 404);
	CHECK_STR(code_of(), "FILE_NOT_FOUND");
	ask("GET", "/files/download", NULL);
	CHECK_INT(R.status, 400);
	CHECK_STR(code_of(), "MISSING_QUERY");
	ask("GET", fill("/files/download?path=$D"), NULL);
	CHECK_INT(R.status, 400);
}

static void ranges_are_kept(void)
{
	static const struct {
		const char *range;
		int status;
		const char *body, *said;
	} t[] = {
		{"bytes=2-4", 206, "cde", "bytes 2-4/10"},
		{"bytes=7-", 206, "hij", "bytes 7-9/10"},
		{"bytes=-3", 206, "hij", "bytes 7-9/10"},
		{"bytes=-99", 206, "abcdefghij", "bytes 0-9/10"},
		{"bytes=5-99", 206, "fghij", "bytes 5-9/10"},
		{"bytes=10-", 416, NULL, "bytes */10"},
		{"bytes=4-2", 416, NULL, "bytes */10"},
		{"bytes=x", 416, NULL, "bytes */10"},
		{"bytes=0-1,3-4", 200, "abcdefghij", NULL},
		{"items=1-2", 200, "abcdefghij", NULL},
	};

	upload("/files/upload", META("{\"path\":\"$D/r\"}") DATA("abcdefghij") END, false, -1);
	CHECK_INT(R.status, 200);
	for (size_t i = 0; i < ARRAY_LEN(t); i++) {
		char head[512];

		snprintf(head, sizeof(head),
			"GET %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\nRange: %s\r\n\r\n",
			fill("/files/download?path=$D/r"), t[i].range);
		ask_raw(head, "", 0);
		if (R.status != t[i].status)
			printf("%s\n", t[i].range);
		CHECK_INT(R.status, t[i].status);
		if (t[i].body)
			CHECK_STR(R.body, t[i].body);
		if (t[i].said)
			CHECK(strstr(R.raw, t[i].said));
	}
	ask_raw(fill("GET /files/download?path=$D/r&offset=1 HTTP/1.1\r\nHost: a\r\nConnection: "
		     "close\r\nRange: bytes=1-2\r\n\r\n"),
		"", 0);
	CHECK_INT(R.status, 400);
}

static void bad_uploads_are_refused(void)
{
	static const char *const bad[] = {
		META("{\"path\":\"$D/z\"}") END,
		DATA("x") END,
		META("{\"path\":\"\"}") DATA("x") END,
		META("{\"path\":\"$D/z\",\"mode\":888}") DATA("x") END,
		META("[]") DATA("x") END,
		META("{\"path\":\"$D/z\"}") META("{\"path\":\"$D/z\"}") DATA("x") END,
		END,
		META("{\"path\":\"$D/z\"}") DATA("x"),
	};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		upload("/files/upload", bad[i], false, -1);
		if (R.status != 400)
			printf("case %zu: %d %s\n", i, R.status, R.body);
		CHECK_INT(R.status, 400);
		CHECK_STR(code_of(), "INVALID_FILE_METADATA");
	}
	ask("POST", "/files/upload", "{}");
	CHECK_INT(R.status, 400);
	CHECK_STR(code_of(), "INVALID_FILE");
}

static void files_are_moved_changed_found_and_removed(void)
{
	upload("/files/upload",
		META("{\"path\":\"$D/t/one.txt\"}") DATA("aXbXc")
			META("{\"path\":\"$D/t/sub/two.txt\"}") DATA("2") END,
		false, -1);
	CHECK_INT(R.status, 200);
	ask("POST", "/files/permissions",
		fill("{\"$D/t/"
		     "one.txt\":{\"mode\":755,\"owner\":\"nobody\",\"group\":\"nogroup\"}}"));
	CHECK_INT(R.status, 200);
	ask("GET", fill("/files/info?path=$D/t/one.txt"), NULL);
	CHECK(strstr(R.body, "\"mode\":755") && strstr(R.body, "\"owner\":\"nobody\"") &&
		strstr(R.body, "\"group\":\"nogroup\""));
	ask("POST", "/files/replace?verbose=true",
		fill("{\"$D/t/one.txt\":{\"old\":\"X\",\"new\":\"--\"}}"));
	CHECK_INT(R.status, 200);
	CHECK(strstr(R.body, "\"replacedCount\":2"));
	ask("POST", "/files/replace", fill("{\"$D/t/one.txt\":{\"old\":\"\",\"new\":\"--\"}}"));
	CHECK_INT(R.status, 400);
	ask("GET", fill("/files/download?path=$D/t/one.txt"), NULL);
	CHECK_STR(R.body, "a--b--c");
	ask("GET", fill("/files/search?path=$D/t&pattern=*.txt"), NULL);
	CHECK_INT(R.status, 200);
	CHECK(strstr(R.body, "one.txt") && strstr(R.body, "two.txt") &&
		!strstr(R.body, "directory"));
	ask("GET", fill("/files/search?path=$D/nothing"), NULL);
	CHECK_INT(R.status, 404);
	ask("GET", fill("/directories/list?path=$D/t"), NULL);
	CHECK(strstr(R.body, "one.txt") && strstr(R.body, "\"type\":\"directory\"") &&
		!strstr(R.body, "two.txt"));
	ask("GET", fill("/directories/list?path=$D/t&depth=2"), NULL);
	CHECK(strstr(R.body, "two.txt") != NULL);
	ask("GET", fill("/directories/list?path=$D/t&depth=0"), NULL);
	CHECK_INT(R.status, 400);
	ask("POST", "/files/mv",
		fill("[{\"src\":\"$D/t/one.txt\",\"dest\":\"$D/t/made/three.txt\"}]"));
	CHECK_INT(R.status, 200);
	ask("POST", "/files/mv", fill("[{\"src\":\"$D/t/one.txt\",\"dest\":\"$D/t/x\"}]"));
	CHECK_INT(R.status, 404);
	ask("POST", "/files/mv",
		fill("[{\"src\":\"$D/t/sub/two.txt\",\"dest\":\"$D/t/made/three.txt\"}]"));
	CHECK_INT(R.status, 500);
	ask("POST", "/directories", fill("{\"$D/d1/d2\":{\"mode\":700},\"$D/d3\":{}}"));
	CHECK_INT(R.status, 200);
	ask("GET", fill("/files/info?path=$D/d1/d2&path=$D/d3"), NULL);
	CHECK(strstr(R.body, "\"mode\":700"));
	ask("DELETE", fill("/files?path=$D/d3"), NULL);
	CHECK_INT(R.status, 500);
	ask("DELETE", fill("/files?path=$D/t/made/three.txt&path=$D/t/nothing"), NULL);
	CHECK_INT(R.status, 200);
	ask("DELETE", fill("/directories?path=$D/t&path=$D/nothing"), NULL);
	CHECK_INT(R.status, 200);
	ask("GET", fill("/files/info?path=$D/t"), NULL);
	CHECK_INT(R.status, 404);
	ask("GET", "/files/info", NULL);
	CHECK_STR(R.body, "{}");
}

static void another_user_has_his_own_rights(void)
{
	upload("/files/upload", META("{\"path\":\"$D/mine\"}") DATA("secret") END, false, -1);
	ask("POST", "/files/permissions", fill("{\"$D/mine\":{\"mode\":600}}"));
	ask("GET", fill("/v1/filesystem/65534/65534/files/download?path=$D/mine"), NULL);
	CHECK_INT(R.status, 403);
	ask("GET", "/v1/filesystem/65534/65534/files/info?path=/tmp", NULL);
	CHECK_INT(R.status, 200);
	ask("GET", "/v1/filesystem/4294967295/0/files/info?path=/tmp", NULL);
	CHECK_INT(R.status, 400);
	ask("GET", "/v1/filesystem/-1/0/files/info?path=/tmp", NULL);
	CHECK_INT(R.status, 400);
}

/* More than every buffer on the way, both ways. */
static void large_files_keep_their_bytes(void)
{
	static char body[3 << 20], all[(3 << 20) + 1024];
	char head[512];
	int n, m;

	for (size_t i = 0; i < sizeof(body); i++)
		body[i] = (char)(i * 7 + i / 251);
	n = snprintf(all, sizeof(all),
		"%s--BB\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\n",
		fill(META("{\"path\":\"$D/large\"}")));
	memcpy(all + n, body, sizeof(body));
	m = n + (int)sizeof(body);
	m += snprintf(all + m, sizeof(all) - (size_t)m, "\r\n--BB--\r\n");
	snprintf(head, sizeof(head),
		"POST /files/upload HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: "
		"multipart/form-data; boundary=BB\r\nContent-Length: %d\r\n\r\n",
		m);
	ask_raw(head, all, (size_t)m);
	CHECK_INT(R.status, 200);
	ask("GET", fill("/files/download?path=$D/large"), NULL);
	CHECK_INT(R.len, sizeof(body));
	CHECK(!memcmp(R.body, body, MIN(R.len, sizeof(body))));
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

/* ---- the way to a server inside: a scripted one, whose request is looked at */

static struct {
	int fd, port;
	const char *answer;
	char got[65536];
	pthread_t thread;
} W;

static void *web_main(void *arg)
{
	int fd = accept4(W.fd, NULL, NULL, SOCK_CLOEXEC);
	size_t n = 0;
	ssize_t k;

	while ((k = read(fd, W.got + n, sizeof(W.got) - 1 - n)) > 0) {
		char *end;

		n += (size_t)k;
		W.got[n] = 0;
		end = strstr(W.got, "\r\n\r\n");
		if (end && (!strncmp(W.got, "GET", 3) || strstr(end, "0\r\n\r\n") ||
				   strstr(end, "END")))
			break;
	}
	(void)!write_full(fd, W.answer, strlen(W.answer));
	close(fd);
	return NULL;
}

static void web(const char *answer)
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct timeval limit = {.tv_sec = 3};
	socklen_t len = sizeof(sa);

	if (W.fd <= 0) {
		W.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		setsockopt(W.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
		ASSERT(!bind(W.fd, (void *)&sa, sizeof(sa)) && !listen(W.fd, 8) &&
			!getsockname(W.fd, (void *)&sa, &len));
		W.port = ntohs(sa.sin_port);
	}
	W.answer = answer;
	W.got[0] = 0;
	pthread_create(&W.thread, NULL, web_main, NULL);
}

static void through(const char *prefix, const char *method, const char *rest, const char *more)
{
	char head[2048];

	snprintf(head, sizeof(head),
		"%s %s%d%s HTTP/1.1\r\nHost: front:99\r\nConnection: close, X-Hop\r\n%s\r\n",
		method, prefix, W.port, rest, more);
	ask_raw(head, "", 0);
	pthread_join(W.thread, NULL);
}

static void the_proxy_passes_requests_and_answers(void)
{
	const char *more = "Cookie: c=1\r\nAuthorization: secret\r\nX-Hop: no\r\nX-Forwarded-For: "
			   "6.6.6.6\r\nOPEN-SANDBOX-API-KEY: key\r\nX-Mine: yes\r\n";

	web("HTTP/1.1 302 Found\r\nServer: evil\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nLocation: "
	    "/there?x\r\nContent-Length: 2\r\nKeep-Alive: 5\r\n\r\nok");
	through("/v1/sandboxes/x/proxy/", "GET", "/a%2Fb/c?q=%20&z", more);
	CHECK_INT(R.status, 302);
	CHECK_STR(R.body, "ok");
	CHECK(!strncmp(W.got, "GET /a%2Fb/c?q=%20&z HTTP/1.1\r\n", 31));
	CHECK(strstr(W.got, "X-Mine: yes") && strstr(W.got, "X-Forwarded-For: 127.0.0.1") &&
		strstr(W.got, "X-Forwarded-Host: front:99"));
	CHECK(!strstr(W.got, "secret") && !strstr(W.got, "c=1") && !strstr(W.got, "X-Hop") &&
		!strstr(W.got, "6.6.6.6") && !strstr(W.got, "key"));
	CHECK(strstr(R.raw, "Set-Cookie: a=1") && strstr(R.raw, "Set-Cookie: b=2") &&
		!strstr(R.raw, "evil") && !strcasestr(R.raw, "keep-alive: 5"));
	CHECK(strstr(R.raw, fill("Location: /v1/sandboxes/x/proxy/")));
	CHECK(strstr(R.raw, "/there?x"));
	web("HTTP/1.0 200 OK\n\nuntil the end");
	through("/x/", "GET", "", more);
	CHECK_STR(R.body, "until the end");
	CHECK(strstr(W.got, "secret") && strstr(W.got, "c=1") &&
		!strncmp(W.got, "GET / HTTP/1.1", 14));
	web("HTTP/1.1 200 OK\r\nTransfer-Encoding: "
	    "chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
	through("/proxy/", "GET", "/y", "");
	CHECK_STR(R.body, "abcde");
}

static void request_bodies_go_through_the_proxy(void)
{
	web("HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n");
	through("/x/", "POST", "/p", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n");
	CHECK_INT(R.status, 201);
	CHECK(strcasestr(W.got, "transfer-encoding: chunked") &&
		strstr(W.got, "5\r\nhello\r\n0\r\n\r\n"));
	web("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
	through("/x/", "PUT", "/p", "Content-Length: 8\r\n\r\nhelloEND");
	CHECK_INT(R.status, 200);
	CHECK(strcasestr(W.got, "content-length: 8") && strstr(W.got, "helloEND"));
}

static void proxy_troubles_have_their_codes(void)
{
	char path[64];

	web("SSH-2.0 hello\r\n\r\n");
	through("/x/", "GET", "/", "");
	CHECK_INT(R.status, 502);
	CHECK_STR(code_of(), "BACKEND_RESPONSE_FAILED");
	web("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort");
	through("/x/", "GET", "/", "");
	CHECK(R.len < 10);
	close(W.fd);
	W.fd = -1;
	snprintf(path, sizeof(path), "/v1/sandboxes/x/proxy/%d/", W.port);
	ask("GET", path, NULL);
	CHECK_INT(R.status, 502);
	CHECK_STR(code_of(), "BACKEND_CONNECTION_FAILED");
	ask("HEAD", path, NULL);
	CHECK_INT(R.status, 405);
	ask("GET", "/proxy/70000/", NULL);
	CHECK_INT(R.status, 400);
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
	{"files_are_uploaded_and_read_back", files_are_uploaded_and_read_back},
	{"ranges_are_kept", ranges_are_kept},
	{"bad_uploads_are_refused", bad_uploads_are_refused},
	{"files_are_moved_changed_found_and_removed", files_are_moved_changed_found_and_removed},
	{"another_user_has_his_own_rights", another_user_has_his_own_rights},
	{"large_files_keep_their_bytes", large_files_keep_their_bytes},
	{"metrics_are_in_their_ranges", metrics_are_in_their_ranges},
	{"the_proxy_passes_requests_and_answers", the_proxy_passes_requests_and_answers},
	{"request_bodies_go_through_the_proxy", request_bodies_go_through_the_proxy},
	{"proxy_troubles_have_their_codes", proxy_troubles_have_their_codes},
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
	/* every request has let go of what the dispatcher gave it */
	for (int i = 0; i < 400 && held; i++)
		usleep(5000);
	if (held) {
		printf("%d requests still hold their sandbox\n", held);
		rc = 1;
	}
	stop();
	return rc;
}
