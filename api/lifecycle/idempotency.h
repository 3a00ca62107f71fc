/* SPDX-License-Identifier: Apache-2.0
 *
 * idempotency.h: the same Idempotency-Key within 24 hours is the same sandbox. mayflyd's loop.
 */
#pragma once

#include "api/sandbox/sandbox.h"

/* true: the request was answered from memory (the sandbox as it is now), or refused. */
bool idempotency_answered(struct http_req *r);
/* Answers a create with the sandbox that an earlier one made. */
void idempotency_answer(struct http_req *r, struct sandbox *sb);
/* Before the sandbox's record is handed over. If the key cannot be written, the sandbox is deleted and its client has an error. 0 too without
 * a key; -ENOMEM. */
int idempotency_remember(struct http_req *r, const struct sandbox *sb);
/* Deletes keys that are older than a day, now and every hour. */
void idempotency_start(struct daemon *d);
/* Did a sandbox have this id in the last 24 hours, which a peer had chosen, and was deleted? -errno: that cannot be told. */
int idempotency_id_spent(struct daemon *d, const char *id);
/* Nobody was told of this one, and it will not be made: its key makes another. */
void idempotency_forget(struct sandbox *sb);
