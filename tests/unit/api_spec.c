/* SPDX-License-Identifier: Apache-2.0
 *
 * api_spec: the create request field by field, the grammars of metadata, limits and times, and the sandbox's transitions.
 */
#include "lib/test.h"

#include <cjson/cJSON.h>

#include "api/config.h"
#include "api/sandbox.h"
#include "api/spec.h"

static struct config cfg;

#define OK_LIMITS "\"resourceLimits\":{\"cpu\":\"1\",\"memory\":\"2Gi\"}"
#define IMAGE	  "\"image\":{\"uri\":\"python:3.11\",\"auth\":null}"
#define ENTRY	  "\"entrypoint\":[\"tail\",\"-f\",\"/dev/null\"]"
#define BASE	  IMAGE "," ENTRY "," OK_LIMITS

static int parse(const char *text, struct refusal *x, struct spec *s)
{
	static struct spec own;
	int rc;

	conf_defaults(&cfg);
	*x = (struct refusal){0};
	rc = spec_parse(s ? s : &own, text, strlen(text), &cfg, x);
	if (!s)
		spec_fini(&own);
	return rc;
}

static void what_the_sdks_send_is_taken(void)
{
	struct refusal x;
	struct spec s;

	CHECK_INT(parse("{" BASE ",\"timeout\":600,\"env\":{\"A\":\"b\",\"N\":null},\"metadata\":{},\"extensions\":{},\"volumes\":null,"
			"\"networkPolicy\":null,\"unknown\":[1]}", &x, &s), 0);
	CHECK_STR(x.msg, "");
	CHECK_STR(s.image, "python:3.11");
	CHECK_INT(s.timeout_s, 600);
	CHECK_INT(s.vcpus, 1);
	CHECK_INT(s.memory_bytes, 2147483648ll);
	CHECK_INT(cJSON_GetArraySize(s.env), 1);
	spec_fini(&s);
	/* Java's nulls, manual cleanup */
	CHECK_INT(parse("{" BASE ",\"timeout\":null,\"env\":null,\"metadata\":null,\"extensions\":null,\"platform\":null,\"snapshotId\":\"  \"}", &x, &s), 0);
	CHECK(!s.has_timeout);
	spec_fini(&s);
	CHECK_INT(parse("{\"snapshotId\":\"abc\"," OK_LIMITS "}", &x, &s), 0);
	CHECK_INT(s.source, SRC_SNAPSHOT);
	spec_fini(&s);
	CHECK_INT(parse("{\"templateId\":\"tpl-1\",\"timeout\":60}", &x, &s), 0);
	CHECK_INT(s.source, SRC_TEMPLATE);
	spec_fini(&s);
	CHECK_INT(parse("{" IMAGE "," ENTRY ",\"resourceLimits\":{\"cpu\":\"2500m\",\"memory\":\"300Mi\",\"other\":\"x\"},"
			"\"platform\":{\"os\":\"linux\",\"arch\":\"amd64\"},\"extensions\":{\"access.renew.extend.seconds\":\"300\"}}", &x, &s), 0);
	CHECK_INT(s.vcpus, 3);
	CHECK_INT(s.renew_s, 300);
	CHECK_INT(size_class_of(s.memory_bytes, s.vcpus).mem_mib, 512);
	CHECK_INT(size_class_of(s.memory_bytes, s.vcpus).vcpus, 4);
	spec_fini(&s);
}

