/* SPDX-License-Identifier: Apache-2.0
 *
 * route_quarantine.c: the records that could not be read at start: which, why, and how an operator gives
 * one up. mayflyd's loop.
 */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "api/core/daemon.h"
#include "api/core/database.h"
#include "api/lifecycle/route_lifecycle.h"
#include "lib/log.h"

void route_quarantine_list(struct http_req *r)
{
	struct daemon *d = r->app;
	cJSON *o = cJSON_CreateObject(), *items = cJSON_AddArrayToObject(o, "items");

	cJSON_AddBoolToObject(o, "complete", database_complete(d->database));
	for (const struct quarantined *q = database_quarantine(d->database); q; q = q->next) {
		cJSON *i = cJSON_CreateObject();

		cJSON_AddStringToObject(i, "table", q->table);
		cJSON_AddStringToObject(i, "id", q->key);
		cJSON_AddStringToObject(i, "reason", q->why);
		cJSON_AddItemToArray(items, i);
	}
	http_reply_json(r, 200, o);
}

static void given_up(void *arg, const struct err *e)
{
	struct http_req *r = arg;

	if (e) {
		log_error("quarantine: %s", e->msg);
		http_error(r, 500, "SANDBOX::INTERNAL_ERROR", "The record cannot be deleted.");
	} else {
		http_reply_empty(r, 204);
	}
}

/* Deletes the row. The files stay while this daemon runs. The next one finds out whether another
 * record uses them. */
void route_quarantine_delete(struct http_req *r)
{
	const char *table = http_param(r, "table"), *id = http_param(r, "id");
	struct daemon *d = r->app;
	const struct quarantined *q = database_quarantine(d->database);
	struct transaction *t;

	while (q && (strcmp(q->table, table) != 0 || strcmp(q->key, id) != 0))
		q = q->next;
	if (!q) {
		http_error(r, 404, "MAYFLY::NOT_QUARANTINED",
			"No record %.64s of table %.32s is quarantined.", id, table);
		return;
	}
	t = transaction_new();
	if (!t) {
		http_error(r, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
		return;
	}
	log_warn("record %s of table %s is given up", id, table);
	transaction_delete(t, q->in, q->key);
	transaction_sync(t);
	database_commit(d->database, t, given_up, r);
}
