/* SPDX-License-Identifier: Apache-2.0
 *
 * bulk.h: one file read or written on a BULK connection, by a thread that owns the stream meanwhile.
 */
#pragma once

#include "agent/conn.h"

void req_read(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_write(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
