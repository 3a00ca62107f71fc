/* SPDX-License-Identifier: Apache-2.0
 *
 * own_api.h: 127.0.0.1:44772 inside a sandbox answers with that sandbox's own execution API. mayflyd's loop.
 */
#pragma once

struct sandbox;

/* To be called when the sandbox runs and its agent is up. From then on streams wait for its programs, also after each pause, until the
 * agent is destroyed. */
void own_api_start(struct sandbox *sb);
