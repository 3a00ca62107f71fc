/* SPDX-License-Identifier: Apache-2.0
 *
 * api_database: the writer's thread and its groups against a real file, transactions that fail, and
 * a file that is damaged in each way that a start must survive without losing anything.
 */
#include "lib/test.h"

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <stdio.h>

#include "api/core/database_int.h"
#include "lib/loop.h"

#define ROWS 400

static struct {
	char dir[64], path[80];
	struct loop *loop;
	struct database *db;
	int ended, failed, order_bad, last, loaded;
	char first_key[64], last_key[64], why[500];
} G;

static bool rig_open(void)
{
	struct err e;

	if (database_open(G.path, G.loop, &G.db, &e) == 0)
		return true;
	printf("%s\n", e.msg);
	return false;
}

static bool rig_up(void)
{
	memset(&G, 0, sizeof(G));
	snprintf(G.dir, sizeof(G.dir), "/tmp/api_database.XXXXXX");
	if (!mkdtemp(G.dir))
		return false;
	snprintf(G.path, sizeof(G.path), "%s/state.db", G.dir);
	G.loop = loop_create();
	return G.loop && rig_open();
}

static void rig_down(void)
{
	char cmd[100];

	database_close(G.db);
	loop_destroy(G.loop);
	for (const char *const *s = (const char *const[]){"", "-wal", "-shm", NULL}; *s; s++) {
		snprintf(cmd, sizeof(cmd), "%s%s", G.path, *s);
		unlink(cmd);
	}
	rmdir(G.dir);
}

static cJSON *doc(int n)
{
	cJSON *o = cJSON_CreateObject();

	cJSON_AddNumberToObject(o, "n", n);
	cJSON_AddStringToObject(o, "filler", "0123456789012345678901234567890123456789");
	return o;
}

static struct transaction *row(enum db_table t, const char *key, int n)
{
	struct transaction *tx = transaction_new();
	cJSON *o = doc(n);

	transaction_put(tx, t, key, o);
	cJSON_Delete(o);
	return tx;
}

static void ended(void *arg, const struct err *e)
{
	G.ended++;
	G.failed += e != NULL;
	if (e)
		snprintf(G.why, sizeof(G.why), "%s", e->msg);
	if (arg) {
		int n = *(int *)arg;

		G.order_bad += n != G.last + 1;
		G.last = n;
	}
}

static void until(int n)
{
	for (int i = 0; i < 500 && G.ended < n; i++)
		loop_turn(G.loop, 20);
	CHECK_INT(G.ended, n);
}

struct waiter {
	bool over;
	struct err err;
};

static void waiter_told(void *arg, const struct err *e)
{
	struct waiter *w = arg;

	w->over = true;
	if (e)
		w->err = *e;
}

/* Takes t, and turns the loop until its callback came. */
static int commit_wait(struct transaction *t, struct err *e)
{
	struct waiter w = {0};

	database_commit(G.db, t, waiter_told, &w);
	for (int i = 0; i < 1500 && !w.over; i++)
		loop_turn(G.loop, 20);
	ASSERT(w.over);
	if (w.err.code)
		*e = w.err;
	return -w.err.code;
}

static int put_wait(enum db_table table, const char *key, cJSON *o, bool sync, struct err *e)
{
	struct transaction *t = transaction_new();

	transaction_put(t, table, key, o);
	t->sync = sync;
	return commit_wait(t, e);
}

static int count_one(void *arg, const char *key, cJSON *o)
{
	if (!G.loaded++)
		snprintf(G.first_key, sizeof(G.first_key), "%s", key);
	if (strcmp(key, G.last_key) > 0)
		snprintf(G.last_key, sizeof(G.last_key), "%s", key);
	cJSON_Delete(o);
	return 0;
}

static int count_rows(enum db_table t)
{
	G.loaded = 0;
	database_load(G.db, t, count_one, NULL);
	return G.loaded;
}

static bool has(const char *key)
{
	struct err e;
	cJSON *o = NULL;
	bool found = database_get(G.db, DB_SANDBOX, key, &o, &e) == 0 && o;

	cJSON_Delete(o);
	return found;
}

static bool sql(const char *text)
{
	sqlite3 *c;
	bool ok = sqlite3_open(G.path, &c) == SQLITE_OK &&
		  sqlite3_exec(c, text, NULL, NULL, NULL) == SQLITE_OK;

	sqlite3_close(c);
	return ok;
}

/* ---- the writer */

