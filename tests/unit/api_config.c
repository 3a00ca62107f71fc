/* SPDX-License-Identifier: Apache-2.0
 *
 * api_config: the configuration reader: what it takes, what it refuses and with which line.
 */
#include "lib/test.h"

#include "api/core/config.h"

static int parse(struct config *c, const char *text, struct err *e)
{
	conf_defaults(c);
	*e = (struct err){0};
	return conf_parse(c, text, strlen(text), e);
}

static void reads_what_it_says(void)
{
	struct config c;
	struct err e;

	CHECK_INT(parse(&c,
			  "# top\n[server]\nhost = \"0.0.0.0\" # where\r\nport = "
			  "9_000\napi_key='a\\b'\nlog_json = true\n"
			  "[server.api_keys]\nci = \"one\"\ndev = "
			  "\"t\\\"wo\"\n[storage]\nallowed_host_paths = [\n \"/a\",\n '/b' ]\n",
			  &e),
		0);
	CHECK_STR(c.host, "0.0.0.0");
	CHECK_INT(c.port, 9000);
	CHECK_STR(c.api_key, "a\\b");
	CHECK(c.log_json);
	CHECK_INT(c.nkeys, 2);
	CHECK_STR(c.keys[1].key, "t\"wo");
	CHECK_INT(c.keys[1].who.role, ROLE_OPERATOR);
	CHECK(!conf_has_tenants(&c));
	CHECK_INT(c.nallowed_host_paths, 2);
	CHECK_STR(c.allowed_host_paths[1], "/b");
	CHECK_INT(conf_check(&c, &e), 0);
}

static void refuses_with_the_line(void)
{
	static const struct {
		const char *text, *want;
	} t[] = {
		{"[server]\nport = 70000\n", "line 2: port must be from 0 to 65535"},
		{"[server]\n\nprot = 1\n", "line 3: unknown key prot in [server]"},
		{"[srver]\n", "line 1: unknown table [srver]"},
		{"[server\n", "line 1: ']' is missing"},
		{"[server]\nhost = \"a\nb\"\n",
			"line 2: a string ends on its line, and has no control characters"},
		{"[server]\nhost = \"a", "line 2: the string has no closing quote"},
		{"[server]\nhost = 5\n", "line 2: a string in quotes is expected"},
		{"[server]\nport = 5 6\n", "line 2: something follows the value"},
		{"[server]\nport = x\n", "line 2: a whole number is expected"},
		{"[server]\nport = 9999999999999999999\n", "line 2: this number is too long"},
		{"[server]\nlog_json = yes\n", "line 2: true or false is expected"},
		{"port = 1\n", "line 1: unknown key port in []"},
		{"[server]\n= 1\n", "line 2: something follows the value"},
		{"[server]\nhost = \"\\q\"\n",
			"line 2: unknown escape: use \\b, \\t, \\n, \\f, \\r, \\\" or \\\\"},
		{"[server.api_keys]\na = \"\"\n", "line 2: an empty key"},
		{"[storage]\nallowed_host_paths = [\"/a\" \"/b\"]\n",
			"line 2: a comma or ] is expected"},
	};
	struct config c;
	struct err e;

	for (size_t i = 0; i < ARRAY_LEN(t); i++) {
		CHECK_INT(parse(&c, t[i].text, &e), -EINVAL);
		CHECK_STR(e.msg, t[i].want);
	}
}

static void example_is_the_defaults(void)
{
	struct config a, b;
	const void *as = &a, *bs = &b; /* bytes: what lies between the members was zeroed in both */
	struct err e = {0};
	_cleanup_free_ char *text = conf_example("");

	conf_defaults(&a);
	memset(&b, 0, sizeof(b));
	CHECK_INT(conf_parse(&b, text, strlen(text), &e), 0);
	CHECK(!memcmp(as, bs, sizeof(a)));
}

static void open_listener_needs_a_key(void)
{
	struct config c;
	struct err e;

	parse(&c, "[server]\nhost = \"0.0.0.0\"\n", &e);
	CHECK_INT(conf_check(&c, &e), -EINVAL);
	/* known by a user id only: nobody can show it from outside */
	parse(&c, "[server]\nhost = \"0.0.0.0\"\n[server.keys.a]\nuid = 1000\n", &e);
	CHECK_INT(conf_check(&c, &e), -EINVAL);
	parse(&c, "[server]\nhost = \"0.0.0.0\"\n[server.keys.a]\nkey = \"k\"\n", &e);
	CHECK_INT(conf_check(&c, &e), 0);
	CHECK_INT(parse(&c, "[server]\ninsecure = true\n", &e), -EINVAL);
	CHECK(strstr(e.msg, "needs a key"));
}

