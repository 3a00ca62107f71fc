/* SPDX-License-Identifier: Apache-2.0
 *
 * request.h: what the request handlers share.
 */
#pragma once

#include "agent/conn.h"

/* Answers EPROTO and counts a bad frame: the payload does not have the request's fields. */
void req_bad(struct agent *a, struct conn *c, uint32_t id);
