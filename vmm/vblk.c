/* SPDX-License-Identifier: Apache-2.0
 *
 * vblk.c: virtio-blk: requests from the queue to a layered disk and back. mayfly-vmm, device
 * thread, under the device's lock. Hostile: the chain, the header, sectors and lengths, the
 * segments of discards; each is copied once, checked, and the copy is used.
 *
 * A request is cut into operations (struct vop), each on one file: req_advance issues as many as it
 * can, and is called again when one has ended. What it has to wait for is always something in
 * flight (an operation's memory, a page, a unit that is being copied up), so waiting cannot last
 * for ever. An operation that makes a unit private from a part of it, or takes it away, has that
 * unit for itself (`alone`); plain writes may overlap each other, as on any disk.
 */
#include "vmm/vblk.h"

#include <endian.h>
#include <stdio.h>
#include <string.h>
#include <sys/queue.h>

#include "lib/log.h"

#define SECTOR        512u
#define SEG_MAX       126u
#define RANGES        (SEG_MAX + 2)
#define OP_RANGES     32u
#define PAGES         16u /* copy-ups at once */
#define DISCARD_SEGS  32u
#define DISCARD_BYTES GIB(1) /* a quarter of a million units to mark: about a millisecond */
#define BUDGET        64u    /* chains per kick */
#define STATE_VERSION 1u

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
	TAILQ_ENTRY(vreq) list; /* free, waiting, flush_next, flush_now */
	uint32_t type;
	uint16_t head, nout, nin;
	uint32_t in_bytes;
	uint8_t status;
	bool used, dead, waits;
	const struct iovec *data; /* ranges of the data */
	uint16_t ndata;
	uint32_t skip;    /* bytes of the first of them that are not data */
	uint64_t off;     /* on the disk */
	uint64_t len, at; /* data: all, and issued so far; discard: of the segment */
	uint32_t written; /* into guest memory */
	unsigned int pending, nseg, seg;
	struct vseg segs[DISCARD_SEGS];
	struct iovec iov[RANGES];
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
	unsigned int nreqs, nops; /* touched so far: an idle disk's pools cost no memory */
	unsigned int nfree_pages, nactive, nalone;
	struct vreq_list free, waiting, flush_next, flush_now;
	struct vop_list free_ops, writes;
	bool flushing, was_full;
	struct bio_op flush_bio;
	struct iovec flush_iov;
	uint32_t flush_len;
	void (*quiet)(void *);
	void *quiet_arg;
	uint64_t n_read, n_written, n_flush, n_discard, n_errors, n_copy_up, n_bad;
};

static struct vblk *vblk_of(struct virtio_dev *d)
{
	return container_of(d, struct vblk, dev);
}

static void req_advance(struct vblk *b, struct vreq *r);
static void op_done(struct bio_op *bio, int res);

/* ---- the end of requests */

static void req_done(struct vblk *b, struct vreq *r)
{
	if (!r->dead && !b->dev.reset_due) {
		iov_write(r->iov + r->nout, r->nin, r->in_bytes - 1, &r->status, 1);
		virtq_push(&b->dev.queue[0], r->head, r->written + 1);
	}
	if (r->status != VIRTIO_BLK_S_OK)
		b->n_errors++;
	r->used = false;
	TAILQ_INSERT_HEAD(&b->free, r, list);
	b->nactive--;
	if (b->was_full) {
		b->was_full = false;
		virtio_again(&b->dev);
	}
}

static void flush_start(struct vblk *b);

static void req_end(struct vblk *b, struct vreq *r)
{
	/* a driver that did not take VIRTIO_BLK_F_FLUSH expects that what is written is safe */
	if (r->type == VIRTIO_BLK_T_OUT && r->status == VIRTIO_BLK_S_OK &&
		!(b->dev.features & 1ull << VIRTIO_BLK_F_FLUSH)) {
		TAILQ_INSERT_TAIL(&b->flush_next, r, list);
		flush_start(b);
		return;
	}
	req_done(b, r);
}

