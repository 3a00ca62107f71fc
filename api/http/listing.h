/* SPDX-License-Identifier: Apache-2.0
 *
 * listing.h: the answer to GET of a collection: filters, one page, the text that is put together. mayflyd's loop. The query is hostile. The text is
 * charged to the request's account while it grows, and each item's tree is freed as soon as it is text.
 *
 * A page is asked for by number (page, pageSize: the protocol's), or by cursor: the end of the page before. A cursor names a record by creation time and
 * id. The page begins behind that record or, if the record was deleted, behind its creation time. So records that are made or deleted between two
 * pages neither hide others nor show one twice.
 */
#pragma once

#include "api/http/http.h"
#include "lib/buf.h"

struct list {
	struct http_req *r;
	const char *states[16];
	size_t nstates;
	struct http_pair meta[32];
	int nmeta;
	long page, size, total;
	bool by_cursor, reached;
	char cursor_id[64]; /* "": from the beginning */
	int64_t cursor_ns;
	bool cursor_lives; /* set by the caller: one of its records has cursor_id */
	char last[96];     /* the cursor of the last record on the page */
	struct buf text;
	size_t held; /* bytes of text that are charged */
	bool over;   /* a budget is full */
};

/* false: answered with 400 */
bool list_begin(struct http_req *r, struct list *l, bool by_metadata);
/* Is the record behind the cursor? Called for each record, newest first, also for those that the client may not see. */
bool list_reached(struct list *l, const char *id, int64_t created_ns);
/* Does a record pass the filters? state NULL: it has no state. */
bool list_wants(const struct list *l, const char *state, const struct cJSON *metadata);
/* Counts a record that passed. true: it is on this page; call list_put(). */
bool list_shows(struct list *l, const char *id, int64_t created_ns);
void list_put(struct list *l, struct cJSON *takes);
/* Answers. */
void list_end(struct list *l);
