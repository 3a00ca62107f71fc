/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_guest.c: the driver side of virtio for tests. Test programs only.
 */
#include "tests/unit/lib/fake_guest.h"

#include <string.h>
#include <sys/mman.h>

enum { F_NEXT = 1, F_WRITE = 2, F_INDIRECT = 4 };

struct fdesc {
	uint64_t addr;
	uint32_t len;
	uint16_t flags, next;
};

static void on_irq(void *ctx, unsigned int line)
{
	struct fake_guest *g = ctx;

	g->irqs[line]++;
}

static void on_needs_reset(void *ctx, const char *dev, const char *why)
{
	struct fake_guest *g = ctx;

	g->needs_resets++;
	g->why = why;
}

void fg_init(struct fake_guest *g)
{
	memset(g, 0, sizeof(*g));
	/* zeroed by the kernel as it is touched; a guard page behind it */
	g->mem.base = mmap(NULL, FG_RAM + PAGE_BYTES, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT(g->mem.base != MAP_FAILED);
	ASSERT(mprotect(g->mem.base + FG_RAM, PAGE_BYTES, PROT_NONE) == 0);
	g->mem.ram_bytes = g->mem.low_bytes = g->mem.span_bytes = FG_RAM;
	g->loop = loop_create();
	ASSERT(g->loop);
	g->env = (struct dev_env){.mem = &g->mem,
		.loop = g->loop,
		.ctx = g,
		.irq = on_irq,
		.needs_reset = on_needs_reset};
	g->brk = PAGE_BYTES;
}

void fg_fini(struct fake_guest *g)
{
	loop_destroy(g->loop);
	munmap(g->mem.base, FG_RAM + PAGE_BYTES);
}

uint64_t fg_alloc(struct fake_guest *g, size_t n)
{
	uint64_t at = g->brk;

	g->brk += ALIGN_UP(n, 64u);
	ASSERT(g->brk <= FG_RAM);
	return at;
}

void *fg_ptr(struct fake_guest *g, uint64_t gpa)
{
	return g->mem.base + gpa;
}

uint32_t fg_read(struct fake_guest *g, uint32_t off)
{
	uint32_t v = 0;

	virtio_mmio_read(g->dev, off, &v, sizeof(v));
	return v;
}

void fg_write(struct fake_guest *g, uint32_t off, uint32_t v)
{
	virtio_mmio_write(g->dev, off, &v, sizeof(v));
}

static void queue_setup(struct fake_guest *g, unsigned int i, uint16_t size)
{
	struct fg_queue *q = &g->q[i];
	bool again = q->size != 0;

	fg_write(g, 0x30, i);
	size = (uint16_t)MIN(size, MIN(fg_read(g, 0x34), FG_QMAX));
	if (!again) {
		q->desc = fg_alloc(g, 16u * FG_QMAX);
		q->avail = fg_alloc(g, 6 + 2u * FG_QMAX);
		q->used = fg_alloc(g, 6 + 8u * FG_QMAX);
	}
	memset(fg_ptr(g, q->desc), 0, 16u * FG_QMAX);
	memset(fg_ptr(g, q->avail), 0, 6 + 2u * FG_QMAX);
	memset(fg_ptr(g, q->used), 0, 6 + 8u * FG_QMAX);
	q->size = q->nfree = size;
	q->avail_idx = q->last_used = q->free_head = 0;
	for (uint16_t k = 0; k < size; k++)
		q->next[k] = (uint16_t)(k + 1);
	fg_write(g, 0x38, size);
	fg_write(g, 0x80, (uint32_t)q->desc);
	fg_write(g, 0x84, 0);
	fg_write(g, 0x90, (uint32_t)q->avail);
	fg_write(g, 0x94, 0);
	fg_write(g, 0xa0, (uint32_t)q->used);
	fg_write(g, 0xa4, 0);
	fg_write(g, 0x44, 1);
}

bool fg_probe(struct fake_guest *g, struct virtio_dev *d, uint64_t features, uint16_t size)
{
	uint64_t have;

	g->dev = d;
	fg_write(g, 0x70, 0);
	fg_write(g, 0x70, VIRTIO_S_ACKNOWLEDGE | VIRTIO_S_DRIVER);
	fg_write(g, 0x14, 0);
	have = fg_read(g, 0x10);
	fg_write(g, 0x14, 1);
	have |= (uint64_t)fg_read(g, 0x10) << 32;
	have &= features | VIRTIO_F_VERSION_1;
	fg_write(g, 0x24, 0);
	fg_write(g, 0x20, (uint32_t)have);
	fg_write(g, 0x24, 1);
	fg_write(g, 0x20, (uint32_t)(have >> 32));
	fg_write(g, 0x70, VIRTIO_S_ACKNOWLEDGE | VIRTIO_S_DRIVER | VIRTIO_S_FEATURES_OK);
	if (!(fg_read(g, 0x70) & VIRTIO_S_FEATURES_OK))
		return false;
	for (unsigned int i = 0; i < d->ops->nqueues; i++)
		queue_setup(g, i, size);
	fg_write(g, 0x70, fg_read(g, 0x70) | VIRTIO_S_DRIVER_OK);
	fg_run(g);
	return true;
}

void fg_run(struct fake_guest *g)
{
	/* kicks that a device gives itself show in a counter; so does everything else that makes
	 * work */
	for (int quiet = 0, turns = 0; quiet < 2 && turns < 1000; turns++) {
		uint64_t before = g->dev ? atomic_load(&g->dev->n.kicks) : 0;

		loop_turn(g->loop, 0);
		quiet = g->dev && atomic_load(&g->dev->n.kicks) != before ? 0 : quiet + 1;
	}
}

void fg_desc(struct fake_guest *g, unsigned int q, uint16_t i, uint64_t addr, uint32_t len,
	uint16_t flags, uint16_t next)
{
	struct fdesc d = {addr, len, flags, next};

	memcpy((char *)fg_ptr(g, g->q[q].desc) + 16u * i, &d, sizeof(d));
}

void fg_offer(struct fake_guest *g, unsigned int qi, uint16_t i)
{
	struct fg_queue *q = &g->q[qi];
	uint16_t *a = fg_ptr(g, q->avail);

	a[2 + q->avail_idx % q->size] = i;
	q->avail_idx++;
	__atomic_store_n(&a[1], q->avail_idx, __ATOMIC_RELEASE);
}

static uint16_t take_desc(struct fg_queue *q)
{
	uint16_t i = q->free_head;

	ASSERT(q->nfree > 0);
	q->free_head = q->next[i];
	q->nfree--;
	return i;
}

static uint16_t add_indirect(struct fake_guest *g, unsigned int qi, const struct fg_range *r,
	unsigned int n, unsigned int nout)
{
	uint16_t head = take_desc(&g->q[qi]);
	uint64_t table = fg_alloc(g, 16u * n);

	for (unsigned int k = 0; k < n; k++) {
		struct fdesc d = {r[k].gpa, r[k].len,
			(uint16_t)((k >= nout ? F_WRITE : 0) | (k + 1 < n ? F_NEXT : 0)),
			(uint16_t)(k + 1)};

		memcpy((char *)fg_ptr(g, table) + 16u * k, &d, sizeof(d));
	}
	fg_desc(g, qi, head, table, 16u * n, F_INDIRECT, 0);
	fg_offer(g, qi, head);
	return head;
}

uint16_t fg_add(struct fake_guest *g, unsigned int qi, const struct fg_range *out,
	unsigned int nout, const struct fg_range *in, unsigned int nin)
{
	struct fg_queue *q = &g->q[qi];
	struct fg_range all[128];
	unsigned int n = nout + nin;
	uint16_t head = 0, i = 0, nexti;

	ASSERT(n > 0 && n <= ARRAY_LEN(all));
	if (nout)
		memcpy(all, out, nout * sizeof(*out));
	if (nin)
		memcpy(all + nout, in, nin * sizeof(*in));
	if (q->indirect)
		return add_indirect(g, qi, all, n, nout);
	for (unsigned int k = 0; k < n; k++, i = nexti) {
		if (k == 0)
			head = i = take_desc(q);
		nexti = k + 1 < n ? take_desc(q) : 0;
		fg_desc(g, qi, i, all[k].gpa, all[k].len,
			(uint16_t)((k >= nout ? F_WRITE : 0) | (k + 1 < n ? F_NEXT : 0)), nexti);
	}
	fg_offer(g, qi, head);
	return head;
}

void fg_kick(struct fake_guest *g, unsigned int q)
{
	fg_write(g, VIRTIO_MMIO_NOTIFY, q);
	fg_run(g);
}

bool fg_used(struct fake_guest *g, unsigned int qi, uint16_t *head, uint32_t *len)
{
	struct fg_queue *q = &g->q[qi];
	uint16_t *u = fg_ptr(g, q->used);
	uint32_t e[2];
	struct fdesc d;
	uint16_t i;

	if (__atomic_load_n(&u[1], __ATOMIC_ACQUIRE) == q->last_used)
		return false;
	memcpy(e, u + 2 + 4 * (q->last_used % q->size), sizeof(e));
	q->last_used++;
	ASSERT(e[0] < q->size);
	*head = i = (uint16_t)e[0];
	*len = e[1];
	for (;;) {
		memcpy(&d, (char *)fg_ptr(g, q->desc) + 16u * i, sizeof(d));
		q->next[i] = q->free_head;
		q->free_head = i;
		q->nfree++;
		if (!(d.flags & F_NEXT))
			break;
		i = d.next;
	}
	return true;
}

void fg_used_event(struct fake_guest *g, unsigned int qi, uint16_t v)
{
	uint16_t *a = fg_ptr(g, g->q[qi].avail);

	a[2 + g->q[qi].size] = v;
}

uint16_t fg_avail_event(struct fake_guest *g, unsigned int qi)
{
	uint16_t *u = fg_ptr(g, g->q[qi].used);

	return u[2 + 4 * g->q[qi].size];
}

int fg_move(struct fake_guest *g, struct virtio_dev *to)
{
	struct err e;
	struct buf b;
	struct cur c;
	int rc;

	buf_init(&b, 1u << 20);
	virtio_quiesce(g->dev, NULL, NULL);
	virtio_save(g->dev, &b);
	ASSERT(!b.bad);
	c = cur_of(b.p, b.len);
	rc = virtio_load(to, &c, &e);
	if (rc == 0 && !cur_done(&c))
		rc = -EINVAL;
	if (rc == 0)
		g->dev = to;
	buf_fini(&b);
	return rc;
}