static void req_fail(struct vblk *b, struct vreq *r, int err, const char *what)
{
	if (r->status == VIRTIO_BLK_S_OK)
		log_limited(LOG_WARN, "disk %u: %s at %llu: %s", b->dev.slot - SLOT_DISK0, what,
			(unsigned long long)r->off, strerror(-err));
	r->status = VIRTIO_BLK_S_IOERR;
	r->at = r->len;
	r->seg = r->nseg;
}

static void req_wait(struct vblk *b, struct vreq *r)
{
	if (r->waits)
		return;
	r->waits = true;
	TAILQ_INSERT_TAIL(&b->waiting, r, list);
}

static void wake_waiting(struct vblk *b)
{
	struct vreq_list l = TAILQ_HEAD_INITIALIZER(l);
	struct vreq *r;

	TAILQ_CONCAT(&l, &b->waiting, list);
	while ((r = TAILQ_FIRST(&l))) {
		TAILQ_REMOVE(&l, r, list);
		r->waits = false;
		req_advance(b, r);
	}
}

/* ---- operations */

static bool conflicts(const struct vblk *b, uint64_t off, uint64_t len, bool alone)
{
	const struct vop *o;
	uint64_t first = off / COW_UNIT, last = (off + len - 1) / COW_UNIT;

	if (!alone && !b->nalone)
		return false;
	TAILQ_FOREACH(o, &b->writes, list)
	if ((alone || o->alone) && o->off / COW_UNIT <= last &&
		(o->off + o->len - 1) / COW_UNIT >= first)
		return true;
	return false;
}

static struct vop *op_get(
	struct vblk *b, struct vreq *r, enum op_kind kind, uint64_t off, uint64_t len)
{
	struct vop *o = TAILQ_FIRST(&b->free_ops);

	if (o) {
		TAILQ_REMOVE(&b->free_ops, o, list);
	} else {
		if (b->nops == VBLK_MAX_OPS)
			return NULL;
		o = &b->ops[b->nops++];
		o->b = b;
		o->bio.done = op_done;
	}
	o->r = r;
	o->kind = kind;
	o->off = off;
	o->len = (uint32_t)len;
	o->alone = o->listed = false;
	o->page = NULL;
	return o;
}

static void op_list(struct vblk *b, struct vop *o, bool alone)
{
	o->listed = true;
	o->alone = alone;
	b->nalone += alone;
	TAILQ_INSERT_TAIL(&b->writes, o, list);
}

static void op_put(struct vblk *b, struct vop *o)
{
	if (o->listed) {
		b->nalone -= o->alone;
		TAILQ_REMOVE(&b->writes, o, list);
	}
	if (o->page)
		b->free_page[b->nfree_pages++] = o->page;
	TAILQ_INSERT_HEAD(&b->free_ops, o, list);
}

static void op_send(struct vblk *b, struct vop *o, enum bio_kind kind, int fd, unsigned int niov,
	uint64_t off, uint64_t len)
{
	o->bio.kind = kind;
	o->bio.fd = fd;
	o->bio.iov = o->iov;
	o->bio.niov = niov;
	o->bio.off = off;
	o->bio.len = len;
	bio_submit(b->bio, &o->bio);
}

static int data_fd(const struct vblk *b)
{
	return cow_file(b->cow, cow_data_file(b->cow));
}

/* Puts the request's bytes over the page, and writes it. */
static void copy_up_write(struct vblk *b, struct vop *o)
{
	uint8_t *at = (uint8_t *)o->page + o->off % COW_UNIT;

	if (o->data_at == UINT32_MAX)
		memset(at, 0, o->len);
	else
		iov_read(o->r->data, o->r->ndata, o->r->skip + o->data_at, at, o->len);
	o->kind = OP_UP_WRITE;
	o->iov[0] = (struct iovec){o->page, COW_UNIT};
	op_send(b, o, BIO_WRITE, data_fd(b), 1, ALIGN_DOWN(o->off, (uint64_t)COW_UNIT), 0);
}

/* A part of one unit becomes private: the unit is read, changed and written whole. data_at as in
 * struct vop. False: wait. */
