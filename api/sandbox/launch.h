/* SPDX-License-Identifier: Apache-2.0
 *
 * launch.h: the steps that make a sandbox run, shared by create, resume and what takes snapshots.
 * mayflyd's loop.
 */
#pragma once

#include "api/links/agent_client.h"
#include "api/sandbox/sandbox.h"
#include "api/sandbox/create_queue.h"

enum step {
	STEP_IMAGE,
	STEP_TURN,
	STEP_DISK,
	STEP_VMM,
	STEP_BOOT,
	STEP_RESTORE,
	STEP_AGENT,
	STEP_THAW,
	STEP_SNAPSHOT,
	STEP_SETUP,
	STEP_RUN,
	STEP_COUNT
};
extern const char *const step_names[STEP_COUNT];

struct snap;

struct launch {
	struct sandbox *sb;
	enum step step;
	bool resume, took_template;
	uint64_t step_ns, ends_ns; /* when the step began; when all of it must be done */
	int64_t limit_s;           /* what sb->deadline was set to: of the step, or of all */
	struct image_job *image;
	struct memory from; /* what to restore; state "" = boot */
	struct snap *snap;
	struct turn turn;
};

/* The running launch ends: status, code, and a reason that names the step. */
void launch_fail(struct sandbox *sb, int status, const char *code, const char *fmt, ...)
	_printf_(4, 5);
/* After a live snapshot that was taken on the way (template): goes on with the hand-over. */
void launch_continue(struct sandbox *sb);
/* Its client is told that it is coming: from here on the next daemon makes it, if this one does
 * not. 0 or -errno. */
int launch_promise(struct sandbox *sb);
const struct vm_ops *launch_vm_ops(void);
