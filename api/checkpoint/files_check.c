/* SPDX-License-Identifier: Apache-2.0
 *
 * files_check.c: are the files of a checkpoint complete, and which other files do they need? mayflyd's
 * loop. A monitor wrote the files, so they are hostile. Only the readers of lib/snap and lib/cow read
 * them, and ids in them are compared with those of our own files.
 */
#include <string.h>

#include "api/checkpoint/files.h"
#include "lib/cow_format.h"
#include "lib/snap.h"

static bool layer_id(struct blobs *b, const char *blob, uint64_t bytes, uint8_t id[COW_ID_BYTES])
{
	_cleanup_close_ int fd = *blob ? blob_open(b, blob, "data", false) : -1;
	struct err e;

	return fd >= 0 && cow_data_read_hdr(fd, "layer", bytes, id, &e) == 0;
}

bool disk_layer_is(struct blobs *b, const struct disk *d, const char *blob, const uint8_t *id)
{
	uint8_t have[COW_ID_BYTES];

	return layer_id(b, blob, d->bytes, have) && !memcmp(have, id, sizeof(have));
}

int disk_frozen_of(struct blobs *b, const struct disk *had, const uint8_t (*ids)[COW_ID_BYTES],
	unsigned int n, struct disk *now)
{
	unsigned int at = 0;

	now->nfrozen = 0;
	if (n > DISK_FROZEN_MAX)
		return -EINVAL;
	for (int i = 0; i <= had->nfrozen && at < n; i++) {
		const char *blob = i < had->nfrozen ? had->frozen[i] : had->data;

		if (!disk_layer_is(b, had, blob, ids[at]))
			continue;
		memcpy(now->frozen[now->nfrozen++], blob, BLOB_ID);
		at++;
	}
	return at == n ? 0 : -EINVAL;
}

/* The memory files that the state names, out of those that the old memory had and the new one. */
static int memory_of(struct blobs *b, const struct snap_head *h, const struct memory *old,
	const char *new_mem, struct memory *m, struct err *e)
{
	unsigned int at = 0;

	*m = (struct memory){0};
	for (int i = 0; i <= old->nmem && at < h->nfiles; i++) {
		const char *blob = i < old->nmem ? old->mem[i] : new_mem;
		/* no durable checkpoint may refer to a file in RAM, whatever the monitor wrote */
		_cleanup_close_ int fd = blob_in_ram(blob) ? -1 : blob_open(b, blob, "mem", false);
		struct snap_mem_head head;

		if (fd < 0 || snap_mem_check(fd, &h->file[at], &head, e) < 0)
			continue;
		memcpy(m->mem[m->nmem++], blob, BLOB_ID);
		at++;
	}
	str_copy(m->state, sizeof(m->state), new_mem);
	return at == h->nfiles ? 0
			       : err_plain(e, ENOENT, "a memory file is missing or not complete");
}

static int disk_is_whole(struct blobs *b, const struct disk *d, struct err *e)
{
	struct cow_fds c = COW_FDS_NONE;
	struct vm_disk_fds f;
	struct cow *cow = NULL;
	int rc = disk_fds_open(b, d, &f, e);

	if (rc < 0)
		return rc;
	/* the private layer is not checked: a new one is made before anything runs */
	c.base = f.base;
	c.nfrozen = (unsigned int)f.nfrozen;
	memcpy(c.frozen, f.frozen, sizeof(f.frozen));
	c.index = f.index;
	rc = cow_open(&cow, &c, e);
	if (rc == 0) {
		f.base = f.index = -1;
		for (int i = 0; i < f.nfrozen; i++)
			f.frozen[i] = -1;
	}
	cow_close(cow);
	disk_fds_close(&f);
	return rc;
}

int point_read(struct blobs *b, const struct point_files *f, struct disk *disk, struct memory *mem,
	struct err *e)
{
	_cleanup_close_ int fd = blob_open(b, f->mem_id, "state", false);
	_cleanup_free_ struct snap *s = malloc(sizeof(*s));
	_cleanup_free_ void *text = NULL;
	uint8_t ids[COW_MAX_FROZEN][COW_ID_BYTES];
	unsigned int n = 0;
	struct cur c;
	size_t len;
	int rc;

	if (fd < 0 || !s)
		return err_plain(e, ENOENT, "there is no state file");
	rc = snap_read_file(fd, &text, &len, e);
	if (rc == 0)
		rc = snap_parse(s, text, len, e);
	if (rc == 0)
		rc = memory_of(b, &s->head, f->memory, f->mem_id, mem, e);
	if (rc < 0)
		return rc;
	c = snap_section(s, SNAP_S_DISK, 0);
	n = cur_u8(&c);
	if (n > COW_MAX_FROZEN || snap_has(s, SNAP_S_DISK, 1))
		return err_plain(e, EINVAL, "the state is of other disks");
	for (unsigned int i = 0; i < n; i++)
		cur_copy(&c, ids[i], COW_ID_BYTES);
	*disk = *f->disk;
	if (!cur_done(&c) ||
		disk_frozen_of(b, f->disk, (const uint8_t(*)[COW_ID_BYTES])ids, n, disk) < 0)
		return err_plain(e, EINVAL, "the state is of other layers");
	str_copy(disk->index, sizeof(disk->index), f->index_id);
	str_copy(disk->data, sizeof(disk->data), f->data_id);
	return disk_is_whole(b, disk, e);
}

/* ---- has it a writer? */

static int no_writer(struct blobs *b, const char *id, const char *kind, struct err *e)
{
	int rc = *id ? blob_has_writer(b, id, kind) : 0;

	if (rc == -EBUSY)
		return err_plain(
			e, EBUSY, "a process still has %.36s.%s open for writing", id, kind);
	return rc < 0 ? err_set(e, -rc, "whether %.36s.%s has a writer", id, kind) : 0;
}

int point_has_writer(
	struct blobs *b, const struct disk *disk, const struct memory *mem, struct err *e)
{
	int rc = no_writer(b, disk->index, "index", e);

	for (int i = 0; i < disk->nfrozen && rc == 0; i++) {
		rc = no_writer(b, disk->frozen[i], "data", e);
		if (rc == 0)
			rc = no_writer(b, disk->frozen[i], "bitmap", e);
	}
	if (rc == 0)
		rc = no_writer(b, mem->state, "state", e);
	for (int i = 0; i < mem->nmem && rc == 0; i++)
		rc = no_writer(b, mem->mem[i], "mem", e);
	return rc;
}
