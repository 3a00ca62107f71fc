/* SPDX-License-Identifier: Apache-2.0
 *
 * serial.h: a 16550A serial port, for debugging a kernel. mayfly-vmm; accesses on vCPU threads,
 * input from the device thread.
 */
#pragma once

#include <pthread.h>

#include "lib/buf.h"

#define SERIAL_FIFO 64u

struct serial {
	pthread_mutex_t lock;
	uint8_t ier, lcr, mcr, scr, fcr, dll, dlm;
	bool thre_due; /* the guest has not yet seen the "transmitter empty" interrupt */
	void *ctx;
	void (*irq)(void *ctx);
	void (*out)(void *ctx, uint8_t byte);
	uint8_t fifo[SERIAL_FIFO]; /* input that the guest has not read yet */
	unsigned int fifo_at, fifo_n;
	/* The fifo has become empty. Called on a vCPU thread with the lock held. May be NULL. */
	void (*room)(void *room_ctx);
	void *room_ctx;
};

void serial_init(
	struct serial *s, void *ctx, void (*irq)(void *ctx), void (*out)(void *ctx, uint8_t byte));
void serial_fini(struct serial *s);
/* reg 0..7 */
void serial_write(struct serial *s, unsigned int reg, uint8_t v);
uint8_t serial_read(struct serial *s, unsigned int reg);
/* Puts input into the fifo; returns how many bytes had room. */
size_t serial_input(struct serial *s, const uint8_t *p, size_t n);
/* After a restore: gives the transmitter interrupt again, because one may have been lost. */
void serial_kick(struct serial *s);
void serial_save(struct serial *s, struct buf *out);
bool serial_load(struct serial *s, struct cur *in);
