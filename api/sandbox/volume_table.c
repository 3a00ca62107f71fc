/* SPDX-License-Identifier: Apache-2.0
 *
 * volume_table.c: see volume_table.h. mayflyd: the copies run in a thread of the pool. The bytes are mayfly-fs's, which may have been taken
 * over by its guest: they are copied, never read here. mayfly-fs checks every record when it loads a table.
 *
 * The table is copied while the guest's processes are frozen, but the guest's kernel may still forget a name at that moment. So it is
 * compared afterwards, and copied again until nothing has changed.
 */
#include "api/sandbox/volume_table.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "api/checkpoint/blobs.h"
#include "api/core/io_pool.h"

#define TRIES       8
#define TABLE_MAX   MIB(256) /* sparse; mayfly-fs knows its exact size */
#define PIECE_BYTES 65536u

struct table_job {
	struct io_job job; /* first */
	struct blobs *b;
	char id[BLOB_ID];
	int from, to;
	bool load, made;
	int rc;
	table_fn fn; /* NULL: cancelled */
	void *arg;
};

/* Copies a piece if it differs. 1: it differed; 0: it did not; or -errno. */
static int piece_copy(int from, int to, off_t at, size_t n)
{
	uint8_t a[PIECE_BYTES], b[PIECE_BYTES];
	int rc = pread_full(from, a, n, (uint64_t)at);

	if (rc == 0)
		rc = pread_full(to, b, n, (uint64_t)at);
	if (rc < 0 || memcmp(a, b, n) == 0)
		return rc;
	rc = pwrite_full(to, a, n, (uint64_t)at);
	return rc < 0 ? rc : 1;
}

/* Copies all that differs. 1: something differed; 0: nothing; or -errno. Holes are not read. */
static int table_pass(int from, int to, off_t size)
{
	off_t at = 0, end;
	int changed = 0;

	while (at < size && (at = lseek(from, at, SEEK_DATA)) >= 0) {
		end = lseek(from, at, SEEK_HOLE);
		if (end < 0)
			return -errno;
		end = MIN(end, size); /* it may grow meanwhile */
		while (at < end) {
			size_t n = (size_t)MIN(end - at, (off_t)PIECE_BYTES);
			int rc = piece_copy(from, to, at, n);

			if (rc < 0)
				return rc;
			changed |= rc;
			at += (off_t)n;
		}
	}
	return at < 0 && errno != ENXIO ? -errno : changed;
}

static int table_copy(int from, int to)
{
	struct stat st;
	int rc = 1;

	if (fstat(from, &st) < 0)
		return -errno;
	if (st.st_size > (off_t)TABLE_MAX)
		return -EFBIG;
	if (ftruncate(to, st.st_size) < 0)
		return -errno;
	for (int i = 0; rc == 1 && i < TRIES; i++)
		rc = table_pass(from, to, st.st_size);
	return rc == 1 ? -EAGAIN : rc;
}

static void table_work(struct io_job *job)
{
	struct table_job *j = (struct table_job *)(void *)job;

	if (j->load) {
		j->from = blob_open(j->b, j->id, "nodes", false);
		j->to = memfd_create("nodes", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	} else {
		j->to = blob_make(j->b, j->id, "nodes");
		j->made = j->to >= 0;
	}
	j->rc = j->from < 0 ? j->from : j->to < 0 ? j->to : table_copy(j->from, j->to);
	if (j->rc == 0 && !j->load && fsync(j->to) < 0)
		j->rc = -errno;
	close_fd(&j->from);
	if (!j->load)
		close_fd(&j->to);
}

static void table_done(struct io_job *job)
{
	struct table_job *j = (struct table_job *)(void *)job;
	struct err e;

	/* without a reference the file would only be removed at the next start */
	if (j->made && !blob_is_known(j->b, j->id))
		blob_discard(j->b, j->id, "nodes");
	if (j->rc < 0)
		err_set(&e, -j->rc, "the table of its volumes' files");
	if (j->fn)
		j->fn(j->arg, j->rc < 0 ? -1 : take_fd(&j->to), j->rc < 0 ? &e : NULL);
	close_fd(&j->to);
	free(j);
}

static struct table_job *table_begin(
	struct blobs *b, const char *id, int fd, bool load, table_fn fn, void *arg)
{
	struct table_job *j = calloc(1, sizeof(*j));

	if (!j) {
		close_fd(&fd);
		return NULL;
	}
	*j = (struct table_job){.job = {.work = table_work, .done = table_done},
		.b = b,
		.from = fd,
		.to = -1,
		.load = load,
		.fn = fn,
		.arg = arg};
	str_copy(j->id, sizeof(j->id), id);
	io_pool_run_quick(blobs_io(b), &j->job);
	return j;
}

struct table_job *table_save(struct blobs *b, const char *id, int fd, table_fn fn, void *arg)
{
	return table_begin(b, id, fd, false, fn, arg);
}

struct table_job *table_load(struct blobs *b, const char *id, table_fn fn, void *arg)
{
	return table_begin(b, id, -1, true, fn, arg);
}

void table_cancel(struct table_job *j)
{
	if (j)
		j->fn = NULL;
}
