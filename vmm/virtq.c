/* SPDX-License-Identifier: Apache-2.0
 *
 * virtq.c: the split virtqueue. mayfly-vmm, under the device's lock. Descriptor table, available
 * ring and everything that they point at are hostile and can change at any time: a descriptor is
 * read once, into a local, as two 8-byte loads; each walk is bounded by the ring's or the indirect
 * table's length and by the caller's array. Used ring entries are only written, never read.
 */
#include "vmm/virtq.h"

#include <string.h>

enum { DESC_NEXT = 1, DESC_WRITE = 2, DESC_INDIRECT = 4 };
enum { AVAIL_NO_INTERRUPT = 1, USED_NO_NOTIFY = 1 };

struct desc {
	uint64_t addr;
	uint32_t len;
	uint16_t flags, next;
};
static_assert(sizeof(struct desc) == 16, "virtio 1.2, 2.7.5");

static int broken(struct virtq *q, const char *why)
{
	q->why = why;
	return -EPROTO;
}

/* The host is little endian, like the rings. */
static uint16_t load16(const uint16_t *p)
{
	return __atomic_load_n(p, __ATOMIC_RELAXED);
}

static void store16(uint16_t *p, uint16_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELAXED);
}

static uint16_t *used_event(const struct virtq *q)
{
	return (uint16_t *)(uintptr_t)(q->avail + 2 + q->size);
}

static uint16_t *avail_event(const struct virtq *q)
{
	return q->used + 2 + 4 * (size_t)q->size;
}

void virtq_init(struct virtq *q, const struct mem *m, uint16_t max)
{
	ASSERT(max > 0 && max <= VIRTQ_MAX_SIZE && (max & (max - 1)) == 0);
	*q = (struct virtq){.mem = m, .max = max};
}

void virtq_reset(struct virtq *q)
{
	uint64_t chains = q->chains;

	*q = (struct virtq){.mem = q->mem, .max = q->max, .chains = chains};
}

int virtq_enable(struct virtq *q)
{
	uint64_t n = q->size;

	if (n == 0 || n > q->max || (n & (n - 1)))
		return broken(q, "queue size");
	if (q->desc_gpa.v % 16 || q->avail_gpa.v % 2 || q->used_gpa.v % 4)
		return broken(q, "queue alignment");
	/* the sizes include the event fields: drivers always allocate them, negotiated or not */
	q->desc = mem_ptr(q->mem, q->desc_gpa, n * sizeof(struct desc));
	q->avail = mem_ptr(q->mem, q->avail_gpa, 6 + 2 * n);
	q->used = mem_ptr(q->mem, q->used_gpa, 6 + 8 * n);
	if (!q->desc || !q->avail || !q->used)
		return broken(q, "queue outside memory");
	q->ready = true;
	q->signal_always = true;
	return 0;
}

int virtq_pending(struct virtq *q)
{
	uint16_t n;

	if (!q->ready)
		return 0;
	/* acquire: ring entries and descriptors are read after the index that announced them */
	n = (uint16_t)(__atomic_load_n(q->avail + 1, __ATOMIC_ACQUIRE) - q->last_avail);
	if (n > q->size)
		return broken(q, "available index ran away");
	return n;
}

static void desc_load(const uint8_t *table, unsigned int i, struct desc *d)
{
	const uint64_t *p = (const uint64_t *)(const void *)(table + i * sizeof(*d));
	uint64_t half[2] = {
		__atomic_load_n(p, __ATOMIC_RELAXED), __atomic_load_n(p + 1, __ATOMIC_RELAXED)};

	memcpy(d, half, sizeof(*d));
}

static int add_range(struct virtq *q, struct virtq_chain *c, const struct desc *d)
{
	unsigned int n = c->nout + c->nin;
	uint32_t *total = d->flags & DESC_WRITE ? &c->in_bytes : &c->out_bytes;
	void *p = mem_ptr(q->mem, GPA(d->addr), d->len);

	if (!p)
		return broken(q, "descriptor outside memory or empty");
	if (n >= c->cap)
		return broken(q, "chain too long");
	if (!(d->flags & DESC_WRITE) && c->nin)
		return broken(q, "readable descriptor after a writable one");
	if (d->len > INT32_MAX - *total)
		return broken(q, "chain holds too many bytes");
	*total += d->len;
	c->iov[n] = (struct iovec){.iov_base = p, .iov_len = d->len};
	if (d->flags & DESC_WRITE)
		c->nin++;
	else
		c->nout++;
	return 0;
}

static int walk_table(struct virtq *q, struct virtq_chain *c, const struct desc *ind)
{
	uint32_t n = ind->len / (uint32_t)sizeof(struct desc);
	const uint8_t *table;
	unsigned int i = 0;

	if (!q->indirect || (ind->flags & DESC_NEXT))
		return broken(q, "indirect descriptor not allowed here");
	if (n == 0 || ind->len % sizeof(struct desc) || n > UINT16_MAX || ind->addr % 8)
		return broken(q, "indirect table size");
	table = mem_ptr(q->mem, GPA(ind->addr), ind->len);
	if (!table)
		return broken(q, "indirect table outside memory");
	for (uint32_t count = 0; count < n; count++) {
		struct desc d;

		desc_load(table, i, &d);
		if (d.flags & DESC_INDIRECT)
			return broken(q, "indirect table in an indirect table");
		if (add_range(q, c, &d) < 0)
			return -EPROTO;
		if (!(d.flags & DESC_NEXT))
			return 1;
		if (d.next >= n)
			return broken(q, "next descriptor outside the table");
		i = d.next;
	}
	return broken(q, "descriptor loop");
}

