/* SPDX-License-Identifier: Apache-2.0
 *
 * restore_hook.h: a command in the guest that runs after a restore, before the sandbox is Running. Sandboxes of one template begin with the same
 * memory, and so with the same state of every random generator that lives in a process; only the image knows which of them it has.
 * mayflyd's loop.
 */
#pragma once

#include "api/sandbox/sandbox.h"

/* The name of the variable, of the image or of the template, that holds the command. */
#define RESTORE_HOOK_VAR "MAYFLY_RESTORE_HOOK"
/* In `extensions` of a create from a snapshot: "run". Without it a clone goes on exactly as its source would. */
#define RESTORE_HOOK_EXT "mayfly.restore-hook"

struct restore_hook;
typedef void (*restore_hook_fn)(struct sandbox *sb, const char *failure); /* NULL: it succeeded */

/* The command that is due for this sandbox now, or NULL. Never at a resume: that is the same machine. */
const char *restore_hook_due(const struct sandbox *sb);
/* Runs it as root by the image's shell. done() is called later, from the loop. NULL: no memory. */
struct restore_hook *restore_hook_run(
	struct sandbox *sb, const char *command, restore_hook_fn done);
/* done() is not called any more. NULL is fine. */
void restore_hook_cancel(struct restore_hook *h);
