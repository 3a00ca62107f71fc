/* SPDX-License-Identifier: Apache-2.0
 *
 * rng.h: the virtio entropy device: the host kernel's getrandom, straight into guest memory, at
 * most RNG_RATE bytes a second. mayfly-vmm, the device thread.
 */
#pragma once

#include "vmm/virtio.h"

#define RNG_BURST   KIB(64) /* at once; a boot wants a few hundred bytes */
#define RNG_RATE    MIB(1)  /* a second, from then on */
#define RNG_REQUEST KIB(16) /* most for one chain */
#define RNG_LEAST   64u     /* a smaller request counts as this much: it is work, too */

/* NULL: e says why. */
struct virtio_dev *rng_create(const struct dev_env *env, struct err *e);
void rng_destroy(struct virtio_dev *d); /* NULL is fine */
