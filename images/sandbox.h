/* SPDX-License-Identifier: Apache-2.0
 *
 * sandbox.h: what an image job may still do once it has started.
 */
#pragma once

#include "lib/err.h"

/* jail_enter and the allow-list of system calls. uid 0: no jail (a child of the command line), only the list. */
int job_sandbox(unsigned long uid, bool net, struct err *e);
