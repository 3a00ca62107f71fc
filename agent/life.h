/* SPDX-License-Identifier: Apache-2.0
 *
 * life.h: the requests about the sandbox as a whole: set-up, environment, freezing for a snapshot and thawing, shutdown.
 */
#pragma once

#include "agent/conn.h"

void req_ping(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_setup(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_set_env(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_limits(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_shutdown(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
/* After something ended: nothing left to wait for? */
void shutdown_check(struct agent *a);
/* A signal that was sent to the agent: it is the entrypoint's. SIGTERM ends the sandbox: by the entrypoint's end, which the host learns, or
 * where none runs by a shutdown. */
void life_signal(struct agent *a, int sig);
#define ENTRYPOINT_ID "entrypoint"
/* For hooks.c: after preStart, or instead of it. */
void life_start_entrypoint(struct agent *a, char **argv, uint32_t argc);
void life_entrypoint_failed(struct agent *a, int code, const char *text);
