/* SPDX-License-Identifier: Apache-2.0
 *
 * sign.c: see sign.h. The texts in an address are a client's; the keys are the operator's.
 */
#include "api/ingress/sign.h"

#include <endian.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

static int base64_value(char c)
{
	static const char digits[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	const char *at = c ? strchr(digits, c == '-' ? '+' : (c == '_' ? '/' : c)) : NULL;

	return at ? (int)(at - digits) : -1;
}

/* Decodes n characters to `to`. Returns how many bytes, or -1. Padding may be missing. */
static int base64_read(const char *p, size_t n, uint8_t *to, size_t cap)
{
	uint32_t bits = 0;
	int have = 0;
	size_t len = 0;

	while (n && p[n - 1] == '=')
		n--;
	for (size_t i = 0; i < n; i++) {
		int v = base64_value(p[i]);

		if (v < 0 || len == cap)
			return -1;
		bits = bits << 6 | (uint32_t)v;
		have += 6;
		if (have >= 8) {
			have -= 8;
			to[len++] = (uint8_t)(bits >> have);
		}
	}
	return (int)len;
}

static bool key_id_ok(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

int sign_keys_parse(const char *text, struct sign_keys *k, struct err *e)
{
	*k = (struct sign_keys){0};
	for (const char *p = text; *p; p += *p == ',') {
		size_t n = strcspn(p, ",");
		struct sign_key *key = &k->key[k->n];
		int len = -1;

		if (k->n == SIGN_KEYS_MAX)
			return err_plain(e, EINVAL, "more than %u signing keys", SIGN_KEYS_MAX);
		if (n >= 3 && key_id_ok(p[0]) && p[1] == '=')
			len = base64_read(p + 2, n - 2, key->secret, sizeof(key->secret));
		if (len < 16)
			return err_plain(e, EINVAL,
				"signing key %u: write ID=BASE64, with one letter or digit as ID "
				"and 16 to %u bytes in base 64",
				k->n + 1, SIGN_SECRET_MAX);
		for (unsigned int i = 0; i < k->n; i++)
			if (k->key[i].id == p[0])
				return err_plain(e, EINVAL, "two signing keys are called %c", p[0]);
		key->id = p[0];
		key->len = (size_t)len;
		k->n++;
		p += n;
	}
	return 0;
}

bool sign_keys_activate(struct sign_keys *k, const char *id)
{
	for (unsigned int i = 0; i < k->n; i++) {
		struct sign_key first = k->key[0];

		if (k->key[i].id != id[0] || id[1])
			continue;
		k->key[0] = k->key[i];
		k->key[i] = first;
		return true;
	}
	return false;
}

/* SHA256(BE32(len(secret)) || secret || BE32(len(canon)) || canon), the first eight hexadecimal digits, and the key's id. */
static bool sign_text(const struct sign_key *key, const struct ingress_address *a,
	char out[static INGRESS_SIG_LEN + 1])
{
	uint8_t bytes[4 + SIGN_SECRET_MAX + 4 + 128], md[EVP_MAX_MD_SIZE];
	uint32_t be = htobe32((uint32_t)key->len);
	char canon[128];
	size_t n = 0;
	int len = snprintf(
		canon, sizeof(canon), "v1\nshort\n%s\n%u\n%s\n", a->sandbox, a->port, a->expires);

	ASSERT(len > 0 && (size_t)len < sizeof(canon));
	memcpy(bytes, &be, 4);
	memcpy(bytes + 4, key->secret, key->len);
	n = 4 + key->len;
	be = htobe32((uint32_t)len);
	memcpy(bytes + n, &be, 4);
	memcpy(bytes + n + 4, canon, (size_t)len);
	if (!EVP_Digest(bytes, n + 4 + (size_t)len, md, NULL, EVP_sha256(), NULL))
		return false;
	snprintf(out, INGRESS_SIG_LEN + 1, "%02x%02x%02x%02x%c", md[0], md[1], md[2], md[3],
		key->id);
	OPENSSL_cleanse(bytes, sizeof(bytes));
	return true;
}

static void write_base36(uint64_t v, char out[static INGRESS_EXPIRES_MAX + 1])
{
	char digits[INGRESS_EXPIRES_MAX];
	size_t n = 0;

	for (; v; v /= 36)
		digits[n++] = "0123456789abcdefghijklmnopqrstuvwxyz"[v % 36];
	for (size_t i = 0; i < n; i++)
		out[i] = digits[n - 1 - i];
	out[n] = 0;
}

int sign_address(const struct sign_keys *k, struct ingress_address *a)
{
	if (k->n == 0)
		return -ENOKEY;
	write_base36(a->expires_s, a->expires);
	a->is_signed = sign_text(&k->key[0], a, a->signature);
	return a->is_signed ? 0 : -ENOMEM;
}

int sign_check(const struct sign_keys *k, const struct ingress_address *a, uint64_t now_s)
{
	char want[INGRESS_SIG_LEN + 1];

	if (k->n == 0)
		return -ENOKEY;
	for (unsigned int i = 0; i < k->n; i++) {
		if (k->key[i].id != a->signature[INGRESS_SIG_LEN - 1])
			continue;
		if (!sign_text(&k->key[i], a, want) ||
			!secret_bytes_equal(want, a->signature, INGRESS_SIG_LEN))
			return -EACCES;
		return a->expires_s > now_s ? 0 : -ETIME;
	}
	return -EACCES;
}
