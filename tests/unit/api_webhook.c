/* SPDX-License-Identifier: Apache-2.0
 *
 * api_webhook: which URLs a deny webhook may have, and what counts as an answer. Who asks the broker is tried in real sandboxes (test_net_guest.py).
 */
#include "lib/test.h"

#include "api/network/webhook.h"

static void good_urls_are_taken_apart(void)
{
	static const struct {
		const char *url, *host, *path;
		uint16_t port;
	} rows[] = {{"http://hook.example", "hook.example", "/", 80},
		{"http://hook.example:8080/a/b?c=d", "hook.example", "/a/b?c=d", 8080},
		{"http://hook.example?x", "hook.example", "/?x", 80},
		{"http://192.0.2.9/", "192.0.2.9", "/", 80},
		{"http://[2001:db8::1]:65535/x:y", "2001:db8::1", "/x:y", 65535}};
	struct webhook_url u;
	struct err e;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		CHECK_INT(webhook_url_parse(rows[i].url, &u, &e), 0);
		CHECK_STR(u.host, rows[i].host);
		CHECK_STR(u.path, rows[i].path);
		CHECK_INT(u.port, rows[i].port);
	}
}

static void bad_urls_are_refused(void)
{
	static const char *const rows[] = {"", "http://", "https://hook.example/", "hook.example",
		"HTTP://hook.example/", "http:///x", "http://:80/", "http://a:0/",
		"http://a:65536/", "http://a:/", "http://a:8x/", "http://a b/",
		"http://a/\r\nHost: b", "http://a/\x7f", "http://a/\xc3\xa4", "http://u:p@a/",
		"http://a/#x", "http://[::1/", "http://[]/", "http://::1/", "http://.a/",
		"http://a_b$/"};
	char text[WEBHOOK_URL_MAX + 8], name[WEBHOOK_HOST_MAX + 16] = "http://";
	struct webhook_url u;
	struct err e;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		CHECK_INT(webhook_url_parse(rows[i], &u, &e), -EINVAL);
	memset(text, 'a', sizeof(text));
	memcpy(text, "http://a/", 9);
	text[WEBHOOK_URL_MAX] = 0;
	CHECK_INT(webhook_url_parse(text, &u, &e), -EINVAL);
	text[WEBHOOK_URL_MAX - 1] = 0;
	CHECK_INT(webhook_url_parse(text, &u, &e), 0);
	memset(name + 7, 'a', WEBHOOK_HOST_MAX);
	CHECK_INT(webhook_url_parse(name, &u, &e), -EINVAL);
	name[7 + WEBHOOK_HOST_MAX - 1] = 0;
	CHECK_INT(webhook_url_parse(name, &u, &e), 0);
}

static void an_answer_has_a_status(void)
{
	CHECK_INT(webhook_status("HTTP/1.1 204 No Content\r\n", 25), 204);
	CHECK_INT(webhook_status("HTTP/1.0 500", 12), 500);
	CHECK_INT(webhook_status("HTTP/1.1 20", 11), 0);
	CHECK_INT(webhook_status("HTTP/1.1 2x4 ", 13), 0);
	CHECK_INT(webhook_status("SSH-2.0-OpenSSH_9\r\n", 19), 0);
}

static const struct test tests[] = {
	{"good_urls_are_taken_apart", good_urls_are_taken_apart},
	{"bad_urls_are_refused", bad_urls_are_refused},
	{"an_answer_has_a_status", an_answer_has_a_status},
};
TEST_MAIN(tests)
