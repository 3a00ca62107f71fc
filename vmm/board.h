/* SPDX-License-Identifier: Apache-2.0
 *
 * board.h: the one fixed board: where each device is, which device gets an access of the guest, and
 * the device tree and command line that describe it. mayfly-vmm. Accesses come on vCPU threads; the
 * device thread calls everything else. device.h has the addresses and interrupt lines.
 */
#pragma once

#include "lib/base.h"
#include "lib/proto_vmm.h"
#include "vmm/device.h"
#include "vmm/kvm.h"
#include "vmm/serial.h"
#include "vmm/virtio.h"

#define BOARD_LINES 24u
#define BOARD_NAME  "board-1" /* another layout needs another name: a restore compares it */

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
	/* The eventfd of a slot's notifications. Bits of slots: notify_taken: a device owns it,
	 * notify_on: KVM signals it. */
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

/* Connects the notifications of one more device to its eventfd in KVM. all: free slots, too, which
 * may get a device at a restore. False: none was left to connect. KVM waits for a grace period each
 * time: a blank monitor has the time for all slots, a fresh process that restores has not. A
 * notification that is not connected is an exit. */
bool board_connect(struct board *b, bool all);

/* Accesses of the guest: any address, 1 to 8 bytes. Unknown places are counted and read as all
 * ones, except port 0x64 (0). A virtio slot without a device reads 0 and is not counted. */
void board_mmio(struct board *b, uint64_t gpa, void *data, uint32_t len, bool write);
void board_pio(struct board *b, uint16_t port, void *data, uint32_t size, bool write);

/* The device tree: CPUs, interrupt controllers, generation id, pvpanic, and a virtio,mmio node for
 * each device that is there. */
int board_fdt(const struct board *b, unsigned int nvcpus, void *to, size_t cap, size_t *bytes,
	struct err *e);
/* The monitor's part of the kernel's command line, which comes first. */
void board_cmdline(const struct board *b, struct buf *out);

/* Writes a new generation id. tell: interrupts the guest, which has read the one before
 * (restore). */
void board_new_generation(struct board *b, bool tell);

/* For a snapshot or a pause; the vCPUs are parked. Quiesce: 0 if all devices are quiet already,
 * -EINPROGRESS: `done` will be called, unless board_resume() comes first. */
int board_quiesce(struct board *b, void (*done)(void *), void *arg);
void board_resume(struct board *b, bool restored);
void board_save_dev(struct board *b, unsigned int slot, struct buf *out);
int board_load_dev(struct board *b, unsigned int slot, struct cur *in, struct err *e);
/* the state that is not in a virtio device: the serial port */
void board_save(struct board *b, struct buf *out);
int board_load(struct board *b, struct cur *in, struct err *e);
