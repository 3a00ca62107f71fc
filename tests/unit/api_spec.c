/* SPDX-License-Identifier: Apache-2.0
 *
 * api_spec: the create request field by field, the grammars of metadata, limits and times.
 */
#include "lib/test.h"

#include <cjson/cJSON.h>

#include "api/core/config.h"
#include "api/core/text.h"
#include "api/lifecycle/spec.h"
#include "api/links/monitors.h"

static struct config cfg;

#define OK_LIMITS "\"resourceLimits\":{\"cpu\":\"1\",\"memory\":\"2Gi\"}"
#define IMAGE     "\"image\":{\"uri\":\"python:3.11\",\"auth\":null}"
#define ENTRY     "\"entrypoint\":[\"tail\",\"-f\",\"/dev/null\"]"
#define BASE      IMAGE "," ENTRY "," OK_LIMITS

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

	CHECK_INT(parse("{" BASE ",\"timeout\":600,\"env\":{\"A\":\"b\",\"N\":null},\"metadata\":{}"
			",\"extensions\":{},\"volumes\":null,"
			"\"networkPolicy\":null,\"unknown\":[1]}",
			  &x, &s),
		0);
	CHECK_STR(x.msg, "");
	CHECK_STR(s.image, "python:3.11");
	CHECK_INT(s.timeout_s, 600);
	CHECK_INT(s.vcpus, 1);
	CHECK_INT(s.memory_bytes, 2147483648ll);
	CHECK_INT(cJSON_GetArraySize(s.env), 1);
	spec_fini(&s);
	/* Java's nulls, manual cleanup */
	CHECK_INT(parse("{" BASE ",\"timeout\":null,\"env\":null,\"metadata\":null,\"extensions\":"
			"null,\"platform\":null,\"snapshotId\":\"  \"}",
			  &x, &s),
		0);
	CHECK(!s.has_timeout);
	spec_fini(&s);
	CHECK_INT(parse("{\"snapshotId\":\"abc\"," OK_LIMITS "}", &x, &s), 0);
	CHECK_INT(s.source, SRC_SNAPSHOT);
	spec_fini(&s);
	CHECK_INT(parse("{\"templateId\":\"tpl-1\",\"timeout\":60}", &x, &s), 0);
	CHECK_INT(s.source, SRC_TEMPLATE);
	spec_fini(&s);
	CHECK_INT(parse("{" IMAGE "," ENTRY ",\"resourceLimits\":{\"cpu\":\"2500m\",\"memory\":"
			"\"300Mi\",\"other\":\"x\"},"
			"\"platform\":{\"os\":\"linux\",\"arch\":\"amd64\"},\"extensions\":{"
			"\"access.renew.extend.seconds\":\"300\"}}",
			  &x, &s),
		0);
	CHECK_INT(s.vcpus, 3);
	CHECK_INT(s.renew_s, 300);
	CHECK(!s.lifecycle);
	spec_fini(&s);
	CHECK_INT(parse("{" BASE ",\"lifecycle\":{\"renewalPolicy\":{\"extendSeconds\":600}},"
			"\"extensions\":{\"access.renew.extend.seconds\":\"600\"}}",
			  &x, &s),
		0);
	CHECK_INT(s.renew_s, 600);
	CHECK(!s.lifecycle);
	spec_fini(&s);
	CHECK_INT(parse("{" BASE ",\"lifecycle\":{\"renewalPolicy\":{\"extendSeconds\":86400},"
			"\"preStart\":{\"command\":[\"true\"]}}}",
			  &x, &s),
		0);
	CHECK_INT(s.renew_s, 86400);
	CHECK(s.lifecycle && !cJSON_GetObjectItem(s.lifecycle, "renewalPolicy"));
	spec_fini(&s);
	CHECK_INT(parse("{" IMAGE "," ENTRY ",\"resourceLimits\":{\"cpu\":\"2500m\",\"memory\":"
			"\"300Mi\"}}",
			  &x, &s),
		0);
	CHECK_INT(size_class_of(s.memory_bytes, s.vcpus).mem_mib, 512);
	CHECK_INT(size_class_of(s.memory_bytes, s.vcpus).vcpus, 4);
	spec_fini(&s);
}

