/* SPDX-License-Identifier: Apache-2.0
 *
 * dial.h: byte streams to ports and sockets inside the guest.
 */
#pragma once

#include "agent/conn.h"

void req_dial_tcp(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_dial_unix(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
/* Takes fd, a connection with a program of the guest. Answers the request and passes bytes from now
 * on. */
void dial_join(struct agent *a, struct conn *c, uint32_t id, int fd);
