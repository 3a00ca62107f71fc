/* SPDX-License-Identifier: Apache-2.0
 *
 * req_session.h: the requests about sessions, in request.c's table.
 */
#pragma once

#include "agent/conn.h"
#include "agent/isolate_conf.h"
#include "agent/terminal.h"

void req_session_new(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_session_del(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_session_list(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_session_get(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_session_attach(struct agent *a, struct conn *c, uint32_t id, struct cur *b);

/* What AGENT_SESSION_NEW asked for. */
struct session_req {
	char id[64], cwd[AGENT_PATH_MAX];
	uint32_t kind;
	struct terminal_req terminal;
	struct iso_req iso;
	char *note;
};
/* A parser of the host's bytes: 0 or -errno; it frees what it made on failure. */
int session_parse(struct cur *b, uint32_t version, struct session_req *r);
void session_req_free(struct session_req *r);
