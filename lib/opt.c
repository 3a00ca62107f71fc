/* SPDX-License-Identifier: Apache-2.0
 *
 * opt.c: see opt.h. Whoever starts a program is trusted with its options.
 */
#include "lib/opt.h"

#include <string.h>

bool uint_parse(const char *s, uint64_t *to)
{
	char *end;

	if (*s < '0' || *s > '9')
		return false;
	errno = 0;
	*to = strtoull(s, &end, 10);
	return !errno && !*end;
}

bool bytes_parse(const char *s, uint64_t *to)
{
	static const char units[] = "KMGT";
	char *end;
	const char *u;

	if (*s < '0' || *s > '9')
		return false;
	errno = 0;
	*to = strtoull(s, &end, 10);
	if (errno)
		return false;
	if (!*end)
		return true;
	u = strchr(units, *end & ~0x20);
	if (!u || (end[1] && strcmp(end + 1, "i") != 0 && strcmp(end + 1, "iB") != 0 &&
			  strcmp(end + 1, "B") != 0))
		return false;
	return !__builtin_mul_overflow(*to, UINT64_C(1) << (10 * (u - units + 1)), to);
}

static const struct opt *opt_find(
	const struct opt *o, size_t n, const char *word, const char **value)
{
	size_t len;

	*value = NULL;
	if (word[1] != '-') {
		for (size_t i = 0; i < n; i++)
			if (o[i].letter && o[i].letter == word[1]) {
				*value = word[2] ? word + 2 : NULL;
				return &o[i];
			}
		return NULL;
	}
	len = strcspn(word + 2, "=");
	for (size_t i = 0; i < n; i++)
		if (strlen(o[i].name) == len && strncmp(o[i].name, word + 2, len) == 0) {
			*value = word[2 + len] == '=' ? word + 3 + len : NULL;
			return &o[i];
		}
	return NULL;
}

static const struct opt *flag_of(const struct opt *o, size_t n, char letter)
{
	for (size_t i = 0; i < n; i++)
		if (o[i].letter == letter && o[i].kind == OPT_FLAG)
			return &o[i];
	return NULL;
}

/* -it: flags together, and nothing but flags. */
static bool take_flags(const struct opt *o, size_t n, const char *word)
{
	if (word[1] == '-' || !word[2])
		return false;
	for (const char *p = word + 1; *p; p++)
		if (!flag_of(o, n, *p))
			return false;
	for (const char *p = word + 1; *p; p++)
		*(bool *)flag_of(o, n, *p)->to = true;
	return true;
}

/* -vvv */
static bool is_repeated(const char *word)
{
	return word[1] != '-' && strspn(word + 1, (char[]){word[1], 0}) == strlen(word + 1);
}

static int opt_store(const struct opt *o, const char *v, struct err *e)
{
	struct opt_list *l = o->to;
	uint64_t number = 0;
	bool ok = true;

	switch (o->kind) {
	case OPT_FLAG:
		*(bool *)o->to = true;
		break;
	case OPT_COUNT:
		*(unsigned int *)o->to += v ? 1 + (unsigned int)strlen(v) : 1;
		break;
	case OPT_STR:
		*(const char **)o->to = v;
		break;
	case OPT_UINT:
	case OPT_BYTES:
		ok = o->kind == OPT_UINT ? uint_parse(v, &number) : bytes_parse(v, &number);
		if (ok)
			*(uint64_t *)o->to = number;
		break;
	case OPT_LIST:
		if (l->n == ARRAY_LEN(l->v))
			return err_plain(e, EINVAL, "--%s can be given %llu times", o->name,
				(unsigned long long)l->n);
		l->v[l->n++] = v;
		break;
	}
	return ok ? 0 : err_plain(e, EINVAL, "--%s: '%s' is not a %s", o->name, v, o->arg);
}

int opt_parse(const struct opt *o, size_t n, int argc, char **argv, int *rest, struct err *e)
{
	int i = 1;

	for (; i < argc && argv[i][0] == '-' && argv[i][1]; i++) {
		const char *value;
		const struct opt *hit;
		int rc;

		if (strcmp(argv[i], "--") == 0) {
			i++;
			break;
		}
		if (take_flags(o, n, argv[i]))
			continue;
		hit = opt_find(o, n, argv[i], &value);
		if (!hit)
			return err_plain(e, EINVAL, "unknown option '%s'", argv[i]);
		if ((hit->kind == OPT_FLAG && value) ||
			(hit->kind == OPT_COUNT && value && !is_repeated(argv[i])))
			return err_plain(e, EINVAL, "--%s takes no value", hit->name);
		if (hit->kind > OPT_COUNT && !value) {
			if (++i >= argc)
				return err_plain(e, EINVAL, "--%s wants a %s", hit->name, hit->arg);
			value = argv[i];
		}
		rc = opt_store(hit, value, e);
		if (rc < 0)
			return rc;
	}
	*rest = i;
	return 0;
}

int opt_range(const char *name, uint64_t v, uint64_t min, uint64_t max, struct err *e)
{
	if (v >= min && v <= max)
		return 0;
	return err_plain(e, EINVAL, "--%s must be a number from %llu to %llu, not %llu", name,
		(unsigned long long)min, (unsigned long long)max, (unsigned long long)v);
}

void opt_help(FILE *to, const struct opt *o, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		char left[64];

		snprintf(left, sizeof(left), "%c%c%c --%s %s", o[i].letter ? '-' : ' ',
			o[i].letter ? o[i].letter : ' ', o[i].letter ? ',' : ' ', o[i].name,
			o[i].arg ? o[i].arg : "");
		fprintf(to, "  %-28s  %s\n", left, o[i].help);
	}
}
