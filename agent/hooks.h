/* SPDX-License-Identifier: Apache-2.0
 *
 * hooks.h: the lifecycle of a create request: preStart before the entrypoint, periodic commands beside it.
 */
#pragma once

#include "agent/agent.h"

/* Takes the JSON text apart; -EINVAL with words for a schedule or a field that is none. */
int hooks_set(struct agent *a, const char *json, struct err *e);
/* Runs the script that EXECD_BOOTSTRAP_PRE_SCRIPT names, then preStart, then the entrypoint, each if there is one, and begins the periodic
 * ones. What the script exports is in the environment of everything that comes after it. Takes argv. */
void hooks_start(struct agent *a, char **argv, uint32_t argc);
/* The wall clock was set: schedules are looked at anew. */
void hooks_clock_changed(struct agent *a);
/* AGENT_ATTACH of the entrypoint while preStart runs: answered when it is known what becomes of it.
 * false: nothing is to wait for. */
bool hooks_wait(struct agent *a, struct conn *c, uint32_t id);
void hooks_fini(struct agent *a);
#define HOOKS_SCRIPT_ID "mayfly.pre-script" /* the session of the pre-script, while it runs */
