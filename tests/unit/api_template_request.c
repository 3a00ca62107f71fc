/* SPDX-License-Identifier: Apache-2.0
 *
 * api_template_request: the body of POST /templates, field by field.
 */
#include "lib/test.h"

#include <cjson/cJSON.h>

#include "api/core/config.h"
#include "api/lifecycle/template_request.h"

static struct config cfg;

#define BASE "\"image\":\"base\",\"publish\":\"s3://bucket/path\""

static cJSON *parse(const char *text, struct refusal *x)
{
	conf_defaults(&cfg);
	*x = (struct refusal){0};
	return template_req_parse(text, strlen(text), &cfg, x);
}

static void what_the_sdk_sends_is_taken(void)
{
	struct refusal x;
	struct probe p;
	struct spec s;
	cJSON *req =
		parse("{" BASE ",\"resourceLimits\":{\"cpu\":\"1\",\"memory\":\"512Mi\",\"disk\":"
		      "\"2Gi\"},\"entrypoint\":[\"a\",\"b\"],\"env\":{\"A_1\":\"v\"},"
		      "\"metadata\":{\"k\":\"v\"},\"readiness\":{\"probe\":\"tcp://"
		      "127.0.0.1:8000\",\"warmupSeconds\":60},\"format\":\"overlaybd\"}",
			&x);

	CHECK_STR(x.msg, "");
	REQUIRE(req);
	CHECK_INT(cJSON_GetArraySize(req), 8);
	CHECK_INT(template_req_spec(req, &cfg, &s, &p, &x), 0);
	CHECK_STR(s.image, "base");
	CHECK_INT(cJSON_GetArraySize(s.entrypoint), 2);
	CHECK_INT(s.memory_bytes, MIB(512));
	CHECK_INT(p.kind, PROBE_TCP);
	CHECK_INT(p.port, 8000);
	spec_fini(&s);
	cJSON_Delete(req);
}

static void defaults(void)
{
	static const struct {
		const char *more;
		enum probe_kind kind;
		int argc;
		uint32_t limit_s;
	} cases[] = {
		{"", PROBE_NONE, 3, 600},
		{",\"entrypoint\":[],\"env\":null,\"readiness\":null,\"format\":null,"
		 "\"resourceLimits\":null",
			PROBE_NONE, 3, 600},
		{",\"entrypoint\":[\"server\"]", PROBE_WINDOW, 1, 60},
		{",\"entrypoint\":[\"server\"],\"readiness\":{}", PROBE_WINDOW, 1, 60},
		{",\"readiness\":{\"warmupSeconds\":0}", PROBE_WINDOW, 3, 0},
		{",\"readiness\":{\"probe\":null,\"warmupSeconds\":5}", PROBE_WINDOW, 3, 5},
		{",\"readiness\":{\"probe\":\"cmd://curl -f http://127.0.0.1:80/\"}", PROBE_CMD, 3,
			600},
		{",\"readiness\":{\"probe\":\"tcp://[::1]:65535\"}", PROBE_TCP, 3, 600},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		char text[400];
		struct refusal x;
		struct probe p = {0};
		struct spec s = {0};
		cJSON *req;

		snprintf(text, sizeof(text), "{" BASE "%s}", cases[i].more);
		req = parse(text, &x);
		CHECK_STR(x.msg, "");
		if (!req)
			continue;
		CHECK_INT(template_req_spec(req, &cfg, &s, &p, &x), 0);
		CHECK_INT(p.kind, cases[i].kind);
		CHECK_INT(p.limit_s, cases[i].limit_s);
		CHECK_INT(cJSON_GetArraySize(s.entrypoint), cases[i].argc);
		CHECK_INT(s.memory_bytes, MIB(512));
		CHECK_STR(cJSON_GetStringValue(cJSON_GetObjectItem(req, "format")), "native");
		spec_fini(&s);
		cJSON_Delete(req);
	}
}

static void the_rest_is_refused(void)
{
	static const struct {
		const char *body, *says;
	} cases[] = {
		{"[]", "object"},
		{"{", ""},
		{"{\"image\":\"a\"}", "publish"},
		{"{\"publish\":\"a\"}", "image"},
		{"{\"image\":\" \",\"publish\":\"a\"}", "image"},
		{"{\"image\":{\"uri\":\"a\"},\"publish\":\"a\"}", "image"},
		{"{" BASE ",\"snapshotId\":\"a\"}", "snapshotId"},
		{"{" BASE ",\"format\":\"zip\"}", "format"},
		{"{" BASE ",\"env\":{\"1A\":\"b\"}}", "1A"},
		{"{" BASE ",\"env\":{\"A-B\":\"b\"}}", "A-B"},
		{"{" BASE ",\"env\":{\"A\":1}}", "env.A"},
		{"{" BASE ",\"env\":[\"a\"]}", "env"},
		{"{" BASE ",\"entrypoint\":[1]}", "entrypoint"},
		{"{" BASE ",\"entrypoint\":\"a\"}", "entrypoint"},
		{"{" BASE ",\"resourceLimits\":{\"cpu\":\"0\"}}", "cpu"},
		{"{" BASE ",\"resourceLimits\":{\"disk\":\"x\"}}", "disk"},
		{"{" BASE ",\"resourceLimits\":{\"disk\":\"20Gi\"}}", "disk"},
		{"{" BASE ",\"metadata\":{\"opensandbox.io/a\":\"b\"}}", "opensandbox.io"},
		{"{" BASE ",\"readiness\":[]}", "readiness"},
		{"{" BASE ",\"readiness\":{\"other\":1}}", "other"},
		{"{" BASE ",\"readiness\":{\"warmupSeconds\":-1}}", "warmupSeconds"},
		{"{" BASE ",\"readiness\":{\"warmupSeconds\":1.5}}", "warmupSeconds"},
		{"{" BASE ",\"readiness\":{\"warmupSeconds\":1e9}}", "warmupSeconds"},
		{"{" BASE ",\"readiness\":{\"probe\":\"\"}}", "probe"},
		{"{" BASE ",\"readiness\":{\"probe\":\"cmd:// \"}}", "probe"},
		{"{" BASE ",\"readiness\":{\"probe\":\"http://127.0.0.1/\"}}", "probe"},
		{"{" BASE ",\"readiness\":{\"probe\":\"tcp://127.0.0.1\"}}", "probe"},
		{"{" BASE ",\"readiness\":{\"probe\":\"tcp://127.0.0.1:0\"}}", "port"},
		{"{" BASE ",\"readiness\":{\"probe\":\"tcp://127.0.0.1:70000\"}}", "port"},
		{"{" BASE ",\"readiness\":{\"probe\":\"tcp://127.0.0.1: 80\"}}", "port"},
		{"{" BASE ",\"readiness\":{\"probe\":\"tcp://169.254.169.254:80\"}}", "host"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct refusal x;
		cJSON *req = parse(cases[i].body, &x);

		if (req || x.status < 400 || x.status > 499 || !strstr(x.msg, cases[i].says)) {
			printf("%s -> %d %s\n", cases[i].body, x.status, x.msg);
			test_failures++;
		}
		cJSON_Delete(req);
	}
}

static const struct test tests[] = {
	{"what_the_sdk_sends_is_taken", what_the_sdk_sends_is_taken},
	{"defaults", defaults},
	{"the_rest_is_refused", the_rest_is_refused},
};

int main(int argc, char **argv)
{
	return test_main(argc, argv, tests, ARRAY_LEN(tests));
}
