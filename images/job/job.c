/* SPDX-License-Identifier: Apache-2.0
 *
 * job.c: the main function of an image job. Process mayfly-image, jailed. Requests come from the
 * daemon; everything the job reads on its behalf is hostile. It answers with a result or a reason,
 * once, and ends.
 */
#include "images/job/job.h"
#include "images/build/build.h"
#include "images/pull/import.h"
#include "images/pull/registry.h"
#include "lib/fdpass.h"

#include <fcntl.h>
#include <string.h>

static void take_limits(struct cur *c, struct image_limits *l)
{
	l->max_bytes = cur_u64(c);
	l->max_entries = cur_u64(c);
	l->max_tar_bytes = cur_u64(c);
	l->ratio_from = cur_u64(c);
	l->room_bytes = cur_u64(c);
	l->max_ratio = cur_u32(c);
	l->stall_s = cur_u32(c);
}

static bool take_platform(struct cur *c, struct platform *p)
{
	return cur_str(c, p->os, sizeof(p->os)) && cur_str(c, p->arch, sizeof(p->arch)) &&
	       cur_str(c, p->variant, sizeof(p->variant));
}

static int say_fetched(
	struct job *j, const struct digest *manifest, const struct blob_list *blobs, struct err *e)
{
	char d[DIGEST_STR];
	struct buf b;
	int r;

	buf_init(&b, JOB_MSG_MAX);
	buf_str(&b, digest_str(manifest, d));
	buf_u32(&b, (uint32_t)blobs->n);
	for (size_t i = 0; i < blobs->n; i++) {
		buf_str(&b, digest_str(&blobs->v[i].d, d));
		buf_u64(&b, blobs->v[i].size);
	}
	r = job_send(j, JOB_FETCHED, &b);
	buf_fini(&b);
	return r < 0 ? err_set(e, -r, "sending the result") : 0;
}

/* ---- the three kinds ---- */

static int import_progress(void *arg, uint64_t done, uint64_t total)
{
	return job_progress(arg, JOB_PH_FETCH, done, total);
}

static int do_import(struct job *j, struct cur *c, const int *fds, size_t nfds, struct err *e)
{
	char name[REF_MAX];
	struct import im = {
		.stage = j->stage, .name = name, .progress = import_progress, .progress_arg = j};
	int r;

	cur_str(c, name, sizeof(name));
	im.kind = (enum job_source)cur_u32(c);
	take_platform(c, &im.platform);
	take_limits(c, &im.lim);
	if (!cur_done(c) || nfds != 1 || im.kind > JOB_SRC_ROOTFS_DIR)
		return err_plain(e, EPROTO, "malformed request");
	im.source = fds[0];
	r = import_run(&im, e);
	if (r == 0)
		r = say_fetched(j, &im.manifest, &im.blobs, e);
	blob_list_fini(&im.blobs);
	return r;
}

static int layer_from_peer(void *arg, uint32_t i, const struct descriptor *d, struct err *e)
{
	char text[DIGEST_STR];
	int fd = -1, r = job_need(arg, &d->digest, d->size, &fd, e);

	if (r == 0 && fd < 0)
		r = err_plain(
			e, ENOENT, "blob %.19s is not in the store", digest_str(&d->digest, text));
	return r < 0 ? r : fd;
}

static int build_progress(void *arg, uint64_t done, uint64_t total)
{
	return job_progress(arg, JOB_PH_BUILD, done, total);
}

static int do_build(struct job *j, struct cur *c, const int *fds, size_t nfds, struct err *e)
{
	_cleanup_close_ int disk = -1, json = -1;
	_cleanup_free_ void *manifest = NULL, *config = NULL;
	char name[REF_MAX];
	struct build_input in = {.name = name,
		.layer = layer_from_peer,
		.layer_arg = j,
		.progress = build_progress,
		.progress_arg = j};
	struct image_config out;
	int r;

	cur_str(c, name, sizeof(name));
	take_limits(c, &in.lim);
	if (!cur_done(c) || nfds != 2)
		return err_plain(e, EPROTO, "malformed request");
	r = fd_slurp(fds[0], IMAGE_MAX_MANIFEST, &manifest, &in.manifest_len, e);
	if (r == 0)
		r = fd_slurp(fds[1], IMAGE_MAX_CONFIG, &config, &in.config_len, e);
	if (r < 0)
		return r;
	in.manifest = manifest;
	in.config = config;
	disk = openat(j->stage, "disk.ext4", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	json = openat(j->stage, "image.json", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (disk < 0 || json < 0)
		return err_set(e, errno, "the staging folder");
	r = image_build(&in, disk, json, &out, e);
	if (r < 0)
		return r;
	image_config_fini(&out);
	r = job_send(j, JOB_BUILT, NULL);
	return r < 0 ? err_set(e, -r, "sending the result") : 0;
}

static int do_pull(struct job *j, struct cur *c, const int *fds, size_t nfds, struct err *e)
{
	struct pull p = {.job = j};
	int r;

	cur_str(c, p.name, sizeof(p.name));
	take_platform(c, &p.platform);
	cur_str(c, p.user, sizeof(p.user));
	cur_str(c, p.password, sizeof(p.password));
	cur_str(c, p.token, sizeof(p.token));
	take_limits(c, &p.lim);
	p.nbases = cur_u16(c);
	if (c->bad || p.nbases > PULL_MAX_BASES)
		return err_plain(e, EPROTO, "malformed request");
	for (unsigned int i = 0; i < p.nbases; i++) {
		cur_str(c, p.base[i].registry, sizeof(p.base[i].registry));
		cur_str(c, p.base[i].url, sizeof(p.base[i].url));
		p.base[i].flags = cur_u32(c);
	}
	if (!cur_done(c))
		return err_plain(e, EPROTO, "malformed request");
	r = pull_run(&p, e);
	if (r == 0)
		r = say_fetched(j, &p.manifest, &p.blobs, e);
	blob_list_fini(&p.blobs);
	explicit_bzero(p.password, sizeof(p.password));
	explicit_bzero(p.token, sizeof(p.token));
	return r;
}

static void say_failed(struct job *j, const struct err *e)
{
	struct buf b;

	buf_init(&b, 2048);
	buf_u32(&b, (uint32_t)e->code);
	buf_str(&b, e->msg);
	job_send(j, JOB_FAILED, &b);
	buf_fini(&b);
}

int job_main(void)
{
	static int (*const kinds[])(
		struct job *, struct cur *, const int *, size_t, struct err *) = {
		[JOB_PULL] = do_pull,
		[JOB_IMPORT] = do_import,
		[JOB_BUILD] = do_build,
	};
	struct job j = {.sock = JOB_SOCK_FD, .stage = JOB_STAGE_FD};
	_cleanup_free_ uint8_t *m = malloc(JOB_MSG_MAX);
	int fds[4] = {-1, -1, -1, -1}, r;
	struct err e = {0};
	struct job_hdr h = {0};
	size_t len = 0, nfds = 4;
	struct cur c;

	if (!m)
		return 1;
	r = job_recv(&j, &h, m, JOB_MSG_MAX, &len, fds, &nfds);
	if (r < 0)
		return 1;
	c = cur_of(m + sizeof(h), len);
	if (h.type < ARRAY_LEN(kinds) && kinds[h.type])
		r = kinds[h.type](&j, &c, fds, nfds, &e);
	else
		r = err_plain(&e, EPROTO, "unknown request %u", h.type);
	for (size_t i = 0; i < nfds; i++)
		close_fd(&fds[i]);
	if (r < 0)
		say_failed(&j, &e);
	return r < 0;
}