static void keys_have_namespaces_and_roles(void)
{
	struct config c;
	struct err e;

	CHECK_INT(parse(&c,
			  "[server]\napi_key = \"root\"\n[server.keys.ci]\nkey = \"1\"\n"
			  "[server.keys.web]\nkey = \"2\"\nnamespace = \"team.a\"\nuid = 1000\n"
			  "[server.keys.node]\nkey = \"3\"\nrole = \"peer\"\n"
			  "[server.keys.boss]\nkey = \"4\"\nrole = \"operator\"\n",
			  &e),
		0);
	CHECK_INT(conf_check(&c, &e), 0);
	CHECK(conf_has_tenants(&c));
	CHECK_INT(c.nkeys, 4);
	CHECK_STR(c.keys[0].who.namespace, "ci");
	CHECK_INT(c.keys[0].uid, -1);
	CHECK_STR(c.keys[1].who.namespace, "team.a");
	CHECK_INT(c.keys[1].uid, 1000);
	CHECK_INT(c.keys[1].who.role, ROLE_USER);
	CHECK_INT(c.keys[2].who.role, ROLE_PEER);
	CHECK_INT(c.keys[3].who.role, ROLE_OPERATOR);
	CHECK_STR(c.keys[3].who.namespace, OPERATOR_NAMESPACE);
}

static void keys_that_contradict_are_refused(void)
{
	static const struct {
		const char *text, *want;
	} t[] =
		{
			{"[server.keys.a]\nrole = \"user\"\n", "set key, or uid"},
			/* else a user would be given what older builds left to the operator */
			{"[server.keys.operator]\nkey = \"1\"\n", "Set another namespace"},
			{"[server.keys.a]\nkey = \"1\"\nnamespace = \"operator\"\n",
				"Set another namespace"},
			{"[server.keys.a]\nkey = \"1\"\nrole = \"operator\"\nnamespace = \"b\"\n",
				"Set another namespace"},
			{"[server.keys.a]\nkey = \"1\"\n[server.keys.b]\nkey = \"1\"\n",
				"has the same key"},
			{"[server]\napi_key = \"1\"\n[server.keys.b]\nkey = \"1\"\n",
				"has the same key"},
			{"[server]\nline_endings = \"no\"\n", "none of auto, keep, strip"},
			{"[hardening]\nkeep_capabilities = \"chown sudo\"\n",
				"sudo is not a capability"},
			{"[landlock]\nwrite = \"/tmp tmp\"\n",
				"landlock.write: tmp is not an absolute path"},
			{"[isolation]\nallowed = \"data\"\n", "data is not an absolute path"},
			{"[network]\ndeny = \"a.example 10.0.0/8\"\n",
				"network.deny: rule target \"10.0.0/8\""},
			{"[network]\nallow = \"*.a.example, a_b!\"\n",
				"network.allow: rule target \"a_b!\""},
		},
	  bad[] = {
		  {"[server.keys.a]\nkey = \"1\"\n[server.keys.a]\n",
			  "line 3: two keys have this name"},
		  {"[server.keys.a]\nrole = \"boss\"\n",
			  "line 2: a role is user, peer or operator"},
		  {"[server.keys.a]\nnamespace = \"a/b\"\n",
			  "line 2: a namespace is of letters, digits, '-', '_' and '.'"},
		  {"[server.keys.a]\nuid = -1\n",
			  "line 2: a user id is a number from 0 to 4294967294"},
		  {"[server.keys.a]\nkey = \"\"\n", "line 2: an empty key"},
		  {"[server.keys.a]\nkeys = \"\"\n", "line 2: unknown key keys in [server.keys.a]"},
	  };
	struct config c;
	struct err e;

	for (size_t i = 0; i < ARRAY_LEN(t); i++) {
		CHECK_INT(parse(&c, t[i].text, &e), 0);
		CHECK_INT(conf_check(&c, &e), -EINVAL);
		CHECK(strstr(e.msg, t[i].want));
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		CHECK_INT(parse(&c, bad[i].text, &e), -EINVAL);
		CHECK_STR(e.msg, bad[i].want);
	}
}

static void who_sees_what(void)
{
	const struct principal op = {ROLE_OPERATOR, "operator", "operator"},
			       a = {ROLE_USER, "ci", "a"}, nobody = {0};
	char owner[OWNER_MAX];

	principal_owner(&a, owner);
	CHECK_STR(owner, "a/ci");
	CHECK(principal_may(&op, "a/ci") && principal_may(&op, "") &&
		principal_may(&op, "operator"));
	CHECK(principal_may(&a, "a/ci") && principal_may(&a, "a/other"));
	CHECK(!principal_may(&a, "ab/ci") && !principal_may(&a, "") &&
		!principal_may(&a, "operator") && !principal_may(&a, "operator/operator") &&
		!principal_may(&a, "b/a"));
	CHECK(!principal_may(&nobody, "a/ci") && !principal_may(&nobody, ""));
	CHECK(owner_may("operator/operator", "a/ci") && owner_may("a/x", "a/ci"));
	CHECK(!owner_may("a/x", "operator/operator") && !owner_may("", "a/ci") &&
		!owner_may("", ""));
}