static bool copy_up(struct vblk *b, struct vreq *r, uint64_t off, uint32_t len, uint32_t data_at)
{
	uint64_t unit = ALIGN_DOWN(off, (uint64_t)COW_UNIT);
	struct cow_run run;
	struct vop *o;
	int rc = cow_map(b->cow, unit, COW_UNIT, &run);

	if (rc < 0) {
		req_fail(b, r, rc, "copy-up");
		return true;
	}
	if (!b->nfree_pages || conflicts(b, off, len, true) ||
		!(o = op_get(b, r, OP_UP_READ, off, len)))
		return false;
	op_list(b, o, true);
	o->page = b->free_page[--b->nfree_pages];
	o->data_at = data_at;
	r->pending++;
	b->n_copy_up++;
	/* where the base ends within the unit, zeros follow */
	memset((uint8_t *)o->page, 0, COW_UNIT);
	if (run.file == COW_ZEROS) {
		copy_up_write(b, o);
		return true;
	}
	o->iov[0] = (struct iovec){o->page, run.len};
	op_send(b, o, BIO_READ, cow_file(b->cow, run.file), 1, run.off, 0);
	return true;
}

static void zero_ranges(const struct vreq *r, uint64_t at, uint64_t len)
{
	struct iovec v[OP_RANGES];
	size_t n;

	while (len > 0) {
		unsigned int k = iov_slice(r->data, r->ndata, r->skip + at, len, v, OP_RANGES, &n);

		if (n == 0)
			return;
		for (unsigned int i = 0; i < k; i++)
			memset(v[i].iov_base, 0, v[i].iov_len);
		at += n;
		len -= n;
	}
}

/* One step of a read or write from r->at on. False: wait. */
static bool step_read(struct vblk *b, struct vreq *r)
{
	struct cow_run run;
	struct vop *o;
	unsigned int n;
	size_t bytes;
	int rc = cow_map(b->cow, r->off + r->at, r->len - r->at, &run);

	if (rc < 0) {
		req_fail(b, r, rc, "read");
		return true;
	}
	if (run.file == COW_ZEROS) {
		zero_ranges(r, r->at, run.len);
		r->at += run.len;
		return true;
	}
	if (!(o = op_get(b, r, OP_READ, run.off, 0)))
		return false;
	n = iov_slice(r->data, r->ndata, r->skip + r->at, run.len, o->iov, OP_RANGES, &bytes);
	o->data_at = (uint32_t)r->at;
	o->len = (uint32_t)bytes;
	r->at += bytes;
	r->pending++;
	op_send(b, o, BIO_READ, cow_file(b->cow, run.file), n, run.off, 0);
	return true;
}

static bool step_write(struct vblk *b, struct vreq *r)
{
	uint64_t off = r->off + r->at, len;
	struct vop *o;
	unsigned int n;
	size_t bytes;

	if (!cow_write_plan(b->cow, off, r->len - r->at, &len)) {
		if (!copy_up(b, r, off, (uint32_t)len, (uint32_t)r->at))
			return false;
		r->at = MIN(r->at + len, r->len);
		return true;
	}
	if (!(o = op_get(b, r, OP_WRITE, off, 0)))
		return false;
	n = iov_slice(r->data, r->ndata, r->skip + r->at, len, o->iov, OP_RANGES, &bytes);
	/* cut by the number of ranges, it must still end where a whole unit does: the rest would be
	 * copied up for nothing */
	if (bytes < len && bytes > COW_UNIT && (off + bytes) % COW_UNIT) {
		bytes -= (off + bytes) % COW_UNIT;
		n = iov_slice(r->data, r->ndata, r->skip + r->at, bytes, o->iov, OP_RANGES, &bytes);
	}
	/* ranges so small that 32 of them are less than a unit: through a page, if the unit is not
	 * private yet */
	if (!cow_write_plan(b->cow, off, bytes, &len) || len < bytes) {
		len = MIN(COW_UNIT - off % COW_UNIT, r->len - r->at);
		op_put(b, o);
		if (!copy_up(b, r, off, (uint32_t)len, (uint32_t)r->at))
			return false;
		r->at = MIN(r->at + len, r->len);
		return true;
	}
	if (conflicts(b, off, bytes, false)) {
		op_put(b, o);
		return false;
	}
	o->data_at = (uint32_t)r->at;
	o->len = (uint32_t)bytes;
	op_list(b, o, false);
	r->at += bytes;
	r->pending++;
	op_send(b, o, BIO_WRITE, data_fd(b), n, off, 0);
	return true;
}

