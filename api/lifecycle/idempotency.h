/* SPDX-License-Identifier: Apache-2.0
 *
 * idempotency.h: the same Idempotency-Key within 24 hours is the same sandbox. mayflyd's loop.
 */
#pragma once

#include "api/sandbox/sandbox.h"

/* true: answered, with the sandbox that the key made before, as it is now; or refused. */
bool idempotency_answered(struct http_req *r);
/* Answers a create with the sandbox that an earlier one made. */
void idempotency_answer(struct http_req *r, struct sandbox *sb);
/* Call it before the sandbox's record is given to the database. If the key cannot be written, the sandbox is deleted and its client gets an
 * error. 0, also without a key; -ENOMEM. */
int idempotency_remember(struct http_req *r, const struct sandbox *sb);
/* Deletes keys that are older than a day, now and every hour. */
void idempotency_start(struct daemon *d);
/* Was a sandbox deleted in the last 24 hours that had this id, chosen by a peer? -errno: it cannot be looked up. */
int idempotency_id_spent(struct daemon *d, const char *id);
/* Deletes the key of a sandbox that no client knows of and that will not be made: the key then makes another one. */
void idempotency_forget(struct sandbox *sb);