static void what_is_wrong_gets_the_documented_answer(void)
{
	static const struct {
		const char *body;
		int status;
		const char *code, *msg;
	} t[] = {
		{"", 400, "SANDBOX::INVALID_PARAMETER", "A JSON body is required."},
		{"{", 400, "SANDBOX::INVALID_PARAMETER", "The request body is not valid JSON."},
		{"[]", 400, "SANDBOX::INVALID_PARAMETER", "The request body must be a JSON object."},
		{"{\"image\":{\"uri\":\"a\\u0000b\"}}", 400, "SANDBOX::INVALID_PARAMETER", "The request body is not valid JSON."},
		{"{" ENTRY "," OK_LIMITS "}", 400, "SANDBOX::INVALID_PARAMETER", "Exactly one of image or snapshotId must be provided."},
		{"{" BASE ",\"snapshotId\":\"x\"}", 400, "SANDBOX::INVALID_PARAMETER", "Exactly one of image or snapshotId must be provided."},
		{"{\"image\":{\"uri\":\" \"}," ENTRY "," OK_LIMITS "}", 400, "SANDBOX::INVALID_PARAMETER", "image.uri must be a non-blank string."},
		{"{" IMAGE "," OK_LIMITS "}", 400, "SANDBOX::INVALID_PARAMETER", "Entrypoint is required when image is provided."},
		{"{" IMAGE ",\"entrypoint\":[]," OK_LIMITS "}", 400, "SANDBOX::INVALID_PARAMETER", "entrypoint must be a list of at least one string."},
		{"{" IMAGE ",\"entrypoint\":[1]," OK_LIMITS "}", 400, "SANDBOX::INVALID_PARAMETER", "entrypoint must be a list of strings."},
		{"{" IMAGE "," ENTRY "}", 400, "SANDBOX::INVALID_PARAMETER", "resourceLimits is required when poolRef is not provided."},
		{"{" BASE ",\"timeout\":59}", 400, "SANDBOX::INVALID_PARAMETER", "timeout must be a whole number of seconds, at least 60."},
		{"{" BASE ",\"timeout\":60.5}", 400, "SANDBOX::INVALID_PARAMETER", "timeout must be a whole number of seconds, at least 60."},
		{"{" BASE ",\"timeout\":1e300}", 400, "SANDBOX::INVALID_PARAMETER", "timeout must be a whole number of seconds, at least 60."},
		{"{" IMAGE "," ENTRY ",\"resourceLimits\":{\"cpu\":\"abc\"}}", 400, "SANDBOX::INVALID_PARAMETER",
			"Invalid resourceLimits.cpu: 'abc'; must resolve to a positive resource limit."},
		{"{" IMAGE "," ENTRY ",\"resourceLimits\":{\"memory\":\"1.5Gi\"}}", 400, "SANDBOX::INVALID_PARAMETER",
			"Invalid resourceLimits.memory: '1.5Gi'; must resolve to a positive resource limit."},
		{"{" IMAGE "," ENTRY ",\"resourceLimits\":{\"memory\":\"0\"}}", 400, "SANDBOX::INVALID_PARAMETER",
			"Invalid resourceLimits.memory: '0'; must resolve to a positive resource limit."},
		{"{" IMAGE "," ENTRY ",\"resourceLimits\":{\"cpu\":\"17\"}}", 400, "SANDBOX::INVALID_PARAMETER",
			"resourceLimits.cpu: at most 16 CPUs are given to one sandbox."},
		{"{" IMAGE "," ENTRY ",\"resourceLimits\":{\"gpu\":\"1\"}}", 400, "SANDBOX::INVALID_PARAMETER",
			"resourceLimits.gpu: this server has no GPUs to give."},
		{"{" BASE ",\"env\":{\"OPENSANDBOX_LIFECYCLE\":\"x\"}}", 422, "SANDBOX::INVALID_PARAMETER", "env.OPENSANDBOX_LIFECYCLE is reserved."},
		{"{" BASE ",\"metadata\":{\"opensandbox.io/a\":\"x\"}}", 400, "SANDBOX::INVALID_METADATA_LABEL",
			"Metadata key 'opensandbox.io/a' uses the reserved prefix 'opensandbox.io/'."},
		{"{" BASE ",\"metadata\":{\"-a\":\"x\"}}", 400, "SANDBOX::INVALID_METADATA_LABEL", "Metadata key '-a' is not a valid label key."},
		{"{" BASE ",\"extensions\":{\"access.renew.extend.seconds\":\"299\"}}", 400, "SANDBOX::INVALID_PARAMETER",
			"extensions['access.renew.extend.seconds'] must be an integer between 300 and 86400."},
		{"{" BASE ",\"extensions\":{\"poolRef\":\"p\"}}", 400, "SANDBOX::UNSUPPORTED_POOL_REF", "extensions.poolRef is not supported by this server."},
		{"{" BASE ",\"platform\":{\"os\":\"windows\",\"arch\":\"amd64\"}}", 400, "SANDBOX::INVALID_PARAMETER",
			"platform windows/amd64 is not available: this host runs linux/amd64."},
		{"{" BASE ",\"platform\":{\"os\":\"linux\"}}", 400, "SANDBOX::INVALID_PARAMETER", "platform needs os and arch."},
		{"{" BASE ",\"volumes\":[{}]}", 400, "VOLUME::UNSUPPORTED_BACKEND", "volumes are not available on this server yet."},
		{"{" BASE ",\"secureAccess\":true}", 400, "SANDBOX::INVALID_PARAMETER", "secureAccess is not available on this server yet."},
		{"{" BASE ",\"credentialProxy\":{\"enabled\":true}}", 400, "SANDBOX::INVALID_PARAMETER", "credentialProxy.enabled requires networkPolicy."},
		{"{" BASE ",\"lifecycle\":{\"x\":1}}", 400, "SANDBOX::INVALID_PARAMETER",
			"lifecycle.x is not known."},
		{"{" BASE ",\"lifecycle\":[]}", 400, "SANDBOX::INVALID_PARAMETER",
			"lifecycle must be an object."},
		{"{" BASE ",\"lifecycle\":{\"preStart\":{}}}", 400, "SANDBOX::INVALID_PARAMETER",
			"lifecycle.preStart.command must be a list of at least one string."},
		{"{" BASE ",\"lifecycle\":{\"preStart\":{\"command\":[\" \"]}}}", 400, "SANDBOX::INVALID_PARAMETER",
			"lifecycle.preStart.command must be a list of at most 256 strings, the first not blank."},
		{"{" BASE ",\"lifecycle\":{\"preStart\":{\"command\":[\"a\"],\"timeoutSeconds\":10801}}}", 400, "SANDBOX::INVALID_PARAMETER",
			"lifecycle.preStart.timeoutSeconds must be between 1 and 10800."},
		{"{" BASE ",\"lifecycle\":{\"periodic\":[{\"name\":\"a\",\"schedule\":\"@hourly\",\"command\":[\"a\"],\"timeoutSeconds\":301}]}}", 400, "SANDBOX::INVALID_PARAMETER",
			"lifecycle.periodic.timeoutSeconds must be between 1 and 300."},
		{"{" BASE ",\"lifecycle\":{\"periodic\":[{\"name\":\"a\",\"schedule\":\"@hourly\",\"command\":[\"a\"]},{\"name\":\"a\",\"schedule\":\"@hourly\",\"command\":[\"a\"]}]}}", 400, "SANDBOX::INVALID_PARAMETER",
			"lifecycle.periodic.name a is there twice."},
		{"{" BASE ",\"lifecycle\":{\"periodic\":[{\"name\":\"a\",\"command\":[\"a\"]}]}}", 400, "SANDBOX::INVALID_PARAMETER",
			"lifecycle.periodic.schedule must be a string."},
		{"{\"templateId\":\"t\"}", 400, "SANDBOX::INVALID_PARAMETER", "timeout is required when templateId is provided."},
		{"{\"templateId\":\"t\",\"timeout\":60,\"env\":{}}", 400, "SANDBOX::INVALID_PARAMETER", "env cannot be used together with templateId."},
	};
	struct refusal x;

	for (size_t i = 0; i < ARRAY_LEN(t); i++) {
		CHECK_INT(parse(t[i].body, &x, NULL), -EINVAL);
		CHECK_INT(x.status, t[i].status);
		CHECK_STR(x.code, t[i].code);
		CHECK_STR(x.msg, t[i].msg);
	}
}

