/* SPDX-License-Identifier: Apache-2.0
 *
 * virtq.h: one split virtqueue (virtio 1.2, 2.7) seen from the device. mayfly-vmm; under the
 * device's lock. Everything in the three rings is the guest's and changes under us: each descriptor
 * is copied once, checked, and only the copy is used. A chain is handed out as ranges of guest
 * memory, ready for readv/writev. Nothing here allocates.
 */
#pragma once

#include <sys/uio.h>

#include "lib/base.h"
#include "vmm/mem.h"

#define VIRTQ_MAX_SIZE 1024u /* largest ring any device may offer */

struct virtq {
	const struct mem *mem;
	uint16_t max;  /* offered */
	uint16_t size; /* chosen by the driver: power of two, <= max */
	bool ready;
	bool event_idx, indirect; /* negotiated */
	gpa_t desc_gpa, avail_gpa, used_gpa;
	/* valid while ready: checked once, RAM does not move */
	const uint8_t *desc;
	const uint16_t *avail; /* flags, idx, ring[size], used_event */
	uint16_t *used;        /* flags, idx, {u32 id, u32 len}[size], avail_event */
	uint16_t last_avail;   /* next entry to take */
	uint16_t used_idx;     /* next entry to give back; the guest sees it after virtq_publish */
	uint16_t shown_used;   /* the used index that the guest sees */
	bool signal_always;    /* the next publish interrupts: an earlier interrupt may be lost */
	uint16_t inflight;     /* chains taken and not given back: never more than size */
	const char *why;       /* what was wrong, after a call returned -EPROTO */
	uint64_t chains;       /* taken, for the statistics */
};

/* The caller brings the array; ranges [0, nout) are for the device to read, [nout, nout + nin) to
 * write. */
struct virtq_chain {
	struct iovec *iov;
	uint16_t cap;
	uint16_t head;
	uint16_t nout, nin;
	uint32_t out_bytes, in_bytes;
};

void virtq_init(struct virtq *q, const struct mem *m, uint16_t max);
/* Forgets everything but the maximum. */
void virtq_reset(struct virtq *q);
/* Checks size and addresses and makes the queue ready. 0, or -EPROTO and `why`. */
int virtq_enable(struct virtq *q);

/* The number of chains that wait, or -EPROTO. */
int virtq_pending(struct virtq *q);
/* Takes the next chain: 1, 0 if there is none, -EPROTO (the device is broken then). A chain of more
 * than cap ranges is broken. */
int virtq_pop(struct virtq *q, struct virtq_chain *c);
/* After a restore: takes the chain at this head again, which was taken before the snapshot and not
 * given back. 1 or -EPROTO. */
int virtq_take(struct virtq *q, uint16_t head, struct virtq_chain *c);
/* Undoes the last n virtq_pop() calls: their chains are in the ring as if never taken. None of them
 * may have been given to virtq_push(). */
void virtq_unpop(struct virtq *q, uint16_t n);
/* Gives a chain back with the number of bytes that were written into it. Not visible before
 * virtq_publish. */
void virtq_push(struct virtq *q, uint16_t head, uint32_t written);
/* Makes the chains that were given back visible to the guest; true if it wants an interrupt. */
bool virtq_publish(struct virtq *q);

/* Asks the guest to kick for the next chain; true if one is there already (no kick will come for
 * it). */
bool virtq_arm(struct virtq *q);
/* The same for a chain beyond those that wait already; true if one has come meanwhile. */
bool virtq_arm_beyond(struct virtq *q);
/* Kicks are not wanted just now: a hint, they may come. */
void virtq_disarm(struct virtq *q);

static inline const struct iovec *virtq_out(const struct virtq_chain *c)
{
	return c->iov;
}
static inline const struct iovec *virtq_in(const struct virtq_chain *c)
{
	return c->iov + c->nout;
}

/* Ranges: copy from / to byte `off` on; the number of bytes copied (less only where the ranges
 * end). */
size_t iov_read(const struct iovec *v, unsigned int n, size_t off, void *to, size_t len);
size_t iov_write(const struct iovec *v, unsigned int n, size_t off, const void *from, size_t len);
/* Writes the ranges that hold bytes [off, off + len) to dst, at most cap of them. Returns their
 * number; *bytes: how many bytes they hold. */
unsigned int iov_slice(const struct iovec *v, unsigned int n, size_t off, size_t len,
	struct iovec *dst, unsigned int cap, size_t *bytes);
