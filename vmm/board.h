/* SPDX-License-Identifier: Apache-2.0
 *
 * board.h: the one fixed board: which device is where, who gets an access, what the guest's kernel
 * is told about it. mayfly-vmm. Accesses come on vCPU threads; everything else is called by the
 * device thread. See device.h for the places.
 */
#pragma once

#include "lib/base.h"
#include "lib/proto_vmm.h"
#include "vmm/device.h"
#include "vmm/kvm.h"
#include "vmm/serial.h"
#include "vmm/virtio.h"

#define BOARD_LINES 24u
#define BOARD_NAME                                                                                 \
	"board-1" /* changes when a place of it does: snapshots of another board are refused */

struct board_hooks {
	void *ctx;
	void (*panicked)(void *ctx);                                 /* vCPU thread */
	void (*end)(void *ctx, enum vmm_exit why, const char *text); /* any thread */
	void (*needs_reset)(void *ctx, const char *dev, const char *why);
	void (*disk_full)(void *ctx, unsigned int disk, unsigned int waiting); /* may be NULL */
	void (*given_back)(void *ctx, uint64_t bytes);                         /* may be NULL */
	void (*serial_out)(void *ctx, uint8_t byte);
};

struct board {
	struct board_hooks hooks;
	struct kvm *kvm; /* NULL in unit tests: no eventfds are registered */
	struct dev_env env;
	struct virtio_dev *dev[BOARD_VIRTIO_SLOTS];
	void (*destroy[BOARD_VIRTIO_SLOTS])(struct virtio_dev *d);
	int irq_fd[BOARD_LINES];
	/* what a driver notifies: the slot's device has taken it (notify_taken), KVM signals it (notify_on) */
	int notify_fd[BOARD_VIRTIO_SLOTS];
	uint32_t notify_taken, notify_on;
	bool serial_on;
	struct serial serial;
	_Atomic uint64_t unknown_mmio, unknown_pio;
	unsigned int quiet_left; /* devices that still have requests in flight */
	void (*quiet_done)(void *arg);
	void *quiet_arg;
};

int board_init(struct board *b, struct kvm *k, struct mem *m, struct loop *l,
	const struct board_hooks *h, struct err *e);
void board_fini(struct board *b);
/* Puts a device into its slot. Takes d; destroyed by board_fini. */
int board_attach(struct board *b, unsigned int slot, struct virtio_dev *d,
	void (*destroy)(struct virtio_dev *d), struct err *e);

/* Has KVM signal one more device's event descriptor, `all`: or a free slot's, which may get a device at a restore. False: there is none left.
 * KVM waits for a grace period at each: a blank monitor has time for all slots, a fresh process that restores has not. One that is not connected
 * is an exit. */
bool board_connect(struct board *b, bool all);

/* Accesses of the guest: any address, 1 to 8 bytes. Unknown places read as all ones and are
 * counted. */
void board_mmio(struct board *b, uint64_t gpa, void *data, uint32_t len, bool write);
void board_pio(struct board *b, uint16_t port, void *data, uint32_t size, bool write);

/* The device tree: CPUs, interrupt controllers, generation id, pvpanic, and a virtio,mmio node for
 * each device that is there. */
int board_fdt(const struct board *b, unsigned int nvcpus, void *to, size_t cap, size_t *bytes,
	struct err *e);
/* What stands before the user's part of the command line. */
void board_cmdline(const struct board *b, struct buf *out);

/* A new generation id; pulse: the guest runs already and must be told. */
void board_new_generation(struct board *b, bool pulse);

/* Snapshot, with the vCPUs standing. Quiesce: 0 when all devices are quiet, -EINPROGRESS: `done`
 * comes. */
int board_quiesce(struct board *b, void (*done)(void *), void *arg);
void board_resume(struct board *b, bool restored);
void board_save_dev(struct board *b, unsigned int slot, struct buf *out);
int board_load_dev(struct board *b, unsigned int slot, struct cur *in, struct err *e);
/* what is not virtio: the serial port */
void board_save(struct board *b, struct buf *out);
int board_load(struct board *b, struct cur *in, struct err *e);
