/* SPDX-License-Identifier: Apache-2.0
 *
 * principal.h: the principal of a request and the owner of a record. mayflyd. A principal is a key of the configuration, or a user id on the Unix socket. A record's
 * owner is the text "NAMESPACE/NAME" of the principal that made it. Principals see the records of their own namespace; operators see all.
 */
#pragma once

#include "lib/base.h"

enum role {
	ROLE_NONE, /* nobody: a request that needed no key */
	ROLE_USER,
	ROLE_PEER, /* a user that may also choose the ids of new sandboxes: another daemon, a placement service */
	ROLE_OPERATOR,
	ROLE_COUNT
};
extern const char *const role_names[ROLE_COUNT];

/* Only operators are in this namespace (conf_check), so that an owner's text alone says what it may see. */
#define OPERATOR_NAMESPACE "operator"
#define OWNER_OPERATOR     "operator/operator"
#define OWNER_MAX          136

struct principal {
	enum role role;
	char name[64], namespace[64]; /* letters, digits, - _ . */
};

/* The owner text of what p makes. */
void principal_owner(const struct principal *p, char out[static OWNER_MAX]);
/* May the owner `who` see a record of `owner`? "" and "operator" (older records) belong to the operator. */
bool owner_may(const char *who, const char *owner);
bool principal_may(const struct principal *p, const char *owner);
bool principal_name_ok(const char *s);
