/* SPDX-License-Identifier: Apache-2.0
 *
 * database.c: the SQLite file. mayflyd's loop: a write is one small transaction in WAL mode, tens of
 * microseconds; a synced one waits for the disk.
 */
#include "api/core/database.h"

#include <cjson/cJSON.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

#include "lib/log.h"

struct state {
	sqlite3 *db;
	sqlite3_stmt *put[ST_COUNT], *del[ST_COUNT];
	bool full_sync;
};

static const char *const tables[ST_COUNT] = {[ST_SANDBOX] = "sandboxes",
	[ST_SNAPSHOT] = "snapshots",
	[ST_TEMPLATE] = "templates",
	[ST_USER_TEMPLATE] = "user_templates",
	[ST_IDEMPOTENCY] = "idempotency"};

static int bad(struct state *s, struct err *e, const char *what)
{
	return err_plain(
		e, EIO, "state: %s: %s", what, s->db ? sqlite3_errmsg(s->db) : "no memory");
}

static int run(struct state *s, const char *sql, struct err *e)
{
	return sqlite3_exec(s->db, sql, NULL, NULL, NULL) == SQLITE_OK ? 0 : bad(s, e, sql);
}

int state_open(const char *path, struct state **out, struct err *e)
{
	struct state *s = calloc(1, sizeof(*s));
	char sql[200];
	int rc = s ? 0 : -ENOMEM;

	if (!s)
		return err_set(e, ENOMEM, "state");
	if (sqlite3_open_v2(path, &s->db,
		    SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
		    NULL) != SQLITE_OK)
		rc = bad(s, e, path);
	if (!rc)
		rc = run(s,
			"PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA "
			"busy_timeout=2000; PRAGMA trusted_schema=OFF",
			e);
	for (int t = 0; t < ST_COUNT && !rc; t++) {
		snprintf(sql, sizeof(sql),
			"CREATE TABLE IF NOT EXISTS %s (id TEXT PRIMARY KEY, doc TEXT NOT NULL) "
			"WITHOUT ROWID",
			tables[t]);
		rc = run(s, sql, e);
		snprintf(sql, sizeof(sql),
			"INSERT INTO %s VALUES (?1, ?2) ON CONFLICT(id) DO UPDATE SET doc = ?2",
			tables[t]);
		if (!rc && sqlite3_prepare_v2(s->db, sql, -1, &s->put[t], NULL) != SQLITE_OK)
			rc = bad(s, e, sql);
		snprintf(sql, sizeof(sql), "DELETE FROM %s WHERE id = ?1", tables[t]);
		if (!rc && sqlite3_prepare_v2(s->db, sql, -1, &s->del[t], NULL) != SQLITE_OK)
			rc = bad(s, e, sql);
	}
	if (rc < 0) {
		state_close(s);
		return rc;
	}
	*out = s;
	return 0;
}

void state_close(struct state *s)
{
	if (!s)
		return;
	for (int t = 0; t < ST_COUNT; t++) {
		sqlite3_finalize(s->put[t]);
		sqlite3_finalize(s->del[t]);
	}
	sqlite3_close(s->db);
	free(s);
}

static int finish(struct state *s, sqlite3_stmt *st, bool sync, struct err *e)
{
	int rc = 0;

	if (sync != s->full_sync &&
		!run(s, sync ? "PRAGMA synchronous=FULL" : "PRAGMA synchronous=NORMAL", NULL))
		s->full_sync = sync;
	if (sqlite3_step(st) != SQLITE_DONE)
		rc = bad(s, e, "write");
	sqlite3_reset(st);
	sqlite3_clear_bindings(st);
	return rc;
}

int state_put(struct state *s, enum state_table t, const char *id, const cJSON *doc, bool sync,
	struct err *e)
{
	_cleanup_free_ char *text = cJSON_PrintUnformatted(doc);

	if (!text)
		return err_set(e, ENOMEM, "state");
	sqlite3_bind_text(s->put[t], 1, id, -1, SQLITE_STATIC);
	sqlite3_bind_text(s->put[t], 2, text, -1, SQLITE_STATIC);
	return finish(s, s->put[t], sync, e);
}

int state_delete(struct state *s, enum state_table t, const char *id, bool sync, struct err *e)
{
	sqlite3_bind_text(s->del[t], 1, id, -1, SQLITE_STATIC);
	return finish(s, s->del[t], sync, e);
}

int state_each(struct state *s, enum state_table t,
	void (*fn)(void *arg, const char *id, cJSON *doc), void *arg, struct err *e)
{
	sqlite3_stmt *st = NULL;
	char sql[100];
	int rc;

	snprintf(sql, sizeof(sql), "SELECT id, doc FROM %s", tables[t]);
	if (sqlite3_prepare_v2(s->db, sql, -1, &st, NULL) != SQLITE_OK)
		return bad(s, e, sql);
	while ((rc = sqlite3_step(st)) == SQLITE_ROW) {
		const char *id = (const char *)sqlite3_column_text(st, 0),
			   *text = (const char *)sqlite3_column_text(st, 1);
		cJSON *doc = text ? cJSON_Parse(text) : NULL;

		if (!doc)
			log_error(
				"state: record %s in %s cannot be read", id ? id : "?", tables[t]);
		else
			fn(arg, id, doc);
	}
	sqlite3_finalize(st);
	return rc == SQLITE_DONE ? 0 : bad(s, e, sql);
}