static void labels(void)
{
	char long64[65];

	memset(long64, 'a', 64);
	long64[64] = 0;
	CHECK(metadata_key_ok("a") && metadata_key_ok("example.com/a_b.c-d") && metadata_key_ok(long64 + 1));
	CHECK(!metadata_key_ok("") && !metadata_key_ok(long64) && !metadata_key_ok("/a") && !metadata_key_ok("a/") && !metadata_key_ok("A.b/c") &&
		!metadata_key_ok("a..b/c") && !metadata_key_ok("a/b/c") && !metadata_key_ok("a b") && !metadata_key_ok("a.") && !metadata_key_ok("x./a"));
	CHECK(metadata_value_ok("") && metadata_value_ok("1") && metadata_value_ok("a_b") && !metadata_value_ok("_a") && !metadata_value_ok("a/b"));
}

static void limits(void)
{
	uint64_t b;
	uint32_t m;

	CHECK(memory_parse("512Mi", &b) && b == MIB(512));
	CHECK(memory_parse(" 1g ", &b) && b == 1000000000);
	CHECK(memory_parse("64KB", &b) && b == 64000);
	CHECK(memory_parse("7", &b) && b == 7);
	CHECK(!memory_parse("", &b) && !memory_parse("Mi", &b) && !memory_parse("1MiB", &b) && !memory_parse("-1", &b) && !memory_parse("1 2", &b));
	CHECK(!memory_parse("999999999999999999Ti", &b) && !memory_parse("99999999999999999999", &b));
	CHECK(cpu_parse("500m", &m) && m == 500);
	CHECK(cpu_parse("0.5", &m) && m == 500);
	CHECK(cpu_parse("2", &m) && m == 2000);
	CHECK(!cpu_parse("", &m) && !cpu_parse("m", &m) && !cpu_parse("-1", &m) && !cpu_parse("0", &m) && !cpu_parse("1e3", &m) && !cpu_parse("nan", &m) &&
		!cpu_parse("0x10", &m) && !cpu_parse("1mm", &m) && !cpu_parse("inf", &m) && !cpu_parse("99999999", &m));
}

