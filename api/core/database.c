/* SPDX-License-Identifier: Apache-2.0
 *
 * database.c: the SQLite file: its tables, and how a group of transactions is committed. The
 * committing functions run in the writer's thread, or in the loop's before that thread is started.
 */
#include "api/core/database_int.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "lib/log.h"

const char *const db_table_names[DB_TABLES] = {[DB_SANDBOX] = "sandboxes",
	[DB_CHECKPOINT] = "checkpoints",
	[DB_IDEMPOTENCY] = "idempotency",
	[DB_CLAIM] = "claims",
	[DB_POOL] = "pools",
	[DB_RUN] = "runs"};

#define PUT_RECORD(table)                                                                          \
	"INSERT INTO " table " (id, doc, local) VALUES (?1, ?2, ?3)"                               \
	" ON CONFLICT(id) DO UPDATE SET doc = ?2, local = ?3"

static const char *const puts_row[DB_TABLES] = {[DB_SANDBOX] = PUT_RECORD("sandboxes"),
	[DB_CHECKPOINT] = PUT_RECORD("checkpoints"),
	[DB_CLAIM] = PUT_RECORD("claims"),
	[DB_POOL] = PUT_RECORD("pools"),
	[DB_RUN] = PUT_RECORD("runs"),
	/* idempotency keys are deleted by sandbox and by time: both have columns with an index */
	[DB_IDEMPOTENCY] =
		"INSERT OR REPLACE INTO idempotency (id, doc, local, sandbox, at) VALUES"
		" (?1, ?2, ?3, json_extract(?2, '$.sandbox'), json_extract(?2, '$.at'))"};

static const char *const queries[DB_QUERIES] = {
	[DB_FORGET_SANDBOX_KEYS] = "DELETE FROM idempotency WHERE sandbox = ?1",
	[DB_PRUNE_KEYS] = "DELETE FROM idempotency WHERE at < CAST(?1 AS INTEGER)"};

static const char set_up[] =
	"PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA busy_timeout=10000;"
	"PRAGMA trusted_schema=OFF";
int db_error(sqlite3 *c, struct err *e, const char *what)
{
	int code = c ? sqlite3_errcode(c) : SQLITE_NOMEM;

	return err_plain(e,
		code == SQLITE_FULL    ? ENOSPC
		: code == SQLITE_NOMEM ? ENOMEM
				       : EIO,
		"state: %s: %s", what, c ? sqlite3_errmsg(c) : "no memory");
}

int db_run(struct database *db, const char *sql, struct err *e)
{
	return sqlite3_exec(db->db, sql, NULL, NULL, NULL) == SQLITE_OK ? 0
									: db_error(db->db, e, sql);
}

static int db_prepare(struct database *db, const char *sql, sqlite3_stmt **st, struct err *e)
{
	return sqlite3_prepare_v2(db->db, sql, -1, st, NULL) == SQLITE_OK
		       ? 0
		       : db_error(db->db, e, sql);
}

static int db_table_prepare(struct database *db, enum db_table t, struct err *e)
{
	char sql[200];
	int rc = db_prepare(db, puts_row[t], &db->put[t], e);

	snprintf(sql, sizeof(sql), "DELETE FROM %s WHERE id = ?1", db_table_names[t]);
	return rc ? rc : db_prepare(db, sql, &db->del[t], e);
}

static int db_open_file(struct database *db, struct err *e)
{
	int rc = sqlite3_open_v2(db->path, &db->db,
		SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL);

	rc = rc == SQLITE_OK ? db_run(db, set_up, e) : db_error(db->db, e, db->path);
	if (!rc)
		rc = db_format(db, e);
	for (enum db_table t = 0; t < DB_TABLES && !rc; t++)
		rc = db_table_prepare(db, t, e);
	for (enum db_query q = 0; q < DB_QUERIES && !rc; q++)
		rc = db_prepare(db, queries[q], &db->query[q], e);
	return rc;
}

int database_open(const char *path, struct loop *l, struct database **out, struct err *e)
{
	struct database *db = calloc(1, sizeof(*db));
	int rc;

	if (!db)
		return err_set(e, ENOMEM, "state");
	db->loop = l;
	db->path = strdup(path);
	db->quarantine_last = &db->quarantine;
	rc = db_queue_init(db, e);
	if (!rc)
		rc = db->path ? db_open_file(db, e) : err_set(e, ENOMEM, "state");
	if (rc < 0) {
		database_close(db);
		return rc;
	}
	*out = db;
	return 0;
}

