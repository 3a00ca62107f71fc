/* SPDX-License-Identifier: Apache-2.0
 *
 * files.h: the files of a disk and of a memory, by blob id. A "point" in names here is a set of files that a machine can be made from:
 * the frozen layers of a disk, and perhaps memory and device state. Templates, snapshots and paused sandboxes have one. mayflyd's loop.
 */
#pragma once

#include "api/checkpoint/blobs.h"
#include "api/links/monitors.h"

struct cJSON;

struct disk {
	char base[512]; /* the image's file */
	uint64_t bytes;
	int nfrozen;
	char frozen[DISK_FROZEN_MAX][BLOB_ID];
	char index[BLOB_ID]; /* of the frozen layers; "" if there are none */
	char data[BLOB_ID];  /* the private layer; "" in a snapshot or template */
};

struct memory {
	char state[BLOB_ID]; /* "" = none */
	int nmem;
	char mem[VMM_MAX_MEM][BLOB_ID];
	char ws[BLOB_ID]; /* working set, "" until one was recorded */
};

void disk_ref(struct blobs *b, const struct disk *d);
void disk_unref(struct blobs *b, const struct disk *d);
void memory_ref(struct blobs *b, const struct memory *m);
void memory_unref(struct blobs *b, const struct memory *m);
bool memory_has(const struct memory *m, const char *blob); /* among its memory files */
/* Makes an empty private layer for a disk of that size, in a thread: on some file systems it takes a millisecond to
 * find a free inode. fn is called later, on the loop. Without an error data is the blob of the layer, with a reference that
 * fn has to drop. Returns NULL if there is no memory. */
struct layer_job;
typedef void (*layer_fn)(void *arg, const char *data, const struct err *e);
struct layer_job *disk_private_make(struct blobs *b, uint64_t bytes, layer_fn fn, void *arg);
void disk_private_cancel(
	struct layer_job *j); /* fn is not called any more, and nothing stays; NULL is fine */
/* All descriptors, for a VM. Close with disk_fds_close(). */
int disk_fds_open(struct blobs *b, const struct disk *d, struct vm_disk_fds *f, struct err *e);
void disk_fds_close(struct vm_disk_fds *f);
int memory_fds_open(
	struct blobs *b, const struct memory *m, struct vm_restore_fds *f, struct err *e);
void memory_fds_close(struct vm_restore_fds *f);

/* files_check.c. Is this blob, of that disk, the layer with this id (16 bytes)? */
bool disk_layer_is(struct blobs *b, const struct disk *d, const char *blob, const uint8_t *id);
/* Sets now->frozen to the layers of `had`, its private one included, that ids name. -EINVAL: not all
 * of the ids were found, in this order. */
int disk_frozen_of(struct blobs *b, const struct disk *had, const uint8_t (*ids)[16],
	unsigned int n, struct disk *now);
struct point_files {
	const char *mem_id, *index_id, *data_id; /* the new files, by blob */
	const struct disk *disk;                 /* what the machine had before */
	const struct memory *memory;
};
/* Reads the files that a monitor wrote before it ended. 0: they are complete; *disk and *mem are set,
 * without references. */
int point_read(struct blobs *b, const struct point_files *f, struct disk *disk, struct memory *mem,
	struct err *e);

/* Can anybody still write a file of this point? As blob_has_writer(). Only after a 0 may other sandboxes use it. */
int point_has_writer(
	struct blobs *b, const struct disk *disk, const struct memory *mem, struct err *e);

struct cJSON *disk_to_json(const struct blobs *b, const struct disk *d);
bool disk_from_json(const struct blobs *b, struct disk *d, const struct cJSON *j);
struct cJSON *memory_to_json(const struct memory *m);
bool memory_from_json(struct memory *m, const struct cJSON *j);
