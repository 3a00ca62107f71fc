/* SPDX-License-Identifier: Apache-2.0
 *
 * import.c: OCI layouts and archives. Runs in the image job; the source is hostile. An archive's files are staged under the digest they
 * really have, and then looked up by the names its manifest uses: what a name promises (blobs/sha256/HEX) is compared.
 */
#include "images/pull/import.h"
#include "images/pull/import_int.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_FILES 8192u

/* ---- where the parts of an image come from ---- */

struct file {
	char *path, *link; /* link: another file's path */
	struct blob b;
};

struct files {
	struct import *im;
	struct file *v; /* NULL: a folder, read when asked */
	size_t n;
};

static void files_fini(struct files *f)
{
	for (size_t i = 0; i < f->n; i++) {
		free(f->v[i].path);
		free(f->v[i].link);
	}
	free(f->v);
}

static int copy_in(struct import *im, int fd, struct blob *out, struct err *e)
{
	_cleanup_free_ uint8_t *buf = malloc(1 << 18);
	struct stagefile f;
	int r = stagefile_begin(&f, im->stage, im->lim.max_tar_bytes, e);

	if (r == 0 && !buf)
		r = err_set(e, ENOMEM, "copying");
	while (r == 0) {
		ssize_t k = read(fd, buf, 1 << 18);

		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0)
			r = err_set(e, errno, "reading");
		if (k <= 0)
			break;
		r = stagefile_write(&f, buf, (size_t)k, e);
		if (r == 0 && im->progress)
			r = im->progress(im->progress_arg, f.size, 0);
	}
	if (r == 0)
		return stagefile_end(&f, NULL, out, e);
	stagefile_abort(&f);
	return r;
}

