/* SPDX-License-Identifier: Apache-2.0
 *
 * console.h: the virtio console (hvc0), one port. mayfly-vmm, the device thread.
 */
#pragma once

#include "vmm/virtio.h"

#define CONSOLE_INPUT_BYTES 4096u /* typed ahead; more is refused */

struct console_config {
	void *ctx;
	/* What the guest wrote: a copy of ours, hostile bytes. With the device's lock held; must
	 * not block or call back. */
	void (*out)(void *ctx, const void *p, size_t n);
	/* All input was taken; as above. May be NULL. */
	void (*room)(void *ctx);
};

/* NULL: e says why. */
struct virtio_dev *console_create(
	const struct dev_env *env, const struct console_config *cfg, struct err *e);
void console_destroy(struct virtio_dev *d); /* NULL is fine */
/* Input for the guest: how much was taken. */
size_t console_input(struct virtio_dev *d, const void *p, size_t n);
