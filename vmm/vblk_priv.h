/* SPDX-License-Identifier: Apache-2.0
 *
 * vblk_priv.h: the inside of a block device, shared by vblk.c (the start of requests, the device)
 * and vblk_io.c (operations, flush, the end of requests).
 *
 * A request is cut into operations (struct vop), each on one file. vblk_advance() issues as many
 * as it can, and is called again when one has ended. It waits only for something that an operation
 * in flight holds (a struct vop, a page, a unit that is being copied up), so it cannot wait for
 * ever. An operation that writes a part of a unit that is not private yet, or that discards a
 * unit, has the unit for itself (`alone`). Other writes may overlap each other, as on any disk.
 */
#pragma once

#include <sys/queue.h>

#include "lib/log.h"
#include "vmm/vblk.h"

#define SECTOR        512u
#define SEG_MAX       126u
#define RANGES        (SEG_MAX + 2)
#define OP_RANGES     32u
#define PAGES         16u /* copy-ups at once */
#define DISCARD_SEGS  32u
#define DISCARD_BYTES GIB(1) /* a quarter of a million units to mark: about a millisecond */

enum op_kind { OP_READ, OP_WRITE, OP_UP_READ, OP_UP_WRITE, OP_PUNCH };

struct vreq;

struct vop {
	struct bio_op bio;
	struct vblk *b;
	struct vreq *r;
	enum op_kind kind;
	uint64_t off; /* on the disk */
	uint32_t len;
	uint32_t data_at; /* in the request's data; UINT32_MAX: zeros */
	bool alone, listed;
	void *page;            /* copy-up */
	TAILQ_ENTRY(vop) list; /* free, or b->writes */
	struct iovec iov[OP_RANGES];
};

struct vseg {
	uint64_t off, len;
};

struct vreq {
	struct vblk *b;
	TAILQ_ENTRY(vreq) list; /* free, waiting, flush_next, flush_now, parked */
	uint32_t type;
	uint16_t head, nout, nin;
	uint32_t in_bytes;
	uint8_t status;
	bool used, dead, waits;
	bool full; /* the host has no room for it: the whole request is tried again later */
	const struct iovec *data; /* ranges of the data */
	uint16_t ndata;
	uint32_t skip;    /* bytes of the first of them that are not data */
	uint64_t off;     /* on the disk */
	uint64_t len, at; /* bytes of data; bytes issued so far (discard: of segs[seg] only) */
	uint64_t work;    /* bytes of all its segments; bytes in two segments count twice */
	uint32_t written; /* into guest memory */
	unsigned int pending, nseg, seg;
	struct vseg segs[DISCARD_SEGS];
	struct iovec iov[RANGES];
};

/* A caller of vblk_finish_freeze() that waits for a flush. */
struct vsettle {
	void (*done)(void *arg, int status);
	void *arg;
	bool now, over; /* now: the flush in flight is for this caller; over: it has ended */
	int status;
};

TAILQ_HEAD(vreq_list, vreq);
TAILQ_HEAD(vop_list, vop);

struct vblk {
	struct virtio_dev dev;
	struct cow *cow;
	struct bio *bio;
	uint64_t sectors;
	char serial[VBLK_SERIAL_BYTES + 1];
	struct vreq *reqs;
	struct vop *ops;
	uint8_t *pages;
	void *free_page[PAGES];
	unsigned int nreqs, nops; /* used so far; the rest of reqs and ops was never touched */
	unsigned int nfree_pages, nactive, nalone;
	struct vreq_list free, waiting, flush_next, flush_now;
	/* Requests that wait until the host has room. They are neither active nor in flight: a stop does not wait for them, and a
	 * snapshot has the heads of their chains. */
	struct vreq_list parked;
	struct vpark {
		struct timer *retry;
		unsigned int n;
		bool stopped, told;
		struct log_limit limit;
		uint16_t heads[VBLK_QUEUE_MAX], nheads; /* of a snapshot: to be started again */
	} park;
	struct vop_list free_ops, writes;
	bool flushing, was_full;
	struct bio_op flush_bio;
	struct iovec flush_iov;
	uint32_t flush_len;
	void (*quiet)(void *);
	void *quiet_arg;
	struct vsettle settle;
	uint64_t n_read, n_written, n_flush, n_discard, n_errors, n_copy_up, n_bad;
};

/* Tries the parked requests again. */
void vblk_unpark(struct vblk *b);
/* Is a write in flight that touches this unit? */
bool vblk_unit_busy(const struct vblk *b, uint64_t unit);
/* Issues operations of a request, as many as it can; ends the request when all have ended. */
void vblk_advance(struct vblk *b, struct vreq *r);
/* Gives the request's status to the guest, and frees the request. */
void vblk_req_done(struct vblk *b, struct vreq *r);
/* Starts a flush for all in flush_next, unless one runs. */
void vblk_flush_start(struct vblk *b);
void vblk_flush_done(struct bio_op *bio, int res);
