/* SPDX-License-Identifier: Apache-2.0
 *
 * freeze.h: AGENT_PREPARE and AGENT_THAW: quiet for a snapshot, and awake again as another machine.
 */
#pragma once

#include "agent/ident.h"
#include "agent/conn.h"

void req_prepare(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_thaw(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
/* Identity, then root, then processes; nothing of the user's runs before all of it is done. Also
 * the beginning of AGENT_SETUP. */
int freeze_end(struct agent *a, struct identity *id, enum agent_step *step, struct err *e);
/* For what ends a preparation (set-up, thaw): takes back one that is under way, or where that is too late puts the request aside until it
 * is through and returns true. */
bool freeze_park(struct agent *a, struct conn *c, uint32_t id, request_fn fn, const struct cur *b);
void freeze_fini(struct agent *a);
