/* SPDX-License-Identifier: Apache-2.0
 *
 * sign.h: signatures of routes that expire (protocol 1.11). mayflyd.
 */
#pragma once

#include "api/ingress/address.h"
#include "lib/err.h"

#define SIGN_KEYS_MAX   16u
#define SIGN_SECRET_MAX 64u

struct sign_key {
	char id; /* a letter or digit, with which its signatures end */
	uint8_t secret[SIGN_SECRET_MAX];
	size_t len;
};

/* New routes are signed with the first; all of them are accepted, so that a key can be replaced. */
struct sign_keys {
	struct sign_key key[SIGN_KEYS_MAX];
	unsigned int n;
};

/* "a=BASE64,b=BASE64": the first is the active one. */
int sign_keys_parse(const char *text, struct sign_keys *k, struct err *e);

/* Makes the key of this id the first. false: there is none. */
bool sign_keys_activate(struct sign_keys *k, const char *id);

/* EXPIRES and SIGNATURE of a, from its sandbox, port and expires_s. -ENOKEY: there is no key. */
int sign_address(const struct sign_keys *k, struct ingress_address *a);
/* 0; -ETIME: expired; -EACCES: forged, or of another key, sandbox or port; -ENOKEY: there is no key at all. The signature is
 * compared first, in constant time, so that only holders of a valid one learn about its time. */
int sign_check(const struct sign_keys *k, const struct ingress_address *a, uint64_t now_s);
