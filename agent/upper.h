/* SPDX-License-Identifier: Apache-2.0
 *
 * upper.h: what an overlay mount of an isolated session changed, and its way into the directory below.
 */
#pragma once

#include "agent/conn.h"

void req_session_diff(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_session_commit(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
