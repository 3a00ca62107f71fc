/* SPDX-License-Identifier: Apache-2.0
 *
 * import.h: images from files and folders: OCI layouts, OCI and `docker save` archives, plain root file systems. Each ends as
 * content-addressed blobs in the job's staging folder, with an OCI manifest.
 */
#pragma once

#include "images/oci/oci.h"
#include "images/oci/ref.h"
#include "images/pull/stagefile.h"
#include "lib/proto_image.h"

struct import {
	int source; /* file or folder, borrowed */
	int stage;  /* borrowed */
	enum job_source kind;
	const char *name; /* which image of an archive with several; also the name in messages */
	struct platform platform;
	struct image_limits lim;
	int (*progress)(void *arg, uint64_t done, uint64_t total);
	void *progress_arg;
	/* out */
	struct digest manifest;
	struct blob_list blobs;
};

int import_run(struct import *im, struct err *e);

/* Makes an image of one layer that is already staged: writes a configuration and a manifest for it. */
int import_wrap_layer(
	struct import *im, const struct blob *layer, const struct digest *diff, struct err *e);
