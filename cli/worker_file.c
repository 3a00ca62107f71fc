/* SPDX-License-Identifier: Apache-2.0
 *
 * worker_file.c: see worker_file.h. Line by line: indentation says what belongs together, one line's values are read by flow_*(). Bounded by the file's
 * size and WORKER_DEPTH_MAX. A line that the reader does not understand is an error, never a plain text.
 */
#include "cli/worker_file.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/buf.h"
#include "lib/json.h"
#include "lib/utf8.h"

struct reader {
	const char *p, *end; /* the next line, the end of the front matter */
	unsigned int line;   /* the number of the line at p */
	unsigned int depth;
	struct err *e;
};

/* One line that is neither empty nor only a comment. */
struct line {
	const char *p, *end; /* without its indentation and the blanks at its end */
	size_t indent;
	unsigned int number;
};

static cJSON *bad_at(const struct reader *r, unsigned int line, const char *what)
{
	err_plain(r->e, EINVAL, "line %u: %s", line, what);
	return NULL;
}

/* The next line that has something. false: there is none. It is not taken. */
static bool line_peek(struct reader *r, struct line *l)
{
	while (r->p < r->end) {
		const char *nl = memchr(r->p, '\n', (size_t)(r->end - r->p));
		const char *end = nl ? nl : r->end, *at = r->p;

		while (at < end && *at == ' ')
			at++;
		*l = (struct line){
			.p = at, .end = end, .indent = (size_t)(at - r->p), .number = r->line};
		while (l->end > at && strchr(" \t\r", l->end[-1]))
			l->end--;
		if (at < l->end && *at != '#')
			return true;
		r->p = nl ? nl + 1 : r->end;
		r->line++;
	}
	return false;
}

static void line_take(struct reader *r)
{
	const char *nl = memchr(r->p, '\n', (size_t)(r->end - r->p));

	r->p = nl ? nl + 1 : r->end;
	r->line++;
}

/* ---- values on one line */

struct flow {
	struct reader *r;
	const char *p, *end;
	unsigned int line, depth;
	bool inside; /* of [ ] or { }: , ] and } end a plain text */
};

static cJSON *flow_bad(struct flow *f, const char *what)
{
	return bad_at(f->r, f->line, what);
}

static void flow_blanks(struct flow *f)
{
	while (f->p < f->end && (*f->p == ' ' || *f->p == '\t'))
		f->p++;
}

static bool flow_comment(const struct flow *f, const char *at)
{
	return at < f->end && *at == '#' && (at == f->p || strchr(" \t", at[-1]));
}

static cJSON *text_value(const char *p, size_t n)
{
	_cleanup_free_ char *s = strndup(p, n);

	return s ? cJSON_CreateString(s) : NULL;
}

static cJSON *flow_quoted(struct flow *f)
{
	const char quote = *f->p, *from = f->p++;
	cJSON *v = NULL;
	struct buf b;

	while (f->p < f->end && *f->p != quote)
		f->p += quote == '"' && *f->p == '\\' && f->p + 1 < f->end ? 2 : 1;
	if (f->p >= f->end)
		return flow_bad(f, "a text in quotes does not end on its line");
	f->p++;
	if (quote == '\'')
		return text_value(from + 1, (size_t)(f->p - from) - 2);
	/* with JSON's escapes */
	buf_init(&b, WORKER_FILE_MAX + 2);
	buf_put(&b, "[", 1);
	buf_put(&b, from, (size_t)(f->p - from));
	buf_put(&b, "]", 1);
	if (!b.bad) {
		cJSON *list = NULL;

		if (json_read(&list, b.p, b.len, JSON_ARRAY, NULL) == 0)
			v = cJSON_DetachItemFromArray(list, 0);
		cJSON_Delete(list);
	}
	buf_fini(&b);
	return v ? v : flow_bad(f, "a text in quotes has an escape that JSON does not have");
}

static cJSON *plain_value(const char *p, size_t n)
{
	static const char digits[] = "0123456789+-.eE";
	char text[64], *end;
	double d;

	if (n < sizeof(text)) {
		memcpy(text, p, n);
		text[n] = 0;
		if (!strcmp(text, "true") || !strcmp(text, "false"))
			return cJSON_CreateBool(text[0] == 't');
		if (!strcmp(text, "null") || !strcmp(text, "~"))
			return cJSON_CreateNull();
		d = strtod(text, &end);
		if (n && text[strspn(text, digits)] == 0 && *end == 0 && isfinite(d))
			return cJSON_CreateNumber(d);
	}
	return text_value(p, n);
}

static cJSON *flow_plain(struct flow *f)
{
	const char *from = f->p, *at = f->p;

	if (strchr("&*!|>%@`", *at))
		return flow_bad(
			f, "a plain text cannot begin with this character: put it in quotes");
	while (at < f->end && !flow_comment(f, at) && !(f->inside && strchr(",]}", *at)))
		at++;
	f->p = at;
	while (at > from && strchr(" \t", at[-1]))
		at--;
	for (const char *c = from; c < at; c++)
		if (*c == ':' && (c + 1 == at || strchr(" \t", c[1])))
			return flow_bad(
				f, "a text with ': ' must be in quotes, and a mapping in {}");
	return plain_value(from, (size_t)(at - from));
}

