/* SPDX-License-Identifier: Apache-2.0
 *
 * conn.h: a stream from the host: its frames in, its frames out. Code that answers later keeps the
 * connection's number, not its address (conn_find): the connection may be closed by then.
 */
#pragma once

#include "agent/agent.h"
#include "agent/frame.h"

/* Takes the descriptor. */
int conn_create(struct agent *a, int fd);
/* The same for a BULK connection that a job gives back: its AGENT_HELLO came before. */
int conn_create_bulk(struct agent *a, int fd);
/* Closes it and tells its process. Safe at any time: the memory is freed at the end of the loop's
 * turn. */
void conn_close(struct conn *c);
void conn_close_all(struct agent *a);

uint64_t conn_number(const struct conn *c);
struct conn *conn_find(struct agent *a, uint64_t number);
enum agent_conn conn_kind(const struct conn *c);

/* Answers. They are sent at once as far as the socket takes them; the rest waits. */
void conn_ok(struct conn *c, uint32_t id, const struct buf *payload);
void conn_ok_more(struct conn *c, uint32_t id, const struct buf *payload);
void conn_error(struct conn *c, uint32_t id, int code, enum agent_step step, const char *fmt, ...)
	_printf_(5, 6);
void conn_frame(struct conn *c, uint16_t type, uint32_t id, const void *p, size_t n);
uint32_t conn_version(const struct conn *c);
/* Bytes that wait for the socket. A process's output is sent only while there are fewer than
 * CONN_FEW. */
size_t conn_backlog(const struct conn *c);
#define CONN_FEW KIB(128)

/* The isolated session whose view of the files the current request uses; NULL: none. */
struct session *conn_view(const struct conn *c);

/* The process whose stream an EXEC connection is (procio.c); NULL takes it away. */
void conn_set_proc(struct conn *c, struct proc *p);
struct proc *conn_proc(struct conn *c);
/* true: reads no more requests, because the process does not take its input or dial.c connects.
 * false: reads again. */
void conn_hold(struct conn *c, bool hold);
/* Takes the descriptor and the bytes that were read beyond the last frame, and closes the
 * connection. -EPIPE: its answers could not be sent; nothing was taken. For BULK and DIAL. */
int conn_detach(struct conn *c, struct buf *rest);

/* Handles one request; body is the payload. request.c has the table. */
typedef void (*request_fn)(struct agent *a, struct conn *c, uint32_t id, struct cur *body);

struct request {
	uint16_t type;
	uint16_t kinds; /* bits: 1 << enum agent_conn */
	request_fn fn;
};
/* NULL: no such request. */
const struct request *request_find(uint16_t type);
