/* SPDX-License-Identifier: Apache-2.0
 *
 * hardening.h: the tables [hardening] and [landlock] of the configuration: the floor under commands and entrypoints of sandboxes. No I/O.
 */
#pragma once

#include "lib/err.h"

struct config;

/* Names of capabilities, with blanks between, with or without "cap_", as bits. -EINVAL: e names the one that is none. */
int capabilities_parse(const char *list, uint64_t *bits, struct err *e);
/* What does not fit in the two tables. */
int hardening_check(const struct config *c, struct err *e);
