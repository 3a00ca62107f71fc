/* SPDX-License-Identifier: Apache-2.0
 *
 * build.c: one image, from blobs to a disk. Runs in the image job; manifest, configuration and layers are hostile. Each layer's blob is
 * compared with its digest, and its tar with the configuration's diff_id, while it is read. Nothing
 * that was built is used before all of them were right.
 */
#include "images/build/build.h"
#include "images/build/ext4.h"
#include "images/build/layer.h"

#include <stdio.h>

struct builder {
	const struct build_input *in;
	struct oci_manifest m;
	struct image_config c;
	struct digest *diff;
	struct tree tree;
	struct blocks *blocks;
	struct layers layers;
	uint64_t done, total;
};

static int on_tick(void *arg, const struct stream *s)
{
	struct builder *b = arg;

	return b->in->progress ? b->in->progress(b->in->progress_arg,
					 b->done + stream_read_bytes(s), b->total)
			       : 0;
}

static int check_digests(struct builder *b, struct stream *s, uint32_t i, struct err *e)
{
	struct digest blob, tar;
	char want[DIGEST_STR], have[DIGEST_STR];
	uint64_t n;
	int r = stream_digests(s, &blob, &tar, &n, e);

	if (r < 0)
		return r;
	if (!digest_eq(&blob, &b->m.layers[i].digest))
		return err_plain(
			e, EBADMSG, "its bytes have the digest %s", digest_str(&blob, have));
	if (!digest_eq(&tar, &b->diff[i]))
		return err_plain(e, EBADMSG, "its tar has the digest %s, the configuration says %s",
			digest_str(&tar, have), digest_str(&b->diff[i], want));
	return 0;
}

static int apply_one(struct builder *b, uint32_t i, struct err *e)
{
	const struct descriptor *d = &b->m.layers[i];
	_cleanup_close_ int fd = b->in->layer(b->in->layer_arg, i, d, e);
	_cleanup_(stream_closep) struct stream *s = NULL;
	int r;

	if (fd < 0)
		return fd;
	s = stream_open(fd, d->size, &b->in->lim, e);
	if (!s)
		return -e->code;
	r = layer_apply(&b->layers, s, i + 1, e);
	if (r == 0)
		r = check_digests(b, s, i, e);
	b->done += d->size;
	return r;
}

static int apply_all(struct builder *b, struct err *e)
{
	for (uint32_t i = 0; i < b->m.n; i++) {
		char d[DIGEST_STR];
		int r = apply_one(b, i, e);

		if (r < 0)
			return err_wrap(e, "layer %u of %u (%.19s)", i + 1, b->m.n,
				digest_str(&b->m.layers[i].digest, d));
	}
	return 0;
}

static int prepare(struct builder *b, int disk_fd, struct err *e)
{
	const struct build_input *in = b->in;
	struct digest have;
	int r;

	r = oci_manifest_parse(in->manifest, in->manifest_len, &b->m, e);
	if (r < 0)
		return r;
	digest_of(in->config, in->config_len, &have);
	if (!digest_eq(&have, &b->m.config.digest))
		return err_plain(e, EBADMSG,
			"configuration does not have the digest that the manifest names");
	r = image_config_from_oci(in->config, in->config_len, b->m.n, &b->c, &b->diff, e);
	if (r < 0)
		return r;
	digest_of(in->manifest, in->manifest_len, &b->c.id);
	b->c.layers = calloc(b->m.n + 1u, sizeof(*b->c.layers));
	b->blocks = blocks_create(disk_fd, EXT4_DATA_FIRST, in->lim.max_bytes + GIB(1));
	if (!b->c.layers || !b->blocks || tree_init(&b->tree) < 0)
		return err_set(e, ENOMEM, "building");
	for (uint32_t i = 0; i < b->m.n; i++) {
		b->c.layers[b->c.nlayers++] = b->m.layers[i].digest;
		b->total += b->m.layers[i].size;
	}
	b->c.layer_bytes = b->total;
	b->tree.freed = blocks_free;
	b->tree.freed_arg = b->blocks;
	b->layers = (struct layers){.tree = &b->tree,
		.blocks = b->blocks,
		.lim = in->lim,
		.tick = on_tick,
		.tick_arg = b};
	return 0;
}

int image_build(const struct build_input *in, int disk_fd, int json_fd, struct image_config *out,
	struct err *e)
{
	struct builder b = {.in = in};
	int r = prepare(&b, disk_fd, e);

	if (r == 0)
		r = apply_all(&b, e);
	if (r == 0)
		r = ext4_write(
			&b.tree, b.blocks, disk_fd, in->lim.room_bytes, &b.c.id, &b.c.disk, e);
	b.c.entries = b.layers.entries;
	if (r == 0)
		r = image_config_write(&b.c, json_fd, e);
	if (r == 0 && fsync(json_fd) < 0)
		r = err_set(e, errno, "sync of image.json");
	oci_manifest_fini(&b.m);
	free(b.diff);
	tree_fini(&b.tree);
	blocks_destroy(b.blocks);
	if (r < 0) {
		image_config_fini(&b.c);
		return err_wrap(e, "image %s", in->name);
	}
	*out = b.c;
	return 0;
}
