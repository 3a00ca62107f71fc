/* SPDX-License-Identifier: Apache-2.0
 *
 * launch.h: the steps that make a sandbox run, shared by create, resume and what takes snapshots.
 * mayflyd's loop.
 */
#pragma once

#include "api/links/agent_client.h"
#include "api/sandbox/sandbox.h"
#include "api/sandbox/create_queue.h"

/* What the steps of a create or a resume keep. */
struct launch {
	struct sandbox *sb;
	bool resume;
	struct image_job *image;
	struct layer_job *layer; /* the private layer is being made, beside what the monitor does */
	struct memory from;      /* what to restore; state "" = boot */
	struct turn turn;
	bool mounted; /* its volumes */
	bool has_table; /* they were mounted when its checkpoint was taken: the file server goes on from there */
	bool prepared; /* what the agent said meanwhile */
	struct table_job *table;
	struct restore_hook *hook;
	struct own_base *base;
};

/* Accepts a new sandbox (its record is written) and makes it run. */
void launch_create(struct sandbox *sb);
/* One that an earlier daemon was making: made from the start, if its client knows of it. false:
 * not. */
bool launch_take_up(struct sandbox *sb);
/* One that was held (sb->hold) goes on, with the spec that it has now. */
void launch_release(struct sandbox *sb);
void launch_resume(struct sandbox *sb);
/* Its record says Resuming, and the files that it shall run from. */
void launch_resume_begun(struct sandbox *sb);
bool launch_adopt(struct sandbox *sb); /* false: it does not run any more */
/* Its network process gets the policy of its record: that was changed, or the process was adopted. */
void launch_network_policy(struct sandbox *sb);
void launch_teardown(struct sandbox *sb); /* VM, agent, timers: all that runs for it */
void launch_late(struct sandbox *sb);     /* the deadline of a step or of all passed */
void launch_is_long(struct sandbox *sb);  /* its client learns that the sandbox is being made */
void launch_free(struct sandbox *sb);     /* what the steps keep; nothing is fine */

/* The running launch ends: status, code, and a reason that names the step. */
void launch_fail(struct sandbox *sb, int status, const char *code, const char *fmt, ...)
	_printf_(4, 5);
/* After a live snapshot that was taken on the way (template): goes on with the hand-over. */
void launch_continue(struct sandbox *sb);
/* A client shall be told that it is coming. fn is called when its record says so (the next daemon makes it, if this one does not), or when it
 * is Pending no more; false: neither, or it was deleted. r is handed to fn, NULL if that client left. -ENOMEM: fn is not called. */
int launch_promise(struct sandbox *sb, struct http_req *r,
	void (*fn)(struct sandbox *sb, struct http_req *r, bool saved));
