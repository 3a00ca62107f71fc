/* SPDX-License-Identifier: Apache-2.0
 *
 * inward.h: the sandbox's own execution API at 127.0.0.1:44772 inside the guest. The agent serves no request itself: it hands a
 * program's connection to a stream that the host has waiting, or refuses it (503, or 403 in an isolated session). The host decides how many
 * streams it keeps waiting, which is the budget.
 */
#pragma once

#include "agent/conn.h"

/* AGENT_DIAL_ACCEPT: the connection waits. */
void req_dial_accept(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void inward_fini(struct agent *a);

/* The cgroup of the socket at address:port that is connected to 127.0.0.1:to_port. 0: the socket is
 * gone, or the kernel does not say. Address and ports are in network order. */
uint64_t inward_cgroup_of(uint32_t address, uint16_t port, uint16_t to_port);
