/* SPDX-License-Identifier: Apache-2.0
 *
 * freeze.h: AGENT_PREPARE freezes processes and root for a snapshot; AGENT_THAW continues, in a
 * restored machine with a new identity.
 */
#pragma once

#include "agent/ident.h"
#include "agent/conn.h"

void req_prepare(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_thaw(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
/* Applies the identity, thaws the root, thaws the processes. Nothing of the user's runs before all
 * of it is done. AGENT_SETUP begins with it, too. */
int freeze_end(struct agent *a, struct identity *id, enum agent_step *step, struct err *e);
/* Called first by AGENT_SETUP and AGENT_THAW. Cancels a preparation that is in progress. If it is
 * too late for that, keeps the request until the preparation is done and returns true. */
bool freeze_park(struct agent *a, struct conn *c, uint32_t id, request_fn fn, const struct cur *b);
void freeze_fini(struct agent *a);
