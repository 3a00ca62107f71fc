/* SPDX-License-Identifier: Apache-2.0
 *
 * api_volume_table: the table of a file server's nodes goes into a checkpoint and comes back, whole or not at all.
 */
#include "lib/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "api/checkpoint/blobs.h"
#include "api/core/io_pool.h"
#include "api/sandbox/volume_table.h"
#include "lib/loop.h"

#define TABLE_BYTES MIB(100)

static struct loop *loop;
static struct io_pool *pool;
static struct blobs *blobs;
static char dir[] = "/tmp/api_volume_table.XXXXXX";
static const char id[] = "11111111-2222-4333-8444-555555555555";
static struct {
	int fd, code;
	unsigned int calls;
} got;

static void on_end(void *arg, int fd, const struct err *e)
{
	(void)arg;
	got.fd = fd;
	got.code = e ? e->code : 0;
	got.calls++;
	loop_stop(loop, 0);
}

/* As mayfly-fs leaves it: mostly holes. */
static int make_table(size_t bytes)
{
	int fd = memfd_create("table", MFD_CLOEXEC);

	ASSERT(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
	ASSERT(pwrite_full(fd, "head", 4, 0) == 0 && pwrite_full(fd, "middle", 6, bytes / 2) == 0);
	ASSERT(pwrite_full(fd, "last", 4, bytes - 4) == 0);
	return fd;
}

static bool has(int fd, const char *text, uint64_t at)
{
	char b[16] = "";

	return pread_full(fd, b, strlen(text), at) == 0 && !strcmp(b, text);
}

static void set_up(void)
{
	char path[80];
	struct err e;

	REQUIRE(mkdtemp(dir) != NULL);
	snprintf(path, sizeof(path), "%s/blobs", dir);
	loop = loop_create();
	pool = io_pool_create(loop, &e);
	REQUIRE(pool && io_pool_start(pool, &e) == 0);
	blobs = blobs_create(path, pool, &e);
	REQUIRE(blobs != NULL);
	blobs_loaded(blobs, true);
}

static void it_comes_back(void)
{
	struct stat st;

	blob_ref(blobs, id);
	REQUIRE(table_save(blobs, id, make_table(TABLE_BYTES), on_end, NULL) != NULL);
	loop_run(loop);
	CHECK_INT(got.code, 0);
	CHECK_INT(got.fd, -1);
	REQUIRE(table_load(blobs, id, on_end, NULL) != NULL);
	loop_run(loop);
	CHECK_INT(got.code, 0);
	REQUIRE(got.fd >= 0 && fstat(got.fd, &st) == 0);
	CHECK_INT(st.st_size, TABLE_BYTES);
	CHECK(st.st_blocks < 4096); /* the holes stay holes */
	CHECK(has(got.fd, "head", 0) && has(got.fd, "middle", TABLE_BYTES / 2) &&
		has(got.fd, "last", TABLE_BYTES - 4));
	close(got.fd);
}

static void what_is_not_there_is_not_made(void)
{
	static const char other[] = "11111111-2222-4333-8444-000000000000";

	REQUIRE(table_load(blobs, other, on_end, NULL) != NULL);
	loop_run(loop);
	CHECK_INT(got.code, ENOENT);
	CHECK_INT(got.fd, -1);
	/* a table that no server of ours makes */
	blob_ref(blobs, other);
	REQUIRE(table_save(blobs, other, make_table(MIB(300)), on_end, NULL) != NULL);
	loop_run(loop);
	CHECK_INT(got.code, EFBIG);
	blob_unref(blobs, other);
}

static struct timer *tick;

static void on_tick(void *arg)
{
	(void)arg;
	loop_stop(loop, 0);
	timer_after(tick, 1000000);
}

static void cancelled(void)
{
	unsigned int before = got.calls;
	struct table_job *j;

	/* the checkpoint failed meanwhile, and nobody refers to its files any more */
	blob_unref(blobs, id);
	j = table_save(blobs, id, make_table(4096), on_end, NULL);
	REQUIRE(j != NULL);
	table_cancel(j);
	tick = loop_timer(loop, on_tick, NULL);
	REQUIRE(tick != NULL);
	on_tick(NULL);
	while (io_pool_busy(pool))
		loop_run(loop);
	timer_remove(tick);
	CHECK_INT(got.calls, before);
	CHECK_INT(blob_open(blobs, id, "nodes", false), -ENOENT);
}

static void tear_down(void)
{
	char cmd[80];

	blobs_destroy(blobs);
	io_pool_destroy(pool);
	loop_destroy(loop);
	snprintf(cmd, sizeof(cmd), "rm -rf %s", dir);
	CHECK_INT(system(cmd), 0);
}

static const struct test tests[] = {
	{"set_up", set_up},
	{"it_comes_back", it_comes_back},
	{"what_is_not_there_is_not_made", what_is_not_there_is_not_made},
	{"cancelled", cancelled},
	{"tear_down", tear_down},
};
TEST_MAIN(tests)
