/* SPDX-License-Identifier: Apache-2.0
 *
 * vblk.h: virtio-blk (virtio 1.2, 5.2) on a layered disk. mayfly-vmm, device thread. Requests,
 * their sectors and lengths are the guest's: hostile. Each disk is one device in slot SLOT_DISK0 +
 * its number; all disks of a VM share one struct bio.
 */
#pragma once

#include "lib/cow.h"
#include "vmm/bio.h"
#include "vmm/virtio.h"

#define VBLK_SERIAL_BYTES 20u
#define VBLK_QUEUE_MAX    128u
/* operations that one disk may have in flight */
#define VBLK_MAX_OPS 128u
/* bio_create()'s depth in tests; the monitor's is VM_BIO_DEPTH */
#define VBLK_BIO_DEPTH 128u

/* virtio 1.2, 5.2.3 to 5.2.6, little endian */
enum {
	VIRTIO_BLK_F_RO = 5,
	VIRTIO_BLK_F_SEG_MAX = 2,
	VIRTIO_BLK_F_BLK_SIZE = 6,
	VIRTIO_BLK_F_FLUSH = 9,
	VIRTIO_BLK_F_TOPOLOGY = 10,
	VIRTIO_BLK_F_DISCARD = 13,
	VIRTIO_BLK_F_WRITE_ZEROES = 14
};
enum {
	VIRTIO_BLK_T_IN = 0,
	VIRTIO_BLK_T_OUT = 1,
	VIRTIO_BLK_T_FLUSH = 4,
	VIRTIO_BLK_T_GET_ID = 8,
	VIRTIO_BLK_T_DISCARD = 11,
	VIRTIO_BLK_T_WRITE_ZEROES = 13
};
enum { VIRTIO_BLK_S_OK = 0, VIRTIO_BLK_S_IOERR = 1, VIRTIO_BLK_S_UNSUPP = 2 };
#define VIRTIO_BLK_ZEROES_UNMAP 1u

struct virtio_blk_head {
	uint32_t type_le, reserved;
	uint64_t sector_le;
};
static_assert(sizeof(struct virtio_blk_head) == 16, "virtio 1.2, 5.2.6");

struct virtio_blk_seg { /* of discard and write-zeroes */
	uint64_t sector_le;
	uint32_t sectors_le, flags_le;
};
static_assert(sizeof(struct virtio_blk_seg) == 16, "virtio 1.2, 5.2.6");

struct virtio_blk_conf {
	uint64_t capacity_le;
	uint32_t size_max_le, seg_max_le;
	uint8_t geometry[4];
	uint32_t blk_size_le;
	uint8_t physical_block_exp, alignment_offset;
	uint16_t min_io_size_le;
	uint32_t opt_io_size_le;
	uint8_t writeback, unused0;
	uint16_t num_queues_le;
	uint32_t max_discard_sectors_le, max_discard_seg_le, discard_alignment_le;
	uint32_t max_zeroes_sectors_le, max_zeroes_seg_le;
	uint8_t zeroes_may_unmap, unused1[3];
};
static_assert(
	sizeof(struct virtio_blk_conf) == 64, "virtio 1.2, 5.2.4: 60, and what its alignment adds");
#define VIRTIO_BLK_CONF_BYTES 60u

struct vblk;

struct vblk_conf {
	struct cow *cow;    /* taken, on success only */
	struct bio *bio;    /* borrowed; its completions run on env->loop */
	const char *serial; /* copied; cut at VBLK_SERIAL_BYTES */
	unsigned int slot;
	bool read_only; /* a disk without a private layer is read-only in any case */
};

int vblk_create(
	struct vblk **out, const struct vblk_conf *conf, const struct dev_env *env, struct err *e);
/* Nothing in flight (quiesced, or bio drained). NULL is fine. */
void vblk_destroy(struct vblk *b);
struct virtio_dev *vblk_dev(struct vblk *b);
/* Prepares the freeze of a snapshot while the guest runs: copies a little of what the freeze would
 * otherwise copy while the guest is stopped. 1: call again, 0: done, -errno. */
int vblk_carry(struct vblk *b, struct err *e);
/* Before a freeze: if an earlier snapshot failed after its freeze, makes that freeze durable. 0:
 * nothing to do; -EINPROGRESS: done(arg, status) will be called; -errno. */
int vblk_finish_freeze(struct vblk *b, void (*done)(void *arg, int status), void *arg);
/* cow_freeze_settled() and cow_frozen_read_only(), under the device's lock. */
void vblk_freeze_settled(struct vblk *b);
int vblk_frozen_read_only(
	struct vblk *b, const int *frozen, unsigned int n, int index, struct err *e);
/* cow_limit(), under the device's lock: writes beyond it wait, as on a host without room. */
void vblk_limit(struct vblk *b, uint64_t bytes);
/* The layered disk, for questions about its layers. Only a snapshot freezes it, between quiesce and
 * resume. */
struct cow *vblk_cow(struct vblk *b);
