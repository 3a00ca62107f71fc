/* SPDX-License-Identifier: Apache-2.0
 *
 * floor.h: the hardening floor of a sandbox: AGENT_HARDEN by the tables [hardening] and [landlock]. No I/O; the agent's answer is hostile.
 */
#pragma once

#include "lib/buf.h"
#include "lib/err.h"

struct agent_reply;
struct config;

/* Is a floor configured? Then the agent must set it before anything of the user's runs. */
bool floor_wanted(const struct config *c);
void floor_put(struct buf *b, const struct config *c);
/* May the sandbox start with what the agent answered? 0; -errno: e says why not. */
int floor_check(const struct config *c, const struct agent_reply *r, struct err *e);
