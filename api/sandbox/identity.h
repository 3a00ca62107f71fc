/* SPDX-License-Identifier: Apache-2.0
 *
 * identity.h: the payloads that give a machine its identity (lib/proto_agent.h): ids, entropy, the
 * time, environment; and what it runs.
 */
#pragma once

#include "api/sandbox/sandbox.h"
#include "lib/buf.h"

/* The payload of AGENT_THAW. Each one has a new generation. */
void identity_put(struct buf *b, struct sandbox *sb);
/* The payload of AGENT_SETUP: the same, the image's settings, the entrypoint and the hooks. */
void setup_put(struct buf *b, struct sandbox *sb);
