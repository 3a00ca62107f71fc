/* SPDX-License-Identifier: Apache-2.0
 *
 * execd_host.h: a test's execution API from HTTP to a real process and back: the real server, the
 * real routes, the real agent as an ordinary process on a Unix socket; and a client. Skipped where
 * the agent is not built.
 */
#pragma once

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
#include <sys/un.h>
#include <sys/wait.h>

#include "api/core/config.h"
#include "api/links/agent_client.h"
#include "api/exec/execd.h"
#include "api/sandbox/guest.h"
#include "tests/loopthread.h"

static struct {
	struct loop *loop;
	struct http *http;
	struct agentc *agent;
	struct loop_thread thread;
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

static struct config test_config;
const struct config *sandbox_config(const struct sandbox *sb)
{
	return &test_config;
}

const char *sandbox_env(const struct sandbox *sb, const char *name)
{
	return NULL;
}

static _Atomic int held; /* requests that have not let go of their sandbox */

static inline void released(struct http_req *r)
{
	held--;
}

/* The daemon's dispatcher in small: /x/PORT/... is an endpoint (/ID/PORT), /v1/sandboxes/x/proxy/PORT/...
 * the server proxy; any other path is the execution API's. */
static inline const struct http_route *dispatch(struct http_req *r)
{
	const struct http_route *route;
	int status = 404;

	r->prefix = "";
	const char *documented =
		strncmp(r->path, "/v1/sandboxes/", 14) ? NULL : strstr(r->path, "/proxy/");

	if (documented || !strncmp(r->path, "/x/", 3)) {
		const char *p = documented ? documented + 7 : r->path + 3;
		size_t n = strcspn(p, "/");

		r->prefix = http_strdup(r, r->path, (size_t)(p - r->path) + n);
		r->port = (uint16_t)atoi(p);
		r->path = p[n] ? p + n : "/";
		r->ws_codes = r->prefix[1] == 'v' && http_header(r, "Sec-WebSocket-Key");
		route = http_match(r, r->port == EXECD_PORT ? &execd_table : &proxy_table, &status);
	} else {
		r->port = EXECD_PORT;
		route = http_match(r, &execd_table, &status);
	}
	if (route && http_header(r, "X-Wants-Token") && !execd_token_fits(r, "s3cret"))
		return NULL;
	if (route) {
		held++;
		http_on_free(r, released);
	}
	if (!route)
		http_error_detail(r, status, status == 404 ? "Not Found" : "Method Not Allowed");
	return route;
}

static inline void invoke(struct http_req *r)
{
	r->route->fn(r);
}

static inline bool agent_binary(char *out, size_t cap)
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

/* The socket's path is there before the agent listens: only a connection shows that the agent is up. */
static inline bool agent_listens(void)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	bool up = false;

	snprintf(to.sun_path, sizeof(to.sun_path), "%s", S.sock);
	for (int i = 0; i < 5000 && !up; i++) {
		int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

		up = fd >= 0 && !connect(fd, (void *)&to, sizeof(to));
		close(fd);
		if (!up)
			usleep(2000);
	}
	return up;
}

static inline bool start(int port)
{
	struct sockaddr_in sa = {.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
		.sin_port = htons((uint16_t)port)};
	struct http_config hc = {.connections_max = 200, .dispatch = dispatch, .invoke = invoke};
	char bin[512], run[96], state[96];
	socklen_t len = sizeof(sa);
	int one = 1;

	if (!agent_binary(bin, sizeof(bin)))
		return false;
	/* not named by the process id: a test that was killed leaves its folder, and ids are used again */
	snprintf(S.dir, sizeof(S.dir), "/tmp/execd-XXXXXX");
	if (!mkdtemp(S.dir))
		return false;
	snprintf(S.sock, sizeof(S.sock), "%s/agent", S.dir);
	snprintf(run, sizeof(run), "%s/run", S.dir);
	snprintf(state, sizeof(state), "%s/state", S.dir);
	if (mkdir(run, 0700))
		return false;
	S.child = fork();
	if (!S.child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		execl(bin, bin, "--listen", S.sock, "--run-dir", run, "--state-dir", state,
			(char *)NULL);
		_exit(127);
	}
	if (!agent_listens())
		return false;
	S.loop = loop_create();
	hc.listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(hc.listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(hc.listen_fd, (void *)&sa, sizeof(sa)) || listen(hc.listen_fd, 64) ||
		getsockname(hc.listen_fd, (void *)&sa, &len))
		return false;
	S.port = ntohs(sa.sin_port);
	S.http = http_create(S.loop, &hc);
	S.agent = agentc_create(S.loop, S.sock, 0, NULL);
	agentc_up(S.agent);
	return loop_thread_start(&S.thread, S.loop);
}

static inline void stop(void)
{
	char cmd[128];

	loop_thread_stop(&S.thread);
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

static inline int dial(void)
{
	struct sockaddr_in sa = {.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
		.sin_port = htons((uint16_t)S.port)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	ASSERT(!connect(fd, (void *)&sa, sizeof(sa)));
	return fd;
}

/* Undoes chunked coding in place. */
static inline void unchunk(char *b)
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

static inline void ask_raw(const char *head, const char *body, size_t n)
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

static inline void ask(const char *method, const char *path, const char *json)
{
	char head[2048];

	snprintf(head, sizeof(head),
		"%s %s HTTP/1.1\r\nHost: a:1\r\nConnection: close\r\nContent-Type: "
		"application/json\r\nContent-Length: %zu\r\n\r\n",
		method, path, json ? strlen(json) : 0);
	ask_raw(head, json ? json : "", json ? strlen(json) : 0);
}

/* The events of a stream in short: init ping out(text) err(text), and at the end execution_complete or
 * ENAME(evalue|traceback). Timestamps are checked. */
static char events[1 << 20], first_id[64];
static inline const char *short_events(void)
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

static inline const char *code_of(void)
{
	static char code[64];
	cJSON *j = cJSON_Parse(R.body);
	const char *c = cJSON_GetStringValue(cJSON_GetObjectItem(j, "code"));

	snprintf(code, sizeof(code), "%s", c && cJSON_GetObjectItem(j, "message") ? c : "none");
	cJSON_Delete(j);
	return code;
}

/* `PROGRAM --serve PORT` keeps it up for trying clients by hand. */
static inline int execd_main(int argc, char **argv, const struct test *tests, size_t n)
{
	int rc;

	signal(SIGPIPE, SIG_IGN);
	conf_defaults(&test_config);
	if (!start(argc > 2 ? atoi(argv[2]) : 0)) {
		puts("mayfly-agent is not built");
		return 77;
	}
	if (argc > 2) {
		printf("127.0.0.1:%d\n", S.port);
		fflush(stdout);
		pause();
	}
	rc = test_main(argc, argv, tests, n);
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
