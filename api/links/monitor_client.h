/* SPDX-License-Identifier: Apache-2.0
 *
 * monitor_client.h: the host's side of lib/proto_vmm.h: one connection to one mayfly-vmm, asynchronous on
 * the loop. The VMM faces its guest and may be taken over by it: every message is checked, and one
 * that breaks the protocol ends the connection.
 */
#pragma once

#include "lib/buf.h"
#include "lib/loop.h"
#include "lib/proto_vmm.h"

struct vmmctl;

struct vmm_answer {
	int err; /* 0 or a positive errno; ECONNRESET: the connection ended before the answer */
	const char *text; /* err != 0: for humans, printable; "" if none */
	struct cur body;  /* err == 0 */
};
typedef void (*vmmctl_fn)(void *arg, const struct vmm_answer *a);

struct vmmctl_ops {
	/* fd: taken by the callee if >= 0 */
	void (*event)(void *arg, uint16_t type, struct cur *body, int fd);
	/* the peer ended it, or broke the protocol; no event follows. Requests without an answer end in vmmctl_destroy(). */
	void (*closed)(void *arg);
};

/* path: the VM's control socket. Connecting does not block. NULL: errno. */
struct vmmctl *vmmctl_connect(
	struct loop *l, const char *path, const struct vmmctl_ops *ops, void *arg);
/* the same on a connected SOCK_SEQPACKET descriptor (taken on success) */
struct vmmctl *vmmctl_create(struct loop *l, int fd, const struct vmmctl_ops *ops, void *arg);
/* Calls that wait get ECONNRESET from inside this call. */
void vmmctl_destroy(struct vmmctl *v);
/* fds are lent. fn may be NULL. 0 or -errno, then fn is not called. */
int vmmctl_call(struct vmmctl *v, uint16_t type, const struct buf *payload, const int *fds,
	size_t nfds, vmmctl_fn fn, void *arg);
/* To be called when the process has ended: reads what it sent before. A callback may free v. NULL is fine. */
void vmmctl_drain(struct vmmctl *v);
/* Callbacks of calls with this arg are not called any more; their answers are dropped. v may be
 * NULL. */
void vmmctl_forget(struct vmmctl *v, const void *arg);
