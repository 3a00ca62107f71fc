/* SPDX-License-Identifier: Apache-2.0
 *
 * output.c: tables, JSON and times for people. `mayfly` only. Strings from the network are made
 * printable before a terminal sees them.
 */
#include "cli/client.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

void print_json(const cJSON *j)
{
	char *s = cJSON_Print(j);

	if (s)
		puts(s);
	cJSON_free(s);
}

const char *json_text(const cJSON *o, const char *key)
{
	cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);

	if (!cJSON_IsString(v))
		return "";
	for (char *p = v->valuestring; *p; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			*p = '?';
	return v->valuestring;
}

void table_row(struct table *t, size_t cols, ...)
{
	va_list ap;
	char **row = calloc(cols, sizeof(*row));
	char ***rows = realloc(t->rows, (t->nrows + 1) * sizeof(*rows));

	ASSERT(row && rows);
	t->rows = rows;
	t->cols = cols;
	va_start(ap, cols);
	for (size_t i = 0; i < cols; i++) {
		row[i] = strdup(va_arg(ap, const char *));
		ASSERT(row[i]);
	}
	va_end(ap);
	t->rows[t->nrows++] = row;
}

void table_print(struct table *t)
{
	size_t w[16] = {0};

	for (size_t r = 0; r < t->nrows; r++)
		for (size_t c = 0; c < t->cols; c++)
			w[c] = MAX(w[c], strlen(t->rows[r][c]));
	for (size_t r = 0; r < t->nrows; r++) {
		for (size_t c = 0; c < t->cols; c++) {
			if (c + 1 == t->cols)
				printf("%s\n", t->rows[r][c]);
			else
				printf("%-*s  ", (int)w[c], t->rows[r][c]);
			free(t->rows[r][c]);
		}
		free(t->rows[r]);
	}
	free(t->rows);
	*t = (struct table){0};
}

void age_text(const char *rfc3339, char *to, size_t cap)
{
	static const struct {
		long s;
		const char *name;
	} units[] = {{86400, "d"}, {3600, "h"}, {60, "min"}, {1, "s"}};
	struct tm tm = {0};
	const char *end = strptime(rfc3339, "%Y-%m-%dT%H:%M:%S", &tm);
	long d;

	snprintf(to, cap, "-");
	if (!end)
		return;
	d = (long)(time(NULL) - timegm(&tm));
	for (size_t i = 0; i < ARRAY_LEN(units); i++) {
		if (labs(d) < units[i].s && units[i].s > 1)
			continue;
		snprintf(to, cap, d >= 0 ? "%ld %s ago" : "in %ld %s", labs(d) / units[i].s,
			units[i].name);
		return;
	}
}
