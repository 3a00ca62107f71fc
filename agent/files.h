/* SPDX-License-Identifier: Apache-2.0
 *
 * files.h: the file requests of a CONTROL connection. Each begins with u32 uid, u32 gid.
 */
#pragma once

#include "agent/conn.h"

void req_stat(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_list(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_search(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_remove(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_mkdir(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_chmod(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_move(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_replace(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
void req_expand(struct agent *a, struct conn *c, uint32_t id, struct cur *b);

struct job;
/* Begins every file request: makes a job with the request's ids and, if a path may name variables,
 * the environment. NULL: an error was answered. */
struct job *files_job(struct agent *a, struct conn *c, uint32_t id, uint16_t type,
	const struct cur *b, void (*run)(struct job *j));
