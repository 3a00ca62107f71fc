/* SPDX-License-Identifier: Apache-2.0
 *
 * database_migrate.c: the format of the database, and the conversion of the older format. mayflyd, at
 * start. The conversion is one transaction: a daemon that dies during it leaves the old file.
 *
 * Format 1 had a table for each kind of checkpoint, absolute paths and no owners, and no number.
 * Format 2 has one table of checkpoints, and a portable and a local part of each record. Daemons of
 * format 1 put two values into "sandboxes", which has three columns now: they refuse to start.
 */
#include "api/core/database_int.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "api/core/principal.h"
#include "lib/json.h"
#include "lib/log.h"

static const char tables[] =
	"CREATE TABLE sandboxes (id TEXT PRIMARY KEY, doc TEXT NOT NULL, local TEXT) WITHOUT ROWID;"
	"CREATE TABLE checkpoints (id TEXT PRIMARY KEY, doc TEXT NOT NULL, local TEXT) WITHOUT "
	"ROWID;"
	"CREATE TABLE idempotency (id TEXT PRIMARY KEY, doc TEXT NOT NULL, local TEXT,"
	" sandbox TEXT, at INTEGER) WITHOUT ROWID;"
	"CREATE INDEX idempotency_sandbox ON idempotency (sandbox);"
	"CREATE INDEX idempotency_at ON idempotency (at);"
	"PRAGMA user_version = 2";

/* Added without a new number: an older daemon does not look at it. */
static const char added_tables[] =
	"CREATE TABLE IF NOT EXISTS claims (id TEXT PRIMARY KEY, doc TEXT NOT NULL, local TEXT) "
	"WITHOUT ROWID;"
	"CREATE TABLE IF NOT EXISTS pools (id TEXT PRIMARY KEY, doc TEXT NOT NULL, local TEXT) "
	"WITHOUT ROWID;"
	"CREATE TABLE IF NOT EXISTS runs (id TEXT PRIMARY KEY, doc TEXT NOT NULL, local TEXT) "
	"WITHOUT ROWID";

/* ---- documents */

/* The members of a record that are true on its host only. */
static const char *const local_names[] = {"disk", "mem", "workset", "vm_slot", "vm_pid", "vm_start",
	"boot", "taking", "resident", "used", "boot_key"};

static void member_move(cJSON *from, const char *name, cJSON *to, const char *as)
{
	cJSON *v = cJSON_DetachItemFromObjectCaseSensitive(from, name);

	if (v)
		cJSON_AddItemToObject(to, as, v);
}

/* Times were numbers in some tables. */
static void time_move(cJSON *doc, const char *name, const char *as)
{
	int64_t ns = json_get_i64(doc, name);

	cJSON_DeleteItemFromObjectCaseSensitive(doc, name);
	cJSON_DeleteItemFromObjectCaseSensitive(doc, as);
	json_put_i64(doc, as, ns);
}

/* Nothing is to be done here: document_convert() moves the local members. */
static void sandbox_convert(cJSON *doc)
{
}

static void snapshot_convert(cJSON *doc)
{
	cJSON *status = cJSON_GetObjectItemCaseSensitive(doc, "status");

	member_move(status, "state", doc, "state");
	member_move(status, "reason", doc, "reason");
	member_move(status, "message", doc, "message");
	cJSON_DeleteItemFromObjectCaseSensitive(doc, "status");
	cJSON_DeleteItemFromObjectCaseSensitive(doc, "id");
	cJSON_DeleteItemFromObjectCaseSensitive(doc, "createdAt");
	member_move(doc, "sandboxId", doc, "sandbox");
	if (!json_get_i64(doc, "changed_ns")) {
		cJSON_DeleteItemFromObjectCaseSensitive(doc, "changed_ns");
		json_put_i64(doc, "changed_ns", json_get_i64(doc, "created_ns"));
	}
	time_move(doc, "created_ns", "created");
	time_move(doc, "changed_ns", "changed");
	cJSON_AddStringToObject(doc, "purpose", "snapshot");
}

static void template_convert(cJSON *doc)
{
	int64_t created = json_get_i64(doc, "created");

	time_move(doc, "created", "created");
	json_put_i64(doc, "changed", created);
	time_move(doc, "used", "used");
	cJSON_AddStringToObject(doc, "state", "Ready");
	cJSON_AddStringToObject(doc, "purpose", "image-template");
}

