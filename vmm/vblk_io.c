/* SPDX-License-Identifier: Apache-2.0
 *
 * vblk_io.c: carries out requests of the block device: operations on files, copy-up, flush, and
 * the end of a request. mayfly-vmm, device thread, under the device's lock. Sectors and lengths
 * were checked (vblk.c); the bytes are the guest's, and only moved.
 */
#include "vmm/vblk_priv.h"

#include <string.h>

#include "lib/log.h"

static void op_done(struct bio_op *bio, int res);

/* ---- the end of requests */

void vblk_req_done(struct vblk *b, struct vreq *r)
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

/* ---- no room on the host: after an I/O error a guest remounts its root read-only, or loses
 * data. So the request waits. */

#define RETRY_NS 500000000ull

static bool is_full(int res)
{
	return res == -ENOSPC || res == -EDQUOT;
}

static void tell_full(struct vblk *b, bool full)
{
	uint32_t held = 0;

	if (full == b->park.told || (full && !log_limit_pass(&b->park.limit, &held)))
		return;
	b->park.told = full;
	if (b->dev.env->disk_full)
		b->dev.env->disk_full(
			b->dev.env->ctx, b->dev.slot - SLOT_DISK0, full ? b->park.n : 0);
}

static void on_retry(void *arg);

static bool req_park(struct vblk *b, struct vreq *r)
{
	if (!b->park.retry)
		b->park.retry = loop_timer(b->dev.env->loop, on_retry, b);
	if (!b->park.retry || r->dead || b->dev.reset_due)
		return false;
	TAILQ_INSERT_TAIL(&b->parked, r, list);
	b->park.n++;
	b->nactive--;
	if (b->dev.queue[0].inflight)
		b->dev.queue[0].inflight--;
	timer_after(b->park.retry, RETRY_NS);
	tell_full(b, true);
	return true;
}

void vblk_unpark(struct vblk *b)
{
	struct vreq_list l = TAILQ_HEAD_INITIALIZER(l);
	struct vreq *r;

	TAILQ_CONCAT(&l, &b->parked, list);
	while ((r = TAILQ_FIRST(&l))) {
		TAILQ_REMOVE(&l, r, list);
		b->park.n--;
		b->nactive++;
		b->dev.queue[0].inflight++;
		r->full = false;
		r->at = 0;
		r->seg = 0;
		if (r->type == VIRTIO_BLK_T_FLUSH) {
			TAILQ_INSERT_TAIL(&b->flush_next, r, list);
			vblk_flush_start(b);
		} else {
			vblk_advance(b, r);
		}
	}
}

/* Starts no more of this request. It is parked when its operations in flight have ended. */
static void req_full(struct vreq *r)
{
	r->full = true;
	r->at = r->len;
	r->seg = r->nseg;
}

static void req_end(struct vblk *b, struct vreq *r)
{
	if (r->full && r->status == VIRTIO_BLK_S_OK) {
		if (req_park(b, r))
			return;
		r->status = VIRTIO_BLK_S_IOERR;
	}
	/* without VIRTIO_BLK_F_FLUSH the driver expects that a completed write is durable */
	if (r->type == VIRTIO_BLK_T_OUT && r->status == VIRTIO_BLK_S_OK &&
		!(b->dev.features & 1ull << VIRTIO_BLK_F_FLUSH)) {
		TAILQ_INSERT_TAIL(&b->flush_next, r, list);
		vblk_flush_start(b);
		return;
	}
	vblk_req_done(b, r);
}

