/* SPDX-License-Identifier: Apache-2.0
 *
 * schema.c: see schema.h. Two walks: schema_check() looks at each keyword once, schema_match() follows the value as deep as the schema goes. Both are
 * bounded: the depth by SCHEMA_DEPTH_MAX, the work by SCHEMA_PARTS_MAX and SCHEMA_WORK_MAX.
 */
#include "api/fleet/schema.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/json.h"

/* Where a walk is: for the errors, and for SCHEMA_DEPTH_MAX. */
struct place {
	const struct place *up;
	const char *name; /* NULL: the entry `at` of a list */
	size_t at;
	unsigned int depth;
};

struct walk {
	struct err *e;
	uint64_t left;
};

static void place_text(const struct place *p, char *to, size_t cap)
{
	size_t n;

	if (!p->up) {
		snprintf(to, cap, "%s", p->name);
		return;
	}
	place_text(p->up, to, cap);
	n = strlen(to);
	if (p->name)
		snprintf(to + n, cap - n, ".%.40s", p->name);
	else
		snprintf(to + n, cap - n, "[%zu]", p->at);
}

static int wrong(struct walk *w, const struct place *p, const char *what)
{
	char where[240];

	place_text(p, where, sizeof(where));
	return err_plain(w->e, EINVAL, "%s %s", where, what);
}

static bool spend(struct walk *w, size_t n)
{
	if (w->left < n) {
		w->left = 0;
		return false;
	}
	w->left -= n;
	return true;
}

/* ---- the schema */

static const char *const type_names[] = {
	"object", "array", "string", "number", "integer", "boolean", "null"};

static bool type_known(const cJSON *v)
{
	for (size_t i = 0; i < ARRAY_LEN(type_names) && cJSON_IsString(v); i++)
		if (!strcmp(v->valuestring, type_names[i]))
			return true;
	return false;
}

static int check_schema(struct walk *w, const struct place *p, const cJSON *s);

static int check_type(struct walk *w, const struct place *p, const cJSON *v)
{
	const cJSON *i;
	bool ok = type_known(v) || (cJSON_IsArray(v) && v->child);

	if (cJSON_IsArray(v))
		cJSON_ArrayForEach (i, v)
			ok = ok && spend(w, 1) && type_known(i);
	return ok ? 0
		  : wrong(w, p,
			    "must be object, array, string, number, integer, boolean or null, or a "
			    "list of these");
}

static int check_properties(struct walk *w, const struct place *p, const cJSON *v)
{
	const cJSON *i;
	int rc = 0;

	if (!cJSON_IsObject(v))
		return wrong(w, p, "must be an object of schemas");
	cJSON_ArrayForEach (i, v) {
		rc = check_schema(
			w, &(struct place){.up = p, .name = i->string, .depth = p->depth + 1}, i);
		if (rc < 0)
			break;
	}
	return rc;
}

static int check_items(struct walk *w, const struct place *p, const cJSON *v)
{
	struct place inner = *p;

	inner.depth++;
	return check_schema(w, &inner, v);
}

static int check_required(struct walk *w, const struct place *p, const cJSON *v)
{
	const cJSON *i;
	bool ok = cJSON_IsArray(v);

	if (ok)
		cJSON_ArrayForEach (i, v)
			ok = ok && spend(w, 1) && cJSON_IsString(i);
	return ok ? 0 : wrong(w, p, "must be a list of names");
}

static int check_bool(struct walk *w, const struct place *p, const cJSON *v)
{
	return cJSON_IsBool(v) ? 0 : wrong(w, p, "must be true or false");
}

static bool is_scalar(const cJSON *v)
{
	return v && !cJSON_IsObject(v) && !cJSON_IsArray(v);
}

static int check_enum(struct walk *w, const struct place *p, const cJSON *v)
{
	const cJSON *i;
	bool ok = cJSON_IsArray(v) && v->child;

	if (ok)
		cJSON_ArrayForEach (i, v)
			ok = ok && spend(w, 1) && is_scalar(i);
	return ok ? 0 : wrong(w, p, "must be a list of texts, numbers, true, false or null");
}

static int check_const(struct walk *w, const struct place *p, const cJSON *v)
{
	return is_scalar(v) ? 0 : wrong(w, p, "must be a text, a number, true, false or null");
}

static int check_count(struct walk *w, const struct place *p, const cJSON *v)
{
	uint64_t n;

	return json_whole(v, 1u << 30, &n) ? 0
					   : wrong(w, p, "must be a whole number from 0 to 2^30");
}

