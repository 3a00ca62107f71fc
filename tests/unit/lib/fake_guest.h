/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_guest.h: a guest for tests and fuzzers without KVM: allocated memory, a virtio driver that
 * is scripted by the test, an interrupt counter. It drives a device through its MMIO registers
 * only, like a kernel does.
 */
#pragma once

#include "lib/base.h"
#include "lib/loop.h"
#include "vmm/virtio.h"

#define FG_RAM  MIB(4)
#define FG_QMAX 256u

struct fg_queue {
	uint16_t size;
	uint64_t desc, avail, used; /* guest addresses */
	uint16_t avail_idx, last_used;
	uint16_t free_head, nfree;
	uint16_t next[FG_QMAX];
	bool indirect; /* put chains into indirect tables */
};

struct fake_guest {
	struct mem mem;
	struct loop *loop;
	struct dev_env env;
	struct virtio_dev *dev;
	struct fg_queue q[VIRTIO_MAX_QUEUES];
	uint64_t brk; /* next free guest address */
	unsigned int irqs[24], needs_resets;
	const char *why;
};

struct fg_range {
	uint64_t gpa;
	uint32_t len;
};

void fg_init(struct fake_guest *g);
void fg_fini(struct fake_guest *g);
uint64_t fg_alloc(struct fake_guest *g, size_t n);
void *fg_ptr(struct fake_guest *g, uint64_t gpa);

uint32_t fg_read(struct fake_guest *g, uint32_t off);
void fg_write(struct fake_guest *g, uint32_t off, uint32_t v);
/* Reset to DRIVER_OK with queues of at most `size`; features: those wanted beside VERSION_1. False:
 * the device refused. */
bool fg_probe(struct fake_guest *g, struct virtio_dev *d, uint64_t features, uint16_t size);
/* Device turns until nothing happens any more (bounded). */
void fg_run(struct fake_guest *g);
/* Makes a chain available (no kick): its head. */
uint16_t fg_add(struct fake_guest *g, unsigned int q, const struct fg_range *out, unsigned int nout,
	const struct fg_range *in, unsigned int nin);
void fg_kick(struct fake_guest *g, unsigned int q);
/* The next used entry: true, its head and length; the chain's descriptors are free again. */
bool fg_used(struct fake_guest *g, unsigned int q, uint16_t *head, uint32_t *len);
/* One descriptor, as is: for nonsense. */
void fg_desc(struct fake_guest *g, unsigned int q, uint16_t i, uint64_t addr, uint32_t len,
	uint16_t flags, uint16_t next);
/* Makes head i available whatever stands there. */
void fg_offer(struct fake_guest *g, unsigned int q, uint16_t i);
/* Writes used_event: a device with event index interrupts once it has used the entry with index v. */
void fg_used_event(struct fake_guest *g, unsigned int q, uint16_t v);
uint16_t fg_avail_event(struct fake_guest *g, unsigned int q);
/* state of g->dev saved and loaded into `to`, a fresh device of the same kind: 0 or -errno */
int fg_move(struct fake_guest *g, struct virtio_dev *to);
