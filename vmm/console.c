/* SPDX-License-Identifier: Apache-2.0
 *
 * console.c: see console.h. mayfly-vmm, device thread. Hostile: chains, and every byte that is
 * written, which is copied before it is used. A guest that writes for ever has a budget per turn;
 * the receiver of cfg.out() limits what it keeps.
 */
#include "vmm/console.h"

#include <string.h>

enum { VQ_IN, VQ_OUT };
#define BUDGET_BYTES KIB(64)

struct console {
	struct virtio_dev dev; /* first */
	struct console_config cfg;
	char in[CONSOLE_INPUT_BYTES];
	size_t in_len;
	uint64_t out_bytes, in_bytes;
};

static struct console *console_of(struct virtio_dev *d)
{
	return container_of(d, struct console, dev);
}

static void take_output(struct console *c, const struct virtq_chain *ch)
{
	char part[1024];
	size_t n;

	/* a chain can name the same memory many times: bytes beyond the budget are dropped */
	if (ch->out_bytes > BUDGET_BYTES)
		atomic_fetch_add(&c->dev.n.refused, 1);
	for (size_t off = 0; off < MIN(ch->out_bytes, BUDGET_BYTES); off += n) {
		n = iov_read(virtq_out(ch), ch->nout, off, part, sizeof(part));
		c->out_bytes += n;
		if (c->cfg.out)
			c->cfg.out(c->cfg.ctx, part, n);
	}
}

static bool output(struct virtio_dev *d)
{
	struct virtq *q = &d->queue[VQ_OUT];
	struct iovec iov[64];
	struct virtq_chain ch = {.iov = iov, .cap = ARRAY_LEN(iov)};
	size_t bytes = 0;
	int rc;

	do {
		while ((rc = virtq_pop(q, &ch)) > 0) {
			take_output(console_of(d), &ch);
			bytes += ch.out_bytes + 64;
			virtq_push(q, ch.head, 0);
			if (bytes >= BUDGET_BYTES)
				return true;
		}
		if (rc < 0) {
			virtio_broken(d, q->why);
			return false;
		}
	} while (virtq_arm(q));
	return false;
}

static bool input(struct virtio_dev *d)
{
	struct console *c = console_of(d);
	struct virtq *q = &d->queue[VQ_IN];
	struct iovec iov[16];
	struct virtq_chain ch = {.iov = iov, .cap = ARRAY_LEN(iov)};

	while (c->in_len > 0) {
		int rc = virtq_pop(q, &ch);
		size_t n;

		if (rc < 0) {
			virtio_broken(d, q->why);
			return false;
		}
		if (rc == 0) {
			if (!virtq_arm(q))
				return false;
			continue;
		}
		n = iov_write(virtq_in(&ch), ch.nin, 0, c->in, c->in_len);
		memmove(c->in, c->in + n, c->in_len - n);
		c->in_len -= n;
		c->in_bytes += n;
		if (c->in_len == 0 && c->cfg.room)
			c->cfg.room(c->cfg.ctx);
		virtq_push(q, ch.head, (uint32_t)n);
		if (n == 0) { /* a buffer without room would loop for ever */
			virtio_broken(d, "input buffer without room");
			return false;
		}
	}
	return false;
}

static bool console_kick(struct virtio_dev *d, unsigned int queue)
{
	return queue == VQ_OUT ? output(d) : input(d);
}

size_t console_input(struct virtio_dev *d, const void *p, size_t n)
{
	struct console *c = console_of(d);

	virtio_lock(d);
	n = MIN(n, sizeof(c->in) - c->in_len);
	memcpy(c->in + c->in_len, p, n);
	c->in_len += n;
	if (virtio_runs(d) && d->queue[VQ_IN].ready) {
		input(d);
		virtio_signal(d);
	}
	virtio_unlock(d);
	return n;
}

static void console_stats(struct virtio_dev *d, dev_stat_fn fn, void *arg)
{
	fn(arg, d->ops->name, "out_bytes", console_of(d)->out_bytes);
	fn(arg, d->ops->name, "in_bytes", console_of(d)->in_bytes);
}

/* No state is saved: input that the guest has not read yet belongs to the terminal. */
static const struct virtio_ops console_ops = {
	.name = "console",
	.device_id = VIRTIO_ID_CONSOLE,
	.nqueues = 2,
	.queue_max = 64,
	.kick = console_kick,
	.stats = console_stats,
};

struct virtio_dev *console_create(
	const struct dev_env *env, const struct console_config *cfg, struct err *e)
{
	struct console *c = calloc(1, sizeof(*c));

	if (!c) {
		err_set(e, ENOMEM, "console");
		return NULL;
	}
	c->cfg = *cfg;
	if (virtio_init(&c->dev, &console_ops, env, SLOT_CONSOLE, e) < 0) {
		free(c);
		return NULL;
	}
	return &c->dev;
}

void console_destroy(struct virtio_dev *d)
{
	if (!d)
		return;
	virtio_fini(d);
	free(console_of(d));
}
