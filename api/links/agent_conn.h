/* SPDX-License-Identifier: Apache-2.0
 *
 * agent_conn.h: one connection to the agent of a sandbox: connects, opens the vsock port, says
 * AGENT_HELLO, then carries frames, or, once made raw, bytes. The daemon's loop thread. Everything
 * that arrives is hostile: a frame over AGENT_FRAME_MAX, an answer out of place or a wrong version
 * ends the connection, never the process.
 */
#pragma once

#include "api/core/account.h"
#include "lib/buf.h"
#include "lib/loop.h"
#include "lib/proto_agent.h"

struct aconn;

struct aconn_ops {
	/* HELLO was accepted; generation as the agent says */
	void (*ready)(void *arg, uint64_t generation);
	/* one whole frame; body is valid during the call. Not 0 = a broken peer: closed() follows.
	 */
	int (*frame)(void *arg, const struct agent_hdr *h, struct cur body);
	/* raw mode: n > 0 bytes; n = 0: the peer will send no more. */
	void (*bytes)(void *arg, const uint8_t *p, size_t n);
	/* the queue fell below the low mark, after it was above the high mark */
	void (*drained)(void *arg);
	/* once, and the last call: err > 0 (errno; EPROTONOSUPPORT: the greeting's version was
	 * refused), or 0: the peer closed. aconn_close() is still the owner's to call. */
	void (*closed)(void *arg, int err);
};

/* the default high mark of a connection; the low mark is a quarter of it */
#define ACONN_HIGH (1024u * 1024)
/* a connection does not queue more bytes than this */
#define ACONN_MAX (8u * 1024 * 1024)

/* What all connections of one sandbox hold. It lives until the last of them is freed, which may be later than the sandbox: then its parent is gone. */
struct aconn_budget {
	struct account account;
	unsigned int refs;
};

/* How to reach the agent: a Unix socket of the monitor, and the vsock port to ask it for. Port 0: the
 * socket is the agent's own. */
struct aconn_target {
	const char *path;
	uint32_t port;
	uint32_t version; /* to greet with */
	size_t high;      /* 0: ACONN_HIGH */
	/* What the connection's buffers are charged to. NULL: no limit. Over it, a send is refused, and input that has to be buffered ends
	 * the connection with ENOBUFS. */
	struct aconn_budget *budget;
};

void aconn_budget_unref(struct aconn_budget *b); /* NULL is fine */
/* Never calls back before it returns. NULL: out of memory or descriptors (errno); everything later
 * comes as closed(). */
struct aconn *aconn_open(struct loop *l, const struct aconn_target *t, enum agent_conn kind,
	const struct aconn_ops *ops, void *arg);
/* Gives the connection another owner, whose callbacks are called from now on. Not from inside its callbacks. */
void aconn_give(struct aconn *c, const struct aconn_ops *ops, void *arg);
/* Frees it; no call follows. Also from inside its own callbacks. NULL is fine. */
void aconn_close(struct aconn *c);
/* Queues one frame, which goes out after the opening. Returns false if it did not queue the frame: too
 * much is queued already, the budget or the memory is used up, or the connection has ended. */
bool aconn_send(struct aconn *c, uint16_t type, uint32_t id, const void *p, size_t n);
/* The same with struct agent_hdr.flags: AGENT_FL_SESSION. */
bool aconn_send_flags(
	struct aconn *c, uint16_t type, uint16_t flags, uint32_t id, const void *p, size_t n);
/* Switches to bytes, after the frame that agreed on it. */
void aconn_make_raw(struct aconn *c);
bool aconn_send_raw(struct aconn *c, const void *p, size_t n);
/* Half-closes the connection when the queue is empty; nothing can be sent any more. drained() follows, if that takes time. */
void aconn_send_end(struct aconn *c);
/* True between aconn_send_end() and the moment at which the last queued byte has gone. */
bool aconn_ending(const struct aconn *c);
/* True while more than the high mark is queued: stop producing, drained() will come. */
bool aconn_full(const struct aconn *c);
/* Stops or resumes reading: what the peer sends stays in the kernel. */
void aconn_hold(struct aconn *c, bool hold);
