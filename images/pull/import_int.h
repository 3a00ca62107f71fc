/* SPDX-License-Identifier: Apache-2.0
 *
 * import_int.h: what import.c and rootfs.c share.
 */
#pragma once

#include "images/pull/import.h"

struct archive;

/* A seekable tar (plain, gzip, zstd), opened at its start. */
struct archive *import_open_tar(int fd, struct err *e);
/* Sets im->kind from what the source looks like, if it is JOB_SRC_AUTO. */
int import_guess(struct import *im, struct err *e);
int import_rootfs_tar(struct import *im, struct err *e);
int import_rootfs_dir(struct import *im, struct err *e);
int import_put_manifest(struct import *im, const struct blob *config, const struct blob *layers,
	size_t n, struct err *e);
