/* SPDX-License-Identifier: Apache-2.0
 *
 * worker_task.h: reads and checks the input of a run (POST /v1/mayfly/runs). mayflyd. The bytes are hostile. No I/O. docs/api.md has the members.
 */
#pragma once

#include "lib/err.h"

struct cJSON;
struct config;

#define WORKER_ID_MAX 128u
#define WORKER_TEXT_MAX                                                                            \
	(96u * 1024) /* task, and context as text: the kernel takes 128 KiB in one argument */
#define WORKER_ENV_MAX (32u * 1024)
#define WORKER_INPUT_MAX                                                                           \
	(512u * 1024) /* of the request: task, context, env and schemas, with their escapes */
#define WORKER_ATTEMPT_MAX 10u
#define WORKER_ARGS_MAX    3u

struct worker_task {
	char run_id[WORKER_ID_MAX + 1]; /* "": it could not be read */
	char digest[65];                /* of the whole input */
	struct cJSON *body;             /* task, env and output_schema point into it */
	const char *task;
	char *context;        /* JSON, without `worker`: the task has it in MAYFLY_CONTEXT */
	struct cJSON *create; /* the request for its sandbox, as POST /sandboxes has it */
	const struct cJSON *env, *output_schema; /* NULL: none */
	const char *argv[WORKER_ARGS_MAX];       /* the task's command */
	size_t argc;
	bool shell; /* argv is one text for the image's shell */
	uint64_t timeout_s, attempts;
};

/* 0; -EINVAL: the request is invalid, e says why. t must go to worker_task_fini() in any case. */
int worker_task_read(
	struct worker_task *t, const void *p, size_t n, const struct config *c, struct err *e);
void worker_task_fini(struct worker_task *t);
