/* SPDX-License-Identifier: Apache-2.0
 *
 * digest.c: sha256 by libcrypto, and its text form. Image jobs, the daemon, the command line. The text comes from manifests and
 * people: it is matched exactly, upper case is refused (two spellings of one blob would be two blobs).
 */
#include "images/oci/digest.h"

#include <openssl/evp.h>
#include <string.h>

struct digest_ctx {
	EVP_MD_CTX *md;
};

struct digest_ctx *digest_begin(void)
{
	struct digest_ctx *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->md = EVP_MD_CTX_new();
	if (!c->md || EVP_DigestInit_ex(c->md, EVP_sha256(), NULL) != 1) {
		digest_free(c);
		return NULL;
	}
	return c;
}

void digest_update(struct digest_ctx *c, const void *p, size_t n)
{
	ASSERT(EVP_DigestUpdate(c->md, p, n) == 1);
}

void digest_end(struct digest_ctx *c, struct digest *out)
{
	EVP_MD_CTX *copy = EVP_MD_CTX_new();
	unsigned int n = 0;

	ASSERT(copy && EVP_MD_CTX_copy_ex(copy, c->md) == 1);
	ASSERT(EVP_DigestFinal_ex(copy, out->b, &n) == 1 && n == DIGEST_BYTES);
	EVP_MD_CTX_free(copy);
}

void digest_free(struct digest_ctx *c)
{
	if (!c)
		return;
	EVP_MD_CTX_free(c->md);
	free(c);
}

void digest_of(const void *p, size_t n, struct digest *out)
{
	unsigned int k = 0;

	ASSERT(EVP_Digest(p, n, out->b, &k, EVP_sha256(), NULL) == 1 && k == DIGEST_BYTES);
}

int digest_of_fd(int fd, uint64_t size, struct digest *out)
{
	_cleanup_(digest_freep) struct digest_ctx *c = digest_begin();
	_cleanup_free_ uint8_t *buf = malloc(1 << 18);
	uint64_t off = 0;

	if (!c || !buf)
		return -ENOMEM;
	for (;;) {
		ssize_t k = pread(fd, buf, 1 << 18, (off_t)off);

		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0)
			return -errno;
		if (k == 0)
			break;
		off += (uint64_t)k;
		if (off > size)
			return -EFBIG;
		digest_update(c, buf, (size_t)k);
	}
	if (off != size)
		return -EIO;
	digest_end(c, out);
	return 0;
}

static int hex_val(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return -1;
}

int digest_parse_hex(const char *s, struct digest *out)
{
	struct digest d;

	if (strnlen(s, 65) != 64)
		return -EINVAL;
	for (int i = 0; i < DIGEST_BYTES; i++) {
		int hi = hex_val(s[2 * i]), lo = hex_val(s[2 * i + 1]);

		if (hi < 0 || lo < 0)
			return -EINVAL;
		d.b[i] = (uint8_t)(hi << 4 | lo);
	}
	*out = d;
	return 0;
}

int digest_parse(const char *s, struct digest *out)
{
	if (strncmp(s, "sha256:", 7) != 0)
		return -EINVAL;
	return digest_parse_hex(s + 7, out);
}

const char *digest_hex(const struct digest *d, char out[DIGEST_HEX])
{
	static const char hex[] = "0123456789abcdef";

	for (int i = 0; i < DIGEST_BYTES; i++) {
		out[2 * i] = hex[d->b[i] >> 4];
		out[2 * i + 1] = hex[d->b[i] & 15];
	}
	out[64] = 0;
	return out;
}

const char *digest_str(const struct digest *d, char out[DIGEST_STR])
{
	memcpy(out, "sha256:", 7);
	digest_hex(d, out + 7);
	return out;
}
