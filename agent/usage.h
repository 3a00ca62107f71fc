/* SPDX-License-Identifier: Apache-2.0
 *
 * usage.h: AGENT_USAGE.
 */
#pragma once

#include "agent/conn.h"

void req_usage(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
