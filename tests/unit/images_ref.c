/* SPDX-License-Identifier: Apache-2.0
 *
 * images_ref.c: image names, digests, registry configuration, private addresses, authentication
 * challenges.
 */
#include "lib/test.h"

#include "images/pull/web.h"
#include "images/store/obtain.h"
#include "images/pull/pull_int.h"

#include <arpa/inet.h>
#include <fcntl.h>

#define HEX64 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void names_have_one_spelling(void)
{
	static const struct {
		const char *in, *canonical, *familiar;
	} good[] = {
		{"python", "docker.io/library/python:latest", "python:latest"},
		{"python:3.12", "docker.io/library/python:3.12", "python:3.12"},
		{"a/b", "docker.io/a/b:latest", "a/b:latest"},
		{"index.docker.io/library/x:1", "docker.io/library/x:1", "x:1"},
		{"ghcr.io/x/y@sha256:" HEX64, "ghcr.io/x/y@sha256:" HEX64,
			"ghcr.io/x/y@sha256:" HEX64},
		{"ghcr.io/x/y:t@sha256:" HEX64, "ghcr.io/x/y:t@sha256:" HEX64,
			"ghcr.io/x/y:t@sha256:" HEX64},
		{"localhost/x", "localhost/x:latest", "localhost/x:latest"},
		{"docker.io/a.b/c", "docker.io/a.b/c:latest", "docker.io/a.b/c:latest"},
		{"docker.io/library/a/b", "docker.io/library/a/b:latest", "library/a/b:latest"},
		{"localhost:5000/a/b-c__d.e:T_a.g-1", "localhost:5000/a/b-c__d.e:T_a.g-1",
			"localhost:5000/a/b-c__d.e:T_a.g-1"},
		{"[::1]:5000/a", "[::1]:5000/a:latest", "[::1]:5000/a:latest"},
	};
	static const char *const bad[] = {"", "/", "a//b", "A", "a:", "a:b:c", "a@", "a@sha256:12",
		("a@md5:" HEX64), "-a", "a-", "a..b", "a/", "/a", ":t", "a:-t", "ghcr.io/",
		"ghcr.io:port/x", "ghcr.io:123456/x", "a b", "a\n", "..", "../a", "a/../b", "a___b",
		("a@sha256:" HEX64 "0"), "[::1/x", "a._b", "http://x.y/z", "x.y:/z", "a:t/b"};
	struct image_ref r;
	char buf[REF_MAX];
	struct err e;

	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		e.msg[0] = 0;
		if (ref_parse(good[i].in, &r, &e) < 0) {
			printf("%s\n", e.msg);
			test_failures++;
			continue;
		}
		CHECK_STR(ref_canonical(&r, buf), good[i].canonical);
		CHECK_STR(ref_familiar(&r, buf), good[i].familiar);
		CHECK_INT(ref_parse(ref_canonical(&r, buf), &r, &e), 0);
		CHECK_STR(ref_canonical(&r, buf), good[i].canonical);
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		if (ref_parse(bad[i], &r, &e) != -EINVAL) {
			printf("accepted: \"%s\"\n", bad[i]);
			test_failures++;
		}
}

