/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of sandboxes in hosts and paths: what is accepted is well formed, and written again it is read the same.
 */
#include "api/ingress/sign.h"

#include <stdio.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void check(const struct ingress_address *a)
{
	char again[200];
	struct ingress_address b;
	int len = a->is_signed ? snprintf(again, sizeof(again), "%s-%u-%s-%s", a->sandbox, a->port,
					 a->expires, a->signature)
			       : snprintf(again, sizeof(again), "%s-%u", a->sandbox, a->port);

	ASSERT(a->port && a->sandbox[0]);
	if (a->is_signed)
		ASSERT(ingress_parse_label(again, (size_t)len, &b) == 0 &&
			memcmp(a, &b, sizeof(b)) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	struct ingress_address a;
	struct sign_keys k;
	const char *rest;
	char text[600];

	n = n < sizeof(text) ? n : sizeof(text) - 1;
	memcpy(text, p, n);
	text[n] = 0;
	if (ingress_parse_label(text, strlen(text), &a) == 0)
		check(&a);
	if (ingress_parse_host(text, "localhost", &a) == 0)
		check(&a);
	if (ingress_parse_path(text, &a, &rest) == 0) {
		ASSERT((rest >= text && rest <= text + n) || strcmp(rest, "/") == 0);
		check(&a);
		rest = ingress_unsigned_rest(text);
		ASSERT(*rest == '/' || *rest == '?');
	}
	if (sign_keys_parse(text, &k, NULL) == 0 && k.n) {
		a = (struct ingress_address){.sandbox = "x", .port = 1, .expires_s = 5};
		ASSERT(sign_address(&k, &a) == 0 && sign_check(&k, &a, 4) == 0 &&
			sign_check(&k, &a, 5) == -ETIME);
	}
	return 0;
}
