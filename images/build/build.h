/* SPDX-License-Identifier: Apache-2.0
 *
 * build.h: manifest, configuration and layers of one image become a disk and its image.json. All by descriptor.
 */
#pragma once

#include "images/oci/image_config.h"

struct build_input {
	const char *name; /* for messages */
	const void *manifest, *config;
	size_t manifest_len, config_len;
	/* opens the blob of layer i; image_build() closes the descriptor. On failure -errno and
	 * e */
	int (*layer)(void *arg, uint32_t i, const struct descriptor *d, struct err *e);
	void *layer_arg;
	struct image_limits lim;
	/* done: bytes of blobs read so far; a negative result stops the build */
	int (*progress)(void *arg, uint64_t done, uint64_t total);
	void *progress_arg;
};

/* Writes the disk to disk_fd (an empty file, read and write) and image.json to json_fd, both
 * synced. *out has the same content as image.json. */
int image_build(const struct build_input *in, int disk_fd, int json_fd, struct image_config *out,
	struct err *e);