/* A file of a layout folder: links are not followed, nothing outside is reachable. */
static int folder_get(struct import *im, const char *path, struct blob *out, struct err *e)
{
	_cleanup_close_ int dir = openat(im->source, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	char part[IMAGE_NAME_MAX + 1];
	struct stat sb;

	while (dir >= 0) {
		size_t n = strcspn(path, "/");
		int fd;

		if (n == 0 || n > IMAGE_NAME_MAX || (n <= 2 && strncmp(path, "..", n) == 0))
			return err_plain(e, EINVAL, "%s: malformed path", path);
		memcpy(part, path, n);
		part[n] = 0;
		fd = openat(dir, part, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
		if (fd < 0)
			return err_set(e, errno, "%s", path);
		close(dir);
		dir = fd;
		if (!path[n])
			break;
		path += n + 1;
	}
	if (dir < 0 || fstat(dir, &sb) < 0)
		return err_set(e, errno, "%s", path);
	if (!S_ISREG(sb.st_mode))
		return err_plain(e, EINVAL, "%s is not a file", path);
	return copy_in(im, dir, out, e);
}

static int files_get(struct files *f, const char *path, struct blob *out, struct err *e)
{
	int hops = 0;

	if (!f->v && !f->n)
		return folder_get(f->im, path, out, e);
again:
	for (size_t i = 0; i < f->n; i++) {
		if (strcmp(f->v[i].path, path) != 0)
			continue;
		if (f->v[i].link && hops++ < 8) {
			path = f->v[i].link;
			goto again;
		}
		if (f->v[i].link)
			break;
		*out = f->v[i].b;
		return 0;
	}
	return err_plain(e, ENOENT, "%s is not in the archive", path);
}

static int get_text(struct files *f, const char *path, void **p, size_t *n, struct err *e)
{
	struct blob b;
	int r = files_get(f, path, &b, e);

	return r < 0 ? r : stage_get(f->im->stage, &b.d, IMAGE_MAX_MANIFEST, p, n, e);
}

/* blobs/sha256/HEX, which must have that digest and the descriptor's size. */
static int get_blob(struct files *f, const struct descriptor *d, struct err *e)
{
	char path[32 + DIGEST_HEX], hex[DIGEST_HEX];
	struct blob b;
	int r;

	snprintf(path, sizeof(path), "blobs/sha256/%s", digest_hex(&d->digest, hex));
	r = files_get(f, path, &b, e);
	if (r < 0)
		return r;
	if (!digest_eq(&b.d, &d->digest))
		return err_plain(e, EBADMSG, "%s: its bytes have another digest", path);
	if (b.size != d->size)
		return err_plain(e, EBADMSG, "%s has %llu bytes, the manifest says %llu", path,
			(unsigned long long)b.size, (unsigned long long)d->size);
	r = blob_list_add(&f->im->blobs, &b);
	return r < 0 ? err_set(e, -r, "blob") : 0;
}

/* ---- OCI ---- */

static int take_manifest(struct files *f, const struct descriptor *d, struct err *e)
{
	_cleanup_free_ void *p = NULL;
	struct oci_manifest m;
	size_t n;
	int r = get_blob(f, d, e);

	if (r == 0)
		r = stage_get(f->im->stage, &d->digest, IMAGE_MAX_MANIFEST, &p, &n, e);
	if (r == 0)
		r = oci_manifest_parse(p, n, &m, e);
	if (r < 0)
		return r;
	r = get_blob(f, &m.config, e);
	for (uint32_t i = 0; i < m.n && r == 0; i++)
		if ((r = get_blob(f, &m.layers[i], e)) < 0)
			err_wrap(e, "layer %u of %u", i + 1, m.n);
	oci_manifest_fini(&m);
	f->im->manifest = d->digest;
	return r;
}

static bool name_matches(const char *have, const char *want)
{
	char a[REF_MAX], b[REF_MAX];
	struct image_ref x, y;

	if (!want || !*want || !*have)
		return false;
	if (strcmp(have, want) == 0)
		return true;
	if (ref_parse(want, &y, NULL) < 0)
		return false;
	if (strcmp(have, y.tag) == 0)
		return true;
	return ref_parse(have, &x, NULL) == 0 &&
	       strcmp(ref_canonical(&x, a), ref_canonical(&y, b)) == 0;
}

static int take_index(struct files *f, const void *p, size_t n, int depth, struct err *e)
{
	const struct descriptor *pick = NULL;
	_cleanup_free_ void *inner = NULL;
	struct oci_index ix;
	size_t inner_n;
	int r = oci_index_parse(p, n, &ix, e);

	if (r < 0)
		return r;
	/* layouts of several images tell them apart by name, indexes of one image by platform */
	for (uint32_t i = 0; i < ix.n && !pick; i++)
		if (name_matches(ix.d[i].ref, f->im->name))
			pick = &ix.d[i];
	if (!pick)
		r = oci_index_pick(&ix, &f->im->platform, &pick, e);
	if (r == 0 && pick->media == MEDIA_MANIFEST) {
		r = take_manifest(f, pick, e);
	} else if (r == 0 && pick->media != MEDIA_INDEX) {
		r = err_plain(e, ENOTSUP, "index names something of the type \"%s\"", pick->type);
	} else if (r == 0) {
		r = depth ? get_blob(f, pick, e)
			  : err_plain(e, ELOOP, "index in an index in an index");
		if (r == 0)
			r = stage_get(f->im->stage, &pick->digest, IMAGE_MAX_MANIFEST, &inner,
				&inner_n, e);
		if (r == 0)
			r = take_index(f, inner, inner_n, depth - 1, e);
	}
	oci_index_fini(&ix);
	return r;
}

static int take_layout(struct files *f, struct err *e)
{
	_cleanup_free_ void *p = NULL;
	size_t n;
	int r = get_text(f, "index.json", &p, &n, e);

	return r < 0 ? r : take_index(f, p, n, 2, e);
}

/* ---- docker save ---- */

static const cJSON *pick_docker(const cJSON *list, const char *name, struct err *e)
{
	const cJSON *o, *tag;

	if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) < 1) {
		err_plain(e, EBADMSG, "manifest.json lists no image");
		return NULL;
	}
	cJSON_ArrayForEach (o, list)
		cJSON_ArrayForEach (tag, json_arr(o, "RepoTags"))
			if (cJSON_IsString(tag) && name_matches(tag->valuestring, name))
				return o;
	if (cJSON_GetArraySize(list) == 1)
		return cJSON_GetArrayItem(list, 0);
	err_plain(e, ENOTUNIQ, "the archive holds %d images, none of that name",
		cJSON_GetArraySize(list));
	return NULL;
}

