/* SPDX-License-Identifier: Apache-2.0
 *
 * verify.h: trust in the files that sandboxes are restored from. Manifest and state are checked by the monitor at every restore, and the memory it
 * prefetches as long as a file was not read since the host booted; the rest of such a file is read here, once per boot, in a thread that has
 * nothing but the job. A damaged file is not restored from again. mayflyd's loop.
 */
#pragma once

#include "api/checkpoint/files.h"
#include "api/core/daemon.h"

struct http_req;
struct verify;

/* Memory file `blob` is damaged: for those that use it now. The checkpoints that have it hear of it in any case. */
typedef void (*verify_damaged_fn)(struct daemon *d, const char *blob, const char *text);

/* Lives as long as the daemon. */
struct verify *verify_create(struct daemon *d, verify_damaged_fn in_use);

/* All of them were read since the host booted, or the file system checks them by itself. */
bool verify_known(struct daemon *d, const struct memory *m);
/* Something was restored from these: reads in the background what was not yet. */
void verify_restored(struct daemon *d, const struct memory *m);
/* NULL, or what is wrong with one of them. */
const char *verify_damage(struct daemon *d, const struct memory *m);

/* Runs a job in the same thread, after what was asked for before. */
struct io_job;
void verify_background(struct daemon *d, struct io_job *j);

/* Reads everything of a point, and answers r with what it found. */
void verify_point(struct http_req *r, const struct disk *disk, const struct memory *m);
