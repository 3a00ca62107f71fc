/* SPDX-License-Identifier: Apache-2.0
 *
 * lib_opt: the options of every program: how they are written, and what is refused.
 */
#include "lib/test.h"

#include "lib/opt.h"

static struct {
	bool flag;
	unsigned int verbose;
	const char *text;
	uint64_t number, bytes;
	struct opt_list list;
} O;

static const struct opt opts[] = {
	{"flag", 'f', OPT_FLAG, &O.flag, NULL, ""},
	{"verbose", 'v', OPT_COUNT, &O.verbose, NULL, ""},
	{"text", 't', OPT_STR, &O.text, "TEXT", ""},
	{"number", 'n', OPT_UINT, &O.number, "N", ""},
	{"bytes", 0, OPT_BYTES, &O.bytes, "SIZE", ""},
	{"list", 'l', OPT_LIST, &O.list, "X", ""},
};

static int parse(const char *line, int *rest, struct err *e)
{
	static char text[512];
	char *argv[64], *save = NULL;
	int n = 0;

	memset(&O, 0, sizeof(O));
	snprintf(text, sizeof(text), "%s", line);
	for (char *w = strtok_r(text, " ", &save); w; w = strtok_r(NULL, " ", &save))
		argv[n++] = w;
	argv[n] = NULL;
	return opt_parse(opts, ARRAY_LEN(opts), n, argv, rest, e);
}

static void options_are_read(void)
{
	struct err e;
	int rest;

	CHECK_INT(parse("prog -f -vvv --verbose -tone --number=7 --bytes 2M -l a --list b word -f",
			  &rest, &e),
		0);
	CHECK(O.flag);
	CHECK_INT(O.verbose, 4);
	CHECK_STR(O.text, "one");
	CHECK_INT(O.number, 7);
	CHECK_INT(O.bytes, 2 << 20);
	CHECK_INT(O.list.n, 2);
	CHECK_STR(O.list.v[1], "b");
	CHECK_INT(rest, 12);
	CHECK_INT(parse("prog -- -f", &rest, &e), 0);
	CHECK(!O.flag && rest == 2);
	/* flags together */
	CHECK_INT(parse("prog -ff word", &rest, &e), 0);
	CHECK(O.flag && rest == 2);
}

static void mistakes_are_named(void)
{
	static const struct {
		const char *line, *want;
	} t[] = {
		{"prog --nothing", "unknown option '--nothing'"},
		{"prog -x", "unknown option '-x'"},
		{"prog --flag=1", "--flag takes no value"},
		{"prog -vx", "--verbose takes no value"},
		{"prog --text", "--text wants a TEXT"},
		{"prog -n -1", "--number: '-1' is not a N"},
		{"prog -n 99999999999999999999", "--number: '99999999999999999999' is not a N"},
		{"prog --bytes 1X", "--bytes: '1X' is not a SIZE"},
	};
	struct err e;
	int rest;

	for (size_t i = 0; i < ARRAY_LEN(t); i++) {
		CHECK_INT(parse(t[i].line, &rest, &e), -EINVAL);
		CHECK_STR(e.msg, t[i].want);
	}
	CHECK_INT(opt_range("n", 5, 1, 5, &e), 0);
	CHECK_INT(opt_range("n", 6, 1, 5, &e), -EINVAL);
	CHECK_STR(e.msg, "--n must be a number from 1 to 5, not 6");
}

static const struct test tests[] = {
	{"options_are_read", options_are_read},
	{"mistakes_are_named", mistakes_are_named},
};
TEST_MAIN(tests)
