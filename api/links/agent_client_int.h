/* SPDX-License-Identifier: Apache-2.0
 *
 * agent_client_int.h: what agent_client.c shares with the streams only (agent_client_exec.c, agent_client_bulk.c,
 * agent_client_terminal.c).
 */
#pragma once

#include "api/links/agent_conn.h"
#include "api/links/agent_client.h"

/* The head of every stream: what agentc needs to wake or end it. */
struct agent_stream {
	struct agentc *agentc;
	struct agent_stream *prev, *next;
	void (*up)(struct agent_stream *s);   /* the agent listens: open or take up again */
	void (*down)(struct agent_stream *s); /* it does not: drop the connection */
	void (*cancel)(
		struct agent_stream *s, int err); /* tell the owner, who may free it in the call */
};

/* False (errno): too many streams. */
bool agent_stream_add(struct agentc *a, struct agent_stream *s);
void agent_stream_drop(struct agent_stream *s);
struct aconn *agent_stream_open(
	struct agent_stream *s, enum agent_conn kind, const struct aconn_ops *ops, void *arg);

/* To be called when a connection ended with EPROTONOSUPPORT. true: there is an older version, and the
 * next connection greets with it. */
bool agent_version_refused(struct agentc *a);
/* Appends to AGENT_EXEC's payload the fields that the agreed version adds. */
void agent_exec_finish(const struct agentc *a, struct buf *b);
/* To be called at the end of a command: opens the EXEC connection for the next one. */
void agent_spare_make(struct agentc *a);

/* unread_ns of agentc_pace() */
uint64_t agent_unread_ns(const struct agentc *a);

/* AGENT_ERR's payload as a reply; text is a fixed field of the caller's. 0, or EPROTO. */
#define AGENT_TEXT_MAX 400
int agent_err_read(struct cur body, struct agent_reply *r, char text[AGENT_TEXT_MAX]);
