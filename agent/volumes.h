/* SPDX-License-Identifier: Apache-2.0
 *
 * volumes.h: mounts the sandbox's volumes (AGENT_MOUNT).
 */
#pragma once

#include "agent/agent.h"
#include "agent/frame.h"

void req_mount(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
