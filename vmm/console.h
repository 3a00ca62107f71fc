/* SPDX-License-Identifier: Apache-2.0
 *
 * console.h: the virtio console (hvc0), one port. mayfly-vmm, the device thread.
 */
#pragma once

#include "vmm/virtio.h"

#define CONSOLE_INPUT_BYTES 4096u /* typed ahead; more is refused */

struct console_config {
	void *ctx;
	/* The guest wrote these bytes; p points to a copy. They are hostile. Called with the
	 * device's lock held: must not block or call the device. */
	void (*out)(void *ctx, const void *p, size_t n);
	/* The guest took all input: there is room again. Called like out(). May be NULL. */
	void (*room)(void *ctx);
};

/* NULL: e says why. */
struct virtio_dev *console_create(
	const struct dev_env *env, const struct console_config *cfg, struct err *e);
void console_destroy(struct virtio_dev *d); /* NULL is fine */
/* Input for the guest: how much was taken. */
size_t console_input(struct virtio_dev *d, const void *p, size_t n);
