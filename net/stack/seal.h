/* SPDX-License-Identifier: Apache-2.0
 *
 * seal.h: the jail of mayfly-net and its list of system calls, which tests/unit/seal.c compares with what was called.
 */
#pragma once

#include "lib/jail.h"

#define STACK_RULES_MAX 64
size_t stack_rules(struct jail_rule to[static STACK_RULES_MAX]);
/* uid 0: a start by hand, without the stages that need root. */
int stack_jail(uid_t uid, struct err *e);
int stack_seal(struct err *e);