static void callbacks_come_from_the_loop_in_order(void)
{
	static int n[100];
	struct err e;

	REQUIRE(rig_up());
	REQUIRE(database_start(G.db, &e) == 0);
	for (int i = 0; i < 100; i++) {
		char key[20];

		n[i] = i + 1;
		snprintf(key, sizeof(key), "%03d", i);
		database_commit(G.db, row(DB_SANDBOX, key, i), ended, &n[i]);
	}
	CHECK_INT(G.ended, 0);
	until(100);
	CHECK_INT(G.failed, 0);
	CHECK_INT(G.order_bad, 0);
	CHECK(has("000") && has("099") && !has("100"));
	rig_down();
}

static void before_the_start_the_callback_comes_from_the_loop_too(void)
{
	REQUIRE(rig_up());
	database_commit(G.db, row(DB_SANDBOX, "a", 1), ended, NULL);
	CHECK_INT(G.ended, 0);
	CHECK(has("a"));
	until(1);
	rig_down();
}

static void one_that_fails_leaves_nothing_and_holds_up_nobody(void)
{
	struct transaction *t;
	struct err e;
	cJSON *o = doc(1);

	REQUIRE(rig_up());
	REQUIRE(sql("CREATE TRIGGER no BEFORE INSERT ON sandboxes WHEN NEW.id = 'bad' BEGIN "
		    "SELECT RAISE(ABORT, 'the disk is full'); END"));
	t = row(DB_SANDBOX, "with-it", 1);
	transaction_put(t, DB_SANDBOX, "bad", o);
	/* before the thread is there, so that all three are one group */
	G.db->started = true;
	database_commit(G.db, row(DB_SANDBOX, "before", 1), ended, NULL);
	database_commit(G.db, t, ended, NULL);
	database_commit(G.db, row(DB_SANDBOX, "after", 1), ended, NULL);
	REQUIRE(database_start(G.db, &e) == 0);
	until(3);
	CHECK_INT(G.failed, 1);
	CHECK(strstr(G.why, "the disk is full"));
	CHECK(has("before") && has("after") && !has("with-it") && !has("bad"));
	cJSON_Delete(o);
	rig_down();
}

/* On a full file SQLite ends the whole group: the large one fails, the small ones do not. */
static void a_group_that_is_lost_is_tried_one_by_one(void)
{
	struct transaction *large = transaction_new();
	static char text[400000];
	struct err e;
	cJSON *o;

	REQUIRE(rig_up());
	memset(text, 'x', sizeof(text) - 1);
	o = cJSON_CreateString(text);
	transaction_put(large, DB_SANDBOX, "large", o);
	cJSON_Delete(o);
	REQUIRE(sqlite3_exec(G.db->db, "PRAGMA max_page_count=40", NULL, NULL, NULL) == SQLITE_OK);
	G.db->started = true;
	database_commit(G.db, row(DB_SANDBOX, "small", 1), ended, NULL);
	database_commit(G.db, large, ended, NULL);
	database_commit(G.db, row(DB_SANDBOX, "small2", 1), ended, NULL);
	REQUIRE(database_start(G.db, &e) == 0);
	until(3);
	CHECK_INT(G.failed, 1);
	CHECK(strstr(G.why, "full"));
	CHECK(has("small") && has("small2") && !has("large"));
	rig_down();
}

static int refuse_sync(void *arg, struct err *e)
{
	return err_set(e, EIO, "the folder");
}

static void a_synced_one_needs_what_it_stands_on(void)
{
	struct transaction *t;
	struct err e;

	REQUIRE(rig_up());
	database_before_sync(G.db, refuse_sync, NULL);
	REQUIRE(database_start(G.db, &e) == 0);
	t = row(DB_SANDBOX, "synced", 1);
	transaction_sync(t);
	CHECK(commit_wait(t, &e) == -EIO);
	CHECK(strstr(e.msg, "the folder"));
	CHECK_INT(put_wait(DB_SANDBOX, "other", NULL, false, &e), -ENOMEM);
	t = transaction_new();
	transaction_delete(t, DB_SANDBOX, "nobody");
	CHECK_INT(commit_wait(t, &e), 0);
	CHECK(!has("synced"));
	rig_down();
}

