/* SPDX-License-Identifier: Apache-2.0
 *
 * listing.h: the answer to GET of a collection: filters, one page, the text that is put together. mayflyd's loop. The query is hostile. The text is
 * charged to the request's account while it grows, and each item's tree is freed as soon as it is text.
 *
 * A page is asked for by number (page, pageSize: the protocol's), or by cursor: the end of the page before. A cursor names a record by creation time and
 * id. It goes on behind that record, wherever the record is by now; if the record was deleted, behind its creation time. So records that
 * come and go meanwhile neither hide others nor show one twice.
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
	bool cursor_lives; /* the caller's: a record with cursor_id is among those that it walks */
	char last[96];     /* the cursor behind what was put last */
	struct buf text;
	size_t held; /* bytes of text that are charged */
	bool over;   /* a budget is full */
};

/* false: answered with 400 */
bool list_begin(struct http_req *r, struct list *l, bool by_metadata);
/* For each record in order, newest first, also one that the client may not see: is it behind the cursor? */
bool list_reached(struct list *l, const char *id, int64_t created_ns);
/* state NULL: not asked for */
bool list_wants(const struct list *l, const char *state, const struct cJSON *metadata);
/* Counts one; true if it is on this page: list_put() follows. */
bool list_shows(struct list *l, const char *id, int64_t created_ns);
void list_put(struct list *l, struct cJSON *takes);
/* Answers. */
void list_end(struct list *l);
