/* SPDX-License-Identifier: Apache-2.0
 *
 * ready.h: the vsock side of a guest's agent: its listener, and the connection that tells the host that it listens.
 */
#pragma once

#include "agent/agent.h"

/* The listener, or -errno. */
int ready_listen(struct err *e);
/* Connects to VSOCK_PORT_READY and says AGENT_READY. Does the same again each time that connection
 * ends: a restore resets it, a daemon that ends closes it. */
void ready_announce(struct agent *a);
void ready_fini(struct agent *a);