/* One step of a discard or write-zeroes. */
static bool step_zero(struct vblk *b, struct vreq *r)
{
	const struct vseg *s = &r->segs[r->seg];
	uint64_t off = s->off + r->at, left = s->len - r->at, part;
	struct vop *o;

	if (left == 0) {
		r->seg++;
		r->at = 0;
		return true;
	}
	part = MIN(left, COW_UNIT - off % COW_UNIT);
	if (part < COW_UNIT) {
		/* a discard is a hint: what is not a whole unit may stay */
		if (r->type == VIRTIO_BLK_T_WRITE_ZEROES &&
			!copy_up(b, r, off, (uint32_t)part, UINT32_MAX))
			return false;
		r->at += r->status == VIRTIO_BLK_S_OK ? part : 0;
		return true;
	}
	part = ALIGN_DOWN(left, (uint64_t)COW_UNIT);
	if (conflicts(b, off, part, true) || !(o = op_get(b, r, OP_PUNCH, off, part)))
		return false;
	r->at += part;
	if (cow_mark_zero(b->cow, off, part) == 0) {
		op_put(b, o);
		return true;
	}
	op_list(b, o, true);
	r->pending++;
	op_send(b, o, BIO_PUNCH, data_fd(b), 0, off, part);
	return true;
}

static void req_advance(struct vblk *b, struct vreq *r)
{
	bool go = true;

	switch (r->type) {
	case VIRTIO_BLK_T_IN:
		while (go && r->at < r->len)
			go = step_read(b, r);
		break;
	case VIRTIO_BLK_T_OUT:
		while (go && r->at < r->len)
			go = step_write(b, r);
		break;
	default:
		while (go && r->seg < r->nseg)
			go = step_zero(b, r);
	}
	if (!go)
		req_wait(b, r);
	else if (r->pending == 0)
		req_end(b, r);
}

/* A read or write that moved fewer bytes than asked goes on where it stopped. True: it was sent
 * again. */
static bool op_rest(struct vblk *b, struct vop *o, int res)
{
	size_t bytes;
	unsigned int n;

	if (res <= 0 || (uint32_t)res >= o->len)
		return false;
	n = iov_slice(o->r->data, o->r->ndata, o->r->skip + o->data_at + (size_t)res,
		o->len - (size_t)res, o->iov, OP_RANGES, &bytes);
	if (o->kind == OP_WRITE && res >= (int)COW_UNIT)
		cow_mark_written(b->cow, o->off,
			ALIGN_DOWN(o->off + (uint64_t)res, (uint64_t)COW_UNIT) - o->off);
	o->off += (uint64_t)res;
	o->data_at += (uint32_t)res;
	o->len = (uint32_t)bytes;
	op_send(b, o, o->bio.kind, o->bio.fd, n, o->off, 0);
	return true;
}

static void quiet_if_due(struct vblk *b, void (**done)(void *), void **arg)
{
	*done = NULL;
	if (!b->quiet || b->nactive || b->flushing)
		return;
	*done = b->quiet;
	*arg = b->quiet_arg;
	b->quiet = NULL;
}

/* What every completion does last: lets others go on, interrupts, unlocks; then, unlocked, says
 * that all is quiet. */
static void turn_end(struct vblk *b)
{
	void (*done)(void *);
	void *arg;

	wake_waiting(b);
	bio_go(b->bio);
	virtio_signal(&b->dev);
	quiet_if_due(b, &done, &arg);
	virtio_unlock(&b->dev);
	if (done)
		done(arg);
}

