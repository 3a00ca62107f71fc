/* SPDX-License-Identifier: Apache-2.0
 *
 * text.h: times and identifiers as text. Any thread; no I/O.
 */
#pragma once

#include "lib/base.h"

/* RFC 3339 with any offset; no offset means UTC. Seconds may be missing; digits after the ninth of a fraction are ignored. false:
 * not a time, or not between 1970 and 2200. */
bool time_parse(const char *s, int64_t *unix_ns);
#define TIME_TEXT 32
const char *time_format(int64_t unix_ns, char out[TIME_TEXT]);
bool uuid_ok(const char *s);
void uuid_make(char out[37]);
/* 32 random hexadecimal digits and a NUL. cap must be 33: it is the size of `to`. */
void random_hex(char *to, size_t cap);
/* A quantity: 512Mi, 2g, 64KB. Ki, Mi, Gi and Ti are powers of 1024. k, m, g and t, also with a b, are powers of 1000: 2g is
 * less than Docker's 2g. false: it is no quantity, or 0. */
bool quantity_parse(const char *s, uint64_t *bytes);
