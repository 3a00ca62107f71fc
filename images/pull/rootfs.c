/* SPDX-License-Identifier: Apache-2.0
 *
 * rootfs.c: plain root file systems (a tar, a folder) as images of one layer, and telling the kinds
 * of sources apart. Runs in the image job. A tar becomes the layer as it is; a folder is written as
 * a pax tar by libarchive, owners and attributes as the reader sees them.
 */
#include "images/pull/import_int.h"
#include "images/build/stream.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct archive *import_open_tar(int fd, struct err *e)
{
	struct archive *a = archive_read_new();

	if (!a || lseek(fd, 0, SEEK_SET) < 0) {
		err_set(e, a ? errno : ENOMEM, "opening the archive");
		archive_read_free(a);
		return NULL;
	}
	stream_filter(a, fd);
	archive_read_support_format_tar(a);
	if (archive_read_open_fd(a, fd, 128 * 1024) != ARCHIVE_OK) {
		err_plain(e, EBADMSG, "not a tar archive: %s", archive_error_string(a));
		archive_read_free(a);
		return NULL;
	}
	return a;
}

/* Is it a name that only archives of images have at their top? The first entry decides. */
static bool is_image_part(const char *p)
{
	static const char *const parts[] = {
		"blobs", "oci-layout", "index.json", "manifest.json", "repositories"};
	size_t n;

	while (strncmp(p, "./", 2) == 0)
		p += 2;
	n = strcspn(p, "/");
	for (size_t i = 0; i < ARRAY_LEN(parts); i++)
		if (strlen(parts[i]) == n && memcmp(parts[i], p, n) == 0)
			return true;
	return strspn(p, "0123456789abcdef") == 64;
}

static int guess_tar(struct import *im, struct err *e)
{
	struct archive *a = import_open_tar(im->source, e);
	struct archive_entry *en;
	int k = ARCHIVE_OK;

	if (!a)
		return -e->code;
	im->kind = JOB_SRC_ROOTFS_TAR;
	while ((k = archive_read_next_header(a, &en)) == ARCHIVE_OK) {
		const char *p = archive_entry_pathname(en);

		if (p && strcmp(p, ".") != 0 && strcmp(p, "./") != 0) {
			if (is_image_part(p))
				im->kind = JOB_SRC_ARCHIVE;
			break;
		}
	}
	if (k != ARCHIVE_OK && k != ARCHIVE_EOF)
		err_plain(e, EBADMSG, "not a tar archive: %s", archive_error_string(a));
	archive_read_free(a);
	return k == ARCHIVE_OK || k == ARCHIVE_EOF ? 0 : -e->code;
}

int import_guess(struct import *im, struct err *e)
{
	struct stat sb;
	bool folder;

	if (fstat(im->source, &sb) < 0)
		return err_set(e, errno, "reading the source");
	if (im->kind == JOB_SRC_AUTO && S_ISDIR(sb.st_mode))
		im->kind = faccessat(im->source, "index.json", F_OK, 0) == 0 ? JOB_SRC_LAYOUT
									     : JOB_SRC_ROOTFS_DIR;
	else if (im->kind == JOB_SRC_AUTO && S_ISREG(sb.st_mode))
		return guess_tar(im, e);
	folder = im->kind == JOB_SRC_LAYOUT || im->kind == JOB_SRC_ROOTFS_DIR;
	if (S_ISDIR(sb.st_mode) != folder || (!S_ISDIR(sb.st_mode) && !S_ISREG(sb.st_mode)))
		return err_plain(e, EINVAL, "the source must be a %s for this kind of import",
			folder ? "folder" : "file");
	return 0;
}

int import_wrap_layer(
	struct import *im, const struct blob *layer, const struct digest *diff, struct err *e)
{
	char d[DIGEST_STR], text[512];
	struct blob config;
	int n = snprintf(text, sizeof(text),
		"{\"architecture\":\"%s\",\"os\":\"%s\",\"config\":{\"Env\":[\"PATH=/usr/local/"
		"sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\"],"
		"\"Cmd\":[\"/bin/sh\"],\"WorkingDir\":\"/"
		"\"},\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"%s\"]}}",
		im->platform.arch, im->platform.os, digest_str(diff, d));
	int r = stage_put(im->stage, text, (size_t)n, &config, e);

	return r < 0 ? r : import_put_manifest(im, &config, layer, 1, e);
}

int import_rootfs_tar(struct import *im, struct err *e)
{
	_cleanup_free_ uint8_t *buf = malloc(1 << 18);
	_cleanup_(stream_closep) struct stream *s = NULL;
	struct digest blob, diff;
	struct stagefile f;
	struct blob layer;
	struct stat sb;
	uint64_t n;
	int r = stagefile_begin(&f, im->stage, im->lim.max_tar_bytes, e);

	if (r == 0 && (!buf || fstat(im->source, &sb) < 0))
		r = err_set(e, buf ? errno : ENOMEM, "reading");
	for (off_t off = 0; r == 0 && off < sb.st_size;) {
		ssize_t k = pread(im->source, buf, 1 << 18, off);

		if (k <= 0)
			r = err_set(e, k < 0 ? errno : EIO, "reading");
		else
			r = stagefile_write(&f, buf, (size_t)k, e);
		off += k;
	}
	if (r == 0)
		r = stagefile_end(&f, NULL, &layer, e);
	stagefile_abort(&f);
	if (r < 0)
		return r;
	s = stream_open(im->source, layer.size, &im->lim, e);
	if (!s)
		return -e->code;
	r = stream_digests(s, &blob, &diff, &n, e);
	if (r == 0 && !digest_eq(&blob, &layer.d))
		r = err_plain(e, EBUSY, "the file changes while it is read");
	return r < 0 ? r : import_wrap_layer(im, &layer, &diff, e);
}