#define BAD 400, "SANDBOX::INVALID_PARAMETER"
static void what_is_wrong_gets_the_documented_answer(void)
{
	static const struct {
		const char *body, *msg;
		int status;
		const char *code;
	} t[] = {
		{"", "A JSON body is required.", BAD},
		{"{", "The request body is not valid JSON.", BAD},
		{"[]", "The request body must be a JSON object.", BAD},
		{"{\"image\":{\"uri\":\"a\\u0000b\"}}", "The request body is not valid JSON.", BAD},
		{"{" ENTRY "," OK_LIMITS "}",
			"Exactly one of image or snapshotId must be provided.", BAD},
		{"{" BASE ",\"snapshotId\":\"x\"}",
			"Exactly one of image or snapshotId must be provided.", BAD},
		{"{\"image\":{\"uri\":\" \"}," ENTRY "," OK_LIMITS "}",
			"image.uri must be a non-blank string.", BAD},
		{"{" IMAGE "," OK_LIMITS "}", "Entrypoint is required when image is provided.",
			BAD},
		{"{" IMAGE ",\"entrypoint\":[]," OK_LIMITS "}",
			"entrypoint must be a list of at least one string.", BAD},
		{"{" IMAGE ",\"entrypoint\":[1]," OK_LIMITS "}",
			"entrypoint must be a list of strings.", BAD},
		{"{" IMAGE "," ENTRY "}",
			"resourceLimits is required when poolRef is not provided.", BAD},
		{"{" BASE ",\"timeout\":59}",
			"timeout must be a whole number of seconds, at least 60.", BAD},
		{"{" BASE ",\"timeout\":60.5}",
			"timeout must be a whole number of seconds, at least 60.", BAD},
		{"{" BASE ",\"timeout\":1e300}",
			"timeout must be a whole number of seconds, at least 60.", BAD},
		{"{" IMAGE "," ENTRY ",\"resourceLimits\":{\"cpu\":\"abc\"}}",
			"Invalid resourceLimits.cpu: 'abc'; must resolve to a positive resource "
			"limit.",
			BAD},
		{"{" IMAGE "," ENTRY ",\"resourceLimits\":{\"memory\":\"1.5Gi\"}}",
			"Invalid resourceLimits.memory: '1.5Gi'; must resolve to a positive "
			"resource limit.",
			BAD},
		{"{" IMAGE "," ENTRY ",\"resourceLimits\":{\"memory\":\"0\"}}",
			"Invalid resourceLimits.memory: '0'; must resolve to a positive resource "
			"limit.",
			BAD},
		{"{" IMAGE "," ENTRY ",\"resourceLimits\":{\"cpu\":\"17\"}}",
			"resourceLimits.cpu: at most 16 CPUs are given to one sandbox.", BAD},
		{"{" IMAGE "," ENTRY ",\"resourceLimits\":{\"gpu\":\"1\"}}",
			"resourceLimits.gpu: this server has no GPUs to give.", BAD},
		{"{" BASE ",\"env\":{\"OPENSANDBOX_LIFECYCLE\":\"x\"}}",
			"env.OPENSANDBOX_LIFECYCLE is reserved.", 422,
			"SANDBOX::INVALID_PARAMETER"},
		{"{" BASE ",\"metadata\":{\"opensandbox.io/a\":\"x\"}}",
			"Metadata key 'opensandbox.io/a' uses the reserved prefix "
			"'opensandbox.io/'.",
			400, "SANDBOX::INVALID_METADATA_LABEL"},
		{"{" BASE ",\"metadata\":{\"-a\":\"x\"}}",
			"Metadata key '-a' is not a valid label key.", 400,
			"SANDBOX::INVALID_METADATA_LABEL"},
		{"{" BASE ",\"extensions\":{\"access.renew.extend.seconds\":\"299\"}}",
			"extensions['access.renew.extend.seconds'] must be an integer between 300 "
			"and 86400.",
			BAD},
		{"{" BASE ",\"lifecycle\":{\"renewalPolicy\":{\"extendSeconds\":299}}}",
			"lifecycle.renewalPolicy.extendSeconds must be an integer between 300 and "
			"86400.",
			BAD},
		{"{" BASE ",\"lifecycle\":{\"renewalPolicy\":{\"extendSeconds\":300}},"
		 "\"extensions\":{\"access.renew.extend.seconds\":\"301\"}}",
			"lifecycle.renewalPolicy and extensions['access.renew.extend.seconds'] "
			"differ.",
			BAD},
		{"{" BASE ",\"platform\":{\"os\":\"windows\",\"arch\":\"amd64\"}}",
			"platform windows/amd64 is not available: this host runs linux/amd64.",
			BAD},
		{"{" BASE ",\"platform\":{\"os\":\"linux\"}}", "platform needs os and arch.", BAD},
		{"{" BASE ",\"volumes\":[{\"name\":\"v\",\"mountPath\":\"/m\"}]}",
			"Volume 'v' needs exactly one of host, pvc and ossfs.", 400,
			"VOLUME::INVALID_BACKEND"},
		{"{" BASE ",\"secureAccess\":true}",
			"secureAccess needs a gateway: ingress.mode = \"gateway\" in the "
			"server's configuration.",
			BAD},
		{"{" BASE ",\"credentialProxy\":{\"enabled\":true}}",
			"credentialProxy.enabled requires networkPolicy.", BAD},
		{"{" BASE ",\"lifecycle\":{\"x\":1}}", "lifecycle.x is not known.", BAD},
		{"{" BASE ",\"lifecycle\":[]}", "lifecycle must be an object.", BAD},
		{"{" BASE ",\"lifecycle\":{\"preStart\":{}}}",
			"lifecycle.preStart.command must be a list of at least one string.", BAD},
		{"{" BASE ",\"lifecycle\":{\"preStart\":{\"command\":[\" \"]}}}",
			"lifecycle.preStart.command must be a list of at most 256 strings, the "
			"first not blank.",
			BAD},
		{"{" BASE
		 ",\"lifecycle\":{\"preStart\":{\"command\":[\"a\"],\"timeoutSeconds\":10801}}}",
			"lifecycle.preStart.timeoutSeconds must be between 1 and 10800.", BAD},
		{"{" BASE ",\"lifecycle\":{\"periodic\":[{\"name\":\"a\",\"schedule\":\"@hourly\","
		 "\"command\":[\"a\"],\"timeoutSeconds\":301}]}}",
			"lifecycle.periodic.timeoutSeconds must be between 1 and 300.", BAD},
		{"{" BASE ",\"lifecycle\":{\"periodic\":[{\"name\":\"a\",\"schedule\":\"@hourly\","
		 "\"command\":[\"a\"]},{\"name\":\"a\",\"schedule\":\"@hourly\","
		 "\"command\":[\"a\"]}]}}",
			"lifecycle.periodic.name a is there twice.", BAD},
		{"{" BASE ",\"lifecycle\":{\"periodic\":[{\"name\":\"a\",\"command\":[\"a\"]}]}}",
			"lifecycle.periodic.schedule must be a string.", BAD},
		{"{\"templateId\":\"t\"}", "timeout is required when templateId is provided.", BAD},
		{"{\"templateId\":\"t\",\"timeout\":60,\"env\":{}}",
			"env cannot be used together with templateId.", BAD},
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
	CHECK(metadata_key_ok("a") && metadata_key_ok("example.com/a_b.c-d") &&
		metadata_key_ok(long64 + 1));
	CHECK(!metadata_key_ok("") && !metadata_key_ok(long64) && !metadata_key_ok("/a") &&
		!metadata_key_ok("a/") && !metadata_key_ok("A.b/c") && !metadata_key_ok("a..b/c") &&
		!metadata_key_ok("a/b/c") && !metadata_key_ok("a b") && !metadata_key_ok("a.") &&
		!metadata_key_ok("x./a"));
	CHECK(metadata_value_ok("") && metadata_value_ok("1") && metadata_value_ok("a_b") &&
		!metadata_value_ok("_a") && !metadata_value_ok("a/b"));
}

static void limits(void)
{
	uint64_t b;
	uint32_t m;

	CHECK(quantity_parse("512Mi", &b) && b == MIB(512));
	CHECK(quantity_parse(" 1g ", &b) && b == 1000000000);
	CHECK(quantity_parse("64KB", &b) && b == 64000);
	CHECK(quantity_parse("7", &b) && b == 7);
	CHECK(!quantity_parse("", &b) && !quantity_parse("Mi", &b) && !quantity_parse("1MiB", &b) &&
		!quantity_parse("-1", &b) && !quantity_parse("1 2", &b));
	CHECK(!quantity_parse("999999999999999999Ti", &b) &&
		!quantity_parse("99999999999999999999", &b));
	CHECK(cpu_parse("500m", &m) && m == 500);
	CHECK(cpu_parse("0.5", &m) && m == 500);
	CHECK(cpu_parse("2", &m) && m == 2000);
	CHECK(!cpu_parse("", &m) && !cpu_parse("m", &m) && !cpu_parse("-1", &m) &&
		!cpu_parse("0", &m) && !cpu_parse("1e3", &m) && !cpu_parse("nan", &m) &&
		!cpu_parse("0x10", &m) && !cpu_parse("1mm", &m) && !cpu_parse("inf", &m) &&
		!cpu_parse("99999999", &m));
}

static void times(void)
{
	int64_t t;
	char s[TIME_TEXT];

	CHECK(time_parse("2026-11-18T14:00:06.137346+00:00", &t) &&
		!strcmp(time_format(t, s), "2026-11-18T14:00:06.137346Z"));
	CHECK(time_parse("2026-11-18T14:00:06.1Z", &t) && t % 1000000000 == 100000000);
	CHECK(time_parse("2026-11-18T14:00:06.784659673Z", &t) && t % 1000000000 == 784659673);
	CHECK(time_parse("2026-11-18T16:30:00+02:30", &t) &&
		!strcmp(time_format(t, s), "2026-11-18T14:00:00.000000Z"));
	CHECK(time_parse("2026-11-18T14:00:00", &t) &&
		!strcmp(time_format(t, s), "2026-11-18T14:00:00.000000Z"));
	CHECK(!time_parse("", &t) && !time_parse("tomorrow", &t) && !time_parse("2026-11-18", &t) &&
		!time_parse("2026-13-01T00:00:00Z", &t));
	CHECK(!time_parse("2026-11-18T14:00:06Zx", &t) &&
		!time_parse("2026-11-18T14:00:06+2", &t) &&
		!time_parse("0001-01-01T00:00:00Z", &t));
}

static void uuids(void)
{
	char a[37], b[37];

	uuid_make(a);
	uuid_make(b);
	CHECK(uuid_ok(a) && uuid_ok(b) && strcmp(a, b) != 0 && a[14] == '4');
	CHECK(!uuid_ok("") && !uuid_ok("../../../../../../../../etc/passwd__") &&
		!uuid_ok("8A4EB55F-2412-40d6-aed6-d4e109165cc5"));
}

static const struct test tests[] = {
	{"what_the_sdks_send_is_taken", what_the_sdks_send_is_taken},
	{"what_is_wrong_gets_the_documented_answer", what_is_wrong_gets_the_documented_answer},
	{"labels", labels},
	{"limits", limits},
	{"times", times},
	{"uuids", uuids},
};
TEST_MAIN(tests)
