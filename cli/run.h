/* SPDX-License-Identifier: Apache-2.0
 *
 * run.h: runs other programs without a shell; small files and trees.
 */
#pragma once

#include "lib/buf.h"
#include "lib/err.h"

/* Runs argv, its stdout into `out` (NULL: /dev/null), stderr ours, and waits. 0, or -errno / -EIO
 * with what happened in e. */
int run_program(const char *const argv[], struct buf *out, struct err *e);
/* Whole small file into a terminated string at `to`; trailing newline dropped. 0 or -errno. */
int file_read(const char *path, char *to, size_t cap);
/* Replaces the file in one step. 0 or -errno. */
int file_write(const char *path, const void *p, size_t n, unsigned mode);
/* Removes a tree; a missing one is fine. */
int tree_remove(const char *path);