static int check_number(struct walk *w, const struct place *p, const cJSON *v)
{
	return cJSON_IsNumber(v) ? 0 : wrong(w, p, "must be a number");
}

static int check_nothing(struct walk *w, const struct place *p, const cJSON *v)
{
	return 0;
}

static const struct {
	const char *name;
	int (*check)(struct walk *w, const struct place *p, const cJSON *v);
} keywords[] = {
	{"type", check_type},
	{"properties", check_properties},
	{"required", check_required},
	{"additionalProperties", check_bool},
	{"items", check_items},
	{"enum", check_enum},
	{"const", check_const},
	{"minLength", check_count},
	{"maxLength", check_count},
	{"minItems", check_count},
	{"maxItems", check_count},
	{"minimum", check_number},
	{"maximum", check_number},
	{"$schema", check_nothing},
	{"$id", check_nothing},
	{"title", check_nothing},
	{"description", check_nothing},
	{"default", check_nothing},
	{"examples", check_nothing},
};

static int check_keyword(struct walk *w, const struct place *p, const cJSON *v)
{
	const struct place at = {.up = p, .name = v->string, .depth = p->depth};

	for (size_t i = 0; i < ARRAY_LEN(keywords); i++)
		if (!strcmp(v->string, keywords[i].name))
			return keywords[i].check(w, &at, v);
	return wrong(w, &at, "is not supported: docs/api.md lists the keywords that are");
}

static int check_schema(struct walk *w, const struct place *p, const cJSON *s)
{
	const cJSON *v;
	int rc = 0;

	if (p->depth > SCHEMA_DEPTH_MAX)
		return wrong(w, p, "is too deep");
	if (!cJSON_IsObject(s))
		return wrong(w, p, "must be an object");
	cJSON_ArrayForEach (v, s) {
		if (!spend(w, 1))
			return wrong(w, p, "makes the schema too long");
		rc = check_keyword(w, p, v);
		if (rc < 0)
			break;
	}
	return rc;
}

int schema_check(const cJSON *schema, const char *what, struct err *e)
{
	struct walk w = {.e = e, .left = SCHEMA_PARTS_MAX};

	return check_schema(&w, &(struct place){.name = what}, schema);
}

/* ---- the value */

static bool type_fits(const char *type, const cJSON *v)
{
	if (!strcmp(type, "object"))
		return cJSON_IsObject(v);
	if (!strcmp(type, "array"))
		return cJSON_IsArray(v);
	if (!strcmp(type, "string"))
		return cJSON_IsString(v);
	if (!strcmp(type, "number"))
		return cJSON_IsNumber(v);
	if (!strcmp(type, "integer"))
		return cJSON_IsNumber(v) && v->valuedouble == floor(v->valuedouble);
	if (!strcmp(type, "boolean"))
		return cJSON_IsBool(v);
	return cJSON_IsNull(v);
}

static int match_type(struct walk *w, const struct place *p, const cJSON *s, const cJSON *v)
{
	const cJSON *t = cJSON_GetObjectItemCaseSensitive(s, "type"), *i;
	char what[80];

	if (!t)
		return 0;
	if (cJSON_IsString(t)) {
		snprintf(what, sizeof(what), "is not of the type %.20s", t->valuestring);
		return type_fits(t->valuestring, v) ? 0 : wrong(w, p, what);
	}
	cJSON_ArrayForEach (i, t)
		if (type_fits(i->valuestring, v))
			return 0;
	return wrong(w, p, "is of no type that its schema has");
}

static bool same_scalar(struct walk *w, const cJSON *a, const cJSON *b)
{
	if (!spend(w, 1))
		return false;
	if (cJSON_IsString(a))
		return cJSON_IsString(b) && !strcmp(a->valuestring, b->valuestring);
	if (cJSON_IsNumber(a))
		return cJSON_IsNumber(b) && a->valuedouble == b->valuedouble;
	return is_scalar(b) && (a->type & 0xff) == (b->type & 0xff);
}

static int match_choice(struct walk *w, const struct place *p, const cJSON *s, const cJSON *v)
{
	const cJSON *list = cJSON_GetObjectItemCaseSensitive(s, "enum"),
		    *one = cJSON_GetObjectItemCaseSensitive(s, "const"), *i;
	bool found = !list;

	cJSON_ArrayForEach (i, list)
		found = found || same_scalar(w, i, v);
	if (!found || (one && !same_scalar(w, one, v)))
		return wrong(w, p, "is not a value that its schema lists");
	return 0;
}