static int walk(struct virtq *q, struct virtq_chain *c)
{
	unsigned int i = c->head;

	for (unsigned int count = 0; count < q->size; count++) {
		struct desc d;

		desc_load(q->desc, i, &d);
		if (d.flags & DESC_INDIRECT)
			return walk_table(q, c, &d);
		if (add_range(q, c, &d) < 0)
			return -EPROTO;
		if (!(d.flags & DESC_NEXT))
			return 1;
		if (d.next >= q->size)
			return broken(q, "next descriptor outside the table");
		i = d.next;
	}
	return broken(q, "descriptor loop");
}

static int take(struct virtq *q, uint16_t head, struct virtq_chain *c)
{
	int n;

	c->head = head;
	c->nout = c->nin = 0;
	c->out_bytes = c->in_bytes = 0;
	if (c->head >= q->size)
		return broken(q, "head outside the table");
	n = walk(q, c);
	if (n < 0)
		return n;
	q->inflight++;
	q->chains++;
	return 0;
}

int virtq_pop(struct virtq *q, struct virtq_chain *c)
{
	int n = virtq_pending(q);

	if (n <= 0)
		return n;
	/* otherwise a driver that offers the same head again and again, before it got it back,
	 * could make us hold any number of chains */
	if (q->inflight >= q->size)
		return broken(q, "more chains in flight than the ring holds");
	n = take(q, load16(q->avail + 2 + q->last_avail % q->size), c);
	if (n < 0)
		return n;
	q->last_avail++;
	return 1;
}

int virtq_take(struct virtq *q, uint16_t head, struct virtq_chain *c)
{
	int n;

	if (!q->ready || q->inflight >= q->size)
		return broken(q, "a waiting request of the snapshot does not fit into its queue");
	n = take(q, head, c);
	return n < 0 ? n : 1;
}

void virtq_unpop(struct virtq *q, uint16_t n)
{
	ASSERT(n <= q->inflight);
	q->last_avail = (uint16_t)(q->last_avail - n);
	q->inflight = (uint16_t)(q->inflight - n);
	q->chains -= n;
}

void virtq_push(struct virtq *q, uint16_t head, uint32_t written)
{
	uint32_t elem[2] = {head, written};

	/* the driver may have stopped or reset the queue (and even made it ready again) while a
	 * request was in flight: such a request is dropped */
	if (!q->ready || q->inflight == 0)
		return;
	memcpy(q->used + 2 + 4 * (size_t)(q->used_idx % q->size), elem, sizeof(elem));
	q->used_idx++;
	q->inflight--;
}

bool virtq_publish(struct virtq *q)
{
	uint16_t old = q->shown_used, now = q->used_idx, event;

	if (!q->ready || old == now)
		return false;
	q->shown_used = now;
	__atomic_store_n(q->used + 1, now, __ATOMIC_RELEASE);
	/* the index must be visible before we read what the driver wants, or both sides may wait
	 * for each other */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (q->signal_always) {
		q->signal_always = false;
		return true;
	}
	if (!q->event_idx)
		return !(load16(q->avail) & AVAIL_NO_INTERRUPT);
	event = load16(used_event(q));
	return (uint16_t)(now - event - 1) < (uint16_t)(now - old);
}

bool virtq_arm(struct virtq *q)
{
	if (!q->ready)
		return false;
	if (q->event_idx)
		store16(avail_event(q), q->last_avail);
	else
		store16(q->used, 0);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return __atomic_load_n(q->avail + 1, __ATOMIC_ACQUIRE) != q->last_avail;
}

bool virtq_arm_beyond(struct virtq *q)
{
	uint16_t seen;

	if (!q->ready)
		return false;
	seen = __atomic_load_n(q->avail + 1, __ATOMIC_ACQUIRE);
	if (q->event_idx)
		store16(avail_event(q), seen);
	else
		store16(q->used, 0);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return __atomic_load_n(q->avail + 1, __ATOMIC_ACQUIRE) != seen;
}

void virtq_disarm(struct virtq *q)
{
	/* with event_idx the driver kicks only at the index that was armed: nothing to do */
	if (q->ready && !q->event_idx)
		store16(q->used, USED_NO_NOTIFY);
}

/* Copies between `ours` and the ranges, from byte `off` of the ranges on (in: into the ranges).
 * Returns the number of bytes copied. */
static size_t iov_copy(
	const struct iovec *v, unsigned int n, size_t off, char *ours, size_t len, bool in)
{
	size_t done = 0;

	for (; n > 0 && done < len; v++, n--) {
		char *theirs = v->iov_base;
		size_t k = v->iov_len;

		if (off >= k) {
			off -= k;
			continue;
		}
		k = MIN(k - off, len - done);
		if (in)
			memcpy(theirs + off, ours + done, k);
		else
			memcpy(ours + done, theirs + off, k);
		done += k;
		off = 0;
	}
	return done;
}

size_t iov_read(const struct iovec *v, unsigned int n, size_t off, void *to, size_t len)
{
	return iov_copy(v, n, off, to, len, false);
}

size_t iov_write(const struct iovec *v, unsigned int n, size_t off, const void *from, size_t len)
{
	return iov_copy(v, n, off, (char *)(uintptr_t)from, len, true);
}

unsigned int iov_slice(const struct iovec *v, unsigned int n, size_t off, size_t len,
	struct iovec *dst, unsigned int cap, size_t *bytes)
{
	unsigned int out = 0;

	*bytes = 0;
	for (; n > 0 && len > 0 && out < cap; v++, n--) {
		size_t k = v->iov_len;

		if (off >= k) {
			off -= k;
			continue;
		}
		k = MIN(k - off, len);
		dst[out++] = (struct iovec){.iov_base = (char *)v->iov_base + off, .iov_len = k};
		*bytes += k;
		len -= k;
		off = 0;
	}
	return out;
}
