/* SPDX-License-Identifier: Apache-2.0
 *
 * hardening.h: checks the tables [hardening], [landlock] and [isolation] of the configuration. The first two are the floor under commands
 * and entrypoints of sandboxes. No I/O.
 */
#pragma once

#include "lib/err.h"

struct config;

/* Reads names of capabilities, separated by blanks, with or without "cap_", into bits. -EINVAL: e names the unknown one. */
int capabilities_parse(const char *list, uint64_t *bits, struct err *e);
/* Checks the values of the three tables. */
int hardening_check(const struct config *c, struct err *e);