static void op_done(struct bio_op *bio, int res)
{
	struct vop *o = container_of(bio, struct vop, bio);
	struct vblk *b = o->b;
	struct vreq *r = o->r;
	bool again = false;

	virtio_lock(&b->dev);
	switch (o->kind) {
	case OP_READ:
		again = op_rest(b, o, res);
		if (res <= 0 && !again)
			req_fail(b, r, res ? res : -EIO, "read");
		break;
	case OP_WRITE:
		again = op_rest(b, o, res);
		if (res <= 0)
			req_fail(b, r, res ? res : -EIO, "write");
		else if (!again)
			cow_mark_written(b->cow, o->off, o->len);
		break;
	case OP_UP_READ:
		if (res == (int)o->iov[0].iov_len) {
			copy_up_write(b, o);
			again = true;
		} else {
			req_fail(b, r, res < 0 ? res : -EIO, "copy-up");
		}
		break;
	case OP_UP_WRITE:
		if (res == (int)COW_UNIT)
			cow_mark_written(b->cow, o->off, o->len);
		else
			req_fail(b, r, res < 0 ? res : -ENOSPC, "copy-up");
		break;
	case OP_PUNCH: /* only gives space back */
		break;
	}
	if (!again) {
		op_put(b, o);
		if (--r->pending == 0 && !r->waits)
			req_advance(b, r);
	}
	turn_end(b);
}

/* ---- flush */

static void flush_step(struct vblk *b)
{
	struct cow_step s;
	struct vreq *r;
	int rc;

	cow_flush_next(b->cow, &s);
	if (s.op != COW_STEP_END) {
		b->flush_iov = (struct iovec){(void *)(uintptr_t)s.p, s.len};
		b->flush_len = s.op == COW_STEP_WRITE ? s.len : 0;
		b->flush_bio.kind = s.op == COW_STEP_WRITE ? BIO_WRITE : BIO_SYNC;
		b->flush_bio.fd = s.fd;
		b->flush_bio.iov = &b->flush_iov;
		b->flush_bio.niov = 1;
		b->flush_bio.off = s.off;
		bio_submit(b->bio, &b->flush_bio);
		return;
	}
	rc = cow_flush_end(b->cow);
	b->flushing = false;
	while ((r = TAILQ_FIRST(&b->flush_now))) {
		TAILQ_REMOVE(&b->flush_now, r, list);
		if (rc < 0)
			req_fail(b, r, rc, "flush");
		req_done(b, r);
	}
}

static void flush_start(struct vblk *b)
{
	while (!b->flushing && !TAILQ_EMPTY(&b->flush_next)) {
		TAILQ_CONCAT(&b->flush_now, &b->flush_next, list);
		b->flushing = true;
		b->n_flush++;
		cow_flush_begin(b->cow);
		flush_step(b);
	}
}

static void flush_done(struct bio_op *bio, int res)
{
	struct vblk *b = container_of(bio, struct vblk, flush_bio);

	virtio_lock(&b->dev);
	if (res >= 0 && b->flush_len && (uint32_t)res != b->flush_len)
		res = -ENOSPC;
	cow_flush_did(b->cow, res < 0 ? res : 0);
	flush_step(b);
	flush_start(b);
	turn_end(b);
}

/* ---- the start of requests */

/* Where the data is, and that it lies on the disk. */
static bool data_is_good(struct vblk *b, struct vreq *r, uint64_t sector, uint64_t len)
{
	if (len % SECTOR || sector > b->sectors || len / SECTOR > b->sectors - sector)
		return false;
	r->off = sector * SECTOR;
	r->len = len;
	return true;
}

static uint8_t start_zero(struct vblk *b, struct vreq *r, uint32_t out_bytes)
{
	uint32_t n = (out_bytes - sizeof(struct virtio_blk_head)) / sizeof(struct virtio_blk_seg);
	bool wz = r->type == VIRTIO_BLK_T_WRITE_ZEROES;

	if (n == 0 || n > DISCARD_SEGS ||
		(out_bytes - sizeof(struct virtio_blk_head)) % sizeof(struct virtio_blk_seg))
		return VIRTIO_BLK_S_IOERR;
	for (uint32_t i = 0; i < n; i++) {
		struct virtio_blk_seg s;
		uint64_t sector, num;

		iov_read(r->iov, r->nout, sizeof(struct virtio_blk_head) + i * sizeof(s), &s,
			sizeof(s));
		sector = le64toh(s.sector_le);
		num = le32toh(s.sectors_le);
		if (le32toh(s.flags_le) & ~(wz ? VIRTIO_BLK_ZEROES_UNMAP : 0u))
			return VIRTIO_BLK_S_UNSUPP;
		if (num * SECTOR > DISCARD_BYTES || !data_is_good(b, r, sector, num * SECTOR))
			return VIRTIO_BLK_S_IOERR;
		r->segs[i] = (struct vseg){sector * SECTOR, num * SECTOR};
	}
	r->len = 0;
	r->nseg = n;
	b->n_discard++;
	return VIRTIO_BLK_S_OK;
}

