/* SPDX-License-Identifier: Apache-2.0
 *
 * entrypoint_log.h: the end of what a sandbox's entrypoint printed. While the sandbox has an agent, the agent is
 * asked. When the entrypoint has ended, the text is kept in <state_dir>/logs/<id> until the sandbox is
 * deleted. mayflyd's loop. The bytes are a guest's.
 */
#pragma once

#include "api/sandbox/sandbox.h"

#define ENTRYLOG_MAX 65536u

/* text: a string of valid UTF-8, which lives until the call returns; "" if there is no output. */
typedef void (*entrylog_fn)(void *arg, const char *text);
/* fn is called once, later. false: there is no agent to ask, fn is not called. */
bool entrylog_ask(struct sandbox *sb, uint32_t limit_ms, entrylog_fn fn, void *arg);
void entrylog_keep(const struct sandbox *sb, const char *text);
/* What was kept, or NULL; the caller frees. */
char *entrylog_kept(const struct sandbox *sb);
void entrylog_forget(const struct sandbox *sb);
/* At the start: makes the folder, and removes the files of unknown sandboxes. */
void entrylog_sweep(struct daemon *d);
