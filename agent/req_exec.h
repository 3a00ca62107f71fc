/* SPDX-License-Identifier: Apache-2.0
 *
 * req_exec.h: the requests about processes, in request.c's table.
 */
#pragma once

#include "agent/conn.h"

/* AGENT_ATTACH after its parsing: answers it. */
void exec_attach(struct agent *a, struct conn *c, uint32_t id, const char *name, uint64_t out,
	uint64_t err, uint32_t flags);
void req_exec(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_attach(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_ack(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_stdin(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_detach(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_signal(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_status(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_logs(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_resize(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_execs(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_forget(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
