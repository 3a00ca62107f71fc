/* SPDX-License-Identifier: Apache-2.0
 *
 * serial.h: an 8250-like serial port, output only, for debugging a kernel. mayfly-vmm; accesses on
 * vCPU threads.
 */
#pragma once

#include <pthread.h>

#include "lib/buf.h"

struct serial {
	pthread_mutex_t lock;
	uint8_t ier, lcr, mcr, scr, fcr, dll, dlm;
	bool thre_due; /* "transmitter empty" not yet told */
	void *ctx;
	void (*irq)(void *ctx);
	void (*out)(void *ctx, uint8_t byte);
};

void serial_init(
	struct serial *s, void *ctx, void (*irq)(void *ctx), void (*out)(void *ctx, uint8_t byte));
void serial_fini(struct serial *s);
/* reg 0..7 */
void serial_write(struct serial *s, unsigned int reg, uint8_t v);
uint8_t serial_read(struct serial *s, unsigned int reg);
/* After a restore: a transmitter interrupt that was on its way is given again. */
void serial_kick(struct serial *s);
void serial_save(struct serial *s, struct buf *out);
bool serial_load(struct serial *s, struct cur *in);
