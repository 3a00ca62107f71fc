/* SPDX-License-Identifier: Apache-2.0
 *
 * seal.h: the jail of mayfly-broker and its list of system calls, which tests/unit/seal.c compares with what was called.
 */
#pragma once

#include "lib/jail.h"

#define BROKER_RULES_MAX 64
size_t broker_rules(struct jail_rule to[static BROKER_RULES_MAX]);
/* uid 0: a start by hand, without the stages that need root. nofile: descriptors. */
int broker_jail(uid_t uid, unsigned int nofile, struct err *e);
/* After everything that the list does not allow was made: the loop, the netlink socket. */
int broker_seal(struct err *e);