void database_close(struct database *db)
{
	if (!db)
		return;
	db_queue_fini(db);
	for (enum db_table t = 0; t < DB_TABLES; t++) {
		sqlite3_finalize(db->put[t]);
		sqlite3_finalize(db->del[t]);
		sqlite3_finalize(db->get[t]);
	}
	for (enum db_query q = 0; q < DB_QUERIES; q++)
		sqlite3_finalize(db->query[q]);
	sqlite3_close(db->reader);
	sqlite3_close(db->db);
	while (db->quarantine) {
		struct quarantined *q = db->quarantine;

		db->quarantine = q->next;
		free(q);
	}
	free(db->path);
	free(db);
}

void database_before_sync(struct database *db, int (*fn)(void *arg, struct err *e), void *arg)
{
	db->before_sync = fn;
	db->before_sync_arg = arg;
}

/* ---- committing */

static int change_apply(struct database *db, const struct change *c, struct err *e)
{
	sqlite3_stmt *st = c->kind == CHANGE_PUT      ? db->put[c->what]
			   : c->kind == CHANGE_DELETE ? db->del[c->what]
						      : db->query[c->what];
	int rc = 0;

	sqlite3_bind_text(st, 1, c->key, -1, SQLITE_STATIC);
	if (c->kind == CHANGE_PUT)
		sqlite3_bind_text(st, 2, c->text, -1, SQLITE_STATIC);
	if (c->kind == CHANGE_PUT && c->local)
		sqlite3_bind_text(st, 3, c->local, -1, SQLITE_STATIC);
	if (sqlite3_step(st) != SQLITE_DONE)
		rc = db_error(db->db, e, "write");
	sqlite3_reset(st);
	sqlite3_clear_bindings(st);
	return rc;
}

/* 0: applied, or only this one was rolled back; t->err says which. -errno: SQLite ended the whole
 * group, as on a full disk. */
static int transaction_apply(struct database *db, struct transaction *t)
{
	int rc = 0;

	t->err.code = 0;
	if (t->no_memory) {
		err_set(&t->err, ENOMEM, "state");
		return 0;
	}
	rc = db_run(db, "SAVEPOINT one", &t->err);
	if (rc < 0)
		return rc;
	for (const struct change *c = t->first; c && !rc; c = c->next)
		rc = change_apply(db, c, &t->err);
	if (sqlite3_get_autocommit(db->db))
		return rc < 0 ? rc : err_plain(&t->err, EIO, "state: the transaction is lost");
	return db_run(db, rc < 0 ? "ROLLBACK TO one; RELEASE one" : "RELEASE one", NULL);
}

static void db_sync_mode(struct database *db, bool sync)
{
	if (sync != db->full_sync &&
		!db_run(db, sync ? "PRAGMA synchronous=FULL" : "PRAGMA synchronous=NORMAL", NULL))
		db->full_sync = sync;
}

static int group_apply(struct database *db, struct transaction *list, struct transaction *end,
	bool sync, struct err *e)
{
	int rc = 0;

	if (sync && db->before_sync)
		rc = db->before_sync(db->before_sync_arg, e);
	if (rc < 0)
		return rc;
	db_sync_mode(db, sync);
	rc = db_run(db, "BEGIN IMMEDIATE", e);
	if (rc < 0)
		return rc;
	for (struct transaction *t = list; t != end && !rc; t = t->next) {
		rc = transaction_apply(db, t);
		if (rc < 0)
			*e = t->err;
	}
	if (!rc)
		rc = db_run(db, "COMMIT", e);
	if (rc < 0 && !sqlite3_get_autocommit(db->db))
		db_run(db, "ROLLBACK", NULL);
	return rc;
}

void db_commit_group(struct database *db, struct transaction *list)
{
	bool sync = false;
	struct err e;
	int rc;

	for (const struct transaction *t = list; t; t = t->next)
		sync |= t->sync;
	rc = group_apply(db, list, NULL, sync, &e);
	if (!rc)
		return;
	/* Commit each transaction alone: on a full disk a small one, or a deletion, may still succeed. */
	for (struct transaction *t = list; t; t = t->next) {
		rc = list->next ? group_apply(db, t, t->next, t->sync, &e) : rc;
		if (rc < 0)
			t->err = e;
	}
}
