/* SPDX-License-Identifier: Apache-2.0
 *
 * schedule.c: cron expressions. The loop's thread. The text is a client's: hostile, bounded by the request it came in.
 */
#include "agent/schedule.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>
#include <time.h>

static const char *const month_names[] = {
	"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec", NULL};
static const char *const day_names[] = {"sun", "mon", "tue", "wed", "thu", "fri", "sat", NULL};

static const char *const descriptors[][2] = {
	{"@yearly", "0 0 1 1 *"},
	{"@annually", "0 0 1 1 *"},
	{"@monthly", "0 0 1 * *"},
	{"@weekly", "0 0 * * 0"},
	{"@daily", "0 0 * * *"},
	{"@midnight", "0 0 * * *"},
	{"@hourly", "0 * * * *"},
};

/* A number or a name; NULL: neither. */
static const char *take_value(const char *p, const char *const *names, unsigned base, unsigned *v)
{
	for (unsigned i = 0; names && names[i]; i++) {
		if (!strncasecmp(p, names[i], 3)) {
			*v = i + base;
			return p + 3;
		}
	}
	if (!isdigit((unsigned char)*p))
		return NULL;
	for (*v = 0; isdigit((unsigned char)*p); p++) {
		*v = *v * 10 + (unsigned)(*p - '0');
		if (*v > 1000)
			return NULL;
	}
	return p;
}

/* One element of a list: * or a or a-b, then /step if there is one. */
static const char *take_element(
	const char *p, unsigned lo, unsigned hi, const char *const *names, uint64_t *bits)
{
	unsigned a = lo, b = hi, step = 1;

	if (*p == '*' || *p == '?') {
		p++;
	} else {
		p = take_value(p, names, names == month_names, &a);
		if (!p)
			return NULL;
		b = a;
		if (*p == '-') {
			p = take_value(p + 1, names, names == month_names, &b);
			if (!p)
				return NULL;
		} else if (*p == '/') {
			b = hi;
		}
	}
	if (*p == '/') {
		p = take_value(p + 1, NULL, 0, &step);
		if (!p || step == 0)
			return NULL;
	}
	if (a < lo || b > hi || a > b)
		return NULL;
	for (unsigned i = a; i <= b; i += step)
		*bits |= 1ull << i;
	return p;
}

static const char *take_field(const char *p, unsigned lo, unsigned hi, const char *const *names,
	uint64_t *bits, bool *any)
{
	p += strspn(p, " \t");
	if (any)
		*any = *p == '*' || *p == '?';
	do {
		p = take_element(p, lo, hi, names, bits);
	} while (p && *p == ',' && p++);
	return p && (*p == 0 || *p == ' ' || *p == '\t') ? p : NULL;
}

static int parse_every(const char *p, struct schedule *s)
{
	uint64_t total = 0;

	p += strspn(p, " \t");
	if (!*p)
		return -EINVAL;
	while (*p) {
		uint64_t n = 0, unit;

		if (!isdigit((unsigned char)*p))
			return -EINVAL;
		for (; isdigit((unsigned char)*p); p++) {
			n = n * 10 + (uint64_t)(*p - '0');
			if (n > 100000000)
				return -EINVAL;
		}
		unit = *p == 's' ? 1 : *p == 'm' ? 60 : *p == 'h' ? 3600 : 0;
		if (!unit || (*p == 'm' && p[1] == 's'))
			return -EINVAL;
		p++;
		total += n * unit;
	}
	s->every_s = total;
	return total ? 0 : -EINVAL;
}

int schedule_parse(const char *text, struct schedule *s)
{
	*s = (struct schedule){0};
	if (!strncmp(text, "@every ", 7))
		return parse_every(text + 7, s);
	for (size_t i = 0; *text == '@' && i < ARRAY_LEN(descriptors); i++)
		if (!strcmp(text, descriptors[i][0]))
			text = descriptors[i][1];
	text = take_field(text, 0, 59, NULL, &s->minutes, NULL);
	if (text)
		text = take_field(text, 0, 23, NULL, &s->hours, NULL);
	if (text)
		text = take_field(text, 1, 31, NULL, &s->days, &s->any_day);
	if (text)
		text = take_field(text, 1, 12, month_names, &s->months, NULL);
	if (text)
		text = take_field(text, 0, 7, day_names, &s->weekdays, &s->any_weekday);
	if (!text || text[strspn(text, " \t")])
		return -EINVAL;
	if (s->weekdays & 1u << 7) /* Sunday again */
		s->weekdays |= 1;
	return 0;
}

static bool day_fits(const struct schedule *s, const struct tm *t)
{
	bool day = s->days & 1ull << t->tm_mday, weekday = s->weekdays & 1ull << t->tm_wday;

	if (!(s->months & 1ull << (t->tm_mon + 1)))
		return false;
	/* both given: either will do, as cron has it */
	return s->any_day || s->any_weekday ? day && weekday : day || weekday;
}

uint64_t schedule_next(const struct schedule *s, uint64_t now)
{
	time_t t = (time_t)(now / 60 * 60 + 60), end = t + 5 * 366 * 86400;
	struct tm tm;

	if (s->every_s)
		return now + s->every_s;
	while (t < end) {
		gmtime_r(&t, &tm);
		if (!day_fits(s, &tm))
			t += 86400 - tm.tm_hour * 3600 - tm.tm_min * 60;
		else if (!(s->hours & 1ull << tm.tm_hour))
			t += 3600 - tm.tm_min * 60;
		else if (!(s->minutes & 1ull << tm.tm_min))
			t += 60;
		else
			return (uint64_t)t;
	}
	return 0;
}
