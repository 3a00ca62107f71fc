/* SPDX-License-Identifier: Apache-2.0
 *
 * vnet.h: the virtio network device: one queue pair, mergeable buffers, an MTU of 65520, so that
 * no segmentation offload is needed. mayfly-vmm, the device thread. Packets go between guest
 * buffers and one SOCK_SEQPACKET to mayfly-net (lib/proto_net.h), one message each, without a copy
 * here.
 *
 * There is no mayfly-net before the guest's first frame. The device then asks for one (`wanted`),
 * and the frame waits in the guest's own queue until vnet_link(). When the peer closes the link,
 * the next frame asks again. Without a link, multicast frames are dropped and ask for nothing. A
 * snapshot has no link, so a restored guest begins like this, too.
 */
#pragma once

#include "lib/proto_net.h"
#include "vmm/virtio.h"

#define VNET_QUEUE       256u
#define VNET_TURN        32u           /* packets in one turn, each way */
#define VNET_PATIENCE_MS 5000u         /* how long frames wait for a link; then they are dropped */
#define VNET_ASK_NS      1000000000ull /* least time between two calls of wanted() */

struct vnet_config {
	void *ctx;
	/* The guest sent a frame and there is no link. With the device's lock held; must not block or call back. */
	void (*wanted)(void *ctx);
};

/* Limits of one direction; 0: none. */
struct vnet_limits {
	uint64_t bytes_per_s, packets_per_s;
};

/* NULL: e says why. */
struct virtio_dev *vnet_create(
	const struct dev_env *env, const struct vnet_config *cfg, struct err *e);
void vnet_destroy(struct virtio_dev *d); /* NULL is fine */
/* Gives the device a link, after wanted() or instead of an old link. Takes fd. -1: there is no
 * network: frames are dropped until the next link or restore. */
int vnet_link(struct virtio_dev *d, int fd, const struct vnet_limits *l);
