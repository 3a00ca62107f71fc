/* SPDX-License-Identifier: Apache-2.0
 *
 * virtio.c: virtio-mmio registers, and when a device may work. mayfly-vmm; vCPU threads and the
 * device thread (virtio.h says which). Every register access is the guest's: offsets, widths,
 * values and their order are hostile. What makes no sense reads 0, is not written, and is counted.
 */
#include "vmm/virtio.h"

#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

#include "lib/log.h"

/* virtio 1.2, table 4.1 */
enum reg {
	R_MAGIC = 0x000,
	R_VERSION = 0x004,
	R_DEVICE_ID = 0x008,
	R_VENDOR_ID = 0x00c,
	R_DEVICE_FEATURES = 0x010,
	R_DEVICE_FEATURES_SEL = 0x014,
	R_DRIVER_FEATURES = 0x020,
	R_DRIVER_FEATURES_SEL = 0x024,
	R_QUEUE_SEL = 0x030,
	R_QUEUE_NUM_MAX = 0x034,
	R_QUEUE_NUM = 0x038,
	R_QUEUE_READY = 0x044,
	R_QUEUE_NOTIFY = VIRTIO_MMIO_NOTIFY,
	R_INTERRUPT_STATUS = 0x060,
	R_INTERRUPT_ACK = 0x064,
	R_STATUS = 0x070,
	R_QUEUE_DESC_LOW = 0x080,
	R_QUEUE_DESC_HIGH = 0x084,
	R_QUEUE_DRIVER_LOW = 0x090,
	R_QUEUE_DRIVER_HIGH = 0x094,
	R_QUEUE_DEVICE_LOW = 0x0a0,
	R_QUEUE_DEVICE_HIGH = 0x0a4,
	R_SHM_LEN_LOW = 0x0b0,
	R_SHM_LEN_HIGH = 0x0b4,
	R_SHM_BASE_LOW = 0x0b8,
	R_SHM_BASE_HIGH = 0x0bc,
	R_CONFIG_GENERATION = 0x0fc,
};
enum { ISR_USED = 1, ISR_CONFIG = 2 };

#define MAGIC              0x74726976u /* "virt" */
#define VENDOR             0x5946594du /* "MYFY" */
#define STATE_VERSION      1u
#define DEVICE_STATE_MAX   65536u
#define TRANSPORT_FEATURES (VIRTIO_F_VERSION_1 | VIRTIO_F_EVENT_IDX | VIRTIO_F_INDIRECT_DESC)

static uint64_t offered(const struct virtio_dev *d)
{
	return d->ops->features | TRANSPORT_FEATURES;
}

static void refuse(struct virtio_dev *d, const char *what, uint32_t off)
{
	atomic_fetch_add(&d->n.refused, 1);
	TRACE("%s: refused: %s at %#x", d->ops->name, what, off);
}

static void wake(struct virtio_dev *d)
{
	uint64_t one = 1;

	(void)!write(d->kick_fd, &one, sizeof(one));
}

static void interrupt(struct virtio_dev *d, uint32_t bit)
{
	/* If the bit is set already, its pulse was given, and the driver has not acknowledged
	 * it yet. It will see this work, too: it looks at the queues after the acknowledgement. */
	if (atomic_fetch_or(&d->isr, bit) & bit)
		return;
	atomic_fetch_add(&d->n.irqs, 1);
	d->env->irq(d->env->ctx, BOARD_VIRTIO_IRQ + d->slot);
}

static void take_pending(struct virtio_dev *d)
{
	if (d->reset_due) {
		d->reset_due = false;
		d->active = false;
		if (d->ops->reset)
			d->ops->reset(d);
	}
	if (d->activate_due) {
		d->activate_due = false;
		d->active = true;
		if (d->ops->activate)
			d->ops->activate(d);
	}
}

static void service(struct virtio_dev *d)
{
	bool more = false;

	take_pending(d);
	for (unsigned int i = 0; i < d->ops->nqueues && virtio_runs(d); i++)
		if (d->queue[i].ready)
			more |= d->ops->kick(d, i);
	virtio_signal(d);
	if (more && virtio_runs(d))
		virtio_again(d);
}

/* Tells the daemon, at most ten times a minute: a driver can break and reset a device as fast as it
 * likes. */
