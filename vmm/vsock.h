/* SPDX-License-Identifier: Apache-2.0
 *
 * vsock.h: the virtio socket device, in user space. mayfly-vmm, the device thread; callbacks come
 * with the device's lock held and must not call back into it.
 *
 * Host to guest: a client connects to the listening Unix socket and sends a port (struct
 * vsock_open of lib/proto_vmm.h). Guest to host: ports of the allow-list only; the other end of a
 * socketpair is handed to guest_conn. Streams keep half-closes. No stream survives a restore: the
 * guest gets an event, and new connections wait until the guest has made the event's buffer
 * available again.
 */
#pragma once

#include "lib/proto_vmm.h"
#include "vmm/virtio.h"

#define VSOCK_STREAMS_MAX 512u /* default; the guest may open a quarter of them */
#define VSOCK_BUF_BYTES                                                                            \
	KIB(256) /* what a guest may send ahead of a slow peer, per stream: memory used only then  \
		  */
#define VSOCK_PORTS_MAX 32u

struct vsock_config {
	int listen_fd;            /* taken, also on failure; -1: none. Made non-blocking. */
	unsigned int max_streams; /* 0: the default */
	void *ctx;
	void (*guest_conn)(
		void *ctx, uint32_t host_port, uint32_t guest_port, int fd); /* takes fd */
};

/* NULL: e says why. */
struct virtio_dev *vsock_create(
	const struct dev_env *env, const struct vsock_config *cfg, struct err *e);
void vsock_destroy(struct virtio_dev *d); /* NULL is fine */
/* The guest-to-host ports from now on, beside VSOCK_PORT_READY, which is always open. -E2BIG. */
int vsock_allow(struct virtio_dev *d, const uint32_t *ports, unsigned int n);