static void user_template_convert(cJSON *doc)
{
	static const char *const phases[][2] = {{"Pending", "Pending"}, {"Building", "Creating"},
		{"Succeeded", "Ready"}, {"Failed", "Failed"}};
	const char *phase = json_str(doc, "phase");

	for (size_t i = 0; i < ARRAY_LEN(phases); i++)
		if (phase && !strcmp(phase, phases[i][0]))
			cJSON_AddStringToObject(doc, "state", phases[i][1]);
	cJSON_DeleteItemFromObjectCaseSensitive(doc, "phase");
	time_move(doc, "created", "created");
	time_move(doc, "updated", "changed");
	cJSON_AddStringToObject(doc, "purpose", "user-template");
}

/* The image's disk was named by its path; now it is named below the folder of the database. */
static void base_convert(cJSON *disk, const char *db_path)
{
	const char *base = json_str(disk, "base"), *slash = strrchr(db_path, '/');
	size_t n = slash ? (size_t)(slash - db_path) : 0;

	if (n && base && !strncmp(base, db_path, n) && base[n] == '/')
		cJSON_ReplaceItemInObjectCaseSensitive(
			disk, "base", cJSON_CreateString(base + n + 1));
}

/* *doc and *local: to be freed with cJSON_free. */
static int document_convert(
	const struct database *db, const char *text, void (*fn)(cJSON *), char **doc, char **local)
{
	cJSON *o = cJSON_Parse(text), *part = cJSON_CreateObject();

	*doc = *local = NULL;
	if (cJSON_IsObject(o) && part) {
		fn(o);
		if (!cJSON_HasObjectItem(o, "owner"))
			cJSON_AddStringToObject(o, "owner", OWNER_OPERATOR);
		for (size_t i = 0; i < ARRAY_LEN(local_names); i++)
			member_move(o, local_names[i], part, local_names[i]);
		base_convert(cJSON_GetObjectItemCaseSensitive(part, "disk"), db->path);
		*doc = cJSON_PrintUnformatted(o);
		*local = cJSON_PrintUnformatted(part);
	}
	cJSON_Delete(o);
	cJSON_Delete(part);
	return *doc && *local ? 0 : -EINVAL;
}

/* ---- tables */

struct old_table {
	const char *name, *to;
	void (*convert)(cJSON *doc);
};

static const struct old_table old_tables[] = {
	{"sandboxes", "sandboxes", sandbox_convert},
	{"snapshots", "checkpoints", snapshot_convert},
	{"templates", "checkpoints", template_convert},
	{"user_templates", "checkpoints", user_template_convert},
};

static int row_convert(
	struct database *db, const struct old_table *o, sqlite3_stmt *from, sqlite3_stmt *to)
{
	const char *key = (const char *)sqlite3_column_text(from, 0),
		   *text = (const char *)sqlite3_column_text(from, 1);
	char *doc = NULL, *local = NULL;
	int rc;

	/* a row that cannot be parsed is copied as it is: the loader quarantines it */
	if (text && document_convert(db, text, o->convert, &doc, &local) < 0)
		log_warn("state: record %s of table %s is kept as it was", key, o->name);
	sqlite3_bind_text(to, 1, key, -1, SQLITE_STATIC);
	sqlite3_bind_text(to, 2, doc && local ? doc : text, -1, SQLITE_STATIC);
	if (doc && local)
		sqlite3_bind_text(to, 3, local, -1, SQLITE_STATIC);
	rc = sqlite3_step(to);
	sqlite3_reset(to);
	sqlite3_clear_bindings(to);
	cJSON_free(doc);
	cJSON_free(local);
	return rc;
}

