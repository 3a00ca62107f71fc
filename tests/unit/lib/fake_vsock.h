/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_vsock.h: the guest's side of a vsock device for tests: receive buffers like Linux posts
 * them, packets in and out.
 */
#pragma once

#include "tests/unit/lib/fake_guest.h"
#include "vmm/vsock_impl.h"

#define FV_BUF    3776u /* what a Linux guest's receive buffer holds */
#define FV_NBUFS  64u
#define FV_NEVENT 8u

struct fake_vsock {
	struct fake_guest g;
	struct virtio_dev *d;
	char path[64];
	uint64_t rx[FV_NBUFS], tx, ev;
	uint16_t rx_head[FG_QMAX]; /* head -> buffer */
	struct {
		uint32_t hport, gport;
		int fd;
	} conns[64];
	unsigned int nconns;
	uint8_t payload[FV_BUF]; /* of the last packet received */
};

bool fv_up(struct fake_vsock *f, unsigned int max_streams);
void fv_down(struct fake_vsock *f);
/* Buffers into the queues of a driver that has just started. */
void fv_fill(struct fake_vsock *f);
/* A client of the Unix socket that has said its port; non-blocking. */
int fv_client(struct fake_vsock *f, uint32_t port);
/* The same, and the device has not looked at its sockets since. */
int fv_client_unheard(struct fake_vsock *f, uint32_t port);
/* One packet to the device. */
void fv_send(struct fake_vsock *f, uint16_t op, uint32_t gport, uint32_t hport, const void *data,
	uint32_t len, uint32_t flags, uint32_t fwd_cnt);
/* The next packet from the device: false if there is none. Its buffer goes back to the queue
 * (without a kick). */
bool fv_recv(struct fake_vsock *f, struct vsock_hdr *h);
/* Connects a client and plays the guest that accepts: the header of the request, or op 0. */
int fv_open(struct fake_vsock *f, uint32_t port, struct vsock_hdr *req);
