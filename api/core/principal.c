/* SPDX-License-Identifier: Apache-2.0
 *
 * principal.c: see principal.h. mayflyd's loop.
 */
#include "api/core/principal.h"

#include <stdio.h>
#include <string.h>

const char *const role_names[ROLE_COUNT] = {[ROLE_NONE] = "none",
	[ROLE_USER] = "user",
	[ROLE_PEER] = "peer",
	[ROLE_OPERATOR] = "operator"};

void principal_owner(const struct principal *p, char out[static OWNER_MAX])
{
	snprintf(out, OWNER_MAX, "%s/%s", p->namespace, p->name);
}

static size_t namespace_len(const char *owner)
{
	return strcspn(owner, "/");
}

static bool is_operators(const char *owner)
{
	size_t n = namespace_len(owner);

	return !n || (n == strlen(OPERATOR_NAMESPACE) && !memcmp(owner, OPERATOR_NAMESPACE, n));
}

bool owner_may(const char *who, const char *owner)
{
	size_t n = namespace_len(who);

	if (n && is_operators(who))
		return true;
	return n && !is_operators(owner) && n == namespace_len(owner) && !memcmp(who, owner, n);
}

bool principal_may(const struct principal *p, const char *owner)
{
	if (p->role == ROLE_NONE)
		return false;
	return p->role == ROLE_OPERATOR || owner_may(p->namespace, owner);
}

bool principal_name_ok(const char *s)
{
	size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.");

	return n > 0 && n < sizeof(((struct principal *)0)->name) && !s[n];
}
