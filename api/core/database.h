/* SPDX-License-Identifier: Apache-2.0
 *
 * database.h: what survives the daemon: one SQLite file, one writer, WAL. Records are JSON documents
 * by id in a few tables; a change is written before it is answered. `sync`: on the disk before this
 * returns (Paused, snapshot Ready, deletion).
 */
#pragma once

#include "lib/err.h"
#include "lib/json.h"

struct cJSON;
struct state;

enum state_table {
	ST_SANDBOX,
	ST_SNAPSHOT,
	ST_TEMPLATE,
	ST_USER_TEMPLATE,
	ST_IDEMPOTENCY,
	ST_COUNT
};

int state_open(const char *path, struct state **out, struct err *e);
void state_close(struct state *s);
int state_put(struct state *s, enum state_table t, const char *id, const struct cJSON *doc,
	bool sync, struct err *e);
int state_delete(struct state *s, enum state_table t, const char *id, bool sync, struct err *e);
/* doc belongs to fn. Records that do not parse are reported and left alone. */
int state_each(struct state *s, enum state_table t,
	void (*fn)(void *arg, const char *id, struct cJSON *doc), void *arg, struct err *e);
