/* SPDX-License-Identifier: Apache-2.0
 *
 * own_api.h: 127.0.0.1:44772 inside a sandbox answers with that sandbox's own execution API. mayflyd's loop.
 */
#pragma once

struct sandbox;

/* It runs and its agent is up: streams wait for programs in it, from now on through every pause, until its agent is gone. */
void own_api_start(struct sandbox *sb);
