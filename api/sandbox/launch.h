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
	struct memory from;      /* the memory to restore; state "": boot */
	struct turn turn;
	bool mounted; /* its volumes */
	bool has_table; /* they were mounted when its checkpoint was taken: the file server goes on from there */
	bool prepared; /* from the agent's ready message, while volumes are attached */
	struct table_job *table;
	struct restore_hook *hook;
	struct own_base *base;
};

/* Accepts a new sandbox (its record is written) and makes it run. */
void launch_create(struct sandbox *sb);
/* A create that an earlier daemon did not finish: begins it again, if its client knows of the sandbox.
 * false: the client does not. */
bool launch_take_up(struct sandbox *sb);
/* Continues a create that was held (sb->hold), with the spec that sb has now. */
void launch_release(struct sandbox *sb);
void launch_resume(struct sandbox *sb);
/* Begins the steps of a resume. The record says Resuming already, and names the files to run from. */
void launch_resume_begun(struct sandbox *sb);
bool launch_adopt(struct sandbox *sb); /* false: its monitor cannot be adopted */
/* Sends the broker the policy of its record: the policy has changed, or the monitor was adopted. */
void launch_network_policy(struct sandbox *sb);
void launch_teardown(struct sandbox *sb); /* VM, agent, timers: all that runs for it */
void launch_late(struct sandbox *sb);     /* the deadline of a step or of all passed */
void launch_is_long(struct sandbox *sb);  /* its client learns that the sandbox is being made */
void launch_free(struct sandbox *sb);     /* frees what the steps keep; there may be nothing */

/* Ends the running launch with an error: status, code, and a message that begins with the step. */
void launch_fail(struct sandbox *sb, int status, const char *code, const char *fmt, ...)
	_printf_(4, 5);
/* To be called when the image's template was taken during a create: continues the create. */
void launch_continue(struct sandbox *sb);
/* Writes a promise into the record: if this daemon ends before the sandbox runs, the next one makes it. A client may hear
 * that it is Pending only when the promise is written. fn is called with true when the promise is written or the sandbox is not Pending
 * any more; with false after an error or a deletion. fn gets r, or NULL if that client left. -ENOMEM: fn is not called. */
int launch_promise(struct sandbox *sb, struct http_req *r,
	void (*fn)(struct sandbox *sb, struct http_req *r, bool saved));
