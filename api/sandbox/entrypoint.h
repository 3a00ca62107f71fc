/* SPDX-License-Identifier: Apache-2.0
 *
 * entrypoint.h: watches a sandbox's entrypoint. When it ends, the sandbox ends. mayflyd's loop.
 */
#pragma once

#include "api/sandbox/sandbox.h"

/* Watches the entrypoint, if it is not watched yet. To be called when the sandbox is Running, and not
 * from within entry_ended(). */
void entry_watch(struct sandbox *sb);
