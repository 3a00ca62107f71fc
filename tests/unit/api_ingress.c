/* SPDX-License-Identifier: Apache-2.0
 *
 * api_ingress: names of sandboxes in hosts, paths and headers; signatures.
 */
#include "lib/test.h"

#include "api/ingress/guesses.h"
#include "api/ingress/sign.h"

#define ID "0a1b2c3d-0000-4000-8000-00000000beef"

static int label(const char *s, struct ingress_address *a)
{
	return ingress_parse_label(s, strlen(s), a);
}

static void labels(void)
{
	static const char *const wrong[] = {"", "-", "80", "-80", "x-", "x-0", "x-080", "x-65536",
		"x-99999", "x-8a", "x--", "-x-80", "a.b-80", "x-80-", "x-123456",
		"x-80-1a-0123456g", "a b-80"};
	struct ingress_address a;

	CHECK_INT(label(ID "-8080", &a), 0);
	CHECK_STR(a.sandbox, ID);
	CHECK_INT(a.port, 8080);
	CHECK(!a.is_signed);
	CHECK_INT(label(ID "-8080-1z-01234567a", &a), 0);
	CHECK_STR(a.sandbox, ID);
	CHECK(a.is_signed && a.port == 8080 && a.expires_s == 71);
	CHECK_STR(a.signature, "01234567a");
	/* what looks almost signed: the last part is the port, and the rest an id */
	CHECK_INT(label("x-80-0z-443", &a), 0);
	CHECK_STR(a.sandbox, "x-80-0z");
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		CHECK_INT(label(wrong[i], &a), -EINVAL);
		if (label(wrong[i], &a) != -EINVAL)
			printf("  \"%s\"\n", wrong[i]);
	}
}

static void expiry_is_a_number_of_64_bits(void)
{
	struct ingress_address a;

	CHECK_INT(label("x-80-3w5e11264sgsf-01234567a", &a), 0);
	CHECK(a.is_signed && a.expires_s == UINT64_MAX);
	CHECK_INT(label("x-80-3w5e11264sgsg-01234567a", &a), -EINVAL); /* one more */
	CHECK_INT(label("x-80-Z-01234567a", &a), -EINVAL);
}

static void hosts(void)
{
	struct ingress_address a;

	CHECK_INT(ingress_parse_host("x-80.box.example.org", "box.example.org", &a), 0);
	CHECK_STR(a.sandbox, "x");
	CHECK_INT(ingress_parse_host("X-80.Box.Example.ORG:8443", "box.example.org", &a), 0);
	CHECK_INT(ingress_parse_host("x-80.box.example.org.", "box.example.org", &a), 0);
	CHECK_INT(ingress_parse_host("x-80.localhost:9000", "localhost", &a), 0);
	CHECK_INT(ingress_parse_host("box.example.org", "box.example.org", &a), -ENOENT);
	CHECK_INT(ingress_parse_host(".box.example.org", "box.example.org", &a), -ENOENT);
	CHECK_INT(ingress_parse_host("x-80.evilbox.example.org", "box.example.org", &a), -ENOENT);
	CHECK_INT(ingress_parse_host("x-80xbox.example.org", "box.example.org", &a), -ENOENT);
	CHECK_INT(ingress_parse_host("a.x-80.box.example.org", "box.example.org", &a), -EINVAL);
	CHECK_INT(ingress_parse_host("", "box.example.org", &a), -ENOENT);
	CHECK_INT(ingress_parse_host("x-80.", "", &a), -ENOENT);
}

static void paths(void)
{
	struct ingress_address a;
	const char *rest;

	CHECK_INT(ingress_parse_path("/x/80", &a, &rest), 0);
	CHECK_STR(rest, "/");
	CHECK_INT(ingress_parse_path("/x/80/a/b?c", &a, &rest), 0);
	CHECK_STR(rest, "/a/b?c");
	CHECK_INT(ingress_parse_path("/x/80?q=1", &a, &rest), 0);
	CHECK_STR(rest, "?q=1");
	CHECK_INT(ingress_parse_path("/x/80/1z/01234567a/app", &a, &rest), 0);
	CHECK(a.is_signed);
	CHECK_STR(rest, "/app");
	CHECK_INT(ingress_parse_path("/x/80/1z/01234567a", &a, &rest), 0);
	CHECK_STR(rest, "/");
	/* an application's own path that only begins like one */
	CHECK_INT(ingress_parse_path("/x/80/1z/0123456", &a, &rest), 0);
	CHECK(!a.is_signed && !a.expires[0] && !a.signature[0]);
	CHECK_STR(rest, "/1z/0123456");
	CHECK_INT(ingress_parse_path("", &a, &rest), -EINVAL);
	CHECK_INT(ingress_parse_path("/", &a, &rest), -EINVAL);
	CHECK_INT(ingress_parse_path("/x", &a, &rest), -EINVAL);
	CHECK_INT(ingress_parse_path("/x/", &a, &rest), -EINVAL);
	CHECK_INT(ingress_parse_path("//80", &a, &rest), -EINVAL);
	CHECK_INT(ingress_parse_path("/../80", &a, &rest), -EINVAL);
	CHECK_INT(ingress_parse_path("/x/80x", &a, &rest), -EINVAL);
}