static void tell_broken(struct virtio_dev *d)
{
	uint32_t held = 0;

	if (!d->tell_broken)
		return;
	d->tell_broken = false;
	if (d->env->needs_reset && log_limit_pass(&d->tell_limit, &held))
		d->env->needs_reset(d->env->ctx, d->ops->name,
			d->why_broken ? d->why_broken : "the driver has reset it in the meantime");
}

static void on_kick(void *arg, uint32_t events)
{
	struct virtio_dev *d = arg;
	uint64_t n;

	(void)!read(d->kick_fd, &n, sizeof(n));
	atomic_fetch_add(&d->n.kicks, 1);
	virtio_lock(d);
	service(d);
	tell_broken(d);
	virtio_unlock(d);
}

int virtio_init(struct virtio_dev *d, const struct virtio_ops *ops, const struct dev_env *env,
	unsigned int slot, struct err *e)
{
	ASSERT(ops->nqueues <= VIRTIO_MAX_QUEUES && slot < BOARD_VIRTIO_SLOTS);
	*d = (struct virtio_dev){.ops = ops, .env = env, .slot = slot, .kick_fd = -1};
	pthread_mutex_init(&d->lock, NULL);
	for (unsigned int i = 0; i < ops->nqueues; i++)
		virtq_init(&d->queue[i], env->mem, ops->queue_max);
	if (env->take_notify_fd)
		d->kick_fd = env->take_notify_fd(env->ctx, slot);
	if (d->kick_fd < 0)
		d->kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (d->kick_fd >= 0)
		d->watch = loop_watch(env->loop, d->kick_fd, EPOLLIN, on_kick, d);
	if (!d->watch) {
		err_set(e, errno, "%s: event descriptor", ops->name);
		virtio_fini(d);
		return e ? -e->code : -EMFILE;
	}
	return 0;
}

void virtio_fini(struct virtio_dev *d)
{
	if (!d->ops)
		return;
	watch_remove(d->watch);
	d->watch = NULL;
	close_fd(&d->kick_fd);
	pthread_mutex_destroy(&d->lock);
}

void virtio_again(struct virtio_dev *d)
{
	atomic_fetch_add(&d->n.yields, 1);
	wake(d);
}

void virtio_signal(struct virtio_dev *d)
{
	bool irq = false;

	for (unsigned int i = 0; i < d->ops->nqueues; i++)
		irq |= virtq_publish(&d->queue[i]);
	if (irq)
		interrupt(d, ISR_USED);
}

void virtio_config_changed(struct virtio_dev *d)
{
	d->config_gen++;
	if (d->status & VIRTIO_S_DRIVER_OK)
		interrupt(d, ISR_CONFIG);
}

void virtio_broken(struct virtio_dev *d, const char *why)
{
	if (d->status & VIRTIO_S_NEEDS_RESET)
		return;
	d->status |= VIRTIO_S_NEEDS_RESET;
	d->why_broken = why;
	atomic_fetch_add(&d->n.broken, 1);
	log_limited(LOG_WARN, "%s: needs a reset: %s", d->ops->name, why);
	if (d->status & VIRTIO_S_DRIVER_OK)
		interrupt(d, ISR_CONFIG);
	/* this may be a vCPU thread, but env->needs_reset() is called on the device thread */
	d->tell_broken = true;
	wake(d);
}

/* The driver resets the device. The queues are reset when this returns; the device thread calls
 * ops->reset() later. */
static void driver_reset(struct virtio_dev *d)
{
	for (unsigned int i = 0; i < d->ops->nqueues; i++)
		virtq_reset(&d->queue[i]);
	d->status = 0;
	d->features = 0;
	d->features_sel = d->driver_features_sel = d->queue_sel = 0;
	d->activate_due = false;
	d->why_broken = NULL;
	atomic_store(&d->isr, 0);
	atomic_fetch_add(&d->n.resets, 1);
	if (d->active) {
		d->reset_due = true;
		wake(d);
	}
}

