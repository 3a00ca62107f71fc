/* SPDX-License-Identifier: Apache-2.0
 *
 * digest.h: content addresses. Only sha256 is known: what names another algorithm is refused, because everything that enters the
 * store is compared with its digest first.
 */
#pragma once

#include "lib/base.h"
#include "lib/err.h"

#define DIGEST_BYTES 32
#define DIGEST_HEX   (64 + 1)
#define DIGEST_STR   (7 + 64 + 1) /* "sha256:" + hex + NUL */

struct digest {
	uint8_t b[DIGEST_BYTES];
};

struct digest_ctx;

/* NULL only without memory */
struct digest_ctx *digest_begin(void);
void digest_update(struct digest_ctx *c, const void *p, size_t n);
/* works on a copy: c can take more updates and be read again */
void digest_end(struct digest_ctx *c, struct digest *out);
void digest_free(struct digest_ctx *c);
static inline void digest_freep(struct digest_ctx **c)
{
	digest_free(*c);
}

void digest_of(const void *p, size_t n, struct digest *out);
/* The whole file, which must have `size` bytes: -EFBIG if it is longer, -EIO if shorter. */
int digest_of_fd(int fd, uint64_t size, struct digest *out);

/* "sha256:<64 lower-case hex digits>", nothing else. -EINVAL; *out is written only on success. */
int digest_parse(const char *s, struct digest *out);
/* the hex alone, as in blobs/sha256/<hex> */
int digest_parse_hex(const char *s, struct digest *out);
const char *digest_str(const struct digest *d, char out[DIGEST_STR]);
const char *digest_hex(const struct digest *d, char out[DIGEST_HEX]);
static inline bool digest_eq(const struct digest *a, const struct digest *b)
{
	return __builtin_memcmp(a->b, b->b, DIGEST_BYTES) == 0;
}
static inline bool digest_is_zero(const struct digest *a)
{
	static const struct digest zero;

	return digest_eq(a, &zero);
}