static cJSON *flow_value(struct flow *f);

/* A name and its ':'. To be freed. NULL: the reader's e has the error. */
static char *flow_key(struct flow *f)
{
	const char *at = f->p;
	char *key;

	if (f->p < f->end && (*f->p == '"' || *f->p == '\'')) {
		cJSON *v = flow_quoted(f);

		key = v ? strdup(v->valuestring) : NULL;
		cJSON_Delete(v);
	} else {
		while (at < f->end && *at != ':' && !strchr(",]}{[", *at))
			at++;
		key = strndup(f->p, (size_t)(at - f->p));
		for (size_t n = key ? strlen(key) : 0; n && key[n - 1] == ' '; n--)
			key[n - 1] = 0;
		f->p = at;
	}
	flow_blanks(f);
	if (key && *key && f->p < f->end && *f->p == ':' &&
		(f->p + 1 == f->end || strchr(" \t", f->p[1]))) {
		f->p++;
		flow_blanks(f);
		return key;
	}
	free(key);
	if (!f->r->e || !f->r->e->code)
		flow_bad(f, "a name and ': ' are expected");
	return NULL;
}

/* Takes over v. false: the reader's e has the error. */
static bool member_add(struct reader *r, unsigned int line, cJSON *o, const char *key, cJSON *v)
{
	if (!v)
		return false;
	if (cJSON_GetObjectItemCaseSensitive(o, key)) {
		cJSON_Delete(v);
		bad_at(r, line, "this name is there twice");
		return false;
	}
	return cJSON_AddItemToObject(o, key, v);
}

static bool flow_member(struct flow *f, cJSON *o)
{
	_cleanup_free_ char *key = NULL;

	if (!cJSON_IsObject(o))
		return cJSON_AddItemToArray(o, flow_value(f));
	key = flow_key(f);
	return key && member_add(f->r, f->line, o, key, flow_value(f));
}

/* [a, b] or {a: b}; f->p is behind the bracket. */
static cJSON *flow_list(struct flow *f, char close)
{
	_cleanup_json_ cJSON *o = close == '}' ? cJSON_CreateObject() : cJSON_CreateArray();
	bool outer = f->inside;

	if (++f->depth > WORKER_DEPTH_MAX)
		return flow_bad(f, "this is too deep");
	f->inside = true;
	for (flow_blanks(f); f->p < f->end && *f->p != close;) {
		if (!flow_member(f, o))
			return f->r->e && f->r->e->code ? NULL : flow_bad(f, "out of memory");
		flow_blanks(f);
		if (f->p < f->end && *f->p == ',')
			f->p++;
		else if (f->p < f->end && *f->p != close)
			return flow_bad(f, "',' or the closing bracket is expected");
		flow_blanks(f);
	}
	if (f->p >= f->end)
		return flow_bad(f, "a bracket is not closed on its line");
	f->p++;
	f->depth--;
	f->inside = outer;
	return take_ptr(o);
}

static cJSON *flow_value(struct flow *f)
{
	flow_blanks(f);
	if (f->p >= f->end || (f->inside && strchr(",]}", *f->p)))
		return cJSON_CreateNull();
	if (*f->p == '[' || *f->p == '{')
		return flow_list(f, *f->p++ == '[' ? ']' : '}');
	if (*f->p == '"' || *f->p == '\'')
		return flow_quoted(f);
	return flow_plain(f);
}

/* The rest of a line is one value. */
static cJSON *flow_rest(struct flow *f)
{
	cJSON *v = flow_value(f);

	if (!v)
		return f->r->e && f->r->e->code ? NULL : flow_bad(f, "out of memory");
	flow_blanks(f);
	if (f->p == f->end || flow_comment(f, f->p))
		return v;
	cJSON_Delete(v);
	return flow_bad(f, "something follows the value");
}

/* ---- blocks */

/* The lines after "|", deeper than indent; their common indentation is taken off. */
static cJSON *block_text(struct reader *r, size_t indent, bool keep_end)
{
	size_t own = 0;
	cJSON *v;
	struct buf b;

	buf_init(&b, WORKER_FILE_MAX);
	while (r->p < r->end) {
		const char *nl = memchr(r->p, '\n', (size_t)(r->end - r->p));
		const char *end = nl ? nl : r->end, *at = r->p;

		while (at < end && *at == ' ' && (!own || (size_t)(at - r->p) < own))
			at++;
		/* an empty line belongs to it, wherever it stands */
		if (at < end && *at != '\r') {
			if ((size_t)(at - r->p) <= indent || (own && (size_t)(at - r->p) < own))
				break;
			own = (size_t)(at - r->p);
		}
		buf_put(&b, at, (size_t)(end - at));
		buf_put(&b, "\n", 1);
		line_take(r);
	}
	while (b.len && b.p[b.len - 1] == '\n')
		b.len--;
	if (keep_end && b.len)
		buf_put(&b, "\n", 1);
	v = cJSON_CreateString(buf_cstr(&b));
	buf_fini(&b);
	return v ? v : bad_at(r, r->line, "out of memory");
}