static void accept_features(struct virtio_dev *d)
{
	if ((d->features & ~offered(d)) || !(d->features & VIRTIO_F_VERSION_1)) {
		refuse(d, "features", R_STATUS);
		return;
	}
	for (unsigned int i = 0; i < d->ops->nqueues; i++) {
		d->queue[i].event_idx = d->features & VIRTIO_F_EVENT_IDX;
		d->queue[i].indirect = d->features & VIRTIO_F_INDIRECT_DESC;
	}
	d->status |= VIRTIO_S_FEATURES_OK;
}

static void write_status(struct virtio_dev *d, uint32_t v)
{
	if (v == 0) {
		driver_reset(d);
		return;
	}
	d->status |= v & (VIRTIO_S_ACKNOWLEDGE | VIRTIO_S_DRIVER | VIRTIO_S_FAILED);
	if ((v & VIRTIO_S_FEATURES_OK) && !(d->status & VIRTIO_S_FEATURES_OK))
		accept_features(d);
	if (!(v & VIRTIO_S_DRIVER_OK) || (d->status & VIRTIO_S_DRIVER_OK))
		return;
	if (!(d->status & VIRTIO_S_FEATURES_OK)) {
		refuse(d, "DRIVER_OK before FEATURES_OK", R_STATUS);
		return;
	}
	d->status |= VIRTIO_S_DRIVER_OK;
	d->activate_due = true;
	wake(d);
}

static uint32_t read_status(struct virtio_dev *d)
{
	/* a reset is complete when no request of the device touches guest memory any more */
	if (!d->status && d->ops->busy && d->ops->busy(d))
		return VIRTIO_S_NEEDS_RESET;
	return d->status;
}

static struct virtq *selected(struct virtio_dev *d)
{
	return d->queue_sel < d->ops->nqueues ? &d->queue[d->queue_sel] : NULL;
}

static void set_low(gpa_t *g, uint32_t v)
{
	g->v = (g->v & ~0xffffffffull) | v;
}

static void set_high(gpa_t *g, uint32_t v)
{
	g->v = (g->v & 0xffffffffull) | (uint64_t)v << 32;
}

static void write_ready(struct virtio_dev *d, struct virtq *q, uint32_t v)
{
	if (v == 0) {
		uint16_t size = q->size;

		/* The driver stops this queue alone. Its requests are forgotten; size and
		 * negotiated features stay. */
		if (q->inflight)
			refuse(d, "queue stopped with requests in flight", R_QUEUE_READY);
		virtq_reset(q);
		q->size = size;
		q->event_idx = d->features & VIRTIO_F_EVENT_IDX;
		q->indirect = d->features & VIRTIO_F_INDIRECT_DESC;
		return;
	}
	if (q->ready)
		return;
	if (!(d->status & VIRTIO_S_FEATURES_OK) || virtq_enable(q) < 0) {
		refuse(d, q->why ? q->why : "queue before FEATURES_OK", R_QUEUE_READY);
		virtio_broken(d, q->why ? q->why : "queue before FEATURES_OK");
	}
}

static void write_queue_reg(struct virtio_dev *d, uint32_t off, uint32_t v)
{
	struct virtq *q = selected(d);

	if (!q) {
		refuse(d, "no such queue", off);
		return;
	}
	if (off == R_QUEUE_READY) {
		write_ready(d, q, v);
		return;
	}
	if (q->ready) {
		refuse(d, "queue changed while ready", off);
		return;
	}
	switch (off) {
	case R_QUEUE_NUM:
		q->size = v <= q->max ? (uint16_t)v : 0;
		break;
	case R_QUEUE_DESC_LOW:
		set_low(&q->desc_gpa, v);
		break;
	case R_QUEUE_DESC_HIGH:
		set_high(&q->desc_gpa, v);
		break;
	case R_QUEUE_DRIVER_LOW:
		set_low(&q->avail_gpa, v);
		break;
	case R_QUEUE_DRIVER_HIGH:
		set_high(&q->avail_gpa, v);
		break;
	case R_QUEUE_DEVICE_LOW:
		set_low(&q->used_gpa, v);
		break;
	case R_QUEUE_DEVICE_HIGH:
		set_high(&q->used_gpa, v);
		break;
	default:
		break;
	}
}

