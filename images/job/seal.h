/* SPDX-License-Identifier: Apache-2.0
 *
 * seal.h: what an image job may still do once it has started.
 */
#pragma once

#include "lib/jail.h"

/* jail_enter and the allow-list of system calls. uid 0: no jail (a child of the command line), only
 * the list. */
int job_sandbox(unsigned long uid, bool net, struct err *e);

/* The list of a job, with or without network, for the test that compares it with the calls that were made. Returns how
 * many rows went into `to`. */
#define JOB_RULES_MAX 128
size_t job_rules(bool net, struct jail_rule to[static JOB_RULES_MAX]);