/* Everything that can be said about a request at once. OK: req_advance has to do with it. */
static uint8_t req_parse(
	struct vblk *b, struct vreq *r, const struct virtio_blk_head *h, uint32_t out_bytes)
{
	bool ro = cow_is_read_only(b->cow) || (b->dev.ops->features & 1ull << VIRTIO_BLK_F_RO);

	r->type = le32toh(h->type_le);
	switch (r->type) {
	case VIRTIO_BLK_T_IN:
		r->data = r->iov + r->nout;
		r->ndata = r->nin;
		r->written = r->in_bytes - 1;
		b->n_read += r->written;
		return data_is_good(b, r, le64toh(h->sector_le), r->in_bytes - 1)
			       ? VIRTIO_BLK_S_OK
			       : VIRTIO_BLK_S_IOERR;
	case VIRTIO_BLK_T_OUT:
		r->data = r->iov;
		r->ndata = r->nout;
		r->skip = sizeof(*h);
		b->n_written += out_bytes - (uint32_t)sizeof(*h);
		return !ro && data_is_good(b, r, le64toh(h->sector_le), out_bytes - sizeof(*h))
			       ? VIRTIO_BLK_S_OK
			       : VIRTIO_BLK_S_IOERR;
	case VIRTIO_BLK_T_DISCARD:
	case VIRTIO_BLK_T_WRITE_ZEROES:
		return ro ? VIRTIO_BLK_S_UNSUPP : start_zero(b, r, out_bytes);
	case VIRTIO_BLK_T_GET_ID:
		r->written = (uint32_t)iov_write(r->iov + r->nout, r->nin, 0, b->serial,
			MIN(r->in_bytes - 1, VBLK_SERIAL_BYTES));
		return VIRTIO_BLK_S_OK;
	case VIRTIO_BLK_T_FLUSH:
		return VIRTIO_BLK_S_OK;
	default:
		return VIRTIO_BLK_S_UNSUPP;
	}
}

static struct vreq *req_get(struct vblk *b)
{
	struct vreq *r = TAILQ_FIRST(&b->free);

	if (r)
		TAILQ_REMOVE(&b->free, r, list);
	else if (b->nreqs < VBLK_QUEUE_MAX)
		r = &b->reqs[b->nreqs++];
	return r;
}

/* False: the chain has no room for a status, so it is not even a request; r was not used. */
static bool req_start(struct vblk *b, struct vreq *r, const struct virtq_chain *c)
{
	struct virtio_blk_head h = {0};

	if (c->in_bytes == 0)
		return false;
	r->head = c->head;
	r->nout = c->nout;
	r->nin = c->nin;
	r->in_bytes = c->in_bytes;
	r->used = true;
	r->dead = r->waits = false;
	r->skip = r->written = 0;
	r->len = r->at = r->off = 0;
	r->pending = r->nseg = r->seg = 0;
	b->nactive++;
	if (c->out_bytes < sizeof(h)) {
		r->type = UINT32_MAX;
		r->status = VIRTIO_BLK_S_IOERR;
	} else {
		iov_read(r->iov, r->nout, 0, &h, sizeof(h));
		r->status = req_parse(b, r, &h, c->out_bytes);
	}
	if (r->status != VIRTIO_BLK_S_OK) {
		b->n_bad++;
		req_done(b, r);
	} else if (r->type == VIRTIO_BLK_T_FLUSH && !cow_is_read_only(b->cow)) {
		TAILQ_INSERT_TAIL(&b->flush_next, r, list);
		flush_start(b);
	} else {
		req_advance(b, r);
	}
	return true;
}

