/* SPDX-License-Identifier: Apache-2.0
 *
 * record_writer.c: see record_writer.h. mayflyd's loop.
 */
#include "api/sandbox/record_writer.h"

#include "api/core/database.h"
#include "api/http/http.h"
#include "lib/log.h"

static void write_committed(void *arg, const struct err *e);

static bool write_wanted(const struct record_write *w)
{
	return w->kind->wanted ? w->kind->wanted(w) : !sandbox_gone(w->sb);
}

static void write_free(struct record_write *w)
{
	if (w->kind->fini)
		w->kind->fini(w);
	sandbox_unref(w->sb);
	free(w);
}

static void write_end(struct record_write *w, enum record_end how)
{
	if (w->r)
		http_on_gone(w->r, NULL);
	w->kind->ended(w, how);
	w->r = NULL;
}

/* The record with the new value in it; the sandbox keeps the old one. */
static struct transaction *write_by_swap(struct record_write *w)
{
	struct transaction *t;

	w->kind->swap(w);
	t = sandbox_transaction_now(w->sb);
	w->kind->swap(w);
	if (t && w->kind->sync)
		transaction_sync(t);
	return t;
}

static bool write_send(struct record_write *w)
{
	struct transaction *t = w->kind->swap ? write_by_swap(w) : w->kind->transaction(w);

	w->saves = w->sb->saves;
	if (t)
		database_commit(w->sb->d->database, t, write_committed, w);
	return t != NULL;
}

/* false: the write has ended already. */
static bool write_begin(struct record_write *w)
{
	if (!write_wanted(w)) {
		if (!w->kind->wanted)
			write_end(w, RECORD_GONE);
		return false;
	}
	if (w->kind->turn && !w->kind->turn(w)) {
		if (w->r)
			http_on_gone(w->r, NULL);
		w->r = NULL;
		return false;
	}
	if (write_send(w))
		return true;
	write_end(w, RECORD_FAILED);
	return false;
}

/* Begins the writes that wait, until one is in flight. That one stays first in the list until it has ended, so that a write that is
 * submitted meanwhile waits. */
static void writes_go_on(struct sandbox *sb)
{
	while (sb->writes && !write_begin(sb->writes)) {
		struct record_write *w = sb->writes;

		sb->writes = w->next;
		write_free(w);
	}
}

static void write_committed(void *arg, const struct err *e)
{
	struct record_write *w = arg;
	struct sandbox *sb = w->sb;
	bool wanted = write_wanted(w), again;

	if (e)
		log_error("sandbox %s: %s", sb->id, e->msg);
	/* Something else wrote the record with the old value after this write: write it again. */
	again = wanted && !e && w->saves != sb->saves;
	if (again && write_send(w))
		return;
	if (!wanted && !w->kind->wanted) {
		write_end(w, RECORD_GONE);
	} else if (wanted && !e && !again) {
		if (w->kind->swap)
			w->kind->swap(w);
		write_end(w, RECORD_SAVED);
	} else if (wanted) {
		write_end(w, RECORD_FAILED);
	}
	sandbox_ref(sb);
	sb->writes = w->next;
	write_free(w);
	if (!sandbox_gone(sb))
		sandbox_weigh(sb);
	writes_go_on(sb);
	sandbox_unref(sb);
}

struct record_write *record_write_new(
	const struct record_write_kind *kind, struct sandbox *sb, struct http_req *r)
{
	struct record_write *w = calloc(1, kind->bytes);

	if (!w)
		return NULL;
	w->kind = kind;
	w->sb = sb;
	w->r = r;
	sandbox_ref(sb);
	return w;
}

/* The change goes on without its client. */
static void client_gone(struct http_req *r)
{
	struct record_write *w = r->user;

	w->r = NULL;
	http_abort(r);
}

void record_write_submit(struct record_write *w)
{
	struct sandbox *sb = w->sb;
	struct record_write **last = &sb->writes;

	if (w->r) {
		w->r->user = w;
		http_on_gone(w->r, client_gone);
	}
	while (*last)
		last = &(*last)->next;
	*last = w;
	if (sb->writes != w)
		return;
	sandbox_ref(sb);
	writes_go_on(sb);
	sandbox_unref(sb);
}
