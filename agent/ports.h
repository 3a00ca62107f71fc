/* SPDX-License-Identifier: Apache-2.0
 *
 * ports.h: AGENT_WAIT_PORT.
 */
#pragma once

#include "agent/conn.h"

void req_wait_port(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void ports_fini(struct agent *a);
