/* SPDX-License-Identifier: Apache-2.0
 *
 * kernel_message.h: the messages between the daemon and a Jupyter kernel (protocol 5.3, one JSON text each, as the server's WebSocket carries them), and
 * the events that a client gets for them. Pure functions. What a kernel sends is a guest's: hostile, checked as a whole before any of it is used, read in
 * place. Slices point into the message.
 */
#pragma once

#include "lib/json_slice.h"

/* A message may hold a cell's whole output in one piece, or a picture. A longer one ends the connection to the kernel. */
#define KERNEL_MESSAGE_MAX (16u * 1024 * 1024)
/* How many lines of an error's traceback are passed on. */
#define KERNEL_TRACEBACK_MAX 1000u

enum kernel_kind {
	KERNEL_OTHER,  /* a message that makes no event */
	KERNEL_INPUT,  /* the kernel begins with the cell: count */
	KERNEL_STREAM, /* output: name, text */
	KERNEL_RESULT, /* the cell's value, or something that it displays: data; count is 0 for the latter */
	KERNEL_ERROR, /* ename, evalue, traceback */
	KERNEL_REPLY, /* the cell has ended: failed, and if so ename, evalue, traceback */
	KERNEL_IDLE,  /* all output of the cell was sent before */
	KERNEL_DIED,  /* the server restarts the kernel, or gave it up */
	KERNEL_ASKS,  /* the cell asks for input, which nobody can give */
};

struct kernel_message {
	enum kernel_kind kind;
	struct json_slice parent; /* the id of the request that caused it */
	struct json_slice name, text, data, ename, evalue, traceback;
	uint64_t count;
	bool failed;
};

/* 0; -EBADMSG: not a message. */
int kernel_message_read(struct kernel_message *m, const void *p, size_t n);

/* Writes the request to run code. id: of the request, session: of the connection; plain letters and digits. */
void kernel_execute_put(struct buf *out, const char *id, const char *session, const char *code);

/* Writes a kernel_info_request. The kernel answers it after all earlier requests. */
void kernel_probe_put(struct buf *out, const char *id, const char *session);

/* The events of this message for the client; none for most. Each is one event of api/http/event_stream.h. */
void kernel_events_put(struct buf *out, const struct kernel_message *m);
