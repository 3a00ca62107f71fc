/* SPDX-License-Identifier: Apache-2.0
 *
 * vblk.c: virtio-blk: the device, and requests as they come from the queue. mayfly-vmm, device
 * thread, under the device's lock. Hostile: the chain, the header, sectors and lengths, the
 * segments of discards; each is copied once, checked, and the copy is used.
 */
#include "vmm/vblk.h"

#include <endian.h>
#include <stdio.h>
#include <string.h>

#include "vmm/vblk_priv.h"

#define BUDGET 64u /* chains per kick */
/* Each BUDGET_BYTES of a request count as one more chain, because zeros are written before the kick
 * returns. */
#define BUDGET_BYTES  MIB(4)
#define STATE_VERSION 1u
#define STATE_WAITING 2u /* with the heads of requests that wait for room on the host */

static struct vblk *vblk_of(struct virtio_dev *d)
{
	return container_of(d, struct vblk, dev);
}

/* ---- the start of requests */

/* Notes where the data is. False: not whole sectors, or not within the disk. */
static bool data_is_good(struct vblk *b, struct vreq *r, uint64_t sector, uint64_t len)
{
	if (len % SECTOR || sector > b->sectors || len / SECTOR > b->sectors - sector)
		return false;
	r->off = sector * SECTOR;
	r->len = len;
	r->work += len;
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

/* Checks a request. VIRTIO_BLK_S_OK: vblk_advance() or a flush carries it out; else its status. */
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

/* False: the chain has no room for a status; r was not used. */
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
	r->dead = r->waits = r->full = false;
	r->skip = r->written = 0;
	r->len = r->at = r->off = r->work = 0;
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
		vblk_req_done(b, r);
	} else if (r->type == VIRTIO_BLK_T_FLUSH && !cow_is_read_only(b->cow)) {
		TAILQ_INSERT_TAIL(&b->flush_next, r, list);
		vblk_flush_start(b);
	} else {
		vblk_advance(b, r);
	}
	return true;
}

/* After a restore: starts the requests again that waited for room on the host when the snapshot was
 * taken. False: the device is broken. */
static bool take_again(struct vblk *b, struct virtq *q)
{
	for (; b->park.nheads; b->park.nheads--) {
		struct vreq *r = req_get(b);
		struct virtq_chain c;

		ASSERT(r); /* no more heads than requests, and these are the first */
		c = (struct virtq_chain){.iov = r->iov, .cap = RANGES};
		if (virtq_take(q, b->park.heads[b->park.nheads - 1], &c) < 0 ||
			!req_start(b, r, &c)) {
			TAILQ_INSERT_HEAD(&b->free, r, list);
			b->park.nheads = 0;
			virtio_broken(
				&b->dev, q->why ? q->why : "a request without room for its status");
			return false;
		}
	}
	return true;
}

