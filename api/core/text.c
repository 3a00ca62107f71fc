/* SPDX-License-Identifier: Apache-2.0
 *
 * text.c: see text.h. The texts that are parsed come from clients.
 */
#include "api/core/text.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

static bool digits(const char **p, unsigned int n, int *v)
{
	*v = 0;
	for (; n > 0; n--, (*p)++) {
		if (!isdigit((unsigned char)**p))
			return false;
		*v = *v * 10 + (**p - '0');
	}
	return true;
}

bool time_parse(const char *s, int64_t *unix_ns)
{
	struct tm t = {0};
	int64_t frac = 0, unit = 100000000;
	int off = 0, h, m, year;
	time_t sec;

	if (!digits(&s, 4, &year) || *s++ != '-' || !digits(&s, 2, &t.tm_mon) || *s++ != '-' ||
		!digits(&s, 2, &t.tm_mday))
		return false;
	if ((*s != 'T' && *s != 't' && *s != ' ') || !digits((s++, &s), 2, &t.tm_hour) ||
		*s++ != ':' || !digits(&s, 2, &t.tm_min))
		return false;
	if (*s == ':' && (s++, !digits(&s, 2, &t.tm_sec)))
		return false;
	if (*s == '.')
		for (s++; isdigit((unsigned char)*s); s++, unit /= 10)
			frac += (*s - '0') * unit;
	if (*s == 'Z' || *s == 'z') {
		s++;
	} else if (*s == '+' || *s == '-') {
		int sign = *s++ == '-' ? -1 : 1;

		if (!digits(&s, 2, &h) || (*s == ':' && !s++) || !digits(&s, 2, &m) || h > 23 ||
			m > 59)
			return false;
		off = sign * (h * 3600 + m * 60);
	}
	if (*s || t.tm_mon < 1 || t.tm_mon > 12 || t.tm_mday < 1 || t.tm_mday > 31 ||
		t.tm_hour > 23 || t.tm_min > 59 || t.tm_sec > 60 || year < 1970 || year > 2200)
		return false;
	t.tm_year = year - 1900;
	t.tm_mon -= 1;
	sec = timegm(&t);
	*unix_ns = ((int64_t)sec - off) * 1000000000 + frac;
	return true;
}

const char *time_format(int64_t unix_ns, char out[TIME_TEXT])
{
	time_t s = (time_t)(unix_ns / 1000000000);
	struct tm t;

	gmtime_r(&s, &t);
	/* microseconds: what every SDK's parser takes */
	snprintf(out, TIME_TEXT, "%04u-%02u-%02uT%02u:%02u:%02u.%06uZ",
		(unsigned)(t.tm_year + 1900) % 10000u, (unsigned)(t.tm_mon + 1) % 100u,
		(unsigned)t.tm_mday % 100u, (unsigned)t.tm_hour % 100u, (unsigned)t.tm_min % 100u,
		(unsigned)t.tm_sec % 100u, (unsigned)(unix_ns % 1000000000 / 1000) % 1000000u);
	return out;
}

bool uuid_ok(const char *s)
{
	for (int i = 0; i < 36; i++) {
		bool dash = i == 8 || i == 13 || i == 18 || i == 23;

		if (dash ? s[i] != '-' : !strchr("0123456789abcdef", s[i]) || !s[i])
			return false;
	}
	return !s[36];
}

void uuid_make(char out[37])
{
	uint8_t b[16];

	random_bytes(b, sizeof(b));
	b[6] = (uint8_t)((b[6] & 0x0f) | 0x40);
	b[8] = (uint8_t)((b[8] & 0x3f) | 0x80);
	for (int i = 0, o = 0; i < 16; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			out[o++] = '-';
		snprintf(out + o, 3, "%02x", b[i]);
		o += 2;
	}
}

void random_hex(char *to, size_t cap)
{
	uint8_t b[16];

	ASSERT(cap == 2 * sizeof(b) + 1);
	random_bytes(b, sizeof(b));
	for (size_t i = 0; i < sizeof(b); i++)
		snprintf(to + 2 * i, 3, "%02x", b[i]);
}

bool quantity_parse(const char *s, uint64_t *bytes)
{
	static const struct {
		const char *unit;
		uint64_t by;
	} units[] = {{"", 1}, {"b", 1}, {"k", 1000}, {"kb", 1000}, {"ki", 1024}, {"m", 1000000},
		{"mb", 1000000}, {"mi", 1 << 20}, {"g", 1000000000}, {"gb", 1000000000},
		{"gi", 1 << 30}, {"t", 1000000000000}, {"tb", 1000000000000}, {"ti", 1ull << 40}};
	char unit[3] = "";
	uint64_t v = 0;
	size_t n;

	s += strspn(s, " \t\r\n");
	n = strspn(s, "0123456789");
	if (n < 1 || n > 18)
		return false;
	for (size_t i = 0; i < n; i++)
		v = v * 10 + (uint64_t)(s[i] - '0');
	s += n;
	for (n = 0; n < 2 && isalpha((unsigned char)s[n]); n++)
		unit[n] = s[n];
	s += n;
	if (s[strspn(s, " \t\r\n")])
		return false;
	for (size_t i = 0; i < ARRAY_LEN(units); i++)
		if (!strcasecmp(units[i].unit, unit))
			return !__builtin_mul_overflow(v, units[i].by, bytes) && *bytes > 0;
	return false;
}
