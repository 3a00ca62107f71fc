/* SPDX-License-Identifier: Apache-2.0
 *
 * env.c: environment sets. Loop and job threads, each on sets of its own. The file's text is written by the image's programs:
 * hostile, and bounded by ENV_FILE_MAX and ENV_VARS_MAX.
 */
#include "agent/env.h"

#include <string.h>

struct envset *env_new(void)
{
	struct envset *e = calloc(1, sizeof(*e));

	if (e)
		e->refs = 1;
	return e;
}

struct envset *env_ref(struct envset *e)
{
	if (e)
		e->refs++;
	return e;
}

void env_unref(struct envset *e)
{
	if (!e || --e->refs > 0)
		return;
	for (size_t i = 0; i < e->n; i++)
		free(e->kv[i]);
	free(e->kv);
	free(e);
}

static size_t find_var(const struct envset *e, const char *k, size_t kn)
{
	for (size_t i = 0; i < e->n; i++)
		if (!strncmp(e->kv[i], k, kn) && e->kv[i][kn] == '=')
			return i;
	return e->n;
}

int env_setn(struct envset *e, const char *k, size_t kn, const char *v, size_t vn)
{
	size_t at = find_var(e, k, kn);
	char *s;

	if (kn == 0 || memchr(k, '=', kn) || memchr(k, 0, kn) || memchr(v, 0, vn))
		return -EINVAL;
	if (at == e->n && e->n >= ENV_VARS_MAX)
		return -E2BIG;
	/* one spare slot stays, for the NULL that execve wants at the end */
	if (e->n + 2 > e->cap) {
		size_t cap = e->cap ? e->cap * 2 : 16;
		char **p = realloc(e->kv, cap * sizeof(*p));

		if (!p)
			return -ENOMEM;
		e->kv = p;
		e->cap = cap;
	}
	s = malloc(kn + vn + 2);
	if (!s)
		return -ENOMEM;
	memcpy(s, k, kn);
	s[kn] = '=';
	memcpy(s + kn + 1, v, vn);
	s[kn + 1 + vn] = 0;
	if (at < e->n)
		free(e->kv[at]);
	else
		e->n++;
	e->kv[at] = s;
	e->kv[e->n] = NULL;
	return 0;
}

int env_set(struct envset *e, const char *k, const char *v)
{
	return env_setn(e, k, strlen(k), v, strlen(v));
}

void env_unset(struct envset *e, const char *k)
{
	size_t at = find_var(e, k, strlen(k));

	if (at == e->n)
		return;
	free(e->kv[at]);
	e->kv[at] = e->kv[--e->n];
	e->kv[e->n] = NULL;
}

const char *env_get(const struct envset *e, const char *k)
{
	size_t at = find_var(e, k, strlen(k));

	return at < e->n ? e->kv[at] + strlen(k) + 1 : NULL;
}

int env_merge(struct envset *to, const struct envset *from)
{
	for (size_t i = 0; from && i < from->n; i++) {
		const char *s = from->kv[i], *eq = strchr(s, '=');
		int rc = env_setn(to, s, (size_t)(eq - s), eq + 1, strlen(eq + 1));

		if (rc < 0)
			return rc;
	}
	return 0;
}

int env_parse(struct envset *e, struct cur *c)
{
	uint32_t n = cur_u32(c);

	if (n > ENV_VARS_MAX)
		return -E2BIG;
	for (uint32_t i = 0; i < n && !c->bad; i++) {
		size_t kn, vn;
		const char *k = cur_strp(c, &kn, ENV_VALUE_MAX);
		const char *v = cur_strp(c, &vn, ENV_VALUE_MAX);
		int rc = k && v ? env_setn(e, k, kn, v, vn) : -EPROTO;

		if (rc < 0)
			return rc;
	}
	return c->bad ? -EPROTO : 0;
}

static bool is_name_char(char c, bool first)
{
	return c == '_' || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
	       (!first && c >= '0' && c <= '9');
}

