/* SPDX-License-Identifier: Apache-2.0
 *
 * database_load.c: reading: whole tables at start, single rows later. mayflyd's loop. The file may
 * be damaged: a row that cannot be read is reported and stays where it is, and the others are used.
 */
#include "api/core/database_int.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "lib/log.h"

/* ---- the quarantine */

void database_quarantine_add(struct database *db, enum db_table t, const char *key, const char *why)
{
	struct quarantined *q = calloc(1, sizeof(*q));

	db->incomplete = true;
	log_limited(LOG_ERROR,
		"state: record \"%s\" in table %s is quarantined: %s. It and all files are kept.",
		key, db_table_names[t], why);
	if (!q)
		return;
	q->in = t;
	q->table = db_table_names[t];
	snprintf(q->key, sizeof(q->key), "%s", key);
	snprintf(q->why, sizeof(q->why), "%s", why);
	*db->quarantine_last = q;
	db->quarantine_last = &q->next;
}

bool database_complete(const struct database *db)
{
	return !db->incomplete;
}

const struct quarantined *database_quarantine(const struct database *db)
{
	return db->quarantine;
}

/* ---- whole tables */

struct load {
	struct database *db;
	enum db_table t;
	int (*fn)(void *arg, const char *key, struct cJSON *doc);
	void *arg;
	char *last; /* the last key that was read from the beginning of the table; NULL: none */
};

/* json_read() is not used here. It bounds the depth, and a record holds a client's JSON one level deeper than the request had it. */
static cJSON *row_parse(sqlite3_stmt *st, int column)
{
	const char *text = (const char *)sqlite3_column_text(st, column),
		   *local = (const char *)sqlite3_column_text(st, column + 1);
	cJSON *doc = text ? cJSON_Parse(text) : NULL, *part;
	bool there = sqlite3_column_type(st, column + 1) != SQLITE_NULL;

	if (!doc || !cJSON_IsObject(doc) || !there)
		return cJSON_IsObject(doc) ? doc : (cJSON_Delete(doc), NULL);
	part = local ? cJSON_Parse(local) : NULL;
	if (!part || !cJSON_AddItemToObject(doc, DB_LOCAL, part)) {
		cJSON_Delete(part);
		cJSON_Delete(doc);
		return NULL;
	}
	return doc;
}

static void load_row(struct load *l, const char *key, cJSON *doc)
{
	int rc;

	if (!doc) {
		database_quarantine_add(l->db, l->t, key ? key : "", "it cannot be parsed");
		return;
	}
	rc = l->fn(l->arg, key, doc);
	if (rc < 0)
		database_quarantine_add(l->db, l->t, key, strerror(-rc));
}

/* 0, or -errno and e: the table cannot be read beyond l->last. */
static int load_from(struct load *l, bool descending, struct err *e)
{
	sqlite3_stmt *st = NULL;
	char sql[100];
	int rc;

	snprintf(sql, sizeof(sql), "SELECT id, doc, local FROM %s ORDER BY id%s",
		db_table_names[l->t], descending ? " DESC" : "");
	if (sqlite3_prepare_v2(l->db->db, sql, -1, &st, NULL) != SQLITE_OK)
		return db_error(l->db->db, e, sql);
	while ((rc = sqlite3_step(st)) == SQLITE_ROW) {
		const char *key = (const char *)sqlite3_column_text(st, 0);

		if (descending && key && l->last && strcmp(key, l->last) <= 0) {
			rc = SQLITE_DONE;
			break;
		}
		load_row(l, key, key ? row_parse(st, 1) : NULL);
		if (descending || !key)
			continue;
		free(l->last);
		l->last = strdup(key);
	}
	rc = rc == SQLITE_DONE ? 0 : db_error(l->db->db, e, db_table_names[l->t]);
	sqlite3_finalize(st);
	return rc;
}

/* A damaged page hides the rows after it from a scan that starts at the beginning. A scan from the
 * end finds the rows on the other side of the page. */
void database_load(struct database *db, enum db_table t,
	int (*fn)(void *arg, const char *key, struct cJSON *doc), void *arg)
{
	struct load l = {.db = db, .t = t, .fn = fn, .arg = arg};
	struct err e;

	if (load_from(&l, false, &e) < 0) {
		database_quarantine_add(db, t, "", e.msg);
		load_from(&l, true, &e);
	}
	free(l.last);
}

/* ---- single rows */

/* A connection of its own: the other one is the writer's. */
static int reader_open(struct database *db, enum db_table t, struct err *e)
{
	char sql[100];

	if (!db->reader) {
		if (sqlite3_open_v2(db->path, &db->reader,
			    SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX, NULL) != SQLITE_OK) {
			db_error(db->reader, e, db->path);
			sqlite3_close(db->reader);
			db->reader = NULL;
			return -e->code;
		}
		sqlite3_busy_timeout(db->reader, 2000);
	}
	snprintf(sql, sizeof(sql), "SELECT doc, local FROM %s WHERE id = ?1", db_table_names[t]);
	if (!db->get[t] && sqlite3_prepare_v2(db->reader, sql, -1, &db->get[t], NULL) != SQLITE_OK)
		return db_error(db->reader, e, sql);
	return 0;
}

int database_get(
	struct database *db, enum db_table t, const char *key, struct cJSON **doc, struct err *e)
{
	int rc = reader_open(db, t, e);
	sqlite3_stmt *st = db->get[t];

	if (rc < 0)
		return rc;
	*doc = NULL;
	sqlite3_bind_text(st, 1, key, -1, SQLITE_STATIC);
	rc = sqlite3_step(st);
	if (rc == SQLITE_ROW) {
		*doc = row_parse(st, 0);
		rc = *doc ? 0 : err_plain(e, EIO, "state: record %s cannot be parsed", key);
	} else {
		rc = rc == SQLITE_DONE ? 0 : db_error(db->reader, e, "read");
	}
	sqlite3_reset(st);
	sqlite3_clear_bindings(st);
	return rc;
}