/* ---- a folder ---- */

struct out {
	struct stagefile f;
	struct err *e;
};

static la_ssize_t on_write(struct archive *a, void *arg, const void *p, size_t n)
{
	struct out *o = arg;

	if (stagefile_write(&o->f, p, n, o->e) < 0) {
		archive_set_error(a, o->e->code, "%s", o->e->msg);
		return -1;
	}
	return (la_ssize_t)n;
}

static int copy_data(struct archive *from, struct archive *to, struct err *e)
{
	const void *p;
	la_int64_t off;
	uint64_t at = 0;
	size_t n;
	int k;
	static const uint8_t zeros[65536];

	while ((k = archive_read_data_block(from, &p, &n, &off)) == ARCHIVE_OK) {
		for (; at < (uint64_t)off; at += MIN(sizeof(zeros), (uint64_t)off - at))
			if (archive_write_data(to, zeros, MIN(sizeof(zeros), (uint64_t)off - at)) <
				0)
				return err_plain(e, EIO, "%s", archive_error_string(to));
		if (archive_write_data(to, p, n) < 0)
			return err_plain(e, EIO, "%s", archive_error_string(to));
		at += n;
	}
	return k == ARCHIVE_EOF ? 0 : err_plain(e, EIO, "%s", archive_error_string(from));
}

static int copy_tree(struct import *im, struct archive *from, struct archive *to, struct err *e)
{
	struct archive_entry_linkresolver *links = archive_entry_linkresolver_new();
	uint64_t entries = 0;
	int r = 0;

	archive_entry_linkresolver_set_strategy(links, ARCHIVE_FORMAT_TAR_PAX_INTERCHANGE);
	while (r == 0) {
		struct archive_entry *en = archive_entry_new(), *spare = NULL;
		int k = archive_read_next_header2(from, en);

		if (k != ARCHIVE_OK) {
			if (k != ARCHIVE_EOF)
				r = err_plain(e, EIO, "%s", archive_error_string(from));
			archive_entry_free(en);
			break;
		}
		archive_read_disk_descend(from);
		/* zeros are written in full; building the disk makes holes of them again */
		archive_entry_sparse_clear(en);
		archive_entry_linkify(links, &en, &spare);
		if (++entries > im->lim.max_entries)
			r = err_plain(e, EFBIG, "more than %llu entries",
				(unsigned long long)im->lim.max_entries);
		else if (archive_entry_filetype(en) != S_IFSOCK &&
			 archive_write_header(to, en) < ARCHIVE_WARN)
			r = err_plain(e, EIO, "%s", archive_error_string(to));
		else if (archive_entry_filetype(en) == S_IFREG && archive_entry_size(en) > 0)
			r = copy_data(from, to, e);
		if (r < 0)
			err_wrap(e, "%.200s",
				archive_entry_pathname(en) ? archive_entry_pathname(en) : "?");
		archive_entry_free(en);
	}
	archive_entry_linkresolver_free(links);
	return r;
}

int import_rootfs_dir(struct import *im, struct err *e)
{
	struct archive *from = archive_read_disk_new(), *to = archive_write_new();
	struct out o = {.e = e};
	struct blob layer;
	int r = stagefile_begin(&o.f, im->stage, im->lim.max_tar_bytes, e);

	if (r == 0 && (!from || !to || fchdir(im->source) < 0))
		r = err_set(e, from && to ? errno : ENOMEM, "opening the folder");
	if (r == 0) {
		archive_read_disk_set_symlink_physical(from);
		archive_read_disk_set_behavior(from, ARCHIVE_READDISK_NO_TRAVERSE_MOUNTS);
		archive_write_set_format_pax(to);
		archive_write_set_bytes_per_block(to, 128 * 1024);
		if (archive_write_open(to, &o, NULL, on_write, NULL) != ARCHIVE_OK ||
			archive_read_disk_open(from, ".") != ARCHIVE_OK)
			r = err_plain(e, EIO, "%s", archive_error_string(from));
	}
	if (r == 0)
		r = copy_tree(im, from, to, e);
	if (r == 0 && archive_write_close(to) != ARCHIVE_OK)
		r = err_plain(e, EIO, "%s", archive_error_string(to));
	archive_read_free(from);
	if (r < 0 && to)
		archive_write_fail(to);
	archive_write_free(to);
	if (r == 0)
		r = stagefile_end(&o.f, NULL, &layer, e);
	stagefile_abort(&o.f);
	/* not compressed: the blob is its own tar */
	return r < 0 ? r : import_wrap_layer(im, &layer, &layer.d, e);
}
