/* SPDX-License-Identifier: Apache-2.0
 *
 * images_admin.c: the image store as an operator lists and clears it. mayflyd; the work is done in the
 * threads of the io pool. Names in the store come from clients: they are written as JSON strings.
 * Numbers come from image jobs, which read hostile images: they are parsed, and written as numbers.
 */
#include <stdio.h>
#include <string.h>

#include "api/core/daemon.h"
#include "api/core/io_pool.h"
#include "api/links/images.h"
#include "api/links/images_int.h"
#include "images/store/alias.h"
#include "lib/json.h"

#define LIST_MAX MIB(4)

struct store_task {
	struct io_job job;
	struct store *store;
	char name[REF_MAX];
	struct buf answer;
	struct err err;
	bool failed;
	image_store_fn fn;
	void *arg;
};

static int put_image(void *arg, const struct image_info *i)
{
	struct buf *b = arg;
	char digest[DIGEST_STR];

	if (b->len > 0 && b->p[b->len - 1] == '}')
		buf_put(b, ",", 1);
	buf_put(b, "{\"name\":", 8);
	json_string(b, i->name);
	buf_printf(b,
		",\"local\":%s,\"digest\":\"%s\",\"storedBytes\":%llu,\"diskBytes\":%llu,"
		"\"builtAt\":%lld,\"usedAt\":%lld,\"pins\":%u}",
		i->local ? "true" : "false", digest_str(&i->id, digest),
		(unsigned long long)i->disk_stored, (unsigned long long)i->config.disk.disk_bytes,
		(long long)i->built, (long long)i->used, i->pins);
	return 0;
}

static void put_alias(void *arg, const char *pattern, const char *name)
{
	struct buf *b = arg;

	if (b->len > 0 && b->p[b->len - 1] == '}')
		buf_put(b, ",", 1);
	buf_put(b, "{\"name\":", 8);
	json_string(b, pattern);
	buf_put(b, ",\"alias\":", 9);
	json_string(b, name);
	buf_put(b, "}", 1);
}

static void list_work(struct io_job *j)
{
	struct store_task *t = container_of(j, struct store_task, job);
	char aliases[ALIASES_MAX];

	buf_printf(&t->answer, "{\"items\":[");
	t->failed = store_list(t->store, put_image, &t->answer, &t->err) < 0;
	buf_printf(&t->answer, "],\"aliases\":[");
	aliases_read(store_path(t->store), aliases);
	aliases_each(aliases, put_alias, &t->answer);
	buf_put(&t->answer, "]}", 2);
	if (!t->failed && t->answer.bad)
		t->failed = err_plain(&t->err, EFBIG, "the list is longer than 4 MiB") < 0;
}

static void remove_work(struct io_job *j)
{
	struct store_task *t = container_of(j, struct store_task, job);

	t->failed = store_remove(t->store, t->name, &t->err) < 0;
}

static void task_done(struct io_job *j)
{
	struct store_task *t = container_of(j, struct store_task, job);

	t->fn(t->arg, &t->answer, t->failed ? &t->err : NULL);
	buf_fini(&t->answer);
	free(t);
}

static bool task_run(struct daemon *d, void (*work)(struct io_job *), const char *name,
	image_store_fn fn, void *arg)
{
	struct store_task *t = calloc(1, sizeof(*t));

	if (!t)
		return false;
	t->job = (struct io_job){.work = work, .done = task_done};
	t->store = images_store(d->images);
	t->fn = fn;
	t->arg = arg;
	str_copy(t->name, sizeof(t->name), name);
	buf_init(&t->answer, LIST_MAX);
	io_pool_run(d->io, &t->job);
	return true;
}

bool images_list(struct daemon *d, image_store_fn fn, void *arg)
{
	return task_run(d, list_work, "", fn, arg);
}

bool images_remove(struct daemon *d, const char *name, image_store_fn fn, void *arg)
{
	return task_run(d, remove_work, name, fn, arg);
}
