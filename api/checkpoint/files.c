/* SPDX-License-Identifier: Apache-2.0
 *
 * files.c: see files.h. mayflyd's loop. The records come from our own database; a field that does not fit is refused all the same.
 */
#include "api/checkpoint/files.h"

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "api/core/io_pool.h"
#include "api/core/text.h"
#include "lib/cow.h"

void disk_ref(struct blobs *b, const struct disk *d)
{
	for (int i = 0; i < d->nfrozen; i++)
		blob_ref(b, d->frozen[i]);
	blob_ref(b, d->index);
	blob_ref(b, d->data);
}

void disk_unref(struct blobs *b, const struct disk *d)
{
	for (int i = 0; i < d->nfrozen; i++)
		blob_unref(b, d->frozen[i]);
	blob_unref(b, d->index);
	blob_unref(b, d->data);
}

void memory_ref(struct blobs *b, const struct memory *m)
{
	for (int i = 0; i < m->nmem; i++)
		blob_ref(b, m->mem[i]);
	blob_ref(b, m->state);
	blob_ref(b, m->ws);
}

void memory_unref(struct blobs *b, const struct memory *m)
{
	for (int i = 0; i < m->nmem; i++)
		blob_unref(b, m->mem[i]);
	blob_unref(b, m->state);
	blob_unref(b, m->ws);
}

bool memory_has(const struct memory *m, const char *blob)
{
	for (int i = 0; i < m->nmem; i++)
		if (!strcmp(m->mem[i], blob))
			return true;
	return false;
}

/* ---- a private layer */

struct layer_job {
	struct io_job job;
	struct blobs *b;
	uint64_t bytes;
	layer_fn fn; /* NULL: cancelled */
	void *arg;
	char id[BLOB_ID];
	int rc;
	struct err err;
};

static void layer_work(struct io_job *job)
{
	struct layer_job *j = container_of(job, struct layer_job, job);
	_cleanup_close_ int data = blob_make(j->b, j->id, "data"),
			    bitmap = data < 0 ? -1 : blob_make(j->b, j->id, "bitmap");

	if (data < 0 || bitmap < 0)
		j->rc = err_set(&j->err, data < 0 ? -data : -bitmap, "making a disk layer");
	else if ((j->rc = cow_layer_create(data, bitmap, j->bytes, &j->err)) < 0)
		err_wrap(&j->err, "making a disk layer");
	if (j->rc == 0)
		return;
	blob_discard(j->b, j->id, "data");
	blob_discard(j->b, j->id, "bitmap");
}

static void layer_done(struct io_job *job)
{
	struct layer_job *j = container_of(job, struct layer_job, job);

	if (j->rc == 0)
		blob_ref(j->b, j->id);
	if (j->fn)
		j->fn(j->arg, j->id, j->rc < 0 ? &j->err : NULL);
	else if (j->rc == 0)
		blob_unref(j->b, j->id);
	free(j);
}

struct layer_job *disk_private_make(struct blobs *b, uint64_t bytes, layer_fn fn, void *arg)
{
	struct layer_job *j = calloc(1, sizeof(*j));

	if (!j)
		return NULL;
	*j = (struct layer_job){.job = {layer_work, layer_done, NULL},
		.b = b,
		.bytes = bytes,
		.fn = fn,
		.arg = arg};
	blob_id_make(j->id);
	io_pool_run_quick(blobs_io(b), &j->job);
	return j;
}

void disk_private_cancel(struct layer_job *j)
{
	if (j)
		j->fn = NULL;
}

void disk_fds_close(struct vm_disk_fds *f)
{
	close_fd(&f->base);
	for (int i = 0; i < f->nfrozen; i++)
		close_fd(&f->frozen[i]);
	close_fd(&f->index);
	close_fd(&f->data);
	close_fd(&f->bitmap);
}

/* 0 or -errno; *to is negative then. */
static int open_file(int *to, struct blobs *b, const char *id, const char *kind, bool rw)
{
	*to = blob_open(b, id, kind, rw);
	return *to < 0 ? *to : 0;
}

/* A missing file gets an error of its own, to tell it from a lack of descriptors. */
static int open_failed(struct err *e, int rc, const char *what)
{
	return rc == ENOENT ? err_plain(e, rc, "%s is missing", what) : err_set(e, rc, "%s", what);
}

int disk_fds_open(struct blobs *b, const struct disk *d, struct vm_disk_fds *f, struct err *e)
{
	int rc;

	*f = (struct vm_disk_fds){
		.base = -1, .nfrozen = d->nfrozen, .index = -1, .data = -1, .bitmap = -1};
	for (int i = 0; i < DISK_FROZEN_MAX; i++)
		f->frozen[i] = -1;
	f->base = open(d->base, O_RDONLY | O_CLOEXEC);
	if (f->base < 0)
		return err_set(e, errno, "the image's disk %s", d->base);
	rc = open_file(&f->data, b, d->data, "data", true);
	if (!rc)
		rc = open_file(&f->bitmap, b, d->data, "bitmap", true);
	for (int i = 0; i < d->nfrozen && !rc; i++)
		rc = open_file(&f->frozen[i], b, d->frozen[i], "data", false);
	if (d->nfrozen && !rc)
		rc = open_file(&f->index, b, d->index, "index", false);
	if (!rc)
		return 0;
	disk_fds_close(f);
	return open_failed(e, -rc, "a layer of the disk");
}

