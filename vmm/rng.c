/* SPDX-License-Identifier: Apache-2.0
 *
 * rng.c: see rng.h. mayfly-vmm, device thread. Hostile: the chains. If a guest asks for
 * too much, its requests wait in its own queue until a timer has refilled the bucket.
 */
#include "vmm/rng.h"

#include <sys/random.h>

struct rng {
	struct virtio_dev dev; /* first */
	struct timer *timer;
	uint64_t tokens, filled_ns;
	bool waiting;
	uint64_t bytes, waits;
};

static struct rng *rng_of(struct virtio_dev *d)
{
	return container_of(d, struct rng, dev);
}

static void refill(struct rng *r)
{
	uint64_t now = mono_ns(), us = (now - r->filled_ns) / 1000;

	if (us == 0)
		return;
	r->filled_ns = now;
	r->tokens = MIN(RNG_BURST, r->tokens + MIN(us, 1000000u) * RNG_RATE / 1000000u);
}

/* Writes at most `most` random bytes into the chain; returns how many. */
static uint32_t fill(const struct virtq_chain *c, uint32_t most)
{
	uint32_t done = 0;

	for (unsigned int i = 0; i < c->nin && done < most; i++) {
		const struct iovec *v = &virtq_in(c)[i];
		uint32_t n = (uint32_t)MIN(v->iov_len, most - done);

		random_bytes(v->iov_base, n);
		done += n;
	}
	return done;
}

static bool rng_kick(struct virtio_dev *d, unsigned int queue)
{
	struct rng *r = rng_of(d);
	struct virtq *q = &d->queue[queue];
	struct iovec iov[16];
	struct virtq_chain c = {.iov = iov, .cap = ARRAY_LEN(iov)};
	int rc;

	if (r->waiting)
		return false;
	refill(r);
	do {
		while ((rc = virtq_pop(q, &c)) > 0) {
			uint32_t want = (uint32_t)MIN(c.in_bytes, RNG_REQUEST), n;

			/* a short answer is allowed, an empty one is not: wait */
			if (r->tokens < RNG_LEAST) {
				virtq_unpop(q, 1);
				r->waiting = true;
				r->waits++;
				timer_after(r->timer, 10000000);
				return false;
			}
			n = fill(&c, (uint32_t)MIN(want, r->tokens));
			r->tokens -= MAX(n, RNG_LEAST);
			r->bytes += n;
			if (n == 0)
				atomic_fetch_add(&d->n.refused, 1);
			virtq_push(q, c.head, n);
		}
		if (rc < 0) {
			virtio_broken(d, q->why);
			return false;
		}
	} while (virtq_arm(q));
	return false;
}

static void on_timer(void *arg)
{
	struct rng *r = arg;

	virtio_lock(&r->dev);
	r->waiting = false;
	if (virtio_runs(&r->dev) && r->dev.queue[0].ready) {
		rng_kick(&r->dev, 0);
		virtio_signal(&r->dev);
	}
	virtio_unlock(&r->dev);
}

static void rng_stats(struct virtio_dev *d, dev_stat_fn fn, void *arg)
{
	fn(arg, d->ops->name, "bytes", rng_of(d)->bytes);
	fn(arg, d->ops->name, "waits", rng_of(d)->waits);
}

static const struct virtio_ops rng_ops = {
	.name = "rng",
	.device_id = VIRTIO_ID_RNG,
	.nqueues = 1,
	.queue_max = 16,
	.kick = rng_kick,
	.stats = rng_stats,
};

struct virtio_dev *rng_create(const struct dev_env *env, struct err *e)
{
	struct rng *r = calloc(1, sizeof(*r));

	if (!r) {
		err_set(e, ENOMEM, "rng");
		return NULL;
	}
	if (virtio_init(&r->dev, &rng_ops, env, SLOT_RNG, e) < 0) {
		free(r);
		return NULL;
	}
	r->tokens = RNG_BURST;
	r->filled_ns = mono_ns();
	r->timer = loop_timer(env->loop, on_timer, r);
	if (!r->timer) {
		err_set(e, ENOMEM, "rng: timer");
		rng_destroy(&r->dev);
		return NULL;
	}
	return &r->dev;
}

void rng_destroy(struct virtio_dev *d)
{
	if (!d)
		return;
	timer_remove(rng_of(d)->timer);
	virtio_fini(d);
	free(rng_of(d));
}