static void digests_are_exact(void)
{
	char s[DIGEST_STR], h[DIGEST_HEX];
	struct digest d;

	digest_of("abc", 3, &d);
	CHECK_STR(digest_hex(&d, h),
		"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
	CHECK_INT(digest_parse(digest_str(&d, s), &d), 0);
	CHECK_INT(digest_parse(
			  "sha256:BA7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
			  &d),
		-EINVAL);
	CHECK_INT(digest_parse("sha512:" HEX64, &d), -EINVAL);
	CHECK_INT(digest_parse("sha256:" HEX64 " ", &d), -EINVAL);
}

static void private_addresses_are_known(void)
{
	static const struct {
		const char *a;
		bool private;
	} v4[] = {{"127.0.0.1", true}, {"10.1.2.3", true}, {"172.16.0.1", true},
		{"172.32.0.1", false}, {"192.168.1.1", true}, {"169.254.169.254", true},
		{"100.64.0.1", true}, {"8.8.8.8", false}, {"0.0.0.0", true}, {"224.0.0.1", true},
		{"255.255.255.255", true}, {"168.63.129.16", true}, {"203.0.113.1", true}},
	  v6[] = {{"::1", true}, {"::", true}, {"fe80::1", true}, {"fd00::1", true},
		  {"2001:4860::1", false}, {"::ffff:127.0.0.1", true}, {"::ffff:8.8.8.8", false},
		  {"64:ff9b::a00:1", true}, {"64:ff9b::808:808", false}, {"ff02::1", true},
		  {"2002:7f00:1::1", true}, {"2002:808:808::1", false}, {"2001::f5ff:fffe", true},
		  {"64:ff9b:1::a00:1", true}, {"100::1", true}};

	for (size_t i = 0; i < ARRAY_LEN(v4); i++) {
		struct sockaddr_in a = {.sin_family = AF_INET};

		REQUIRE(inet_pton(AF_INET, v4[i].a, &a.sin_addr) == 1);
		CHECK_INT(address_is_private((struct sockaddr *)&a), v4[i].private);
	}
	for (size_t i = 0; i < ARRAY_LEN(v6); i++) {
		struct sockaddr_in6 a = {.sin6_family = AF_INET6};

		REQUIRE(inet_pton(AF_INET6, v6[i].a, &a.sin6_addr) == 1);
		CHECK_INT(address_is_private((struct sockaddr *)&a), v6[i].private);
	}
}

static void loopback_is_an_address_not_a_prefix(void)
{
	static const char *const yes[] = {
		"localhost", "localhost:5000", "127.0.0.1", "127.9.9.9:80", "[::1]", "[::1]:5000"};
	static const char *const no[] = {"localhost.example.org", "127.example.org",
		"127.0.0.1.example.org:80", "127.1", "[::1:2]:80", "128.0.0.1", "docker.io"};

	for (size_t i = 0; i < ARRAY_LEN(yes); i++)
		CHECK(registry_is_loopback(yes[i]));
	for (size_t i = 0; i < ARRAY_LEN(no); i++)
		CHECK(!registry_is_loopback(no[i]));
}

static void challenges_are_read(void)
{
	const char *c = "Bearer "
			"realm=\"https://auth.example/"
			"token\",service=\"registry.example\",scope=\"repository:a/b:pull\"";
	char v[64];

	CHECK(challenge_field(c, "realm", v, sizeof(v)));
	CHECK_STR(v, "https://auth.example/token");
	CHECK(challenge_field(c, "scope", v, sizeof(v)));
	CHECK_STR(v, "repository:a/b:pull");
	CHECK(!challenge_field(c, "cope", v, sizeof(v)));
	CHECK(!challenge_field(c, "error", v, sizeof(v)));
	CHECK(!challenge_field(c, "realm", v, 8));
	CHECK(!challenge_field("Bearer realm=\"x", "realm", v, sizeof(v)));
}

static void registries_are_configured(void)
{
	static const char good[] = "# mirrors\ndocker.io https://mirror.example/hub/\n\nlocal:5000 "
				   "http://10.0.0.1:5000 plain-http private # ours\n";
	static const char bad[] = "docker.io http://mirror.example\n";
	struct pull_base b[PULL_MAX_BASES];
	char path[] = "/tmp/images_ref.XXXXXX";
	int fd = mkstemp(path);
	struct err e = {0};
	unsigned int n;

	REQUIRE(fd >= 0 && write_full(fd, good, sizeof(good) - 1) == 0);
	CHECK_INT(registries_read(path, b, &n, &e), 0);
	CHECK_INT(n, 2);
	CHECK_STR(b[0].url, "https://mirror.example/hub");
	CHECK_INT(b[1].flags, JOB_REG_PLAIN_HTTP | JOB_REG_PRIVATE_OK);
	REQUIRE(ftruncate(fd, 0) == 0 && pwrite(fd, bad, sizeof(bad) - 1, 0) > 0);
	CHECK_INT(registries_read(path, b, &n, &e), -EINVAL);
	unlink(path);
	close(fd);
	CHECK_INT(registries_read(path, b, &n, &e), 0);
	CHECK_INT(n, 0);
}

static const struct test tests[] = {
	{"names_have_one_spelling", names_have_one_spelling},
	{"digests_are_exact", digests_are_exact},
	{"private_addresses_are_known", private_addresses_are_known},
	{"loopback_is_an_address_not_a_prefix", loopback_is_an_address_not_a_prefix},
	{"challenges_are_read", challenges_are_read},
	{"registries_are_configured", registries_are_configured},
};
TEST_MAIN(tests)
