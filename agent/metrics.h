/* SPDX-License-Identifier: Apache-2.0
 *
 * metrics.h: what the guest uses, and what the agent itself does.
 */
#pragma once

#include "agent/conn.h"

void req_metrics(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_self(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
