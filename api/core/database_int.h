/* SPDX-License-Identifier: Apache-2.0
 *
 * database_int.h: what the database's files share: database.c (the file and its statements),
 * database_writer.c (queue, thread and completions), database_load.c (reading),
 * database_migrate.c (the format).
 */
#pragma once

#include <pthread.h>
#include <sqlite3.h>

#include "api/core/database.h"

#define DB_GROUP_MAX 512u /* transactions in one commit: bounds how long the first of them waits */

enum change_kind { CHANGE_PUT, CHANGE_DELETE, CHANGE_QUERY };

struct change {
	struct change *next;
	enum change_kind kind;
	unsigned int what;  /* db_table or db_query */
	char *text, *local; /* the document's parts; the key stands behind the struct */
	char key[];
};

struct transaction {
	struct transaction *next;
	struct change *first, **last;
	bool sync, no_memory;
	struct err err; /* code 0: committed */
	commit_fn done;
	void *arg;
};

struct database {
	struct loop *loop;
	char *path;

	/* the writer's, or the loop's until the writer is started */
	sqlite3 *db;
	sqlite3_stmt *put[DB_TABLES], *del[DB_TABLES], *query[DB_QUERIES];
	bool full_sync;
	int (*before_sync)(void *arg, struct err *e);
	void *before_sync_arg;

	/* the loop's */
	sqlite3 *reader;
	sqlite3_stmt *get[DB_TABLES];
	struct quarantined *quarantine, **quarantine_last;
	bool incomplete; /* also where there was no memory for a struct quarantined */

	/* shared, under the lock */
	pthread_mutex_t lock;
	pthread_cond_t work;
	pthread_t thread;
	bool started, ending;
	struct transaction *todo, **todo_last;
	struct transaction *running; /* the group that is being committed now */
	struct transaction *done, **done_last;
	int wake_fd;
	struct watch *wake;
};

extern const char *const db_table_names[DB_TABLES];

#define DB_FORMAT 2
/* database_migrate.c. Makes the tables, converts those of an older daemon in one transaction, or refuses. */
int db_format(struct database *db, struct err *e);

/* database.c. Commits the list as one group; each transaction's err says how it ended. */
void db_commit_group(struct database *db, struct transaction *list);
int db_error(sqlite3 *c, struct err *e, const char *what);
int db_run(struct database *db, const char *sql, struct err *e);

/* database_writer.c */
int db_queue_init(struct database *db, struct err *e);
void db_queue_fini(struct database *db);
