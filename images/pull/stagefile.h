/* SPDX-License-Identifier: Apache-2.0
 *
 * stagefile.h: files of a job's staging folder, named by their digest as they are closed.
 */
#pragma once

#include "images/oci/digest.h"
#include "images/oci/limits.h"
#include "lib/buf.h"
#include "lib/err.h"

#define STAGE_PART "part-" /* then the digest of a blob that is not complete yet */

struct blob {
	struct digest d;
	uint64_t size;
};

struct blob_list {
	struct blob *v;
	size_t n, cap;
};
int blob_list_add(struct blob_list *l, const struct blob *b); /* once each */
void blob_list_fini(struct blob_list *l);

struct stagefile {
	int dir, fd; /* dir is borrowed */
	char tmp[80];
	struct digest_ctx *ctx;
	uint64_t size, max;
};

int stagefile_begin(struct stagefile *f, int dir, uint64_t max, struct err *e);
int stagefile_write(struct stagefile *f, const void *p, size_t n, struct err *e);
/* Like stagefile_begin(), but the file is part-HEX, named by the digest that it will have. Bytes that it has already are
 * hashed and kept, so that a download continues where it broke off, in this job or in a later one. */
int stagefile_resume(
	struct stagefile *f, int dir, const struct digest *want, uint64_t max, struct err *e);
/* Renames the file to the hex of its digest, which is in *out. want: NULL, or the digest that it must have (-EBADMSG). */
int stagefile_end(struct stagefile *f, const struct digest *want, struct blob *out, struct err *e);
void stagefile_abort(struct stagefile *f); /* may follow stagefile_end() */

/* All of p as one blob. */
int stage_put(int dir, const void *p, size_t n, struct blob *out, struct err *e);
/* A blob of the folder, whole, into memory: at most max bytes. Free with free. */
int stage_get(int dir, const struct digest *d, size_t max, void **p, size_t *n, struct err *e);
/* All of a descriptor into memory. */
int fd_slurp(int fd, size_t max, void **p, size_t *n, struct err *e);