static void signatures(void)
{
	struct ingress_address a = {.sandbox = "x", .port = 80, .expires_s = 2000}, b;
	struct sign_keys k, other;
	struct err e;

	REQUIRE(sign_keys_parse("a=MDEyMzQ1Njc4OWFiY2RlZg==,b=ZmVkY2JhOTg3NjU0MzIxMA", &k, &e) ==
		0);
	REQUIRE(k.n == 2 && k.key[0].len == 16 &&
		memcmp(k.key[1].secret, "fedcba9876543210", 16) == 0);
	REQUIRE(sign_address(&k, &a) == 0);
	CHECK_STR(a.expires, "1jk");
	/* the first eight digits of the SHA-256 of 00000010 "0123456789abcdef" 00000014 "v1\nshort\nx\n80\n1jk\n" */
	CHECK_STR(a.signature, "8ebfbf62a");
	CHECK_INT(sign_check(&k, &a, 1999), 0);
	CHECK_INT(sign_check(&k, &a, 2000), -ETIME);
	b = a;
	b.port = 81;
	CHECK_INT(sign_check(&k, &b, 0), -EACCES);
	b = a;
	b.sandbox[0] = 'y';
	CHECK_INT(sign_check(&k, &b, 0), -EACCES);
	b = a;
	str_copy(b.expires, sizeof(b.expires), "1jl");
	b.expires_s++;
	CHECK_INT(sign_check(&k, &b, 0), -EACCES);
	b = a;
	b.signature[8] = 'b'; /* another key's */
	CHECK_INT(sign_check(&k, &b, 0), -EACCES);
	b.signature[8] = 'c'; /* nobody's */
	CHECK_INT(sign_check(&k, &b, 0), -EACCES);
	/* a new key comes first, and the old one is still accepted */
	REQUIRE(sign_keys_parse(
			"c=AAECAwQFBgcICQoLDA0ODw,a=MDEyMzQ1Njc4OWFiY2RlZg==", &other, &e) == 0);
	CHECK_INT(sign_check(&other, &a, 0), 0);
	other.n = 0;
	CHECK_INT(sign_check(&other, &a, 0), -ENOKEY);
	CHECK_INT(sign_address(&other, &a), -ENOKEY);
}

static void keys_that_are_none(void)
{
	static const char *const wrong[] = {"a",
		"a=", "a=c2hvcnQ=", "aa=MDEyMzQ1Njc4OWFiY2RlZg==", "A=MDEyMzQ1Njc4OWFiY2RlZg==",
		"a=MDEyMzQ1Njc4O!FiY2RlZg==", "a=MDEyMzQ1Njc4OWFiY2RlZg==,,",
		"-=MDEyMzQ1Njc4OWFiY2RlZg==",
		"a=MDEyMzQ1Njc4OWFiY2RlZg==,a=AAECAwQFBgcICQoLDA0ODw"};
	struct sign_keys k;
	struct err e;

	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		CHECK_INT(sign_keys_parse(wrong[i], &k, &e), -EINVAL);
	}
	CHECK_INT(sign_keys_parse("", &k, &e), 0);
	CHECK_INT(k.n, 0);
}

static void the_active_key_signs(void)
{
	struct ingress_address a = {.sandbox = "x", .port = 80, .expires_s = 100};
	struct sign_keys k;
	struct err e;

	REQUIRE(sign_keys_parse("a=MDEyMzQ1Njc4OWFiY2RlZg==,b=AAECAwQFBgcICQoLDA0ODw", &k, &e) ==
		0);
	CHECK(!sign_keys_activate(&k, "c"));
	CHECK(!sign_keys_activate(&k, ""));
	CHECK(!sign_keys_activate(&k, "bb"));
	CHECK(sign_keys_activate(&k, "b"));
	CHECK_INT(sign_address(&k, &a), 0);
	CHECK_INT(a.signature[8], 'b');
	CHECK(sign_keys_activate(&k, "a"));
	CHECK_INT(sign_check(&k, &a, 0), 0);
	CHECK_INT(k.n, 2);
}