/* Appends the value of the variable that begins after the '$' at s. Returns what follows it; NULL:
 * no variable begins there. */
static const char *put_var(
	const struct envset *e, const char *s, struct buf *to, char name[64], bool *missing)
{
	bool brace = s[1] == '{';
	const char *p = s + 1 + brace, *q = p, *v;
	size_t n;

	while (is_name_char(*q, q == p))
		q++;
	n = (size_t)(q - p);
	if (n == 0 || n > 63 || (brace && *q != '}'))
		return NULL;
	memcpy(name, p, n);
	name[n] = 0;
	v = env_get(e, name);
	if (v)
		buf_put(to, v, strlen(v));
	else
		*missing = true;
	return q + brace;
}

static char unescape(char c)
{
	switch (c) {
	case 'n':
		return '\n';
	case 'r':
		return '\r';
	case 't':
		return '\t';
	case '"':
	case '\\':
	case '$':
	case '`':
		return c;
	default:
		return 0;
	}
}

/* Reads one value as a shell would: quoted parts may follow each other. Ends at an unquoted line
 * end. Unquoted blanks are kept, which a shell would not do. */
static const char *take_value(const struct envset *e, const char *s, struct buf *to)
{
	char quote = 0, name[64];
	bool missing;

	for (; *s && (quote || (*s != '\n' && *s != '\r')); s++) {
		const char *next;

		if (quote == '\'' || (!quote && *s == '\'')) {
			if (*s == '\'')
				quote = quote ? 0 : '\'';
			else
				buf_u8(to, (uint8_t)*s);
		} else if (*s == '"') {
			quote = quote ? 0 : '"';
		} else if (*s == '\\' && quote && unescape(s[1])) {
			buf_u8(to, (uint8_t)unescape(*++s));
		} else if (*s == '\\' && !quote && s[1] && s[1] != '\n') {
			buf_u8(to, (uint8_t) * ++s);
		} else if (*s == '$' && (next = put_var(e, s, to, name, &missing))) {
			s = next - 1;
		} else {
			buf_u8(to, (uint8_t)*s);
		}
	}
	return s;
}

static const char *skip_blanks(const char *s)
{
	while (*s == ' ' || *s == '\t' || *s == '\n' || *s == '\r')
		s++;
	return s;
}

int env_merge_text(struct envset *e, const char *text)
{
	struct buf v;
	int rc = 0;

	buf_init(&v, ENV_FILE_MAX * 4);
	for (const char *s = skip_blanks(text); *s && rc >= 0; s = skip_blanks(s)) {
		const char *k, *q;

		if (!strncmp(s, "export ", 7))
			s += 7 + strspn(s + 7, " \t");
		k = q = s;
		while (is_name_char(*q, q == k))
			q++;
		if (*s == '#' || q == k || *q != '=') {
			s += strcspn(s, "\n");
			continue;
		}
		buf_reset(&v);
		s = take_value(e, q + 1, &v);
		/* drop blanks before the line's end, unless they were quoted */
		while (v.len && (v.p[v.len - 1] == ' ' || v.p[v.len - 1] == '\t') && s > q &&
			(s[-1] == ' ' || s[-1] == '\t'))
			v.len--;
		if (v.bad)
			rc = -E2BIG;
		else
			rc = env_setn(e, k, (size_t)(q - k), v.p ? (const char *)v.p : "", v.len);
	}
	buf_fini(&v);
	return rc;
}

int env_expand(
	const struct envset *e, const char *text, const char *home, struct buf *to, char name[64])
{
	bool missing = false;
	const char *s = text;

	if (*s == '~' && (s[1] == 0 || s[1] == '/')) {
		buf_put(to, home, strlen(home));
		s++;
	}
	while (*s && !missing) {
		const char *next = *s == '$' ? put_var(e, s, to, name, &missing) : NULL;

		if (!next)
			buf_u8(to, (uint8_t)*s);
		s = next ? next : s + 1;
	}
	if (missing)
		return -ENOENT;
	return to->bad ? -ENAMETOOLONG : 0;
}
