/* SPDX-License-Identifier: Apache-2.0
 *
 * procio.h: the bytes of a process: from its pipes or terminal into AGENT_OUT frames, kept until the host acknowledges them, and
 * from AGENT_STDIN frames into its input.
 */
#pragma once

#include "agent/proc.h"

/* Begins to read p->out[].fd and to write p->in_fd (both owned by p). */
int procio_start(struct proc *p);
/* Sends what the connections can take now, and AGENT_EXIT at the end. */
void procio_pump(struct proc *p);
/* Called when the process was reaped: reads what its pipes still hold, then sets p->ended. */
void procio_drain(struct proc *p);
/* Makes c a viewer of a terminal, from offset off or from the first byte that is kept. -EINVAL: p
 * is no terminal. -EBUSY: too many viewers. */
int procio_watch(struct proc *p, struct conn *c, uint64_t off);
/* Makes c the connection that holds the process, from these offsets on. If p is a terminal, the
 * present holder becomes a viewer, otherwise it is closed. 0. -EPIPE: output at these offsets is
 * not kept. -EBUSY: the terminal has too many viewers. */
int procio_attach(struct proc *p, struct conn *c, uint64_t out_off, uint64_t err_off);
/* Sends AGENT_EVICTED to the connection that holds it, and no longer serves that connection. */
void procio_evict(struct proc *p);
/* 0, -ENOTTY. */
int procio_resize(struct proc *p, uint16_t cols, uint16_t rows);
void procio_conn_gone(struct proc *p, struct conn *c);
void procio_ack(struct proc *p, uint64_t out_off, uint64_t err_off);
/* Bytes for its input; n = 0: end of file. */
void procio_stdin(struct proc *p, struct conn *c, const void *bytes, size_t n);
/* Nobody will read the output: drops what is there and what will come. */
void procio_discard(struct proc *p);
void procio_fini(struct proc *p);
uint64_t procio_out_bytes(const struct proc *p);
/* Unacknowledged bytes in memory. */
size_t procio_kept(const struct proc *p);
