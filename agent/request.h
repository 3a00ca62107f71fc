/* SPDX-License-Identifier: Apache-2.0
 *
 * request.h: what the request handlers share.
 */
#pragma once

#include "agent/conn.h"

/* Answers EPROTO and counts: the payload was no such request. */
void req_bad(struct agent *a, struct conn *c, uint32_t id);
