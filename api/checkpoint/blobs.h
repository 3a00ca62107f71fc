/* SPDX-License-Identifier: Apache-2.0
 *
 * blobs.h: the files of sandboxes, snapshots and templates: disk layers, merged indexes, memory, states. Each has an id and is stored
 * as <dir>/<id>.<kind>. A file is removed with the last reference to it. mayflyd's loop; the counts are in memory and rebuilt at every start.
 *
 * The memory and the state of a fork are files in RAM. Their blob's id is a UUID of version 8, so every record says which they are.
 * They end with the daemon: sandboxes that run from them go on, but nothing can be restored from them any more.
 */
#pragma once

#include "lib/err.h"

struct blobs;
#define BLOB_ID 37

struct io_pool;
/* io frees the blocks of large files; NULL: the caller's thread does. */
struct blobs *blobs_create(const char *dir, struct io_pool *io, struct err *e);
void blobs_destroy(struct blobs *b);
/* Paths in records are relative to the state's folder, which is the one above dir. Paths outside of it
 * and "" are not changed. false: the path is too long, or has "../". */
const char *blobs_relative(const struct blobs *b, const char *path);
bool blobs_absolute(const struct blobs *b, const char *path, char *to, size_t cap);
void blob_id_make(char id[BLOB_ID]);
/* The id of a blob whose files `mem` and `state` are in RAM. These files are for the loop only, and need a reference to the blob
 * before they are made. */
void blob_ram_id_make(char id[BLOB_ID]);
bool blob_in_ram(const char *id);
/* The bytes of all sealed files in RAM. */
uint64_t blobs_ram_bytes(const struct blobs *b);
/* Makes id's file of that kind, empty, read and write: a descriptor or -errno. Any thread. */
int blob_make(struct blobs *b, const char *id, const char *kind);
/* Removes what blob_make() made. Only for a file to which nobody has a reference yet. Any thread. */
void blob_discard(struct blobs *b, const char *id, const char *kind);
struct io_pool *blobs_io(const struct blobs *b);
/* Syncs the names of all files made so far. For database_before_sync(), from the writer's thread. After
 * an error it fails for ever. */
int blobs_sync(void *blobs, struct err *e);
/* rw only for files that belong to one sandbox. */
int blob_open(struct blobs *b, const char *id, const char *kind, bool rw);
/* Can anybody still write this file? 0: no: it is not open for writing, and no writable mapping, descriptor in flight or io_uring
 * operation is left. -EBUSY: yes. -errno: it cannot be known. Seals a file in RAM. After a 0 only blob_open() can make a writer,
 * because the file is the daemon's own. */
int blob_has_writer(struct blobs *b, const char *id, const char *kind);
/* Somebody refers to it. */
bool blob_is_known(struct blobs *b, const char *id);
uint64_t blob_bytes(struct blobs *b, const char *id);
void blob_ref(struct blobs *b, const char *id);   /* "" is fine, as for unref */
void blob_unref(struct blobs *b, const char *id); /* the last one removes the files */
/* To be called when all records are loaded; before, no file is removed. complete: every record could be
 * read, so files that no record names are removed. Else every file that is there now stays as long as
 * this daemon runs, because a record that could not be read may name it. */
void blobs_loaded(struct blobs *b, bool complete);
