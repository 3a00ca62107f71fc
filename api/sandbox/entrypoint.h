/* SPDX-License-Identifier: Apache-2.0
 *
 * entrypoint.h: a sandbox's entrypoint, watched to its end, which is the sandbox's. mayflyd's loop.
 */
#pragma once

#include "api/sandbox/sandbox.h"

/* Watches it, if it is not watched; when it is Running, and not from within the entrypoint's own
 * end. */
void entry_watch(struct sandbox *sb);