static void write_features(struct virtio_dev *d, uint32_t v)
{
	if (d->status & VIRTIO_S_FEATURES_OK) {
		refuse(d, "features after FEATURES_OK", R_DRIVER_FEATURES);
		return;
	}
	if (d->driver_features_sel == 0)
		d->features = (d->features & ~0xffffffffull) | v;
	else if (d->driver_features_sel == 1)
		d->features = (d->features & 0xffffffffull) | (uint64_t)v << 32;
	else if (v)
		refuse(d, "feature word", R_DRIVER_FEATURES);
}

static uint32_t read_reg(struct virtio_dev *d, uint32_t off)
{
	const struct virtq *q = selected(d);

	switch (off) {
	case R_MAGIC:
		return MAGIC;
	case R_VERSION:
		return 2;
	case R_DEVICE_ID:
		return d->ops->device_id;
	case R_VENDOR_ID:
		return VENDOR;
	case R_DEVICE_FEATURES:
		return d->features_sel < 2 ? (uint32_t)(offered(d) >> (32 * d->features_sel)) : 0;
	case R_QUEUE_NUM_MAX:
		return q ? q->max : 0;
	case R_QUEUE_READY:
		return q && q->ready;
	case R_STATUS:
		return read_status(d);
	case R_SHM_LEN_LOW:
	case R_SHM_LEN_HIGH:
	case R_SHM_BASE_LOW:
	case R_SHM_BASE_HIGH:
		return 0xffffffffu; /* no such region */
	case R_CONFIG_GENERATION:
		return d->config_gen;
	default:
		refuse(d, "read", off);
		return 0;
	}
}

static void write_reg(struct virtio_dev *d, uint32_t off, uint32_t v)
{
	switch (off) {
	case R_DEVICE_FEATURES_SEL:
		d->features_sel = v;
		break;
	case R_DRIVER_FEATURES:
		write_features(d, v);
		break;
	case R_DRIVER_FEATURES_SEL:
		d->driver_features_sel = v;
		break;
	case R_QUEUE_SEL:
		d->queue_sel = v;
		break;
	case R_STATUS:
		write_status(d, v);
		break;
	case R_QUEUE_NUM:
	case R_QUEUE_READY:
	case R_QUEUE_DESC_LOW:
	case R_QUEUE_DESC_HIGH:
	case R_QUEUE_DRIVER_LOW:
	case R_QUEUE_DRIVER_HIGH:
	case R_QUEUE_DEVICE_LOW:
	case R_QUEUE_DEVICE_HIGH:
		write_queue_reg(d, off, v);
		break;
	default:
		refuse(d, "write", off);
	}
}

static bool config_range(const struct virtio_dev *d, uint32_t off, uint32_t len)
{
	return off <= d->ops->config_bytes && len <= d->ops->config_bytes - off;
}

void virtio_mmio_read(struct virtio_dev *d, uint32_t off, void *to, uint32_t len)
{
	uint32_t v;

	memset(to, 0, len);
	if (off >= VIRTIO_MMIO_CONFIG) {
		if (!d->ops->config_read || !config_range(d, off - VIRTIO_MMIO_CONFIG, len)) {
			refuse(d, "config read", off);
			return;
		}
		virtio_lock(d);
		d->ops->config_read(d, off - VIRTIO_MMIO_CONFIG, to, len);
		virtio_unlock(d);
		return;
	}
	if (len != 4 || off % 4) {
		refuse(d, "width", off);
		return;
	}
	if (off == R_INTERRUPT_STATUS) {
		/* without the lock: the guest's interrupt handler must not wait for queue work */
		v = atomic_load(&d->isr);
	} else {
		virtio_lock(d);
		v = read_reg(d, off);
		virtio_unlock(d);
	}
	memcpy(to, &v, sizeof(v));
}

void virtio_mmio_write(struct virtio_dev *d, uint32_t off, const void *from, uint32_t len)
{
	uint32_t v;

	if (off >= VIRTIO_MMIO_CONFIG) {
		if (!d->ops->config_write || !config_range(d, off - VIRTIO_MMIO_CONFIG, len)) {
			refuse(d, "config write", off);
			return;
		}
		virtio_lock(d);
		d->ops->config_write(d, off - VIRTIO_MMIO_CONFIG, from, len);
		virtio_unlock(d);
		return;
	}
	if (len != 4 || off % 4) {
		refuse(d, "width", off);
		return;
	}
	memcpy(&v, from, sizeof(v));
	if (off == R_INTERRUPT_ACK) {
		atomic_fetch_and(&d->isr, ~v);
	} else if (off == R_QUEUE_NOTIFY) {
		atomic_fetch_add(&d->n.notifies, 1);
		wake(d);
	} else {
		virtio_lock(d);
		write_reg(d, off, v);
		virtio_unlock(d);
	}
}

