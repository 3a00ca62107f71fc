/* SPDX-License-Identifier: Apache-2.0
 *
 * api_execd_proxy: the execution API (tests/execd_host.h): the way to a server inside the sandbox.
 */
#include "tests/execd_host.h"

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
	CHECK(strstr(R.raw, "Location: /v1/sandboxes/x/proxy/"));
	CHECK(strstr(R.raw, "/there?x"));
	web("HTTP/1.0 200 OK\nSet-Cookie: a=1\nService-Worker-Allowed: /\nClear-Site-Data: "
	    "\"*\"\nX-Kept: "
	    "1\n\nuntil the end");
	through("/x/", "GET", "", more);
	CHECK_STR(R.body, "until the end");
	CHECK(strstr(W.got, "secret") && !strncmp(W.got, "GET / HTTP/1.1", 14));
	/* one origin for all sandboxes: neither its cookies nor what speaks for all of it */
	CHECK(!strstr(W.got, "c=1") && strstr(R.raw, "X-Kept") &&
		!strcasestr(R.raw, "set-cookie") && !strcasestr(R.raw, "service-worker") &&
		!strcasestr(R.raw, "clear-site"));
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
	{"the_proxy_passes_requests_and_answers", the_proxy_passes_requests_and_answers},
	{"request_bodies_go_through_the_proxy", request_bodies_go_through_the_proxy},
	{"proxy_troubles_have_their_codes", proxy_troubles_have_their_codes},
};

int main(int argc, char **argv)
{
	return execd_main(argc, argv, tests, ARRAY_LEN(tests));
}