static char told[200];

static void tell(void *arg, const char *table, const char *name)
{
	snprintf(told + strlen(told), sizeof(told) - strlen(told), "%s.%s ", table, name);
}

static void what_may_change_while_it_serves(void)
{
	struct config now, next;
	struct err e;

	parse(&now,
		"[server]\nhost = \"0.0.0.0\"\napi_key = \"old\"\n[server.api_keys]\na = \"1\"\nb "
		"= \"2\"\n",
		&e);
	parse(&next,
		"[server]\nport = 81\neip = \"x\"\nlog_level = \"debug\"\n[runtime]\nno_jail = "
		"true\ntemplates = false\n[limits]\nmax_sandboxes = 7\n"
		"[server.api_keys]\nc = \"3\"\n[storage]\nallowed_host_paths = "
		"[\"/p\"]\n[network]\nmax_connections = 5\n"
		"[ingress]\nport = 82\n",
		&e);
	conf_take(&now, &next, tell, NULL);
	CHECK_STR(told, "server.host server.port runtime.no_jail ingress.port ");
	CHECK_INT(now.network_connections, 5);
	CHECK_STR(now.host, "0.0.0.0");
	CHECK_INT(now.port, 8080);
	CHECK(!now.no_jail && !now.templates);
	CHECK_INT(now.max_sandboxes, 7);
	CHECK_STR(now.api_key, "");
	CHECK_STR(now.eip, "x");
	CHECK_STR(now.log_level, "debug");
	CHECK_INT(now.nkeys, 1);
	CHECK_STR(now.keys[0].key, "3");
	CHECK_INT(now.nallowed_host_paths, 1);
	CHECK_INT(conf_check(&now, &e), 0);
	/* each good by itself; together a host that others reach, and no key */
	parse(&next, "", &e);
	CHECK_INT(conf_check(&next, &e), 0);
	conf_take(&now, &next, NULL, NULL);
	CHECK_INT(conf_check(&now, &e), -EINVAL);
}

static void the_longest_text(void)
{
	static char text[8192];
	struct config c;
	struct err e;

	for (size_t n = sizeof(c.image_aliases) - 1; n <= sizeof(c.image_aliases); n++) {
		snprintf(text, sizeof(text), "[images]\naliases = \"%0*d\"\n", (int)n, 0);
		conf_defaults(&c);
		CHECK_INT(conf_parse(&c, text, strlen(text), &e),
			n < sizeof(c.image_aliases) ? 0 : -EINVAL);
		CHECK_INT(strlen(c.image_aliases), n < sizeof(c.image_aliases) ? n : 0);
	}
}

static void what_cannot_be_read_is_not_empty(void)
{
	struct config c;
	struct err e;

	conf_defaults(&c);
	CHECK_INT(conf_load(&c, "/tmp", &e), -EISDIR);
}

/* Behind a proxy every connection has the proxy's address, so the share of an address would be everybody's. */
static void a_proxy_has_no_share_of_an_address(void)
{
	static const struct {
		const char *more;
		int want;
	} t[] = {
		{"behind_proxy = true\n", -EINVAL},
		{"behind_proxy = true\nmax_connections_per_address = 4096\n", -EINVAL},
		{"behind_proxy = true\nmax_connections_per_address = 0\n", 0},
		{"max_connections_per_address = 0\n", 0},
	};

	for (size_t i = 0; i < ARRAY_LEN(t); i++) {
		struct config c;
		struct err e;
		char text[200];

		snprintf(text, sizeof(text), "[ingress]\nmode = \"gateway\"\n%s", t[i].more);
		CHECK_INT(parse(&c, text, &e), 0);
		CHECK_INT(conf_check(&c, &e), t[i].want);
		CHECK(!t[i].want || (strstr(e.msg, "ingress.max_connections_per_address") &&
					    strstr(e.msg, "set it to 0")));
	}
}

static const struct test tests[] = {
	{"a_proxy_has_no_share_of_an_address", a_proxy_has_no_share_of_an_address},
	{"what_may_change_while_it_serves", what_may_change_while_it_serves},
	{"the_longest_text", the_longest_text},
	{"what_cannot_be_read_is_not_empty", what_cannot_be_read_is_not_empty},
	{"reads_what_it_says", reads_what_it_says},
	{"refuses_with_the_line", refuses_with_the_line},
	{"example_is_the_defaults", example_is_the_defaults},
	{"open_listener_needs_a_key", open_listener_needs_a_key},
	{"keys_have_namespaces_and_roles", keys_have_namespaces_and_roles},
	{"keys_that_contradict_are_refused", keys_that_contradict_are_refused},
	{"who_sees_what", who_sees_what},
};
TEST_MAIN(tests)
