/* SPDX-License-Identifier: Apache-2.0
 *
 * agent_client_int.h: what agent_client.c shares with the streams (agent_client_exec.c, agent_client_bulk.c) and with
 * nobody else.
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

/* Beyond an agent_stream_open's end with EPROTONOSUPPORT: true if the version before is worth a
 * try, which the next connection greets with. */
bool agent_version_refused(struct agentc *a);
/* AGENT_EXEC's payload without what the connection's version adds: appends that. */
void agent_exec_finish(const struct agentc *a, struct buf *b);
/* A command has ended: makes the connection that the next one finds ready. */
void agent_spare_make(struct agentc *a);

/* agentc_pace() */
uint64_t agent_unread_ns(const struct agentc *a);

/* AGENT_ERR's payload as a reply; text is a fixed field of the caller's. 0, or EPROTO. */
#define AGENT_TEXT_MAX 400
int agent_err_read(struct cur body, struct agent_reply *r, char text[AGENT_TEXT_MAX]);
