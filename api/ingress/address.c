/* SPDX-License-Identifier: Apache-2.0
 *
 * address.c: see address.h. Bounded reader of hostile text; pure functions.
 */
#include "api/ingress/address.h"

#include <string.h>
#include <strings.h>

struct part {
	const char *p;
	size_t n;
};

static bool is_id(struct part t)
{
	if (t.n == 0 || t.n >= INGRESS_ID_MAX)
		return false;
	for (size_t i = 0; i < t.n; i++) {
		char c = t.p[i];

		if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
			    c == '-' || c == '_'))
			return false;
	}
	return t.p[0] != '-' && t.p[t.n - 1] != '-';
}

static bool take_port(struct part t, uint16_t *port)
{
	uint32_t v = 0;

	if (t.n == 0 || t.n > 5 || t.p[0] == '0')
		return false;
	for (size_t i = 0; i < t.n; i++) {
		if (t.p[i] < '0' || t.p[i] > '9')
			return false;
		v = v * 10 + (uint32_t)(t.p[i] - '0');
	}
	*port = (uint16_t)v;
	return v <= 65535;
}

/* Lower case, no zero in front, and a number that fits. */
static bool take_expires(struct part t, struct ingress_address *a)
{
	uint64_t v = 0;

	if (t.n == 0 || t.n > INGRESS_EXPIRES_MAX || t.p[0] == '0')
		return false;
	for (size_t i = 0; i < t.n; i++) {
		char c = t.p[i];
		uint64_t digit =
			c >= '0' && c <= '9' ? (uint64_t)(c - '0') : (uint64_t)(c - 'a') + 10;

		if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z')) ||
			__builtin_mul_overflow(v, 36u, &v) || __builtin_add_overflow(v, digit, &v))
			return false;
	}
	memcpy(a->expires, t.p, t.n);
	a->expires[t.n] = 0;
	a->expires_s = v;
	return true;
}

static bool take_signature(struct part t, struct ingress_address *a)
{
	if (t.n != INGRESS_SIG_LEN)
		return false;
	for (size_t i = 0; i + 1 < t.n; i++)
		if (!((t.p[i] >= '0' && t.p[i] <= '9') || (t.p[i] >= 'a' && t.p[i] <= 'f')))
			return false;
	if (!((t.p[t.n - 1] >= 'a' && t.p[t.n - 1] <= 'z') ||
		    (t.p[t.n - 1] >= '0' && t.p[t.n - 1] <= '9')))
		return false;
	memcpy(a->signature, t.p, t.n);
	a->signature[t.n] = 0;
	return true;
}

static void take_id(struct part t, struct ingress_address *a)
{
	memcpy(a->sandbox, t.p, t.n);
	a->sandbox[t.n] = 0;
}

/* Cuts the last part off t, with the separator before it, and returns that part. */
static struct part split_last(struct part *t, char separator)
{
	size_t at = t->n;
	struct part last;

	while (at > 0 && t->p[at - 1] != separator)
		at--;
	last = (struct part){t->p + at, t->n - at};
	t->n = at ? at - 1 : 0;
	return last;
}

int ingress_parse_label(const char *label, size_t n, struct ingress_address *out)
{
	struct part id = {label, n}, last = split_last(&id, '-'), rest = id, expires, port;
	struct ingress_address a = {0};

	/* an id may have the separator in it, so the parts are taken from the right */
	expires = split_last(&rest, '-');
	port = split_last(&rest, '-');
	if (take_signature(last, &a) && take_expires(expires, &a) && take_port(port, &a.port) &&
		is_id(rest)) {
		a.is_signed = true;
		id = rest;
	} else {
		a = (struct ingress_address){0};
		if (!take_port(last, &a.port) || !is_id(id))
			return -EINVAL;
	}
	take_id(id, &a);
	*out = a;
	return 0;
}

int ingress_parse_host(const char *host, const char *domain, struct ingress_address *out)
{
	size_t n = strcspn(host, ":"), d = strlen(domain);

	if (n > 0 && host[n - 1] == '.')
		n--; /* a host name may end with a dot */
	if (d == 0 || n <= d + 1 || host[n - d - 1] != '.' ||
		strncasecmp(host + n - d, domain, d) != 0)
		return -ENOENT;
	return ingress_parse_label(host, n - d - 1, out);
}

static struct part next_segment(const char **path)
{
	struct part t = {0};

	if (**path == '/') {
		t.p = ++*path;
		t.n = strcspn(t.p, "/?");
		*path += t.n;
	}
	return t;
}

int ingress_parse_path(const char *path, struct ingress_address *out, const char **rest)
{
	struct part id = next_segment(&path), port = next_segment(&path), expires, signature;
	struct ingress_address a = {0};
	const char *after = path;

	if (!is_id(id) || !take_port(port, &a.port))
		return -EINVAL;
	expires = next_segment(&after);
	signature = next_segment(&after);
	a.is_signed = take_expires(expires, &a) && take_signature(signature, &a);
	if (!a.is_signed) {
		a.expires_s = 0;
		a.expires[0] = a.signature[0] = 0;
		after = path;
	}
	take_id(id, &a);
	*out = a;
	*rest = *after ? after : "/";
	return 0;
}

const char *ingress_unsigned_rest(const char *path)
{
	next_segment(&path);
	next_segment(&path);
	return *path ? path : "/";
}
