/* SPDX-License-Identifier: Apache-2.0
 *
 * identity.h: what makes a machine this sandbox and no other, as the agent is told it
 * (lib/proto_agent.h): ids, entropy, the time, environment; and what it shall run.
 */
#pragma once

#include "api/sandbox/sandbox.h"
#include "lib/buf.h"

/* For AGENT_THAW: a generation of its own with each. */
void identity_put(struct buf *b, struct sandbox *sb);
/* For AGENT_SETUP: that, the image's settings, the entrypoint and the hooks. */
void setup_put(struct buf *b, struct sandbox *sb);