static void req_fail(struct vblk *b, struct vreq *r, int err, const char *what)
{
	if (is_full(err) && !r->dead && !cow_has_failed(b->cow)) {
		req_full(r);
		return;
	}
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
		vblk_advance(b, r);
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

bool vblk_unit_busy(const struct vblk *b, uint64_t unit)
{
	return conflicts(b, unit * COW_UNIT, COW_UNIT, true);
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

/* Writes a part of one unit: the whole unit is read, changed and written, and is private afterwards.
 * data_at as in struct vop. False: wait. */
static bool copy_up(struct vblk *b, struct vreq *r, uint64_t off, uint32_t len, uint32_t data_at)
{
	uint64_t unit = ALIGN_DOWN(off, (uint64_t)COW_UNIT);
	struct cow_run run;
	struct vop *o;
	int rc = cow_map(b->cow, unit, COW_UNIT, &run);

	if (rc == 0 && !cow_has_room(b->cow, off, len))
		rc = -EDQUOT;
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
	if (!cow_has_room(b->cow, off, len)) {
		req_fail(b, r, -EDQUOT, "write");
		return true;
	}
	if (!(o = op_get(b, r, OP_WRITE, off, 0)))
		return false;
	n = iov_slice(r->data, r->ndata, r->skip + r->at, len, o->iov, OP_RANGES, &bytes);
	/* If OP_RANGES cut the write short, let it end at the end of a unit: otherwise the rest of
	 * that unit would be copied up needlessly. */
	if (bytes < len && bytes > COW_UNIT && (off + bytes) % COW_UNIT) {
		bytes -= (off + bytes) % COW_UNIT;
		n = iov_slice(r->data, r->ndata, r->skip + r->at, bytes, o->iov, OP_RANGES, &bytes);
	}
	/* If the ranges are so small that OP_RANGES of them are less than a unit, and the unit
	 * is not private yet: copy up. */
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
		/* a discard is a hint: a part of a unit may stay */
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

void vblk_advance(struct vblk *b, struct vreq *r)
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

/* Sends the rest of a read or write that moved fewer bytes than asked. False: there is no rest. */
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

/* The last step of every completion: continues waiting requests, interrupts the guest and
 * unlocks the device. Then calls back the caller that waits for quiesce, and that of
 * vblk_finish_freeze(). */
static void turn_end(struct vblk *b)
{
	struct vsettle settle = {0};
	void (*done)(void *);
	void *arg;

	wake_waiting(b);
	bio_go(b->bio);
	virtio_signal(&b->dev);
	quiet_if_due(b, &done, &arg);
	if (b->settle.over) {
		settle = b->settle;
		b->settle = (struct vsettle){0};
	}
	virtio_unlock(&b->dev);
	if (done)
		done(arg);
	if (settle.done)
		settle.done(settle.arg, settle.status);
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
		if (res > 0 && !b->park.n)
			tell_full(b, false);
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
			vblk_advance(b, r);
	}
	turn_end(b);
}

static void on_retry(void *arg)
{
	struct vblk *b = arg;

	virtio_lock(&b->dev);
	if (!b->park.stopped)
		vblk_unpark(b);
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
	if (b->settle.now) {
		b->settle.over = true;
		b->settle.status = rc;
		b->settle.now = false;
	}
	while ((r = TAILQ_FIRST(&b->flush_now))) {
		TAILQ_REMOVE(&b->flush_now, r, list);
		if (rc < 0)
			req_fail(b, r, rc, "flush");
		if (!r->full || !req_park(b, r)) {
			r->status = r->full ? VIRTIO_BLK_S_IOERR : r->status;
			vblk_req_done(b, r);
		}
	}
}

void vblk_flush_start(struct vblk *b)
{
	while (!b->flushing && (!TAILQ_EMPTY(&b->flush_next) ||
				       (b->settle.done && !b->settle.over && !b->settle.now))) {
		TAILQ_CONCAT(&b->flush_now, &b->flush_next, list);
		b->settle.now = b->settle.done != NULL && !b->settle.over;
		b->flushing = true;
		b->n_flush++;
		cow_flush_begin(b->cow);
		flush_step(b);
	}
}

void vblk_flush_done(struct bio_op *bio, int res)
{
	struct vblk *b = container_of(bio, struct vblk, flush_bio);

	virtio_lock(&b->dev);
	if (res >= 0 && b->flush_len && (uint32_t)res != b->flush_len)
		res = -ENOSPC;
	cow_flush_did(b->cow, res < 0 ? res : 0);
	flush_step(b);
	vblk_flush_start(b);
	turn_end(b);
}
