/* SPDX-License-Identifier: Apache-2.0
 *
 * machine_chan.h: frames of proto_machine.h over a non-blocking stream socket. Nothing here waits:
 * the owner polls for what chan_events() asks, calls chan_fill / chan_flush, and takes frames with
 * chan_next. Any process, one thread.
 */
#pragma once

#include "lib/buf.h"
#include "lib/proto_machine.h"

struct machine_chan {
	int fd; /* borrowed, non-blocking */
	struct buf in, out;
	size_t taken; /* bytes of `in` that chan_next handed out */
	bool eof;
};

void chan_init(struct machine_chan *c, int fd);
void chan_fini(struct machine_chan *c);

/* Queues a frame; n at most MACHINE_FRAME_MAX. 0, or -ENOBUFS: the owner did not heed
 * chan_is_full(). */
int chan_send(struct machine_chan *c, enum machine_frame type, const void *p, size_t n);
/* True while so much is queued that the source of more should not be read. */
bool chan_is_full(const struct machine_chan *c);
/* poll(2) events: POLLIN always unless the end was seen, POLLOUT while something is queued. */
short chan_events(const struct machine_chan *c);
/* Write and read what is possible without waiting. 0 or -errno; the peer's end of file sets
 * `eof`. */
int chan_flush(struct machine_chan *c);
int chan_fill(struct machine_chan *c);
/* The next whole frame: 1 and *type, *payload (valid until the next call); 0 if there is none yet;
 * -EPROTO for a bad one. */
int chan_next(struct machine_chan *c, enum machine_frame *type, struct cur *payload);
