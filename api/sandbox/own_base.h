/* SPDX-License-Identifier: Apache-2.0
 *
 * own_base.h: an image's disk for one owner (api/core/principal.h) alone. Sandboxes that read one file share its pages in the page cache,
 * and each can measure which of them another one has touched. With runtime.share_memory = false each owner gets a file of its own, and
 * templates of its own. mayflyd's loop; the copy is made in the pool.
 */
#pragma once

#include "lib/err.h"

struct io_pool;
struct own_base;

/* path: the copy, which lies beside the image's disk and goes with it; e NULL: it is there. */
typedef void (*own_base_fn)(void *arg, const char *path, const struct err *e);
/* NULL: no memory. A file system with reflinks shares the blocks on the disk, not the pages; without, it is a whole copy. */
struct own_base *own_base_make(
	struct io_pool *io, const char *disk, const char *owner, own_base_fn fn, void *arg);
void own_base_cancel(struct own_base *b); /* fn is not called any more; NULL is fine */
/* A hash of the owner for names of files and templates: 16 hexadecimal digits. */
#define OWN_BASE_TAG 17
void own_base_tag(const char *owner, char tag[static OWN_BASE_TAG]);