void memory_fds_close(struct vm_restore_fds *f)
{
	close_fd(&f->state);
	close_fd(&f->workset);
	for (int i = 0; i < f->nmem; i++)
		close_fd(&f->mem[i]);
}

int memory_fds_open(
	struct blobs *b, const struct memory *m, struct vm_restore_fds *f, struct err *e)
{
	int rc;

	*f = (struct vm_restore_fds){.state = -1, .nmem = m->nmem, .workset = -1};
	for (unsigned int i = 0; i < VMM_MAX_MEM; i++)
		f->mem[i] = -1;
	rc = open_file(&f->state, b, m->state, "state", false);
	for (int i = 0; i < m->nmem && !rc; i++)
		rc = open_file(&f->mem[i], b, m->mem[i], "mem", false);
	if (*m->ws)
		f->workset = blob_open(
			b, m->ws, "ws", false); /* without one, pages come when they are touched */
	if (!rc)
		return 0;
	memory_fds_close(f);
	for (int i = 0; i < m->nmem && rc == -ENOENT; i++)
		if (blob_in_ram(m->mem[i]))
			return err_plain(e, ENOENT,
				"its memory was in RAM and was lost when the server that forked it "
				"stopped");
	return open_failed(e, -rc, "a file of the memory snapshot");
}

/* ---- JSON */

static cJSON *ids_to_json(const char (*ids)[BLOB_ID], int n)
{
	cJSON *a = cJSON_CreateArray();

	for (int i = 0; i < n; i++)
		cJSON_AddItemToArray(a, cJSON_CreateString(ids[i]));
	return a;
}

static bool id_from(const cJSON *v, char id[BLOB_ID])
{
	id[0] = 0;
	if (!cJSON_IsString(v))
		return !v || cJSON_IsNull(v);
	if (!*v->valuestring)
		return true;
	if (!uuid_ok(v->valuestring))
		return false;
	str_copy(id, BLOB_ID, v->valuestring);
	return true;
}

static bool ids_from(const cJSON *a, char (*ids)[BLOB_ID], int *n, int max)
{
	const cJSON *v;

	*n = 0;
	cJSON_ArrayForEach (v, a)
		if (*n == max || !id_from(v, ids[(*n)++]))
			return false;
	return true;
}

cJSON *disk_to_json(const struct blobs *b, const struct disk *d)
{
	cJSON *o = cJSON_CreateObject();

	/* relative to the state's folder: a record has no path of this host */
	cJSON_AddStringToObject(o, "base", blobs_relative(b, d->base));
	cJSON_AddNumberToObject(o, "bytes", (double)d->bytes);
	cJSON_AddItemToObject(o, "frozen", ids_to_json(d->frozen, d->nfrozen));
	cJSON_AddStringToObject(o, "index", d->index);
	cJSON_AddStringToObject(o, "data", d->data);
	return o;
}

bool disk_from_json(const struct blobs *b, struct disk *d, const cJSON *j)
{
	const cJSON *base = cJSON_GetObjectItemCaseSensitive(j, "base"),
		    *bytes = cJSON_GetObjectItemCaseSensitive(j, "bytes");

	memset(d, 0, sizeof(*d));
	if (!cJSON_IsString(base) || !cJSON_IsNumber(bytes) ||
		!blobs_absolute(b, base->valuestring, d->base, sizeof(d->base)))
		return false;
	d->bytes = (uint64_t)bytes->valuedouble;
	return ids_from(cJSON_GetObjectItemCaseSensitive(j, "frozen"), d->frozen, &d->nfrozen,
		       DISK_FROZEN_MAX) &&
	       id_from(cJSON_GetObjectItemCaseSensitive(j, "index"), d->index) &&
	       id_from(cJSON_GetObjectItemCaseSensitive(j, "data"), d->data);
}

cJSON *memory_to_json(const struct memory *m)
{
	cJSON *o = cJSON_CreateObject();

	cJSON_AddStringToObject(o, "state", m->state);
	cJSON_AddItemToObject(o, "mem", ids_to_json(m->mem, m->nmem));
	cJSON_AddStringToObject(o, "ws", m->ws);
	return o;
}

bool memory_from_json(struct memory *m, const cJSON *j)
{
	memset(m, 0, sizeof(*m));
	if (!cJSON_IsObject(j))
		return true;
	return id_from(cJSON_GetObjectItemCaseSensitive(j, "state"), m->state) &&
	       id_from(cJSON_GetObjectItemCaseSensitive(j, "ws"), m->ws) &&
	       ids_from(cJSON_GetObjectItemCaseSensitive(j, "mem"), m->mem, &m->nmem, VMM_MAX_MEM);
}