static bool vblk_kick(struct virtio_dev *d, unsigned int queue)
{
	struct vblk *b = vblk_of(d);
	struct virtq *q = &d->queue[queue];
	unsigned int left = BUDGET;
	int rc;

	do {
		for (;;) {
			struct vreq *r = req_get(b);
			struct virtq_chain c;

			if (!r) { /* requests from before a reset hold them: req_done calls again */
				b->was_full = true;
				bio_go(b->bio);
				return false;
			}
			c = (struct virtq_chain){.iov = r->iov, .cap = RANGES};
			rc = virtq_pop(q, &c);
			if (rc <= 0 || !req_start(b, r, &c))
				TAILQ_INSERT_HEAD(&b->free, r, list);
			if (rc <= 0)
				break;
			if (!c.in_bytes) {
				virtio_broken(d, "a request without room for its status");
				bio_go(b->bio);
				return false;
			}
			if (--left == 0) {
				bio_go(b->bio);
				return true;
			}
		}
		if (rc < 0)
			virtio_broken(d, q->why);
	} while (rc == 0 && virtq_arm(q));
	bio_go(b->bio);
	return false;
}

/* ---- the device */

static void vblk_config_read(struct virtio_dev *d, uint32_t off, void *to, uint32_t len)
{
	const struct vblk *b = vblk_of(d);
	struct virtio_blk_conf c = {
		.capacity_le = htole64(b->sectors),
		.seg_max_le = htole32(SEG_MAX),
		.blk_size_le = htole32(SECTOR),
		.physical_block_exp = 3,
		.min_io_size_le = htole16(COW_UNIT / SECTOR),
		.max_discard_sectors_le = htole32(DISCARD_BYTES / SECTOR),
		.max_discard_seg_le = htole32(DISCARD_SEGS),
		.discard_alignment_le = htole32(COW_UNIT / SECTOR),
		.max_zeroes_sectors_le = htole32(DISCARD_BYTES / SECTOR),
		.max_zeroes_seg_le = htole32(DISCARD_SEGS),
		.zeroes_may_unmap = 1,
	};

	memcpy(to, (const char *)&c + off, len);
}

static void vblk_reset(struct virtio_dev *d)
{
	struct vblk *b = vblk_of(d);

	for (unsigned int i = 0; i < b->nreqs; i++) {
		struct vreq *r = &b->reqs[i];

		if (!r->used)
			continue;
		r->dead = true;
		r->at = r->len;
		r->seg = r->nseg;
	}
}

static bool vblk_busy(struct virtio_dev *d)
{
	return vblk_of(d)->nactive > 0;
}

static int vblk_quiesce(struct virtio_dev *d, void (*done)(void *), void *arg)
{
	struct vblk *b = vblk_of(d);

	if (!b->nactive && !b->flushing)
		return 0;
	b->quiet = done;
	b->quiet_arg = arg;
	return -EINPROGRESS;
}

static void vblk_save(struct virtio_dev *d, struct buf *out)
{
	buf_u16(out, STATE_VERSION);
	buf_u64(out, vblk_of(d)->sectors);
}

static int vblk_load(struct virtio_dev *d, struct cur *in, struct err *e)
{
	const struct vblk *b = vblk_of(d);
	unsigned int version = cur_u16(in);
	uint64_t sectors = cur_u64(in);

	if (in->bad || version != STATE_VERSION)
		return err_plain(e, EINVAL, "disk %u: state version %u, this program knows %u",
			d->slot - SLOT_DISK0, version, STATE_VERSION);
	if (sectors != b->sectors)
		return err_plain(e, EINVAL,
			"disk %u: size: the snapshot's has %llu sectors, the one given %llu",
			d->slot - SLOT_DISK0, (unsigned long long)sectors,
			(unsigned long long)b->sectors);
	return 0;
}

