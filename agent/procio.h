/* SPDX-License-Identifier: Apache-2.0
 *
 * procio.h: the bytes of a process: from its pipes or terminal into AGENT_OUT frames, kept until the host acknowledges them, and
 * from AGENT_STDIN frames into its input.
 */
#pragma once

#include "agent/proc.h"

/* Begins to read p->out[].fd and to write p->in_fd (both owned by p). */
int procio_start(struct proc *p);
/* Sends what there is and may be sent, AGENT_EXIT at last. */
void procio_pump(struct proc *p);
/* The process was reaped: take what its pipes still hold, then p->ended. */
void procio_drain(struct proc *p);
/* An EXEC connection takes the process over from these offsets. 0, -EPIPE: gone. */
/* c looks on at a terminal, from off or what of it is kept. -EINVAL: it is none. -EBUSY: too many
 * do. */
int procio_watch(struct proc *p, struct conn *c, uint64_t off);
int procio_attach(struct proc *p, struct conn *c, uint64_t out_off, uint64_t err_off);
/* Its holder hears AGENT_EVICTED and is no longer served. */
void procio_evict(struct proc *p);
/* 0, -ENOTTY. */
int procio_resize(struct proc *p, uint16_t cols, uint16_t rows);
void procio_conn_gone(struct proc *p, struct conn *c);
void procio_ack(struct proc *p, uint64_t out_off, uint64_t err_off);
/* Bytes for its input; n = 0: end of file. */
void procio_stdin(struct proc *p, struct conn *c, const void *bytes, size_t n);
/* Nobody will read it: what stands there and what will come is thrown away. */
void procio_discard(struct proc *p);
void procio_fini(struct proc *p);
uint64_t procio_out_bytes(const struct proc *p);
/* Unacknowledged bytes in memory. */
size_t procio_kept(const struct proc *p);