static cJSON *block_read(struct reader *r, size_t indent);

/* What stands behind "name:": on the line, or in the lines below it. */
static cJSON *block_value(struct reader *r, struct flow *f, size_t indent)
{
	size_t left = (size_t)(f->end - f->p);
	struct line next;
	bool list;

	line_take(r);
	if ((left == 1 && *f->p == '|') || (left == 2 && !memcmp(f->p, "|-", 2)))
		return block_text(r, indent, left == 1);
	if (left && !flow_comment(f, f->p))
		return flow_rest(f);
	if (!line_peek(r, &next))
		return cJSON_CreateNull();
	list = *next.p == '-' && (next.p + 1 == next.end || next.p[1] == ' ');
	if (next.indent > indent || (next.indent == indent && list))
		return block_read(r, next.indent);
	return cJSON_CreateNull();
}

static bool block_entry(struct reader *r, const struct line *l, cJSON *o)
{
	struct flow f = {.r = r, .p = l->p, .end = l->end, .line = l->number, .depth = r->depth};
	_cleanup_free_ char *key = NULL;
	cJSON *v;

	if (cJSON_IsObject(o)) {
		key = flow_key(&f);
		return key && member_add(r, l->number, o, key, block_value(r, &f, l->indent));
	}
	f.p++;
	flow_blanks(&f);
	line_take(r);
	v = flow_rest(&f);
	return v && cJSON_AddItemToArray(o, v);
}

static cJSON *block_read(struct reader *r, size_t indent)
{
	_cleanup_json_ cJSON *o = NULL;
	struct line l;

	if (++r->depth > WORKER_DEPTH_MAX)
		return bad_at(r, r->line, "this is too deep");
	while (line_peek(r, &l) && l.indent >= indent) {
		bool entry = *l.p == '-' && (l.p + 1 == l.end || l.p[1] == ' ');

		if (memchr(r->p, '\t', (size_t)(l.p - r->p) + 1))
			return bad_at(r, l.number, "indentation must be blanks");
		if (!o)
			o = entry ? cJSON_CreateArray() : cJSON_CreateObject();
		if (l.indent > indent || (entry != cJSON_IsArray(o))) {
			/* a list below "name:" may be indented as the name is: the next name ends it */
			if (l.indent == indent && cJSON_IsArray(o))
				break;
			return bad_at(r, l.number, "the indentation does not fit");
		}
		if (!block_entry(r, &l, o))
			return r->e && r->e->code ? NULL : bad_at(r, l.number, "out of memory");
	}
	r->depth--;
	return o ? take_ptr(o) : cJSON_CreateObject();
}

/* The text between the first line, which is "---", and the next such line. */
static bool front_matter(struct reader *r, const char *text, size_t n)
{
	const char *end = text + n, *p = memchr(text, '\n', n);

	if (n < 4 || memcmp(text, "---", 3) != 0 || !p || (p - text > 3 && text[3] != '\r'))
		return false;
	r->p = p + 1;
	r->line = 2;
	for (p++; p < end;) {
		const char *nl = memchr(p, '\n', (size_t)(end - p));
		size_t len = (size_t)((nl ? nl : end) - p);

		if (len >= 3 && !memcmp(p, "---", 3) && (len == 3 || p[3] == '\r')) {
			r->end = p;
			return true;
		}
		p = nl ? nl + 1 : end;
	}
	return false;
}

int worker_file_read(cJSON **out, const char *text, size_t n, struct err *e)
{
	struct err mine = {0};
	struct reader r = {.e = e ? e : &mine};
	struct line l;
	cJSON *o;

	r.e->code = 0;
	if (n > WORKER_FILE_MAX)
		return err_plain(r.e, EINVAL, "longer than %u bytes", WORKER_FILE_MAX);
	if (!utf8_ok(text, n))
		return err_plain(r.e, EINVAL, "not a text in UTF-8");
	if (!front_matter(&r, text, n))
		return err_plain(r.e, EINVAL,
			"no front matter: it begins with a line '---' and ends with another");
	o = block_read(&r, line_peek(&r, &l) ? l.indent : 0);
	if (o && line_peek(&r, &l))
		bad_at(&r, l.number, "the indentation does not fit");
	if (o && !r.e->code && !cJSON_IsObject(o))
		bad_at(&r, 2, "the front matter must be names with values");
	if (!o || r.e->code) {
		cJSON_Delete(o);
		return -EINVAL;
	}
	*out = o;
	return 0;
}