/* Absent: true. */
static bool at_least(const cJSON *s, const char *keyword, double n)
{
	const cJSON *k = cJSON_GetObjectItemCaseSensitive(s, keyword);

	return !k || n >= k->valuedouble;
}

static bool at_most(const cJSON *s, const char *keyword, double n)
{
	const cJSON *k = cJSON_GetObjectItemCaseSensitive(s, keyword);

	return !k || n <= k->valuedouble;
}

/* JSON Schema counts characters, not bytes. */
static size_t characters(const char *s)
{
	size_t n = 0;

	for (; *s; s++)
		n += ((unsigned char)*s & 0xc0) != 0x80;
	return n;
}

static int match_bounds(struct walk *w, const struct place *p, const cJSON *s, const cJSON *v)
{
	double n;

	if (cJSON_IsNumber(v)) {
		n = v->valuedouble;
		if (!at_least(s, "minimum", n) || !at_most(s, "maximum", n))
			return wrong(w, p, "is outside of its schema's minimum and maximum");
	} else if (cJSON_IsString(v)) {
		n = (double)characters(v->valuestring);
		if (!at_least(s, "minLength", n) || !at_most(s, "maxLength", n))
			return wrong(w, p, "is shorter or longer than its schema allows");
	} else if (cJSON_IsArray(v)) {
		n = cJSON_GetArraySize(v);
		if (!at_least(s, "minItems", n) || !at_most(s, "maxItems", n))
			return wrong(w, p, "has fewer or more entries than its schema allows");
	}
	return 0;
}

static int match_schema(struct walk *w, const struct place *p, const cJSON *s, const cJSON *v);

/* NULL: none, or too much work. */
static const cJSON *member(struct walk *w, const cJSON *o, const char *name)
{
	const cJSON *i;

	cJSON_ArrayForEach (i, o) {
		if (!spend(w, 1))
			return NULL;
		if (!strcmp(i->string, name))
			return i;
	}
	return NULL;
}

static int match_object(struct walk *w, const struct place *p, const cJSON *s, const cJSON *v)
{
	const cJSON *required = cJSON_GetObjectItemCaseSensitive(s, "required"),
		    *known = cJSON_GetObjectItemCaseSensitive(s, "properties"), *i, *sub;
	bool closed = cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(s, "additionalProperties"));
	int rc = 0;

	cJSON_ArrayForEach (i, required)
		if (!member(w, v, i->valuestring))
			return wrong(
				w, &(struct place){.up = p, .name = i->valuestring}, "is missing");
	cJSON_ArrayForEach (i, v) {
		const struct place at = {.up = p, .name = i->string};

		sub = member(w, known, i->string);
		if (sub)
			rc = match_schema(w, &at, sub, i);
		else if (closed)
			rc = wrong(w, &at, "is a member that its schema does not have");
		if (rc < 0 || !w->left)
			break;
	}
	return rc;
}

static int match_array(struct walk *w, const struct place *p, const cJSON *s, const cJSON *v)
{
	const cJSON *sub = cJSON_GetObjectItemCaseSensitive(s, "items"), *i;
	struct place at = {.up = p};
	int rc = 0;

	if (!sub)
		return 0;
	cJSON_ArrayForEach (i, v) {
		rc = match_schema(w, &at, sub, i);
		at.at++;
		if (rc < 0 || !w->left)
			break;
	}
	return rc;
}

static int match_schema(struct walk *w, const struct place *p, const cJSON *s, const cJSON *v)
{
	int rc;

	/* the cost of finding its keywords by name */
	if (!spend(w, 32))
		return 0;
	rc = match_type(w, p, s, v);
	if (rc == 0)
		rc = match_choice(w, p, s, v);
	if (rc == 0)
		rc = match_bounds(w, p, s, v);
	if (rc == 0 && cJSON_IsObject(v))
		rc = match_object(w, p, s, v);
	else if (rc == 0 && cJSON_IsArray(v))
		rc = match_array(w, p, s, v);
	return rc;
}

int schema_match(const cJSON *schema, const cJSON *value, const char *what, struct err *e)
{
	struct walk w = {.e = e, .left = SCHEMA_WORK_MAX};
	int rc = match_schema(&w, &(struct place){.name = what}, schema, value);

	/* the walk was cut short, so rc may be wrong */
	if (!w.left)
		return err_plain(
			e, E2BIG, "%s is too large to be checked against its schema", what);
	return rc;
}
