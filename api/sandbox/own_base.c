/* SPDX-License-Identifier: Apache-2.0
 *
 * own_base.c: see own_base.h. The image's disk is ours and immutable; names of owners come from the operator's configuration.
 */
#include "api/sandbox/own_base.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "api/core/io_pool.h"
#include "api/core/text.h"

#define PIECE GIB(1) /* of one copy_file_range() */

struct own_base {
	struct io_job job;
	own_base_fn fn; /* NULL: cancelled */
	void *arg;
	char disk[PATH_MAX], path[PATH_MAX];
	int rc;
	struct err err;
};

void own_base_tag(const char *owner, char tag[static OWN_BASE_TAG])
{
	uint64_t h = 14695981039346656037ull; /* FNV-1a */

	for (; *owner; owner++)
		h = (h ^ (uint8_t)*owner) * 1099511628211ull;
	snprintf(tag, OWN_BASE_TAG, "%016" PRIx64, h);
}

static int range_copy(int from, int to, off_t at, off_t end)
{
	while (at < end) {
		off_t in = at, out = at;
		ssize_t n = copy_file_range(
			from, &in, to, &out, (size_t)MIN(end - at, (off_t)PIECE), 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		at += n;
	}
	return 0;
}

/* Holes stay holes. */
static int file_copy(int from, int to, off_t bytes)
{
	off_t at = 0, hole;
	int rc = ftruncate(to, bytes) < 0 ? -errno : 0;

	while (rc == 0 && (at = lseek(from, at, SEEK_DATA)) >= 0 && at < bytes) {
		hole = lseek(from, at, SEEK_HOLE);
		if (hole < 0)
			return -errno;
		rc = range_copy(from, to, at, hole);
		at = hole;
	}
	if (rc == 0 && at < 0 && errno != ENXIO) /* ENXIO: the rest is a hole */
		rc = -errno;
	if (rc == 0 && (fchmod(to, 0444) < 0 || fsync(to) < 0))
		rc = -errno;
	return rc;
}

static int copy_make(struct own_base *b)
{
	_cleanup_close_ int from = open(b->disk, O_RDONLY | O_CLOEXEC), to = -1;
	char part[PATH_MAX + 48], id[37];
	struct stat st, have;
	int rc;

	if (from < 0 || fstat(from, &st) < 0)
		return err_set(&b->err, errno, "%s", b->disk);
	/* it gets its name when it is complete */
	if (stat(b->path, &have) == 0 && have.st_size == st.st_size)
		return 0;
	uuid_make(id);
	snprintf(part, sizeof(part), "%s.%s", b->path, id);
	to = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (to < 0)
		return err_set(&b->err, errno, "%s", part);
	rc = file_copy(from, to, st.st_size);
	if (rc == 0 && renameat(AT_FDCWD, part, AT_FDCWD, b->path) < 0)
		rc = -errno;
	if (rc < 0)
		unlink(part);
	return rc < 0 ? err_set(&b->err, -rc, "copy of the image's disk for its owner") : 0;
}

static void base_work(struct io_job *job)
{
	struct own_base *b = container_of(job, struct own_base, job);

	b->rc = copy_make(b);
}

static void base_done(struct io_job *job)
{
	struct own_base *b = container_of(job, struct own_base, job);

	if (b->fn)
		b->fn(b->arg, b->path, b->rc < 0 ? &b->err : NULL);
	free(b);
}

struct own_base *own_base_make(
	struct io_pool *io, const char *disk, const char *owner, own_base_fn fn, void *arg)
{
	struct own_base *b = calloc(1, sizeof(*b));
	char tag[OWN_BASE_TAG];
	size_t n = strlen(disk);

	own_base_tag(owner, tag);
	if (!b || n < 5 || n + sizeof(tag) + 1 >= sizeof(b->path)) {
		free(b);
		return NULL;
	}
	b->job = (struct io_job){base_work, base_done, NULL};
	b->fn = fn;
	b->arg = arg;
	str_copy(b->disk, sizeof(b->disk), disk);
	/* disk.ext4 -> disk-TAG.ext4 */
	snprintf(b->path, sizeof(b->path), "%.*s-%s.ext4", (int)(n - strlen(".ext4")), disk, tag);
	io_pool_run(io, &b->job);
	return b;
}

void own_base_cancel(struct own_base *b)
{
	if (b)
		b->fn = NULL;
}
