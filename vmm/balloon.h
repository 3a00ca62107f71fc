/* SPDX-License-Identifier: Apache-2.0
 *
 * balloon.h: the virtio memory balloon: memory that the guest does not use goes back to the host. mayfly-vmm, the device thread.
 *
 * Free page reporting: the guest's kernel names free pages by itself, some seconds after they were freed. Inflating: the host asks for an
 * amount (balloon_set_target), and the guest gives pages away until it has reached it. The guest takes them back by itself before it
 * kills a process for want of memory.
 */
#pragma once

#include "vmm/virtio.h"

/* At most this much of a report is given back in one turn, then the other devices have theirs. */
#define BALLOON_TURN_BYTES MIB(16)
/* Most page numbers in one chain. Linux sends 256. */
#define BALLOON_PFNS_MAX 1024u
/* Most ranges in one chain. Linux sends 32. */
#define BALLOON_RANGES_MAX 128u

/* NULL: e says why. */
struct virtio_dev *balloon_create(const struct dev_env *env, struct err *e);
void balloon_destroy(struct virtio_dev *d); /* NULL is fine */
/* Asks the guest to give away this much in all: it gives more, or takes some back. Rounded down to
 * whole pages; at most all of its memory. */
void balloon_set_target(struct virtio_dev *d, uint64_t bytes);
/* What the guest says that it has given away. Nothing depends on it. */
uint64_t balloon_actual(struct virtio_dev *d);
