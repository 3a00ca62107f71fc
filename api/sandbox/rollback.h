/* SPDX-License-Identifier: Apache-2.0
 *
 * rollback.h: puts a sandbox back to a snapshot of its own: the same id, endpoints and record; the memory, processes and disk of then. mayflyd's
 * loop.
 */
#pragma once

#include "api/sandbox/snapshot.h"

struct http_req;

/* What it was based on until the rollback was committed: with references. */
struct rollback;

/* Answers r: 202 when the sandbox runs again, or the reason why not. Until the rollback is committed, a refusal and a record that cannot be
 * written leave the sandbox as it is. If the resume after that is refused or fails, the sandbox is Paused at the snapshot. */
void rollback_asked(struct sandbox *sb, struct checkpoint *c, struct http_req *r);
/* The sandbox ends, or the operation: drops the references to what it was based on before. The sandbox's own files stay as they are. */
void rollback_drop(struct sandbox *sb);
