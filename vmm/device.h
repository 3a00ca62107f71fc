/* SPDX-License-Identifier: Apache-2.0
 *
 * device.h: the interface between a virtio device and the board, and the board's addresses.
 * mayfly-vmm. The board has fixed slots: slot i has its MMIO page at BOARD_VIRTIO_BASE + i * 4096
 * and interrupt line BOARD_VIRTIO_IRQ + i, with or without a device, so that a snapshot needs no
 * map.
 *
 * Threads: MMIO register accesses run on the vCPU thread that made them, under the device's lock;
 * queue work runs on the one device thread (the event loop), started by the slot's eventfd. A
 * device's saved state is a row of fields with a version: save() writes it while the vCPUs are
 * stopped and the device is quiet, load() reads it into a fresh device before the vCPUs run.
 * quiesce() finishes the requests in flight before save().
 */
#pragma once

#include "lib/base.h"
#include "lib/buf.h"
#include "lib/err.h"
#include "lib/loop.h"
#include "vmm/mem.h"

#define BOARD_VIRTIO_BASE 0xd0000000ull
#define BOARD_VIRTIO_IRQ  5
#define BOARD_VIRTIO_SLOTS                                                                         \
	16 /* lines 5..20 of 24: 8 disks, vsock, rng, console, net, balloon, fs */
#define BOARD_PVPANIC_ADDR                                                                         \
	0xd0100000ull /* reads which events are known; writes: bit 0 or 1 panic, bit 2 power-off */
#define BOARD_VMGENID_ADDR 0xe0000ull /* 16 bytes in the hole below 1 MiB */
#define BOARD_VMGENID_IRQ  3
#define BOARD_SERIAL_PORT  0x3f8
#define BOARD_SERIAL_IRQ   4 /* the 8250 driver's default for this port */

enum board_slot {
	SLOT_VSOCK = 0,
	SLOT_RNG = 1,
	SLOT_CONSOLE = 2,
	SLOT_NET = 3,
	SLOT_BALLOON = 4,
	SLOT_DISK0 = 5, /* ..12 */
	SLOT_FS = 13
};

/* What the board gives every device. board_init() fills it; in unit tests a fake guest does. */
struct dev_env {
	struct mem *mem;
	struct loop *loop; /* the device thread's */
	void *ctx;
	void (*irq)(
		void *ctx, unsigned int line); /* pulse an interrupt: any thread (irqfd write) */
	/* The device is broken. Called on the device thread with the device's lock held, at most
	 * ten times a minute for each device. */
	void (*needs_reset)(void *ctx, const char *dev, const char *why);
	/* waiting: the number of writes that wait, because the host has no room for them; 0: none
	 * waits any more. Called like needs_reset(). May be NULL. */
	void (*disk_full)(void *ctx, unsigned int disk, unsigned int waiting);
	/* bytes: what the guest has given back in all. Called on the device thread, at most once a
	 * second. May be NULL. */
	void (*given_back)(void *ctx, uint64_t bytes);
	/* Gives the device the eventfd that KVM signals for the slot's notifications. If this
	 * returns -1 or is NULL, the device makes an eventfd, and each notification is an exit. */
	int (*take_notify_fd)(void *ctx, unsigned int slot);
};

struct virtio_dev; /* vmm/virtio.h: transport, queues, ops table */

/* one counter of a device's statistics */
typedef void (*dev_stat_fn)(void *arg, const char *dev, const char *name, uint64_t value);

struct virtio_ops {
	const char *name;
	uint32_t device_id;
	uint16_t nqueues;
	uint16_t queue_max; /* size offered */
	uint64_t features;  /* beyond the transport's own */
	uint32_t config_bytes;
	/* A restore does not interrupt the guest if the guest had acknowledged every interrupt: an
	 * interrupt costs the guest two exits. */
	bool quiet_restore;
	/* All on the device thread with the device's lock held, except config_read, config_write
	 * and busy (a vCPU thread, lock held). Those marked "may be NULL" need not be there. */
	void (*config_read)(struct virtio_dev *d, uint32_t off, void *to,
		uint32_t len); /* may be NULL: reads 0 */
	void (*config_write)(struct virtio_dev *d, uint32_t off, const void *from,
		uint32_t len);                  /* may be NULL */
	void (*activate)(struct virtio_dev *d); /* DRIVER_OK; may be NULL */
	/* Forget all requests. The queues were emptied before; the driver may even have set them up
	 * again. May be NULL. */
	void (*reset)(struct virtio_dev *d);
	/* Are requests in flight that may still touch guest memory? Until they are done the status
	 * register does not read 0. May be NULL. */
	bool (*busy)(struct virtio_dev *d);
	/* Work on one queue; push and pop freely, the transport publishes and interrupts. True:
	 * budget used up, call again after the others */
	bool (*kick)(struct virtio_dev *d, unsigned int queue);
	/* Finishes the requests in flight. 0: there is none any more. -EINPROGRESS: `done` will be
	 * called once, when there is none. If resume() comes before that, the stop was cancelled,
	 * and `done` must not be called. May be NULL. */
	int (*quiesce)(struct virtio_dev *d, void (*done)(void *), void *arg);
	void (*save)(
		struct virtio_dev *d, struct buf *out); /* versioned, little endian; may be NULL */
	int (*load)(struct virtio_dev *d, struct cur *in,
		struct err *e); /* hostile: a snapshot file may be damaged; may be NULL */
	void (*after_restore)(struct virtio_dev *d); /* vsock: transport reset event; may be NULL */
	void (*resume)(struct virtio_dev *d);        /* the opposite of quiesce; may be NULL */
	void (*stats)(struct virtio_dev *d, dev_stat_fn fn, void *arg); /* may be NULL */
};
