/* SPDX-License-Identifier: Apache-2.0
 *
 * test.h: the unit tests' whole framework. A test program is a table of functions; `prog NAME` runs one, `prog` all.
 * A CHECK that fails prints what was compared; the test goes on, and counts as failed.
 */
#pragma once

#include <stdio.h>
#include <string.h>

#include "lib/base.h"

struct test {
	const char *name;
	void (*fn)(void);
};

static int test_failures;

#define CHECK(x)                                                                                   \
	do {                                                                                       \
		if (!(x)) {                                                                        \
			printf("%s:%d: CHECK(%s)\n", __FILE__, __LINE__, #x);                      \
			test_failures++;                                                           \
		}                                                                                  \
	} while (0)
#define CHECK_INT(a, b)                                                                            \
	do {                                                                                       \
		long long a_ = (long long)(a), b_ = (long long)(b);                                \
		if (a_ != b_) {                                                                    \
			printf("%s:%d: %s = %lld, wanted %lld\n", __FILE__, __LINE__, #a, a_, b_); \
			test_failures++;                                                           \
		}                                                                                  \
	} while (0)
#define CHECK_STR(a, b)                                                                            \
	do {                                                                                       \
		const char *a_ = (a), *b_ = (b);                                                   \
		if (!a_ || strcmp(a_, b_) != 0) {                                                  \
			printf("%s:%d: %s = \"%s\", wanted \"%s\"\n", __FILE__, __LINE__, #a,      \
				a_ ? a_ : "(null)", b_);                                           \
			test_failures++;                                                           \
		}                                                                                  \
	} while (0)
/* leaves the test function: for what the rest cannot go on without */
#define REQUIRE(x)                                                                                 \
	do {                                                                                       \
		if (!(x)) {                                                                        \
			printf("%s:%d: REQUIRE(%s) errno %d\n", __FILE__, __LINE__, #x, errno);    \
			test_failures++;                                                           \
			return;                                                                    \
		}                                                                                  \
	} while (0)

static inline int test_main(int argc, char **argv, const struct test *t, size_t n)
{
	int bad = 0, ran = 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (size_t i = 0; i < n; i++) {
		if (argc > 1 && strcmp(argv[1], t[i].name) != 0)
			continue;
		test_failures = 0;
		t[i].fn();
		ran++;
		if (test_failures)
			bad++;
		printf("%s %s\n", test_failures ? "FAIL" : "ok  ", t[i].name);
	}
	printf("%d of %d passed\n", ran - bad, ran);
	return bad || !ran;
}
#define TEST_MAIN(table)                                                                           \
	int main(int argc, char **argv)                                                            \
	{                                                                                          \
		return test_main(argc, argv, table, ARRAY_LEN(table));                             \
	}