static void times(void)
{
	int64_t t;
	char s[TIME_TEXT];

	CHECK(time_parse("2026-11-18T14:00:06.137346+00:00", &t) && !strcmp(time_format(t, s), "2026-11-18T14:00:06.137346Z"));
	CHECK(time_parse("2026-11-18T14:00:06.1Z", &t) && t % 1000000000 == 100000000);
	CHECK(time_parse("2026-11-18T14:00:06.784659673Z", &t) && t % 1000000000 == 784659673);
	CHECK(time_parse("2026-11-18T16:30:00+02:30", &t) && !strcmp(time_format(t, s), "2026-11-18T14:00:00.000000Z"));
	CHECK(time_parse("2026-11-18T14:00:00", &t) && !strcmp(time_format(t, s), "2026-11-18T14:00:00.000000Z"));
	CHECK(!time_parse("", &t) && !time_parse("tomorrow", &t) && !time_parse("2026-11-18", &t) && !time_parse("2026-13-01T00:00:00Z", &t));
	CHECK(!time_parse("2026-11-18T14:00:06Zx", &t) && !time_parse("2026-11-18T14:00:06+2", &t) && !time_parse("0001-01-01T00:00:00Z", &t));
}

static void uuids(void)
{
	char a[37], b[37];

	uuid_make(a);
	uuid_make(b);
	CHECK(uuid_ok(a) && uuid_ok(b) && strcmp(a, b) != 0 && a[14] == '4');
	CHECK(!uuid_ok("") && !uuid_ok("../../../../../../../../etc/passwd__") && !uuid_ok("8A4EB55F-2412-40d6-aed6-d4e109165cc5"));
}

static void transitions(void)
{
	CHECK_INT(sb_next(SB_PENDING, EV_STARTED), SB_RUNNING);
	CHECK_INT(sb_next(SB_RUNNING, EV_PAUSE), SB_PAUSING);
	CHECK_INT(sb_next(SB_PAUSING, EV_PAUSED), SB_PAUSED);
	CHECK_INT(sb_next(SB_PAUSED, EV_RESUME), SB_RESUMING);
	CHECK_INT(sb_next(SB_RESUMING, EV_RESUMED), SB_RUNNING);
	CHECK_INT(sb_next(SB_RESUMING, EV_START_FAILED), SB_PAUSED);
	CHECK_INT(sb_next(SB_RUNNING, EV_ENTRY_OK), SB_TERMINATED);
	/* refused, not undefined */
	CHECK_INT(sb_next(SB_PAUSED, EV_PAUSE), SB_STATES);
	CHECK_INT(sb_next(SB_RUNNING, EV_RESUME), SB_STATES);
	CHECK_INT(sb_next(SB_TERMINATED, EV_PAUSE), SB_STATES);
	for (int ev = 0; ev < SB_EVENTS; ev++)
		CHECK_INT(sb_next(SB_STOPPING, (enum sb_event)ev), SB_STATES);
	/* whatever it does, it can be deleted */
	for (int s = 0; s < SB_STOPPING; s++)
		CHECK_INT(sb_next((enum sb_state)s, EV_DELETE), SB_STOPPING);
}

static const struct test tests[] = {
	{"what_the_sdks_send_is_taken", what_the_sdks_send_is_taken},
	{"what_is_wrong_gets_the_documented_answer", what_is_wrong_gets_the_documented_answer},
	{"labels", labels},
	{"limits", limits},
	{"times", times},
	{"uuids", uuids},
	{"transitions", transitions},
};
TEST_MAIN(tests)
