/* SPDX-License-Identifier: Apache-2.0
 *
 * guest.h: what the execution API asks of a sandbox. mayflyd's loop.
 */
#pragma once

#include "lib/base.h"

struct agentc;
struct config;
struct sandbox;

/* The agent of a sandbox that is or was running; NULL: it has none any more. */
struct agentc *sandbox_agentc(struct sandbox *sb);
/* Counts for the metrics: failed: a command that did not end with 0; else a command that was started. */
void sandbox_count_exec(struct sandbox *sb, bool failed);
/* The daemon's configuration. */
const struct config *sandbox_config(const struct sandbox *sb);
/* A variable of the environment that the sandbox was made with; NULL: not set. */
const char *sandbox_env(const struct sandbox *sb, const char *name);
/* The same of the image's environment. */
const char *sandbox_image_env(const struct sandbox *sb, const char *name);
/* The image's working directory; "" if it names none. */
const char *sandbox_workdir(const struct sandbox *sb);
