/* SPDX-License-Identifier: Apache-2.0
 *
 * vfs.h: virtio-fs: carries FUSE messages between the guest and mayfly-fs (lib/proto_fs.h).
 * mayfly-vmm, device thread.
 *
 * The device copies each request out of guest memory into a socket, and each reply from the socket
 * into guest memory. Of a message it reads only the FUSE request id, for an error reply. Requests
 * wait while there is no server. When a server dies, the requests that it had get EIO, the others
 * wait for the next server. A stop of the VM waits until all requests have their replies, at most
 * VFS_STOP_MS. Then the requests without one get EIO, too, also those that no server has.
 */
#pragma once

#include "lib/proto_fs.h"
#include "vmm/device.h"

#define VFS_STOP_MS 5000u

struct vfs_config {
	void *ctx;
	/* the server's socket ended, or the server broke a rule: why is a literal. The device's lock is held. */
	void (*lost)(void *ctx, const char *why);
	unsigned int stop_ms; /* 0: VFS_STOP_MS */
};

struct virtio_dev *vfs_create(
	const struct dev_env *env, const struct vfs_config *cfg, struct err *e);
void vfs_destroy(struct virtio_dev *d);
/* Gives the device a server. Takes the socket and makes it non-blocking. -EBUSY: there is a
 * server. */
int vfs_attach(struct virtio_dev *d, int sock);