static int table_convert(struct database *db, const struct old_table *o, struct err *e)
{
	sqlite3_stmt *from = NULL, *to = NULL;
	char sql[120];
	int rc;

	snprintf(sql, sizeof(sql), "SELECT id, doc FROM old_%s", o->name);
	rc = sqlite3_prepare_v2(db->db, sql, -1, &from, NULL);
	snprintf(sql, sizeof(sql), "INSERT INTO %s VALUES (?1, ?2, ?3)", o->to);
	if (rc == SQLITE_OK)
		rc = sqlite3_prepare_v2(db->db, sql, -1, &to, NULL);
	while (rc == SQLITE_OK && (rc = sqlite3_step(from)) == SQLITE_ROW) {
		rc = row_convert(db, o, from, to);
		if (rc == SQLITE_DONE)
			rc = SQLITE_OK;
	}
	rc = rc == SQLITE_DONE ? 0 : db_error(db->db, e, o->name);
	sqlite3_finalize(from);
	sqlite3_finalize(to);
	return rc;
}

static int old_tables_rename(struct database *db, struct err *e)
{
	char sql[200];
	int rc = 0;

	for (size_t i = 0; i < ARRAY_LEN(old_tables) && !rc; i++) {
		/* a file of the very first builds may lack one */
		snprintf(sql, sizeof(sql),
			"CREATE TABLE IF NOT EXISTS %s (id TEXT PRIMARY KEY, doc TEXT NOT NULL);"
			"ALTER TABLE %s RENAME TO old_%s",
			old_tables[i].name, old_tables[i].name, old_tables[i].name);
		rc = db_run(db, sql, e);
	}
	return rc ? rc
		  : db_run(db,
			    "CREATE TABLE IF NOT EXISTS idempotency (id TEXT PRIMARY KEY, doc "
			    "TEXT);"
			    "ALTER TABLE idempotency RENAME TO old_idempotency",
			    e);
}

/* Idempotency keys that cannot be parsed are dropped: at worst a retried create makes a second sandbox. */
static const char keys_convert[] =
	"INSERT INTO idempotency SELECT id, doc, NULL, json_extract(doc, '$.sandbox'),"
	" json_extract(doc, '$.at') FROM old_idempotency WHERE json_valid(doc);"
	"DROP TABLE old_idempotency";

static int convert(struct database *db, struct err *e)
{
	char sql[80];
	int rc = old_tables_rename(db, e);

	if (!rc)
		rc = db_run(db, tables, e);
	for (size_t i = 0; i < ARRAY_LEN(old_tables) && !rc; i++) {
		rc = table_convert(db, &old_tables[i], e);
		snprintf(sql, sizeof(sql), "DROP TABLE old_%s", old_tables[i].name);
		if (!rc)
			rc = db_run(db, sql, e);
	}
	return rc ? rc : db_run(db, keys_convert, e);
}

/* ---- */

static int number_of(struct database *db, const char *sql, int64_t *n, struct err *e)
{
	sqlite3_stmt *st = NULL;
	int rc = 0;

	if (sqlite3_prepare_v2(db->db, sql, -1, &st, NULL) != SQLITE_OK ||
		sqlite3_step(st) != SQLITE_ROW)
		rc = db_error(db->db, e, sql);
	else
		*n = sqlite3_column_int64(st, 0);
	sqlite3_finalize(st);
	return rc;
}

int db_format(struct database *db, struct err *e)
{
	int64_t format = 0, old = 0;
	int rc = db_run(db, "PRAGMA synchronous=FULL; BEGIN IMMEDIATE", e);

	if (!rc)
		rc = number_of(db, "PRAGMA user_version", &format, e);
	if (!rc)
		rc = number_of(
			db, "SELECT count(*) FROM sqlite_schema WHERE name = 'sandboxes'", &old, e);
	if (!rc && format > DB_FORMAT)
		rc = err_plain(e, EPROTO,
			"state: %s has format %lld, and this daemon knows %d: a newer mayfly wrote "
			"it. Start that one.",
			db->path, (long long)format, DB_FORMAT);
	if (!rc && format == 0) {
		rc = old ? convert(db, e) : db_run(db, tables, e);
		if (rc < 0)
			err_wrap(e, "state: converting %s, which stays as it was", db->path);
		else if (old)
			log_info("state: converted to format %d", DB_FORMAT);
	}
	if (!rc)
		rc = db_run(db, added_tables, e);
	if (!rc)
		rc = db_run(db, "COMMIT", e);
	if (rc < 0 && !sqlite3_get_autocommit(db->db))
		db_run(db, "ROLLBACK", NULL);
	if (!rc)
		rc = db_run(db, "PRAGMA synchronous=NORMAL", e);
	return rc;
}
