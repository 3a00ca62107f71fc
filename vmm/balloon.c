/* SPDX-License-Identifier: Apache-2.0
 *
 * balloon.c: see balloon.h. mayfly-vmm, the device thread. Hostile: the chains, the page numbers in them, and what the driver writes to the
 * configuration. The guest can give away only its own memory. A turn has a budget: a guest that reports without end does not keep the
 * other devices waiting.
 *
 * The contents of a free page mean nothing to its guest. If a kernel counts on them (init_on_free,
 * page poisoning), its driver reports only with VIRTIO_BALLOON_F_PAGE_POISON, which is not offered.
 *
 * Queue 0 inflates, queue 1 deflates, queue 2 has the reports. Linux and QEMU give no number to the
 * queue of a feature that is not offered.
 */
#include "vmm/balloon.h"

#include <string.h>

#define F_DEFLATE_ON_OOM (1ull << 2)
#define F_REPORTING      (1ull << 5)
#define STATE_VERSION    1u
#define TELL_NS          1000000000ull

enum { Q_INFLATE, Q_DEFLATE, Q_REPORT, Q_COUNT };
static_assert(Q_COUNT <= VIRTIO_MAX_QUEUES, "queues");

/* virtio 1.2, 5.5.4; little endian */
struct balloon_config {
	uint32_t num_pages, actual;
};

struct balloon {
	struct virtio_dev dev; /* first */
	struct balloon_config config;
	uint64_t done; /* bytes of the first report in its queue that earlier turns gave back */
	bool retarget; /* restored: the driver must read num_pages again */
	uint64_t reported, inflated;
	struct timer *tell; /* runs while given_back() has to be called */
	bool untold;
};

static struct balloon *balloon_of(struct virtio_dev *d)
{
	return container_of(d, struct balloon, dev);
}

static void on_tell(void *arg)
{
	struct balloon *b = arg;
	const struct dev_env *env = b->dev.env;

	b->untold = false;
	if (env->given_back)
		env->given_back(env->ctx, b->reported + b->inflated);
}

/* Gives back the whole pages inside a range. False: not all of the range is RAM. */
static bool give_back(struct balloon *b, uint64_t gpa, uint64_t len)
{
	const struct mem *m = b->dev.env->mem;
	uint64_t from, to;

	if (!mem_ptr(m, GPA(gpa), len)) {
		atomic_fetch_add(&b->dev.n.refused, 1);
		return false;
	}
	from = ALIGN_UP(gpa, PAGE_BYTES);
	to = (gpa + len) & ~(uint64_t)(PAGE_BYTES - 1);
	if (from < to)
		mem_give_back(m, GPA(from), to - from);
	if (!b->untold)
		timer_after(b->tell, TELL_NS);
	b->untold = true;
	return true;
}

static void give_back_run(struct balloon *b, uint64_t gpa, uint64_t len)
{
	if (len && give_back(b, gpa, len))
		b->inflated += len;
}

/* A chain of page numbers. Numbers that follow each other, up or down, are one range. */
static void inflate(struct balloon *b, const struct virtq_chain *c)
{
	uint32_t pfn[BALLOON_PFNS_MAX];
	uint64_t at = 0, len = 0;
	size_t n;

	if (c->out_bytes > sizeof(pfn) || c->out_bytes % sizeof(pfn[0]) || c->nin) {
		atomic_fetch_add(&b->dev.n.refused, 1);
		return;
	}
	n = iov_read(virtq_out(c), c->nout, 0, pfn, sizeof(pfn)) / sizeof(pfn[0]);
	for (size_t i = 0; i < n; i++) {
		uint64_t gpa = (uint64_t)pfn[i] * PAGE_BYTES;

		if (len && gpa == at + len) {
			len += PAGE_BYTES;
		} else if (len && gpa + PAGE_BYTES == at) {
			at = gpa;
			len += PAGE_BYTES;
		} else {
			give_back_run(b, at, len);
			at = gpa;
			len = PAGE_BYTES;
		}
	}
	give_back_run(b, at, len);
}

/* A chain of ranges. True: all of them were given back. False: the next turn continues after
 * b->done bytes. */
static bool report(struct balloon *b, const struct virtq_chain *c)
{
	uint64_t skip = b->done, left = BALLOON_TURN_BYTES;

	for (unsigned int i = 0; i < c->nin; i++) {
		const struct iovec *v = &virtq_in(c)[i];
		uint64_t gpa = (uint64_t)((uint8_t *)v->iov_base - b->dev.env->mem->base), n;

		if (skip >= v->iov_len) {
			skip -= v->iov_len;
			continue;
		}
		n = MIN(v->iov_len - skip, left);
		if (give_back(b, gpa + skip, n))
			b->reported += n;
		b->done += n;
		left -= n;
		if (left == 0)
			return false;
		skip = 0;
	}
	b->done = 0;
	return true;
}