static bool vblk_kick(struct virtio_dev *d, unsigned int queue)
{
	struct vblk *b = vblk_of(d);
	struct virtq *q = &d->queue[queue];
	unsigned int left = BUDGET;
	int rc;

	if (b->park.nheads && !take_again(b, q))
		return false;
	do {
		for (;;) {
			struct vreq *r = req_get(b);
			struct virtq_chain c;

			if (!r) { /* requests from before a reset use all: vblk_req_done() kicks */
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
			left -= (unsigned int)MIN(left, 1 + r->work / BUDGET_BYTES);
			if (left == 0) {
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
	struct vreq *p;

	b->park.nheads = 0;
	while ((p = TAILQ_FIRST(&b->parked))) {
		TAILQ_REMOVE(&b->parked, p, list);
		b->park.n--;
		p->used = false;
		TAILQ_INSERT_HEAD(&b->free, p, list);
	}
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

	b->park.stopped = true;
	if (!b->nactive && !b->flushing)
		return 0;
	b->quiet = done;
	b->quiet_arg = arg;
	return -EINPROGRESS;
}

/* After every stop, also one that was cancelled before the last request ended. */
static void vblk_resume(struct virtio_dev *d)
{
	struct vblk *b = vblk_of(d);

	b->quiet = NULL;
	b->park.stopped = false;
	vblk_unpark(b);
	bio_go(b->bio);
}

static void vblk_save(struct virtio_dev *d, struct buf *out)
{
	const struct vblk *b = vblk_of(d);
	const struct vreq *r;

	/* version 1 if nothing waits, so that earlier builds can read the state */
	buf_u16(out, b->park.n ? STATE_WAITING : STATE_VERSION);
	buf_u64(out, b->sectors);
	if (!b->park.n)
		return;
	buf_u16(out, (uint16_t)b->park.n);
	TAILQ_FOREACH(r, &b->parked, list)
	buf_u16(out, r->head);
}

static bool load_heads(struct vblk *b, struct cur *in)
{
	unsigned int n = cur_u16(in);

	if (n > VBLK_QUEUE_MAX)
		return false;
	for (unsigned int i = 0; i < n; i++)
		b->park.heads[i] = cur_u16(in);
	b->park.nheads = (uint16_t)(in->bad ? 0 : n);
	return !in->bad;
}

static int vblk_load(struct virtio_dev *d, struct cur *in, struct err *e)
{
	struct vblk *b = vblk_of(d);
	unsigned int version = cur_u16(in);
	uint64_t sectors = cur_u64(in);

	if (in->bad || (version != STATE_VERSION && version != STATE_WAITING) ||
		(version == STATE_WAITING && !load_heads(b, in)))
		return err_plain(e, EINVAL,
			"disk %u: the state is damaged or of an unknown version: %u",
			d->slot - SLOT_DISK0, version);
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
		{"io_errors", b->n_errors}, {"bad_requests", b->n_bad},
		{"waiting_for_room", b->park.n}};
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
		.quiesce = vblk_quiesce, .resume = vblk_resume, .save = vblk_save,                 \
		.load = vblk_load, .stats = vblk_stats,                                            \
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
	TAILQ_INIT(&b->parked);
	TAILQ_INIT(&b->flush_now);
	TAILQ_INIT(&b->free_ops);
	TAILQ_INIT(&b->writes);
	b->flush_bio.done = vblk_flush_done;
	for (unsigned int i = 0; i < PAGES; i++)
		b->free_page[b->nfree_pages++] = b->pages + (size_t)i * COW_UNIT;
	*out = b;
	return 0;
}

void vblk_destroy(struct vblk *b)
{
	if (!b)
		return;
	timer_remove(b->park.retry);
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

#define CARRY_UNITS                                                                                \
	64u /* copied in one turn: 256 KiB, which delays other devices by about a millisecond */

int vblk_finish_freeze(struct vblk *b, void (*done)(void *arg, int status), void *arg)
{
	int rc = 0;

	virtio_lock(&b->dev);
	if (b->settle.done) {
		rc = -EBUSY;
	} else if (cow_freeze_is_pending(b->cow)) {
		b->settle = (struct vsettle){.done = done, .arg = arg};
		vblk_flush_start(b);
		bio_go(b->bio);
		rc = -EINPROGRESS;
		/* a disk whose sync failed once flushes no more: the error is there already */
		if (b->settle.over) {
			rc = b->settle.status;
			b->settle = (struct vsettle){0};
		}
	}
	virtio_unlock(&b->dev);
	return rc;
}

void vblk_freeze_settled(struct vblk *b)
{
	virtio_lock(&b->dev);
	cow_freeze_settled(b->cow);
	virtio_unlock(&b->dev);
}

int vblk_frozen_read_only(
	struct vblk *b, const int *frozen, unsigned int n, int index, struct err *e)
{
	int rc;

	virtio_lock(&b->dev);
	rc = cow_frozen_read_only(b->cow, frozen, n, index, e);
	virtio_unlock(&b->dev);
	return rc;
}

void vblk_limit(struct vblk *b, uint64_t bytes)
{
	virtio_lock(&b->dev);
	cow_limit(b->cow, bytes);
	virtio_unlock(&b->dev);
}

static bool unit_busy(void *ctx, uint64_t unit)
{
	return vblk_unit_busy(ctx, unit);
}

int vblk_carry(struct vblk *b, struct err *e)
{
	int rc;

	virtio_lock(&b->dev);
	rc = cow_carry(b->cow, CARRY_UNITS, unit_busy, b, e);
	virtio_unlock(&b->dev);
	return rc;
}