int virtio_quiesce(struct virtio_dev *d, void (*done)(void *), void *arg)
{
	int rc = 0;

	virtio_lock(d);
	take_pending(d);
	d->quiet = true;
	if (d->ops->quiesce)
		rc = d->ops->quiesce(d, done, arg);
	virtio_signal(d);
	virtio_unlock(d);
	return rc;
}

void virtio_resume(struct virtio_dev *d, bool restored)
{
	virtio_lock(d);
	d->quiet = false;
	if (restored && d->active) {
		if (d->ops->after_restore)
			d->ops->after_restore(d);
		/* The snapshot may have the bit although its pulse was lost. So a bit that is set
		 * gets a pulse here, too; interrupt() would give none. */
		if (!d->ops->quiet_restore || atomic_load(&d->isr)) {
			atomic_fetch_or(&d->isr, ISR_USED);
			atomic_fetch_add(&d->n.irqs, 1);
			d->env->irq(d->env->ctx, BOARD_VIRTIO_IRQ + d->slot);
		}
	}
	if (d->ops->resume)
		d->ops->resume(d);
	service(d);
	virtio_unlock(d);
}

void virtio_save(struct virtio_dev *d, struct buf *out)
{
	struct buf own;

	buf_init(&own, DEVICE_STATE_MAX);
	virtio_lock(d);
	ASSERT(d->quiet);
	buf_u16(out, STATE_VERSION);
	buf_u16(out, d->ops->nqueues);
	buf_u32(out, d->ops->device_id);
	buf_u32(out, d->status);
	buf_u64(out, d->features);
	buf_u32(out, d->features_sel);
	buf_u32(out, d->driver_features_sel);
	buf_u32(out, d->queue_sel);
	buf_u32(out, d->config_gen);
	buf_u32(out, atomic_load(&d->isr));
	for (unsigned int i = 0; i < d->ops->nqueues; i++) {
		const struct virtq *q = &d->queue[i];

		/* a broken device may hold requests: only a reset can follow, which drops them */
		ASSERT((q->inflight == 0 || (d->status & VIRTIO_S_NEEDS_RESET)) &&
			q->shown_used == q->used_idx);
		buf_u16(out, q->size);
		buf_u8(out, q->ready);
		buf_u64(out, q->desc_gpa.v);
		buf_u64(out, q->avail_gpa.v);
		buf_u64(out, q->used_gpa.v);
		buf_u16(out, q->last_avail);
		buf_u16(out, q->used_idx);
	}
	if (d->ops->save)
		d->ops->save(d, &own);
	virtio_unlock(d);
	if (own.bad)
		out->bad = true;
	buf_blob(out, own.p, own.len);
	buf_fini(&own);
}

static int load_queue(struct virtio_dev *d, unsigned int i, struct cur *in, struct err *e)
{
	struct virtq *q = &d->queue[i];
	bool ready;

	virtq_reset(q);
	q->event_idx = d->features & VIRTIO_F_EVENT_IDX;
	q->indirect = d->features & VIRTIO_F_INDIRECT_DESC;
	q->size = cur_u16(in);
	ready = cur_u8(in);
	q->desc_gpa = GPA(cur_u64(in));
	q->avail_gpa = GPA(cur_u64(in));
	q->used_gpa = GPA(cur_u64(in));
	q->last_avail = cur_u16(in);
	q->used_idx = q->shown_used = cur_u16(in);
	if (ready && !in->bad && virtq_enable(q) < 0)
		return err_plain(e, EINVAL, "%s: queue %u: %s", d->ops->name, i, q->why);
	return 0;
}

