/* SPDX-License-Identifier: Apache-2.0
 *
 * record_writer.h: the order of what is written into one sandbox's record: the commits of its operations, and the changes that clients ask
 * for. mayflyd's loop, which never waits here.
 *
 * One write of a sandbox is in flight at a time, the others wait in their order. So each write begins with the result of the one before it, and
 * two clients that change the same record at once lose nothing. sandbox_save_later() does not wait in
 * this queue. If it writes the old values over those of the write in flight, that one is written again before anybody hears of it.
 */
#pragma once

#include "api/sandbox/sandbox.h"

struct record_write;
struct transaction;

enum record_end {
	RECORD_SAVED,
	RECORD_FAILED, /* nothing has changed */
	RECORD_GONE,   /* the sandbox was deleted meanwhile */
};

/* What makes a kind of write. A function may be NULL, except ended. Exactly one of swap and transaction is set. */
struct record_write_kind {
	size_t bytes; /* of its struct, which begins with a struct record_write */
	bool sync;    /* the commit ends when it is on the disk */
	/* Its turn has come: works out the new value. false: nothing is to be written, and the client has its answer. */
	bool (*turn)(struct record_write *w);
	/* false: nobody wants it any more, and ended is not called. NULL: it is wanted until the sandbox is deleted. */
	bool (*wanted)(const struct record_write *w);
	/* Exchanges the new value and the sandbox's. When ended is called with RECORD_SAVED, the sandbox has the new one. */
	void (*swap)(struct record_write *w);
	/* The record as it will be. NULL: no memory, or a test wants it to fail. */
	struct transaction *(*transaction)(struct record_write *w);
	/* Answers w->r, if that is not NULL. */
	void (*ended)(struct record_write *w, enum record_end how);
	void (*fini)(struct record_write *w);
};

struct record_write {
	struct record_write *next;
	const struct record_write_kind *kind;
	struct sandbox *sb;
	struct http_req *r; /* the client that waits; NULL: there is none, or it left */
	uint64_t saves;     /* sb->saves when this write was given to the database */
};

/* All zero but for its head. r may be NULL. NULL: no memory. */
struct record_write *record_write_new(
	const struct record_write_kind *kind, struct sandbox *sb, struct http_req *r);
/* Takes w. Its turn may come at once. */
void record_write_submit(struct record_write *w);
