/* SPDX-License-Identifier: Apache-2.0
 *
 * opt.h: command line options by table, shared by parsing and --help. mayfly, mayflyd, mayfly-priv
 * and mayfly-image. Options end before the first word that is no option, or after "--".
 */
#pragma once

#include <stdio.h>

#include "lib/err.h"

enum opt_kind {
	OPT_FLAG,
	OPT_COUNT, /* each one counts: -v -v, -vv */
	OPT_STR,
	OPT_UINT,
	OPT_BYTES,
	OPT_LIST,
};

struct opt {
	const char *name; /* "memory": --memory X, --memory=X */
	char letter;      /* 0 = none */
	enum opt_kind kind;
	/* by kind: FLAG bool *, COUNT unsigned int *, STR const char **, UINT uint64_t *, BYTES
	 * uint64_t * (with K, M, G or T), LIST struct opt_list * */
	void *to;
	const char *arg, *help;
};

struct opt_list {
	const char *v[64];
	size_t n;
};

/* Parses argv[1..]; *rest is the index of the first word that is no option. 0, or -EINVAL with the
 * reason in e. */
int opt_parse(const struct opt *o, size_t n, int argc, char **argv, int *rest, struct err *e);
void opt_help(FILE *to, const struct opt *o, size_t n);
/* 0, or -EINVAL: the number of --name is not from min to max. */
int opt_range(const char *name, uint64_t v, uint64_t min, uint64_t max, struct err *e);
/* "512M" and the like. */
bool bytes_parse(const char *s, uint64_t *to);
bool uint_parse(const char *s, uint64_t *to);
