/* SPDX-License-Identifier: Apache-2.0
 *
 * command.c: walks a table of commands. `mayfly` only.
 */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

#include "lib/opt.h"
#include "lib/version.h"

static int usage(FILE *to, const char *prog, const struct command *table, size_t n)
{
	fprintf(to, "usage: %s COMMAND ...\n\n", prog);
	for (size_t i = 0; i < n; i++)
		fprintf(to, "  %-14s %s\n", table[i].name, table[i].help);
	return to == stdout ? EXIT_OK : EXIT_USAGE;
}

/* How many letters must be added, removed, replaced or exchanged with their neighbour to make b of a. */
static unsigned int distance(const char *a, const char *b)
{
	enum { CAP = 24 };
	unsigned int row[3][CAP + 1], n = (unsigned int)strlen(a), m = (unsigned int)strlen(b);

	if (n > CAP || m > CAP)
		return CAP;
	for (unsigned int j = 0; j <= m; j++)
		row[0][j] = j;
	for (unsigned int i = 1; i <= n; i++) {
		unsigned int *now = row[i % 3], *last = row[(i + 2) % 3],
			     *before = row[(i + 1) % 3];

		now[0] = i;
		for (unsigned int j = 1; j <= m; j++) {
			now[j] = MIN(
				MIN(last[j], now[j - 1]) + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				now[j] = MIN(now[j], before[j - 2] + 1);
		}
	}
	return row[n % 3][m];
}

static int unknown(const char *prog, const struct command *table, size_t n, const char *word)
{
	const char *near = NULL;
	unsigned int best = 3;

	for (size_t i = 0; i < n; i++) {
		unsigned int d = distance(word, table[i].name);

		if (d < best && d < strlen(word)) {
			best = d;
			near = table[i].name;
		}
	}
	fprintf(stderr, "%s: no command '%s'", prog, word);
	if (near)
		fprintf(stderr, "; did you mean '%s'?\n", near);
	else
		fprintf(stderr, "\n");
	fprintf(stderr, "`%s --help` lists the commands.\n", prog);
	return EXIT_USAGE;
}

int command_run(const char *prog, const struct command *table, size_t n, int argc, char **argv)
{
	if (argc < 2)
		return usage(stderr, prog, table, n);
	for (size_t i = 0; i < n; i++)
		if (strcmp(argv[1], table[i].name) == 0)
			return table[i].fn(argc - 1, argv + 1);
	if (strcmp(argv[1], "help") == 0 || strcmp(argv[1], "--help") == 0 ||
		strcmp(argv[1], "-h") == 0)
		return usage(stdout, prog, table, n);
	return unknown(prog, table, n, argv[1]);
}

int complain(int code, const struct err *e)
{
	fprintf(stderr, "mayfly: %s\n", e->msg);
	return code;
}

int plain_options(int argc, char **argv, const char *usage_text, bool *json, int *rest)
{
	bool help = false;
	const struct opt opts[] = {{"json", 0, OPT_FLAG, json, NULL, "JSON on standard output"},
		{"help", 'h', OPT_FLAG, &help, NULL, "this text"}};
	struct err e = {0};

	*json = false;
	if (opt_parse(opts, ARRAY_LEN(opts), argc, argv, rest, &e) < 0)
		return complain(EXIT_USAGE, &e);
	if (!help)
		return -1;
	printf("usage: %s\n\n", usage_text);
	fflush(stdout);
	opt_help(stdout, opts, ARRAY_LEN(opts));
	return EXIT_OK;
}

int cmd_version(int argc, char **argv)
{
	bool json;
	int rest, rc = plain_options(argc, argv, "mayfly version", &json, &rest);

	if (rc >= 0)
		return rc;
	puts(json ? "{\"version\":\"" MAYFLY_VERSION "\"}" : "mayfly " MAYFLY_VERSION);
	return EXIT_OK;
}