static void forgotten_callbacks_do_not_come(void)
{
	int n = 1;
	struct err e;

	REQUIRE(rig_up());
	database_commit(G.db, row(DB_SANDBOX, "a", 1), ended, &n);
	database_forget(G.db, &n);
	loop_turn(G.loop, 0);
	CHECK_INT(G.ended, 0);
	CHECK(has("a"));
	/* also where the thread has it */
	REQUIRE(database_start(G.db, &e) == 0);
	database_commit(G.db, row(DB_SANDBOX, "b", 1), ended, &n);
	database_forget(G.db, &n);
	database_commit(G.db, row(DB_SANDBOX, "c", 1), ended, NULL);
	until(1);
	CHECK(has("b"));
	rig_down();
}

static void close_commits_what_is_queued(void)
{
	struct err e;

	REQUIRE(rig_up());
	REQUIRE(database_start(G.db, &e) == 0);
	for (int i = 0; i < 50; i++) {
		char key[20];

		snprintf(key, sizeof(key), "%03d", i);
		database_commit(G.db, row(DB_SANDBOX, key, i), ended, NULL);
	}
	database_close(G.db);
	REQUIRE(rig_open());
	CHECK_INT(count_rows(DB_SANDBOX), 50);
	rig_down();
}

static void keys_are_pruned_and_forgotten(void)
{
	static const char *const docs[] = {"{\"sandbox\":\"s1\",\"at\":1700000000000000000}",
		"{\"sandbox\":\"s2\",\"at\":1800000000000000000}",
		"{\"sandbox\":\"s3\",\"at\":1800000000000000000}"};
	struct transaction *t;
	struct err e;

	REQUIRE(rig_up());
	for (int i = 0; i < 3; i++) {
		cJSON *o = cJSON_Parse(docs[i]);

		CHECK_INT(put_wait(DB_IDEMPOTENCY, docs[i] + 12, o, false, &e), 0);
		cJSON_Delete(o);
	}
	t = transaction_new();
	transaction_query(t, DB_PRUNE_KEYS, "1750000000000000000");
	CHECK_INT(commit_wait(t, &e), 0);
	CHECK_INT(count_rows(DB_IDEMPOTENCY), 2);
	t = transaction_new();
	transaction_query(t, DB_FORGET_SANDBOX_KEYS, "s2");
	CHECK_INT(commit_wait(t, &e), 0);
	CHECK_INT(count_rows(DB_IDEMPOTENCY), 1);
	rig_down();
}

/* ---- a start with a damaged file */

static bool many_rows(void)
{
	struct transaction *t = transaction_new();
	struct err e;

	for (int i = 0; i < ROWS; i++) {
		cJSON *o = doc(i);
		char key[40];

		snprintf(key, sizeof(key), "%08d-0000-0000-0000-000000000000", i);
		transaction_put(t, DB_SANDBOX, key, o);
		cJSON_Delete(o);
	}
	return commit_wait(t, &e) == 0;
}

/* The page that holds this key, filled with zeros. */
static bool page_damage(const char *key)
{
	int fd = open(G.path, O_RDWR | O_CLOEXEC);
	static const char zeros[4096];
	char page[4096];
	bool done = false;

	for (off_t at = 4096; !done && pread(fd, page, sizeof(page), at) == 4096; at += 4096)
		if (memmem(page, sizeof(page), key, strlen(key)) && page[0] == 0x0a)
			done = pwrite(fd, zeros, sizeof(zeros), at) == 4096;
	close_fd(&fd);
	return done;
}

static void a_damaged_page_hides_only_its_own_rows(void)
{
	REQUIRE(rig_up());
	REQUIRE(many_rows());
	database_close(G.db);
	REQUIRE(page_damage("00000200-"));
	REQUIRE(rig_open());
	CHECK(count_rows(DB_SANDBOX) > ROWS - 60);
	CHECK(G.loaded < ROWS);
	CHECK(!strncmp(G.first_key, "00000000", 8));
	CHECK(!strncmp(G.last_key, "00000399", 8));
	CHECK(!database_complete(G.db));
	REQUIRE(database_quarantine(G.db));
	CHECK_STR(database_quarantine(G.db)->table, "sandboxes");
	/* the others are complete, each for itself */
	CHECK_INT(count_rows(DB_CHECKPOINT), 0);
	rig_down();
}

