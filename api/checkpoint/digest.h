/* SPDX-License-Identifier: Apache-2.0
 *
 * digest.h: SHA-256 and size of published files, kept beside them in <id>.sum, so that another host
 * can check its copy. Computed in the background by the thread that verifies, after the
 * checkpoint is published, and once for each file. mayflyd's loop.
 */
#pragma once

#include "api/checkpoint/checkpoint.h"
#include "api/core/io_pool.h"

/* The files of this checkpoint that have no digest yet. */
void digests_make(const struct checkpoint *c);
/* The same for all checkpoints that are Ready, at start. */
void digests_go_on(struct daemon *d);
/* Does the file still have the digest that was taken when it was published? 0; -ENOENT: none is kept; -EBADMSG: no. Any thread. */
int digest_check(struct blobs *b, const char *id, const char *kind, struct err *e);
/* Into hex, "" while there is none. kind: "mem", "state", "data", "bitmap", "index". */
void digest_read(struct blobs *b, const char *id, const char *kind, char hex[static 65]);
