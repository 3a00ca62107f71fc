/* SPDX-License-Identifier: Apache-2.0
 *
 * virtio.h: the virtio-mmio transport (virtio 1.2, 4.2, modern only) of one device. mayfly-vmm.
 *
 * Threads: virtio_mmio_read/write come from any vCPU thread, everything else from the device
 * thread. d->lock is held by a register access and by all queue work; interrupt status, interrupt
 * acknowledge and QueueNotify go without it. A reset or DRIVER_OK takes effect on the registers and
 * queues at once, on the vCPU's thread; the device hears of it (ops->reset, ops->activate) on the
 * device thread, before any later queue work. One eventfd per device carries all notifications: the
 * kernel writes it (ioeventfd without data match on VIRTIO_MMIO_NOTIFY), and so does a QueueNotify
 * that came as an ordinary exit.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "lib/base.h"
#include "lib/log.h"
#include "vmm/device.h"
#include "vmm/virtq.h"

#define VIRTIO_MAX_QUEUES  3u
#define VIRTIO_MMIO_NOTIFY 0x050u /* register the ioeventfd here: 4 bytes, no data match */
#define VIRTIO_MMIO_CONFIG 0x100u

enum {
	VIRTIO_ID_NET = 1,
	VIRTIO_ID_BLOCK = 2,
	VIRTIO_ID_CONSOLE = 3,
	VIRTIO_ID_RNG = 4,
	VIRTIO_ID_BALLOON = 5,
	VIRTIO_ID_VSOCK = 19,
	VIRTIO_ID_FS = 26
};
enum {
	VIRTIO_S_ACKNOWLEDGE = 1,
	VIRTIO_S_DRIVER = 2,
	VIRTIO_S_DRIVER_OK = 4,
	VIRTIO_S_FEATURES_OK = 8,
	VIRTIO_S_NEEDS_RESET = 64,
	VIRTIO_S_FAILED = 128,
};
#define VIRTIO_F_INDIRECT_DESC (1ull << 28)
#define VIRTIO_F_EVENT_IDX     (1ull << 29)
#define VIRTIO_F_VERSION_1     (1ull << 32)

struct virtio_counters {
	_Atomic uint64_t
		kicks; /* notifications seen by the device thread; several may be counted as one */
	_Atomic uint64_t notifies; /* QueueNotify that came as an exit */
	_Atomic uint64_t irqs;     /* interrupts given to the guest */
	_Atomic uint64_t refused;  /* invalid register accesses and requests */
	_Atomic uint64_t broken;   /* how often the device asked for a reset */
	_Atomic uint64_t resets;
	_Atomic uint64_t yields; /* budget used up */
};

/* First member of every device's struct. Fields below `lock` belong to whoever holds it. */
struct virtio_dev {
	const struct virtio_ops *ops;
	const struct dev_env *env;
	unsigned int slot;
	int kick_fd;
	struct watch *watch;
	struct virtio_counters n;
	_Atomic uint32_t isr;

	pthread_mutex_t lock;
	struct virtq queue[VIRTIO_MAX_QUEUES];
	uint64_t features; /* negotiated */
	uint32_t features_sel, driver_features_sel, queue_sel;
	uint32_t status;
	uint32_t config_gen;
	bool reset_due, activate_due; /* for the device thread */
	bool active;                  /* ops->activate was called, or a restore loaded DRIVER_OK */
	bool quiet;                   /* stopped for a snapshot or pause: no queue work */
	const char *why_broken;
	bool tell_broken; /* the device thread must call env->needs_reset() */
	struct log_limit tell_limit;
};

/* Makes the transport and watches its eventfd. env is borrowed. The device's destroy calls
 * virtio_fini (from the device thread). */
int virtio_init(struct virtio_dev *d, const struct virtio_ops *ops, const struct dev_env *env,
	unsigned int slot, struct err *e);
void virtio_fini(struct virtio_dev *d);

void virtio_mmio_read(struct virtio_dev *d, uint32_t off, void *to, uint32_t len);
void virtio_mmio_write(struct virtio_dev *d, uint32_t off, const void *from, uint32_t len);

/* For the device's own handlers on the device thread (completions, sockets, timers): lock, work,
 * virtio_signal, unlock. */
static inline void virtio_lock(struct virtio_dev *d)
{
	pthread_mutex_lock(&d->lock);
}
static inline void virtio_unlock(struct virtio_dev *d)
{
	pthread_mutex_unlock(&d->lock);
}
/* May queue work be done now? (activated, not broken, not quiet) */
static inline bool virtio_runs(const struct virtio_dev *d)
{
	return d->active && !d->reset_due && !d->quiet && !(d->status & VIRTIO_S_NEEDS_RESET);
}
/* Publishes what was pushed on all queues, and gives at most one interrupt. Lock held. */
void virtio_signal(struct virtio_dev *d);
/* The configuration space has changed: if a driver is active, it gets an interrupt and reads
 * the space again. Lock held. */
void virtio_config_changed(struct virtio_dev *d);
/* The device asks for a reset; why is a literal. No queue work until the driver has reset it. */
void virtio_broken(struct virtio_dev *d, const char *why);
/* Asks for another turn of all queues, after the other devices had theirs. */
void virtio_again(struct virtio_dev *d);

/* Snapshot, from the device thread with the vCPUs stopped. Quiesce stops queue work (0, or
 * -EINPROGRESS: `done` will be called, unless virtio_resume() comes first). Resume starts it
 * again: each queue is processed as if the driver had kicked it. After virtio_load() the device is
 * quiet. restored: the VM was restored, so call ops->after_restore() and give one interrupt, because
 * the last one may have been lost (ops->quiet_restore: only if the guest has not acknowledged the
 * last one). */
int virtio_quiesce(struct virtio_dev *d, void (*done)(void *), void *arg);
void virtio_save(struct virtio_dev *d, struct buf *out);
int virtio_load(struct virtio_dev *d, struct cur *in, struct err *e);
void virtio_resume(struct virtio_dev *d, bool restored);

/* Counters as "<name>.<counter>", and one line of state for crash reports. */
void virtio_stats(struct virtio_dev *d, dev_stat_fn fn, void *arg);
void virtio_dump(struct virtio_dev *d, char *to, size_t cap);
