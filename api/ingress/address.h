/* SPDX-License-Identifier: Apache-2.0
 *
 * address.h: which sandbox and port a request for the gateway names, and with which signature. mayflyd. The texts are a client's.
 *
 * Three forms name the same thing (protocol 1.11):
 *   host label   ID-PORT.DOMAIN, or ID-PORT-EXPIRES-SIGNATURE.DOMAIN
 *   path         /ID/PORT/..., or /ID/PORT/EXPIRES/SIGNATURE/...
 *   header       ID-PORT
 * EXPIRES is a time in seconds since 1970, in base 36. SIGNATURE is eight hexadecimal digits and the id of a key, a letter or digit.
 */
#pragma once

#include "lib/base.h"

#define INGRESS_ID_MAX      64u
#define INGRESS_EXPIRES_MAX 13u /* digits of the largest number of 64 bits in base 36 */
#define INGRESS_SIG_LEN     9u

struct ingress_address {
	char sandbox[INGRESS_ID_MAX];
	uint16_t port;
	bool is_signed; /* the form has an expiry and a signature; neither is checked yet */
	char expires[INGRESS_EXPIRES_MAX + 1];
	uint64_t expires_s;
	char signature[INGRESS_SIG_LEN + 1];
};

/* "ID-PORT" or "ID-PORT-EXPIRES-SIGNATURE", n bytes. 0, or -EINVAL. */
int ingress_parse_label(const char *label, size_t n, struct ingress_address *out);
/* The Host header's value, and the domain below which labels are ours. -ENOENT: another host. -EINVAL: below it, and malformed. */
int ingress_parse_host(const char *host, const char *domain, struct ingress_address *out);
/* What follows the sandbox and port of a path that ingress_parse_path() took, as if it were not signed. It begins with "/" or "?". */
const char *ingress_unsigned_rest(const char *path);
/* A path. *rest: what the sandbox is asked for: it begins with "/" or "?". The signed form is taken only if all of its four parts are well formed:
 * otherwise the third and fourth part belong to the application. */
int ingress_parse_path(const char *path, struct ingress_address *out, const char **rest);
