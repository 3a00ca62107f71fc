/* SPDX-License-Identifier: Apache-2.0
 *
 * database.h: what survives the daemon: one SQLite file with JSON documents by key in a few tables.
 *
 * One writer thread owns the connection that writes. It commits every transaction that waits as one
 * group, so that a hundred creates share one write and one fsync. The loop hands a transaction over
 * with database_commit() and hears of its end in a callback.
 *
 * The rule for every caller: no answer, list, event or message shows a state whose commit has not
 * ended. A caller changes its own state in the callback, or changes it before and restores it when
 * the callback brings an error. Exceptions are changes that hold even if the write fails, such as the
 * end of a monitor: the next daemon finds the same.
 *
 * All functions belong to the loop's thread.
 */
#pragma once

#include "lib/err.h"
#include "lib/json.h"

struct cJSON;
struct database;
struct loop;
struct transaction;

enum db_table { DB_SANDBOX, DB_CHECKPOINT, DB_IDEMPOTENCY, DB_CLAIM, DB_POOL, DB_RUN, DB_TABLES };

/* A document's member of this name is its local part: what is true on this host only (slot, process,
 * files). It is stored in a column of its own; the rest is the portable part. */
#define DB_LOCAL "local"

/* Statements other than "put this row" and "delete this row". Each has one argument. */
enum db_query {
	DB_FORGET_SANDBOX_KEYS, /* idempotency keys of this sandbox */
	DB_PRUNE_KEYS,          /* idempotency keys from before this time, in ns since 1970 */
	DB_QUERIES
};

/* ---- open and close */

/* A file of an older daemon is converted. One of a newer daemon is refused. Until database_start()
 * transactions run in the caller's thread: the daemon starts its threads after it has sealed itself,
 * because a thread inherits the seal. */
int database_open(const char *path, struct loop *l, struct database **out, struct err *e);
int database_start(struct database *db, struct err *e);
/* Commits what is queued. Callbacks that are still due are not called. NULL is fine. */
void database_close(struct database *db);
/* fn runs in the writer's thread before each group that is synced. -errno: the transactions that asked
 * for the sync fail, and the others of the group are committed without it. fn syncs the names of new
 * files, because a synced record may refer to them. */
void database_before_sync(struct database *db, int (*fn)(void *arg, struct err *e), void *arg);

/* ---- transactions: all of it, or nothing */

struct transaction *transaction_new(void); /* NULL: no memory */
void transaction_free(struct transaction *t);
/* Copies the document and takes its local part out of it; the rest stays the caller's. A failed
 * allocation fails the commit. */
void transaction_put(
	struct transaction *t, enum db_table table, const char *key, struct cJSON *doc);
void transaction_delete(struct transaction *t, enum db_table table, const char *key);
void transaction_query(struct transaction *t, enum db_query q, const char *value);
/* The commit ends when it is on the disk: for what must survive a crash of the host, such as Paused,
 * snapshot Ready and deletion. */
void transaction_sync(struct transaction *t);

/* e NULL: it is committed. Else nothing of it was applied, and e says why. */
typedef void (*commit_fn)(void *arg, const struct err *e);

/* Takes t. Transactions are committed in the order in which they were handed over; one that fails
 * does not hold up the others. done is called from the loop, never
 * from here. NULL: an error is only logged. */
void database_commit(struct database *db, struct transaction *t, commit_fn done, void *arg);
/* The callbacks with this argument are not called any more. Their transactions are still committed. */
void database_forget(struct database *db, const void *arg);

/* ---- reading */

/* *doc: the caller's, or NULL if there is no such row. Only what is committed is seen. */
int database_get(
	struct database *db, enum db_table t, const char *key, struct cJSON **doc, struct err *e);

/* Reads a whole table at start. fn takes doc and returns 0, or -errno when the record cannot be
 * used. A row that cannot be read, parsed or used is quarantined: it stays where it is, and
 * database_complete() is false from then on. */
void database_load(struct database *db, enum db_table t,
	int (*fn)(void *arg, const char *key, struct cJSON *doc), void *arg);

/* False: some records could not be read. Then nothing may be deleted because no record names it. */
bool database_complete(const struct database *db);
struct quarantined {
	struct quarantined *next;
	enum db_table in;
	const char *table;
	char key[64]; /* "" if not even that could be read */
	char why[200];
};
const struct quarantined *database_quarantine(const struct database *db); /* the oldest first */
/* For a record that turns out to be unusable after it was loaded. */
void database_quarantine_add(
	struct database *db, enum db_table t, const char *key, const char *why);
