/* SPDX-License-Identifier: Apache-2.0
 *
 * images_alias: names that stand for other images.
 */
#include "lib/test.h"

#include "images/store/alias.h"

static const char LIST[] = " a/code:*=mine  docker.io/library/exact=other:1\ta/*=third ";

static const char *of(const char *name)
{
	static char to[64];

	return alias_of(LIST, name, to, sizeof(to)) ? to : "-";
}

static void the_first_pattern_that_fits_counts(void)
{
	CHECK_STR(of("a/code:v1"), "mine");
	CHECK_STR(of("docker.io/a/code:"), "mine");
	CHECK_STR(of("a/code"), "third");
	CHECK_STR(of("exact"), "other:1");
	CHECK_STR(of("exact:1"), "-");
	CHECK_STR(of("b"), "-");
	CHECK_STR(of(""), "-");
}

static void bad_entries_are_refused(void)
{
	static const char *const bad[] = {"a", "=b", "a=", "a*b=c", "**=c", "a=b*", "x=y z"};
	char small[3];
	struct err e;

	CHECK_INT(aliases_check("", &e), 0);
	CHECK_INT(aliases_check(LIST, &e), 0);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		CHECK_INT(aliases_check(bad[i], &e), -EINVAL);
	CHECK(!alias_of("a=long", "a", small, sizeof(small)));
}

static void what_was_written_is_read(void)
{
	char dir[] = "/tmp/alias-XXXXXX", to[ALIASES_MAX];
	struct err e;

	CHECK(mkdtemp(dir));
	aliases_read(dir, to);
	CHECK_STR(to, "");
	CHECK_INT(aliases_write(dir, LIST, &e), 0);
	aliases_read(dir, to);
	CHECK_STR(to, LIST);
	CHECK_INT(aliases_write(dir, "", &e), 0);
	aliases_read(dir, to);
	CHECK_STR(to, "");
	CHECK_INT(rmdir(dir), 0);
}

static const struct test tests[] = {
	{"the_first_pattern_that_fits_counts", the_first_pattern_that_fits_counts},
	{"bad_entries_are_refused", bad_entries_are_refused},
	{"what_was_written_is_read", what_was_written_is_read},
};
TEST_MAIN(tests)
