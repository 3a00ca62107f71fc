/* SPDX-License-Identifier: Apache-2.0
 *
 * stagefile.c: content-addressed files in a job's folder. Runs in image jobs; the bytes are hostile
 * and only counted and hashed here.
 */
#include "images/pull/stagefile.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

int blob_list_add(struct blob_list *l, const struct blob *b)
{
	for (size_t i = 0; i < l->n; i++)
		if (digest_eq(&l->v[i].d, &b->d))
			return 0;
	if (l->n == l->cap) {
		size_t cap = l->cap ? l->cap * 2 : 16;
		struct blob *v = realloc(l->v, cap * sizeof(*v));

		if (!v)
			return -ENOMEM;
		l->v = v;
		l->cap = cap;
	}
	l->v[l->n++] = *b;
	return 0;
}

void blob_list_fini(struct blob_list *l)
{
	free(l->v);
	*l = (struct blob_list){0};
}

int stagefile_begin(struct stagefile *f, int dir, uint64_t max, struct err *e)
{
	uint64_t r;

	*f = (struct stagefile){.dir = dir, .fd = -1, .max = max};
	random_bytes(&r, sizeof(r));
	snprintf(f->tmp, sizeof(f->tmp), "tmp-%016llx", (unsigned long long)r);
	f->ctx = digest_begin();
	f->fd = openat(dir, f->tmp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (!f->ctx || f->fd < 0)
		return err_set(e, f->ctx ? errno : ENOMEM, "the staging folder");
	return 0;
}

static int hash_again(struct stagefile *f, struct err *e)
{
	_cleanup_free_ uint8_t *buf = malloc(1 << 18);
	ssize_t k = -1;

	if (!buf)
		return err_set(e, ENOMEM, "the staging folder");
	while (f->size <= f->max && (k = pread(f->fd, buf, 1 << 18, (off_t)f->size)) > 0) {
		digest_update(f->ctx, buf, (size_t)k);
		f->size += (uint64_t)k;
	}
	if (k < 0 || f->size > f->max || lseek(f->fd, (off_t)f->size, SEEK_SET) < 0)
		return err_set(e, k < 0 ? errno : EFBIG, "the staging folder");
	return 0;
}

int stagefile_resume(
	struct stagefile *f, int dir, const struct digest *want, uint64_t max, struct err *e)
{
	char hex[DIGEST_HEX];

	*f = (struct stagefile){.dir = dir, .fd = -1, .max = max};
	snprintf(f->tmp, sizeof(f->tmp), STAGE_PART "%s", digest_hex(want, hex));
	f->ctx = digest_begin();
	f->fd = openat(dir, f->tmp, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (!f->ctx || f->fd < 0)
		return err_set(e, f->ctx ? errno : ENOMEM, "the staging folder");
	return hash_again(f, e);
}

int stagefile_write(struct stagefile *f, const void *p, size_t n, struct err *e)
{
	int r;

	if (n > f->max || f->size > f->max - n)
		return err_plain(
			e, EFBIG, "blob of more than %llu bytes", (unsigned long long)f->max);
	digest_update(f->ctx, p, n);
	f->size += n;
	r = write_full(f->fd, p, n);
	return r < 0 ? err_set(e, -r, "the staging folder") : 0;
}

int stagefile_end(struct stagefile *f, const struct digest *want, struct blob *out, struct err *e)
{
	char hex[DIGEST_HEX];
	struct blob b = {.size = f->size};
	int r = 0;

	digest_end(f->ctx, &b.d);
	if (want && !digest_eq(want, &b.d)) {
		char have[DIGEST_STR], w[DIGEST_STR];

		r = err_plain(e, EBADMSG, "blob %s has the digest %s", digest_str(want, w),
			digest_str(&b.d, have));
	} else if (renameat(f->dir, f->tmp, f->dir, digest_hex(&b.d, hex)) < 0) {
		r = err_set(e, errno, "the staging folder");
	}
	if (r == 0) {
		f->tmp[0] = 0;
		*out = b;
	}
	stagefile_abort(f);
	return r;
}

void stagefile_abort(struct stagefile *f)
{
	if (f->tmp[0] && f->fd >= 0)
		unlinkat(f->dir, f->tmp, 0);
	f->tmp[0] = 0;
	close_fd(&f->fd);
	digest_free(f->ctx);
	f->ctx = NULL;
}

int stage_put(int dir, const void *p, size_t n, struct blob *out, struct err *e)
{
	struct stagefile f;
	int r = stagefile_begin(&f, dir, n, e);

	if (r == 0)
		r = stagefile_write(&f, p, n, e);
	if (r == 0)
		return stagefile_end(&f, NULL, out, e);
	stagefile_abort(&f);
	return r;
}

int fd_slurp(int fd, size_t max, void **p, size_t *n, struct err *e)
{
	_cleanup_free_ uint8_t *b = NULL;
	struct stat sb;
	int r;

	if (fstat(fd, &sb) < 0)
		return err_set(e, errno, "reading the document");
	if (!S_ISREG(sb.st_mode) || sb.st_size < 0 || (uint64_t)sb.st_size > max)
		return err_plain(e, EFBIG, "document of %lld bytes (at most %zu)",
			(long long)sb.st_size, max);
	b = malloc((size_t)sb.st_size + 1);
	if (!b)
		return err_set(e, ENOMEM, "reading the document");
	r = pread_full(fd, b, (size_t)sb.st_size, 0);
	if (r < 0)
		return err_set(e, -r, "reading the document");
	b[sb.st_size] = 0;
	*n = (size_t)sb.st_size;
	*p = take_ptr(b);
	return 0;
}

int stage_get(int dir, const struct digest *d, size_t max, void **p, size_t *n, struct err *e)
{
	char hex[DIGEST_HEX];
	_cleanup_close_ int fd = openat(dir, digest_hex(d, hex), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

	return fd < 0 ? err_set(e, errno, "blob %.12s", hex) : fd_slurp(fd, max, p, n, e);
}
