/* SPDX-License-Identifier: Apache-2.0
 *
 * utf8.h: text of unknown origin as UTF-8, and as the inside of a JSON string. Pure functions on buffers.
 */
#pragma once

#include "lib/buf.h"

/* Length of the valid UTF-8 sequence at p (1..4), or 0 and *bad = bytes to replace by one U+FFFD. */
size_t utf8_take(const uint8_t *p, size_t n, size_t *bad);
/* s as the inside of a JSON string; bytes that are not UTF-8 become U+FFFD, one for each maximal
 * broken piece */
void json_escape(struct buf *out, const void *s, size_t n);
/* the same with its quotes */
void json_string(struct buf *out, const char *s);

/* UTF-8 without NUL? */
bool utf8_ok(const void *s, size_t n);
/* s as UTF-8 text without NUL; each broken piece becomes U+FFFD */
void utf8_clean(struct buf *out, const void *s, size_t n);
