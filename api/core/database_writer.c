/* SPDX-License-Identifier: Apache-2.0
 *
 * database_writer.c: transactions from database_commit() to their callback: the queue, the writer's
 * thread and the completions on the loop. The thread touches nothing of the daemon but the queue and the
 * writing connection.
 */
#include "api/core/database_int.h"

#include <cjson/cJSON.h>
#include <string.h>
#include <sys/eventfd.h>

#include "lib/log.h"
#include "lib/loop.h"

/* ---- transactions */

struct transaction *transaction_new(void)
{
	struct transaction *t = calloc(1, sizeof(*t));

	if (t)
		t->last = &t->first;
	return t;
}

void transaction_free(struct transaction *t)
{
	while (t && t->first) {
		struct change *c = t->first;

		t->first = c->next;
		cJSON_free(c->text);
		cJSON_free(c->local);
		free(c);
	}
	free(t);
}

static struct change *change_add(
	struct transaction *t, enum change_kind kind, unsigned int what, const char *key)
{
	size_t n = strlen(key) + 1;
	struct change *c = calloc(1, sizeof(*c) + n);

	if (!c) {
		t->no_memory = true;
		return NULL;
	}
	c->kind = kind;
	c->what = what;
	memcpy(c->key, key, n);
	*t->last = c;
	t->last = &c->next;
	return c;
}

void transaction_put(struct transaction *t, enum db_table table, const char *key, cJSON *doc)
{
	cJSON *local = cJSON_DetachItemFromObjectCaseSensitive(doc, DB_LOCAL);
	struct change *c = change_add(t, CHANGE_PUT, table, key);

	if (c) {
		c->text = cJSON_PrintUnformatted(doc);
		c->local = local ? cJSON_PrintUnformatted(local) : NULL;
		t->no_memory |= !c->text || (local && !c->local);
	}
	cJSON_Delete(local);
}

void transaction_delete(struct transaction *t, enum db_table table, const char *key)
{
	change_add(t, CHANGE_DELETE, table, key);
}

void transaction_query(struct transaction *t, enum db_query q, const char *value)
{
	change_add(t, CHANGE_QUERY, q, value);
}

void transaction_sync(struct transaction *t)
{
	t->sync = true;
}

/* ---- the thread */

static void list_add(struct transaction ***last, struct transaction *t)
{
	t->next = NULL;
	**last = t;
	*last = &t->next;
}

/* At most a group. Under the lock. */
static struct transaction *todo_take(struct database *db)
{
	struct transaction *list = db->todo, *t = list;

	for (unsigned int n = 1; t && t->next && n < DB_GROUP_MAX; n++)
		t = t->next;
	if (!t)
		return NULL;
	db->todo = t->next;
	if (!db->todo)
		db->todo_last = &db->todo;
	t->next = NULL;
	db->running = list;
	return list;
}

/* Under the lock. */
static void group_ended(struct database *db, struct transaction *list)
{
	uint64_t one = 1;

	db->running = NULL;
	while (list) {
		struct transaction *t = list;

		list = t->next;
		list_add(&db->done_last, t);
	}
	(void)!write(db->wake_fd, &one, sizeof(one));
}

static void *writer_main(void *arg)
{
	struct database *db = arg;

	pthread_mutex_lock(&db->lock);
	for (;;) {
		struct transaction *list = todo_take(db);

		if (!list && db->ending)
			break;
		if (!list) {
			pthread_cond_wait(&db->work, &db->lock);
			continue;
		}
		pthread_mutex_unlock(&db->lock);
		db_commit_group(db, list);
		pthread_mutex_lock(&db->lock);
		group_ended(db, list);
	}
	pthread_mutex_unlock(&db->lock);
	return NULL;
}

/* ---- on the loop */

static void completions(void *arg, uint32_t events)
{
	struct database *db = arg;
	uint64_t n;

	(void)!read(db->wake_fd, &n, sizeof(n));
	/* one at a time: a callback may forget others, or commit more */
	for (;;) {
		struct transaction *t;

		pthread_mutex_lock(&db->lock);
		t = db->done;
		if (t) {
			db->done = t->next;
			if (!db->done)
				db->done_last = &db->done;
		}
		pthread_mutex_unlock(&db->lock);
		if (!t)
			return;
		if (t->done)
			t->done(t->arg, t->err.code ? &t->err : NULL);
		else if (t->err.code)
			log_error("%s", t->err.msg);
		transaction_free(t);
	}
}

void database_commit(struct database *db, struct transaction *t, commit_fn done, void *arg)
{
	t->done = done;
	t->arg = arg;
	t->next = NULL;
	pthread_mutex_lock(&db->lock);
	if (db->started) {
		list_add(&db->todo_last, t);
		pthread_cond_signal(&db->work);
	} else {
		db_commit_group(db, t);
		group_ended(db, t);
	}
	pthread_mutex_unlock(&db->lock);
}

static void forget_nothing(void *arg, const struct err *e)
{
}

void database_forget(struct database *db, const void *arg)
{
	struct transaction *lists[3];

	pthread_mutex_lock(&db->lock);
	lists[0] = db->todo;
	lists[1] = db->running;
	lists[2] = db->done;
	for (size_t i = 0; i < ARRAY_LEN(lists); i++)
		for (struct transaction *t = lists[i]; t; t = t->next)
			if (t->arg == arg)
				t->done = forget_nothing;
	pthread_mutex_unlock(&db->lock);
}

/* ---- start and end */

int db_queue_init(struct database *db, struct err *e)
{
	db->todo_last = &db->todo;
	db->done_last = &db->done;
	pthread_mutex_init(&db->lock, NULL);
	pthread_cond_init(&db->work, NULL);
	db->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	db->wake = db->wake_fd < 0 ? NULL
				   : loop_watch(db->loop, db->wake_fd, EPOLLIN, completions, db);
	return db->wake ? 0 : err_set(e, errno, "state: completions");
}

int database_start(struct database *db, struct err *e)
{
	int rc = pthread_create(&db->thread, NULL, writer_main, db);

	if (rc)
		return err_set(e, rc, "state: the writer's thread");
	db->started = true;
	return 0;
}

static void list_free(struct transaction *t)
{
	while (t) {
		struct transaction *next = t->next;

		transaction_free(t);
		t = next;
	}
}

void db_queue_fini(struct database *db)
{
	if (db->started) {
		pthread_mutex_lock(&db->lock);
		db->ending = true;
		pthread_cond_signal(&db->work);
		pthread_mutex_unlock(&db->lock);
		pthread_join(db->thread, NULL);
	}
	list_free(db->todo);
	list_free(db->done);
	watch_remove(db->wake);
	close_fd(&db->wake_fd);
	pthread_cond_destroy(&db->work);
	pthread_mutex_destroy(&db->lock);
}