static void add_descriptor(struct buf *b, const char *type, const struct blob *x)
{
	char d[DIGEST_STR];

	buf_printf(b, "{\"mediaType\":\"%s\",\"digest\":\"%s\",\"size\":%llu}", type,
		digest_str(&x->d, d), (unsigned long long)x->size);
}

int import_put_manifest(struct import *im, const struct blob *config, const struct blob *layers,
	size_t n, struct err *e)
{
	struct blob m;
	struct buf b;
	int r;

	buf_init(&b, IMAGE_MAX_MANIFEST);
	buf_printf(&b, "{\"schemaVersion\":2,\"mediaType\":\"application/"
		       "vnd.oci.image.manifest.v1+json\",\"config\":");
	add_descriptor(&b, "application/vnd.oci.image.config.v1+json", config);
	buf_printf(&b, ",\"layers\":[");
	for (size_t i = 0; i < n; i++) {
		if (i)
			buf_u8(&b, ',');
		add_descriptor(&b, "application/vnd.oci.image.layer.v1.tar", &layers[i]);
	}
	buf_printf(&b, "]}");
	r = b.bad ? err_set(e, ENOMEM, "manifest") : stage_put(im->stage, b.p, b.len, &m, e);
	buf_fini(&b);
	if (r == 0 && (blob_list_add(&im->blobs, &m) < 0 || blob_list_add(&im->blobs, config) < 0))
		r = err_set(e, ENOMEM, "manifest");
	for (size_t i = 0; i < n && r == 0; i++)
		if (blob_list_add(&im->blobs, &layers[i]) < 0)
			r = err_set(e, ENOMEM, "manifest");
	im->manifest = m.d;
	return r;
}

static int take_docker(struct files *f, struct err *e)
{
	_cleanup_free_ void *p = NULL;
	_cleanup_(json_freep) cJSON *j = NULL;
	_cleanup_free_ struct blob *layers = NULL;
	const cJSON *o, *l, *list;
	struct blob config;
	uint32_t n = 0;
	size_t len;
	int r = get_text(f, "manifest.json", &p, &len, e);

	if (r < 0)
		return r;
	j = json_parse(p, len, e);
	o = j ? pick_docker(j, f->im->name, e) : NULL;
	if (!o)
		return err_wrap(e, "manifest.json");
	list = json_arr(o, "Layers");
	if (!json_str(o, "Config") || !list || cJSON_GetArraySize(list) > (int)IMAGE_MAX_LAYERS)
		return err_plain(
			e, EBADMSG, "manifest.json: no configuration, no layers, or too many");
	r = files_get(f, json_str(o, "Config"), &config, e);
	layers = calloc((size_t)cJSON_GetArraySize(list) + 1, sizeof(*layers));
	if (r == 0 && !layers)
		r = err_set(e, ENOMEM, "layers");
	cJSON_ArrayForEach (l, list) {
		if (r == 0)
			r = cJSON_IsString(l)
				    ? files_get(f, l->valuestring, &layers[n++], e)
				    : err_plain(e, EBADMSG, "manifest.json: layer without a name");
	}
	return r < 0 ? r : import_put_manifest(f->im, &config, layers, n, e);
}

/* ---- archives ---- */

static int add_file(
	struct files *f, size_t *cap, const char *path, const char *link, const struct blob *b)
{
	if (f->n == *cap) {
		size_t k = *cap ? *cap * 2 : 64;
		struct file *v = realloc(f->v, k * sizeof(*v));

		if (!v)
			return -ENOMEM;
		f->v = v;
		*cap = k;
	}
	f->v[f->n] =
		(struct file){.path = strdup(path), .link = link ? strdup(link) : NULL, .b = *b};
	if (!f->v[f->n].path || (link && !f->v[f->n].link))
		return -ENOMEM;
	f->n++;
	return 0;
}