static int load_locked(struct virtio_dev *d, struct cur *in, struct err *e)
{
	unsigned int version = cur_u16(in), nqueues = cur_u16(in), id = cur_u32(in);
	const void *bytes;
	size_t own_len;
	struct cur own;
	int rc;

	if (in->bad || version != STATE_VERSION || nqueues != d->ops->nqueues ||
		id != d->ops->device_id)
		return err_plain(e, EINVAL, "%s: state of version %u for device %u with %u queues",
			d->ops->name, version, id, nqueues);
	d->status = cur_u32(in);
	d->features = cur_u64(in);
	/* before FEATURES_OK the driver may have written anything */
	if ((d->status & VIRTIO_S_FEATURES_OK) && (d->features & ~offered(d)))
		return err_plain(e, EINVAL, "%s: features %#llx are not offered here", d->ops->name,
			(unsigned long long)d->features);
	d->features_sel = cur_u32(in);
	d->driver_features_sel = cur_u32(in);
	d->queue_sel = cur_u32(in);
	d->config_gen = cur_u32(in);
	atomic_store(&d->isr, cur_u32(in) & (ISR_USED | ISR_CONFIG));
	for (unsigned int i = 0; i < nqueues; i++) {
		rc = load_queue(d, i, in, e);
		if (rc < 0)
			return rc;
	}
	own_len = cur_u32(in);
	bytes = cur_bytes(in, own_len);
	if (in->bad)
		return err_plain(e, EINVAL, "%s: state is cut short", d->ops->name);
	own = cur_of(bytes, own_len);
	d->reset_due = d->activate_due = false;
	d->active = (d->status & VIRTIO_S_DRIVER_OK) && (d->status & VIRTIO_S_FEATURES_OK);
	rc = d->ops->load ? d->ops->load(d, &own, e) : 0;
	if (rc < 0)
		return rc;
	return cur_done(&own) ? 0
			      : err_plain(e, EINVAL, "%s: own state is cut short or too long",
					d->ops->name);
}

int virtio_load(struct virtio_dev *d, struct cur *in, struct err *e)
{
	int rc;

	virtio_lock(d);
	d->quiet = true;
	rc = load_locked(d, in, e);
	if (rc < 0) {
		/* a device that was loaded in part must never run */
		d->status = 0;
		d->active = false;
		for (unsigned int i = 0; i < d->ops->nqueues; i++)
			virtq_reset(&d->queue[i]);
	}
	virtio_unlock(d);
	return rc;
}

void virtio_stats(struct virtio_dev *d, dev_stat_fn fn, void *arg)
{
	const struct {
		const char *name;
		uint64_t v;
	} t[] = {
		{"kicks", atomic_load(&d->n.kicks)},
		{"notifies", atomic_load(&d->n.notifies)},
		{"irqs", atomic_load(&d->n.irqs)},
		{"refused", atomic_load(&d->n.refused)},
		{"needs_reset", atomic_load(&d->n.broken)},
		{"resets", atomic_load(&d->n.resets)},
		{"yields", atomic_load(&d->n.yields)},
	};
	uint64_t chains = 0;

	for (size_t i = 0; i < ARRAY_LEN(t); i++)
		fn(arg, d->ops->name, t[i].name, t[i].v);
	virtio_lock(d);
	for (unsigned int i = 0; i < d->ops->nqueues; i++)
		chains += d->queue[i].chains;
	fn(arg, d->ops->name, "chains", chains);
	if (d->ops->stats)
		d->ops->stats(d, fn, arg);
	virtio_unlock(d);
}

/* For crash reports: takes no lock, because the thread that holds it may be the one that crashed.
 */
void virtio_dump(struct virtio_dev *d, char *to, size_t cap)
{
	int n = snprintf(to, cap, "%s: status %#x features %#llx isr %u%s%s%s", d->ops->name,
		d->status, (unsigned long long)d->features, atomic_load(&d->isr),
		d->active ? " active" : "", d->quiet ? " quiet" : "",
		d->reset_due ? " reset-due" : "");

	for (unsigned int i = 0; i < d->ops->nqueues && n > 0 && (size_t)n < cap; i++)
		n += snprintf(to + n, cap - (size_t)n, " q%u{%u %s avail %u used %u inflight %u}",
			i, d->queue[i].size, d->queue[i].ready ? "ready" : "off",
			d->queue[i].last_avail, d->queue[i].used_idx, d->queue[i].inflight);
	if (d->why_broken && n > 0 && (size_t)n < cap)
		snprintf(to + n, cap - (size_t)n, " broken: %s", d->why_broken);
}
