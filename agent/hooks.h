/* SPDX-License-Identifier: Apache-2.0
 *
 * hooks.h: the lifecycle of a create request: preStart before the entrypoint, periodic commands beside it.
 */
#pragma once

#include "agent/agent.h"

/* Parses the JSON text; -EINVAL with a text if a schedule or a field is not valid. */
int hooks_set(struct agent *a, const char *json, struct err *e);
/* Runs the script that EXECD_BOOTSTRAP_PRE_SCRIPT names, then preStart, then the entrypoint, each if there is one, and begins the periodic
 * ones. What the script exports is in the environment of everything that comes after it. Takes argv. */
void hooks_start(struct agent *a, char **argv, uint32_t argc);
/* Called when the wall clock was set: computes when each schedule is due. */
void hooks_clock_changed(struct agent *a);
/* Keeps an AGENT_ATTACH that comes before the entrypoint has started. It is answered when the
 * entrypoint starts or fails. False: there is nothing to wait for, the caller answers. */
bool hooks_wait(struct agent *a, struct conn *c, uint32_t id);
void hooks_fini(struct agent *a);
#define HOOKS_SCRIPT_ID "mayfly.pre-script" /* the session of the pre-script, while it runs */
