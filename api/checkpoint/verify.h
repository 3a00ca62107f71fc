/* SPDX-License-Identifier: Apache-2.0
 *
 * verify.h: looks for damage in the files that sandboxes are restored from. At every restore the monitor checks the state and the heads of the
 * memory files. It also checks the memory that it prefetches, if a file was not read since the host booted. A thread of the daemon reads
 * the whole of such a file afterwards, once per boot. A damaged file is not used again. mayflyd's loop.
 */
#pragma once

#include "api/checkpoint/files.h"
#include "api/core/daemon.h"

struct http_req;
struct verify;

/* Called when memory file `blob` is found damaged, to tell the sandboxes that use it. verify.c itself tells the checkpoints. */
typedef void (*verify_damaged_fn)(struct daemon *d, const char *blob, const char *text);

/* Lives as long as the daemon. */
struct verify *verify_create(struct daemon *d, verify_damaged_fn in_use);

/* Was every memory file of m read since the host booted, or does the file system check it by itself? */
bool verify_known(struct daemon *d, const struct memory *m);
/* A sandbox was restored from m: reads in the background the files that were not read since the host booted. */
void verify_restored(struct daemon *d, const struct memory *m);
/* What is wrong with one of m's memory files; NULL: no damage is known. */
const char *verify_damage(struct daemon *d, const struct memory *m);

/* Runs a job in the same thread, after the jobs before it. done() is called on the loop. */
struct io_job;
void verify_background(struct daemon *d, struct io_job *j);

/* Reads everything of a point, and answers r with what it found. */
void verify_point(struct http_req *r, const struct disk *disk, const struct memory *m);