static int stage_entry(struct import *im, struct archive *a, struct blob *out, struct err *e)
{
	_cleanup_free_ uint8_t *buf = malloc(1 << 18);
	struct stagefile f;
	int r = stagefile_begin(&f, im->stage, im->lim.max_tar_bytes, e);

	if (r == 0 && !buf)
		r = err_set(e, ENOMEM, "unpacking");
	while (r == 0) {
		la_ssize_t k = archive_read_data(a, buf, 1 << 18);

		if (k < 0)
			r = err_plain(e, EBADMSG, "%s", archive_error_string(a));
		if (k <= 0)
			break;
		r = stagefile_write(&f, buf, (size_t)k, e);
		if (r == 0 && im->progress)
			r = im->progress(
				im->progress_arg, (uint64_t)archive_filter_bytes(a, -1), 0);
	}
	if (r == 0)
		return stagefile_end(&f, NULL, out, e);
	stagefile_abort(&f);
	return r;
}

/* If a layer occurs twice, old versions of docker write the second "OTHER/layer.tar" as a link to
 * "../ID/layer.tar". */
static const char *link_target(const char *link)
{
	return strncmp(link, "../", 3) == 0 ? link + 3 : link;
}

static int read_archive(struct files *f, struct archive *a, struct err *e)
{
	struct archive_entry *en;
	size_t cap = 0;
	uint64_t sum = 0;
	int k, r = 0;

	while (r == 0 && (k = archive_read_next_header(a, &en)) == ARCHIVE_OK) {
		const char *path = archive_entry_pathname(en), *link = archive_entry_symlink(en);
		struct blob b = {0};

		if (!link)
			link = archive_entry_hardlink(en);
		if (!path || archive_entry_filetype(en) == S_IFDIR)
			continue;
		while (strncmp(path, "./", 2) == 0)
			path += 2;
		if (f->n >= MAX_FILES)
			return err_plain(e, E2BIG, "archive of more than %u files", MAX_FILES);
		if (!link)
			r = stage_entry(f->im, a, &b, e);
		sum += b.size;
		if (r == 0 && sum > f->im->lim.max_bytes)
			r = err_plain(e, EFBIG, "archive of more than %llu bytes",
				(unsigned long long)f->im->lim.max_bytes);
		if (r == 0 &&
			(r = add_file(f, &cap, path, link ? link_target(link) : NULL, &b)) < 0)
			err_set(e, -r, "archive");
		if (r < 0)
			return err_wrap(e, "%.200s", path);
	}
	if (r == 0 && k != ARCHIVE_EOF)
		r = err_plain(e, EBADMSG, "%s", archive_error_string(a));
	return r;
}

static int take_archive(struct import *im, struct err *e)
{
	struct files f = {.im = im};
	struct archive *a = import_open_tar(im->source, e);
	int r;

	if (!a)
		return -e->code;
	r = read_archive(&f, a, e);
	archive_read_free(a);
	if (r == 0) {
		struct blob b;

		r = files_get(&f, "index.json", &b, NULL) == 0 ? take_layout(&f, e)
							       : take_docker(&f, e);
	}
	files_fini(&f);
	return r;
}

static int take_folder(struct import *im, struct err *e)
{
	struct files f = {.im = im};

	return take_layout(&f, e);
}

int import_run(struct import *im, struct err *e)
{
	static int (*const run[])(struct import *, struct err *) = {
		[JOB_SRC_LAYOUT] = take_folder,
		[JOB_SRC_ARCHIVE] = take_archive,
		[JOB_SRC_ROOTFS_TAR] = import_rootfs_tar,
		[JOB_SRC_ROOTFS_DIR] = import_rootfs_dir,
	};
	int r = import_guess(im, e);

	if (r == 0)
		r = run[im->kind](im, e);
	return r < 0 ? err_wrap(e, "image %s", im->name && *im->name ? im->name : "(unnamed)") : 0;
}
