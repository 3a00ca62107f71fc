/* SPDX-License-Identifier: Apache-2.0
 *
 * layer.h: one layer, applied to the tree as the OCI image specification says. The tar's bytes are hostile.
 */
#pragma once

#include "images/build/blocks.h"
#include "images/build/stream.h"
#include "images/build/tree.h"

struct layers {
	struct tree *tree;
	struct blocks *blocks;
	struct image_limits lim;
	uint64_t entries, bytes; /* of all layers so far */
	uint64_t skipped_xattrs;
	/* called now and then while a layer is read; a negative result ends it */
	int (*tick)(void *arg, const struct stream *s);
	void *tick_arg;
};

/* Applies layer number `no` (from 1: 0 is the empty root). Errors name the entry; the caller adds
 * image and layer. The tree is unusable after one. */
int layer_apply(struct layers *l, struct stream *s, uint32_t no, struct err *e);
