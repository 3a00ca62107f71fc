/* SPDX-License-Identifier: Apache-2.0
 *
 * volume_table.h: the file server's table of nodes in checkpoints: a file "nodes" beside the state of the same id. mayflyd's loop.
 */
#pragma once

#include "lib/err.h"

struct blobs;
struct table_job;

/* fd: after a load the memfd, which the callee closes; else -1. e NULL: no error. */
typedef void (*table_fn)(void *arg, int fd, const struct err *e);
/* Copies the table (fd is taken) into id's file, in a thread, and syncs it. NULL: no memory. */
struct table_job *table_save(struct blobs *b, const char *id, int fd, table_fn fn, void *arg);
/* Copies id's file into a memfd. */
struct table_job *table_load(struct blobs *b, const char *id, table_fn fn, void *arg);
/* fn is not called any more. NULL is fine. */
void table_cancel(struct table_job *j);