static void a_row_that_cannot_be_parsed_stays(void)
{
	REQUIRE(rig_up());
	REQUIRE(many_rows());
	REQUIRE(sql("UPDATE sandboxes SET doc = substr(doc, 1, 10) WHERE id LIKE '00000007%'"));
	CHECK_INT(count_rows(DB_SANDBOX), ROWS - 1);
	CHECK(!database_complete(G.db));
	REQUIRE(database_quarantine(G.db));
	CHECK(!strncmp(database_quarantine(G.db)->key, "00000007", 8));
	database_close(G.db);
	REQUIRE(rig_open());
	CHECK(database_complete(G.db));
	CHECK_INT(count_rows(DB_SANDBOX), ROWS - 1);
	CHECK(!database_complete(G.db));
	rig_down();
}

static int refuse_seven(void *arg, const char *key, cJSON *o)
{
	cJSON_Delete(o);
	G.loaded++;
	return strncmp(key, "00000007", 8) ? 0 : -EINVAL;
}

static void a_row_that_cannot_be_used_stays(void)
{
	REQUIRE(rig_up());
	REQUIRE(many_rows());
	database_load(G.db, DB_SANDBOX, refuse_seven, NULL);
	CHECK_INT(G.loaded, ROWS);
	CHECK(!database_complete(G.db));
	CHECK_INT(count_rows(DB_SANDBOX), ROWS);
	rig_down();
}

static int allocs_left;

static void *failing_malloc(size_t n)
{
	return allocs_left-- > 0 ? malloc(n) : NULL;
}

/* Each allocation of a parse fails once: the row is missing, and that is known. */
static void a_failed_allocation_is_not_an_empty_table(void)
{
	cJSON_Hooks failing = {failing_malloc, free};
	int n = 0;

	REQUIRE(rig_up());
	REQUIRE(many_rows());
	do {
		allocs_left = n++;
		cJSON_InitHooks(&failing);
		count_rows(DB_SANDBOX);
		cJSON_InitHooks(NULL);
		CHECK(G.loaded == ROWS || !database_complete(G.db));
		database_close(G.db);
		REQUIRE(rig_open());
		n += G.loaded == ROWS ? 0 : n > 30 ? 997 : 0;
	} while (G.loaded < ROWS);
	CHECK(n > 30);
	rig_down();
}

/* Some are synced and some are not, in groups of one to three: all arrive, in their order. */
static void groups_of_one_to_three_keep_the_order(void)
{
	struct err e;
	cJSON *o;

	REQUIRE(rig_up());
	REQUIRE(database_start(G.db, &e) == 0);
	for (int i = 0; i < 300; i++) {
		if (i % 3 == 2) {
			o = doc(i);
			CHECK_INT(put_wait(DB_SANDBOX, "same", o, i % 9 == 2, &e), 0);
			cJSON_Delete(o);
		} else {
			database_commit(G.db, row(DB_SANDBOX, "same", i), ended, NULL);
		}
		if (i % 10 == 0)
			loop_turn(G.loop, 1);
	}
	until(200);
	CHECK_INT(G.failed, 0);
	REQUIRE(database_get(G.db, DB_SANDBOX, "same", &o, &e) == 0 && o);
	CHECK_INT(cJSON_GetObjectItemCaseSensitive(o, "n")->valueint, 299);
	cJSON_Delete(o);
	rig_down();
}

static const struct test tests[] = {
	{"groups_of_one_to_three_keep_the_order", groups_of_one_to_three_keep_the_order},
	{"callbacks_come_from_the_loop_in_order", callbacks_come_from_the_loop_in_order},
	{"before_the_start_the_callback_comes_from_the_loop_too",
		before_the_start_the_callback_comes_from_the_loop_too},
	{"one_that_fails_leaves_nothing_and_holds_up_nobody",
		one_that_fails_leaves_nothing_and_holds_up_nobody},
	{"a_group_that_is_lost_is_tried_one_by_one", a_group_that_is_lost_is_tried_one_by_one},
	{"a_synced_one_needs_what_it_stands_on", a_synced_one_needs_what_it_stands_on},
	{"forgotten_callbacks_do_not_come", forgotten_callbacks_do_not_come},
	{"close_commits_what_is_queued", close_commits_what_is_queued},
	{"keys_are_pruned_and_forgotten", keys_are_pruned_and_forgotten},
	{"a_damaged_page_hides_only_its_own_rows", a_damaged_page_hides_only_its_own_rows},
	{"a_row_that_cannot_be_parsed_stays", a_row_that_cannot_be_parsed_stays},
	{"a_row_that_cannot_be_used_stays", a_row_that_cannot_be_used_stays},
	{"a_failed_allocation_is_not_an_empty_table", a_failed_allocation_is_not_an_empty_table},
};
TEST_MAIN(tests)