static void a_path_without_its_signature(void)
{
	CHECK_STR(ingress_unsigned_rest("/x/80/1z/01234567a/y"), "/1z/01234567a/y");
	CHECK_STR(ingress_unsigned_rest("/x/80/"), "/");
	CHECK_STR(ingress_unsigned_rest("/x/80"), "/");
	CHECK_STR(ingress_unsigned_rest("/x/80?q"), "?q");
}

#define SECOND 1000000000ull
static void guesses_run_out_and_come_back(void)
{
	_cleanup_free_ struct guesses *g = malloc(sizeof(*g));
	char address[40];
	unsigned int n = 0;

	REQUIRE(g);
	guesses_init(g);
	g->seed = 1; /* addresses that share a place share its guesses: here none do */
	for (; n < 100 && guesses_left(g, "x", "10.0.0.1", SECOND); n++)
		guesses_wrong(g, "x", "10.0.0.1", SECOND);
	CHECK_INT(n, 30);
	CHECK(guesses_left(g, "x", "10.0.0.2", SECOND));
	CHECK(guesses_left(g, "x", "10.0.0.1", 2 * SECOND));
	guesses_wrong(g, "x", "10.0.0.1", 2 * SECOND);
	CHECK(!guesses_left(g, "x", "10.0.0.1", 2 * SECOND));
	/* one IPv6 network is one guesser */
	for (n = 0; n < 100; n++) {
		snprintf(address, sizeof(address), "2001:db8::%x", n + 1);
		if (!guesses_left(g, "y", address, SECOND))
			break;
		guesses_wrong(g, "y", address, SECOND);
	}
	CHECK_INT(n, 30);
	guesses_init(g);
	g->seed = 1;
	/* many addresses together have what the sandbox has */
	for (n = 0; n < 3000; n++) {
		snprintf(address, sizeof(address), "10.%u.%u.1", n / 200, n % 200);
		if (!guesses_left(g, "z", address, SECOND))
			break;
		guesses_wrong(g, "z", address, SECOND);
	}
	CHECK_INT(n, 1000);
	CHECK(guesses_left(g, "z", "10.99.0.1", SECOND + SECOND / 10));
}

static void a_right_one_opens_the_sandbox_to_its_address(void)
{
	_cleanup_free_ struct guesses *g = malloc(sizeof(*g));
	char address[40];

	REQUIRE(g);
	guesses_init(g);
	guesses_right(g, "box", "192.0.2.1");
	guesses_right(g, "box", "2001:db8:0:1::5");
	for (unsigned int i = 0; i < 2000; i++) {
		snprintf(address, sizeof(address), "10.0.%u.%u", i / 250, i % 250);
		guesses_wrong(g, "box", address, SECOND);
	}
	CHECK(!guesses_left(g, "box", "192.0.2.2", SECOND));
	CHECK(guesses_left(g, "box", "192.0.2.1", SECOND));
	CHECK(guesses_left(g, "box", "2001:db8:0:1::9", SECOND)); /* the same /64 */
	CHECK(!guesses_left(g, "box", "2001:db8:0:2::5", SECOND));
	/* its own wrong ones count */
	for (unsigned int i = 0; i < 30; i++)
		guesses_wrong(g, "box", "192.0.2.1", SECOND);
	CHECK(!guesses_left(g, "box", "192.0.2.1", SECOND));
}

static const struct test tests[] = {
	{"the_active_key_signs", the_active_key_signs},
	{"a_path_without_its_signature", a_path_without_its_signature},
	{"guesses_run_out_and_come_back", guesses_run_out_and_come_back},
	{"a_right_one_opens_the_sandbox_to_its_address",
		a_right_one_opens_the_sandbox_to_its_address},
	{"labels", labels},
	{"expiry_is_a_number_of_64_bits", expiry_is_a_number_of_64_bits},
	{"hosts", hosts},
	{"paths", paths},
	{"signatures", signatures},
	{"keys_that_are_none", keys_that_are_none},
};
TEST_MAIN(tests)