/* One chain: the guest's kernel has one in flight at a time. */
static bool balloon_kick(struct virtio_dev *d, unsigned int queue)
{
	struct balloon *b = balloon_of(d);
	struct virtq *q = &d->queue[queue];
	struct iovec iov[BALLOON_RANGES_MAX];
	struct virtq_chain c = {.iov = iov, .cap = ARRAY_LEN(iov)};
	int rc = virtq_pop(q, &c);

	if (rc < 0) {
		virtio_broken(d, q->why);
		return false;
	}
	if (rc > 0 && queue == Q_REPORT && !report(b, &c)) {
		/* put the chain back: a snapshot that comes now finds nothing in flight */
		virtq_unpop(q, 1);
		return true;
	}
	if (rc > 0 && queue == Q_INFLATE)
		inflate(b, &c);
	/* Deflating needs nothing of us: pages that the guest touches are there again. */
	if (rc > 0)
		virtq_push(q, c.head, 0);
	return virtq_arm(q);
}

static void balloon_config_read(struct virtio_dev *d, uint32_t off, void *to, uint32_t len)
{
	memcpy(to, (const uint8_t *)&balloon_of(d)->config + off, len);
}

static void balloon_config_write(struct virtio_dev *d, uint32_t off, const void *from, uint32_t len)
{
	if (off < offsetof(struct balloon_config, actual)) {
		atomic_fetch_add(&d->n.refused, 1);
		return;
	}
	memcpy((uint8_t *)&balloon_of(d)->config + off, from, len);
}

static void balloon_reset(struct virtio_dev *d)
{
	balloon_of(d)->done = 0;
	balloon_of(d)->config.actual = 0;
}

static void balloon_save(struct virtio_dev *d, struct buf *out)
{
	const struct balloon *b = balloon_of(d);

	buf_u16(out, STATE_VERSION);
	buf_u32(out, b->config.num_pages);
	buf_u32(out, b->config.actual);
}

/* A restored guest is asked for nothing: the daemon that restores it may not know the target of its
 * source. */
static int balloon_load(struct virtio_dev *d, struct cur *in, struct err *e)
{
	struct balloon *b = balloon_of(d);
	unsigned int version = cur_u16(in);
	uint32_t target = cur_u32(in), actual = cur_u32(in);

	if (in->bad || version != STATE_VERSION)
		return err_plain(e, EINVAL, "balloon: state of version %u", version);
	b->config = (struct balloon_config){.actual = actual};
	b->retarget = target || actual;
	b->done = 0;
	return 0;
}

static void balloon_resume(struct virtio_dev *d)
{
	struct balloon *b = balloon_of(d);

	if (b->retarget)
		virtio_config_changed(d);
	b->retarget = false;
}

static void balloon_stats(struct virtio_dev *d, dev_stat_fn fn, void *arg)
{
	const struct balloon *b = balloon_of(d);

	fn(arg, d->ops->name, "target_bytes", (uint64_t)b->config.num_pages * PAGE_BYTES);
	fn(arg, d->ops->name, "actual_bytes", (uint64_t)b->config.actual * PAGE_BYTES);
	fn(arg, d->ops->name, "reported_bytes", b->reported);
	fn(arg, d->ops->name, "inflated_bytes", b->inflated);
}

static const struct virtio_ops balloon_ops = {
	.name = "balloon",
	.device_id = VIRTIO_ID_BALLOON,
	.nqueues = Q_COUNT,
	.queue_max = BALLOON_RANGES_MAX,
	.features = F_DEFLATE_ON_OOM | F_REPORTING,
	.config_bytes = sizeof(struct balloon_config),
	.quiet_restore = true,
	.config_read = balloon_config_read,
	.config_write = balloon_config_write,
	.reset = balloon_reset,
	.kick = balloon_kick,
	.save = balloon_save,
	.load = balloon_load,
	.resume = balloon_resume,
	.stats = balloon_stats,
};

struct virtio_dev *balloon_create(const struct dev_env *env, struct err *e)
{
	struct balloon *b = calloc(1, sizeof(*b));

	if (!b) {
		err_set(e, ENOMEM, "balloon");
		return NULL;
	}
	if (virtio_init(&b->dev, &balloon_ops, env, SLOT_BALLOON, e) < 0) {
		free(b);
		return NULL;
	}
	b->tell = loop_timer(env->loop, on_tell, b);
	if (!b->tell) {
		err_set(e, ENOMEM, "balloon: timer");
		balloon_destroy(&b->dev);
		return NULL;
	}
	return &b->dev;
}

void balloon_destroy(struct virtio_dev *d)
{
	if (!d)
		return;
	timer_remove(balloon_of(d)->tell);
	virtio_fini(d);
	free(balloon_of(d));
}

void balloon_set_target(struct virtio_dev *d, uint64_t bytes)
{
	struct balloon *b = balloon_of(d);
	uint32_t pages = (uint32_t)(MIN(bytes, d->env->mem->ram_bytes) / PAGE_BYTES);

	virtio_lock(d);
	if (pages != b->config.num_pages) {
		b->config.num_pages = pages;
		virtio_config_changed(d);
	}
	virtio_unlock(d);
}

uint64_t balloon_actual(struct virtio_dev *d)
{
	uint64_t n;

	virtio_lock(d);
	n = (uint64_t)balloon_of(d)->config.actual * PAGE_BYTES;
	virtio_unlock(d);
	return n;
}
