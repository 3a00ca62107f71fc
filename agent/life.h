/* SPDX-License-Identifier: Apache-2.0
 *
 * life.h: the requests about the sandbox as a whole: set-up, environment, limits, shutdown.
 */
#pragma once

#include "agent/conn.h"

void req_ping(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_setup(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_set_env(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_limits(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_shutdown(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
/* Called when a process ended: finishes a shutdown if none is left. */
void shutdown_check(struct agent *a);
/* The agent got this signal: passes it on to the entrypoint. After SIGTERM the entrypoint gets SIGKILL
 * if it does not end in time; the host ends the sandbox when the entrypoint has ended. SIGTERM without
 * a running entrypoint: the agent shuts the sandbox down. */
void life_signal(struct agent *a, int sig);
#define ENTRYPOINT_ID "entrypoint"
/* For hooks.c. The first starts the entrypoint. The second records that it cannot start, because
 * the script or preStart failed. */
void life_start_entrypoint(struct agent *a, char **argv, uint32_t argc);
void life_entrypoint_failed(struct agent *a, int code, const char *text);
