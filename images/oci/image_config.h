/* SPDX-License-Identifier: Apache-2.0
 *
 * image_config.h: what an image says about how it is run, and image.json, the file beside every disk from which the daemon reads that.
 */
#pragma once

#include "images/oci/oci.h"

/* What a finished disk is: images/build/ext4.h makes it. */
struct ext4_info {
	uint64_t disk_bytes; /* virtual size */
	uint64_t data_bytes; /* blocks in use for files, directories, links */
	uint64_t inodes, inodes_used;
	char uuid[37];
};

struct strings {
	char **v; /* NULL-terminated, never NULL after reading */
	size_t n;
};

struct image_config {
	char *arch, *os, *variant, *created; /* "" when absent, as all strings here */
	char *user, *workdir, *stop_signal;
	struct strings env, entrypoint, cmd, ports, volumes;
	struct strings labels; /* key, value, key, value */
	/* of image.json only */
	struct digest id;      /* the manifest's digest */
	struct digest config;  /* the configuration's */
	struct digest *layers; /* blobs, bottom first */
	size_t nlayers;
	uint64_t layer_bytes; /* compressed */
	struct ext4_info disk;
	uint64_t entries;
};

/* The OCI configuration's JSON. diff_ids must be as many as the manifest has layers: *diff is the
 * caller's to free. */
int image_config_from_oci(const void *p, size_t len, uint32_t nlayers, struct image_config *out,
	struct digest **diff, struct err *e);
/* image.json, both ways. The reader is as strict as if the file came from outside: an image job
 * wrote it. */
int image_config_write(const struct image_config *c, int fd, struct err *e);
int image_config_read(const void *p, size_t len, struct image_config *out, struct err *e);
void image_config_fini(struct image_config *c);