static void vblk_stats(struct virtio_dev *d, dev_stat_fn fn, void *arg)
{
	const struct vblk *b = vblk_of(d);
	const struct {
		const char *name;
		uint64_t v;
	} t[] = {{"read_bytes", b->n_read}, {"written_bytes", b->n_written},
		{"flushes", b->n_flush}, {"discards", b->n_discard}, {"copy_ups", b->n_copy_up},
		{"io_errors", b->n_errors}, {"bad_requests", b->n_bad}};
	char name[8];

	snprintf(name, sizeof(name), "blk%u", (d->slot - SLOT_DISK0) % BOARD_VIRTIO_SLOTS);
	for (size_t i = 0; i < ARRAY_LEN(t); i++)
		fn(arg, name, t[i].name, t[i].v);
}

#define FEATURES_COMMON                                                                            \
	(1ull << VIRTIO_BLK_F_SEG_MAX | 1ull << VIRTIO_BLK_F_BLK_SIZE |                            \
		1ull << VIRTIO_BLK_F_TOPOLOGY)
#define VBLK_OPS(f)                                                                                \
	{                                                                                          \
		.name = "blk", .device_id = VIRTIO_ID_BLOCK, .nqueues = 1,                         \
		.queue_max = VBLK_QUEUE_MAX, .features = FEATURES_COMMON | (f),                    \
		.config_bytes = VIRTIO_BLK_CONF_BYTES, .config_read = vblk_config_read,            \
		.reset = vblk_reset, .busy = vblk_busy, .kick = vblk_kick,                         \
		.quiesce = vblk_quiesce, .save = vblk_save, .load = vblk_load,                     \
		.stats = vblk_stats,                                                               \
	}

static const struct virtio_ops vblk_rw =
	VBLK_OPS(1ull << VIRTIO_BLK_F_FLUSH | 1ull << VIRTIO_BLK_F_DISCARD |
		 1ull << VIRTIO_BLK_F_WRITE_ZEROES);
static const struct virtio_ops vblk_ro = VBLK_OPS(1ull << VIRTIO_BLK_F_RO);

int vblk_create(
	struct vblk **out, const struct vblk_conf *conf, const struct dev_env *env, struct err *e)
{
	struct vblk *b = calloc(1, sizeof(*b));
	bool ro = conf->read_only || cow_is_read_only(conf->cow);
	int rc = -ENOMEM;

	if (b) {
		b->reqs = calloc(VBLK_QUEUE_MAX, sizeof(*b->reqs));
		b->ops = calloc(VBLK_MAX_OPS, sizeof(*b->ops));
		b->pages = aligned_alloc(COW_UNIT, (size_t)PAGES * COW_UNIT);
	}
	if (!b || !b->reqs || !b->ops || !b->pages)
		err_set(e, ENOMEM, "disk %u", conf->slot - SLOT_DISK0);
	else
		rc = virtio_init(&b->dev, ro ? &vblk_ro : &vblk_rw, env, conf->slot, e);
	if (rc < 0) {
		vblk_destroy(b);
		return rc;
	}
	b->cow = conf->cow;
	b->bio = conf->bio;
	b->sectors = cow_bytes(conf->cow) / SECTOR;
	snprintf(b->serial, sizeof(b->serial), "%s", conf->serial ? conf->serial : "");
	TAILQ_INIT(&b->free);
	TAILQ_INIT(&b->waiting);
	TAILQ_INIT(&b->flush_next);
	TAILQ_INIT(&b->flush_now);
	TAILQ_INIT(&b->free_ops);
	TAILQ_INIT(&b->writes);
	b->flush_bio.done = flush_done;
	for (unsigned int i = 0; i < PAGES; i++)
		b->free_page[b->nfree_pages++] = b->pages + (size_t)i * COW_UNIT;
	*out = b;
	return 0;
}

void vblk_destroy(struct vblk *b)
{
	if (!b)
		return;
	virtio_fini(&b->dev);
	cow_close(b->cow);
	free(b->reqs);
	free(b->ops);
	free(b->pages);
	free(b);
}

struct virtio_dev *vblk_dev(struct vblk *b)
{
	return &b->dev;
}

struct cow *vblk_cow(struct vblk *b)
{
	return b->cow;
}
