/* SPDX-License-Identifier: Apache-2.0
 *
 * rollback.c: see rollback.h. mayflyd's loop.
 *
 * Of a running sandbox: its record is committed as Paused at the snapshot, then its machine ends, then it is resumed. Of a paused one: the
 * record is committed as Resuming from the snapshot's files. If the daemon is killed in between, the next daemon finds the sandbox as it was
 * before, or Paused at the snapshot. If the monitor of a running sandbox ends before the commit, the sandbox fails, as without a rollback.
 */
#include "api/sandbox/rollback.h"

#include "api/http/http.h"
#include "api/links/agent_client.h"
#include "api/sandbox/admission.h"
#include "api/sandbox/launch.h"
#include "api/volumes/volumes.h"

struct rollback {
	struct disk disk;
	struct memory memory;
	char snapshot[40];
};

/* The sandbox is based on the snapshot's files. The old ones are kept until that is committed. */
static bool rollback_swap(struct sandbox *sb, const struct checkpoint *c)
{
	struct rollback *b = malloc(sizeof(*b));

	if (!b)
		return false;
	*b = (struct rollback){.disk = sb->disk, .memory = sb->memory};
	str_copy(b->snapshot, sizeof(b->snapshot), c->id);
	sb->disk = c->disk;
	sb->memory = c->mem;
	disk_ref(sb->d->blobs, &sb->disk);
	memory_ref(sb->d->blobs, &sb->memory);
	sb->op.rollback = b;
	return true;
}

void rollback_drop(struct sandbox *sb)
{
	struct rollback *b = take_ptr(sb->op.rollback);

	if (!b)
		return;
	disk_unref(sb->d->blobs, &b->disk);
	memory_unref(sb->d->blobs, &b->memory);
	free(b);
}

static void rollback_undo(struct sandbox *sb)
{
	struct rollback *b = take_ptr(sb->op.rollback);
	struct http_req *r = operation_client(sb);

	disk_unref(sb->d->blobs, &sb->disk);
	memory_unref(sb->d->blobs, &sb->memory);
	sb->disk = b->disk;
	sb->memory = b->memory;
	free(b);
	if (r)
		http_error(r, 500, "SANDBOX::INTERNAL_ERROR",
			"The record of sandbox %s cannot be written. It stays as it was.", sb->id);
}

static void rollback_done(struct sandbox *sb)
{
	sandbox_note(sb, "rolled back to snapshot %s", sb->op.rollback->snapshot);
	rollback_drop(sb);
}

/* ---- of a paused sandbox */

static void rollback_resume(struct sandbox *sb, bool saved)
{
	if (!saved) {
		rollback_undo(sb);
		return;
	}
	rollback_done(sb);
	launch_resume_begun(sb);
}

/* ---- of a running one */

static void machine_ends(struct sandbox *sb)
{
	if (sb->agent)
		agentc_down(sb->agent);
	fileserver_destroy(take_ptr(sb->files));
	if (sb->vm)
		vm_abandon(sb->vm);
	sb->vm = NULL;
	sb->vm_pid = 0;
}

static void rollback_paused(struct sandbox *sb, bool saved)
{
	struct http_req *r;

	if (!saved) {
		rollback_undo(sb);
		sandbox_apply(sb, EV_FAILED, "ROLLBACK_FAILED", "%s",
			"The sandbox's record cannot be written.");
		operation_end(sb);
		return;
	}
	machine_ends(sb);
	rollback_done(sb);
	r = operation_client(sb);
	operation_end(sb);
	/* requests that wait may resume it, too, but in a later turn of the loop (idle_wake()): this one answers r */
	operation_ask(sb, ASK_RESUME, r);
}

static void refused(struct http_req *r, const struct sandbox *sb, const char *why)
{
	http_error(r, 409, "SANDBOX::INVALID_STATE", "Sandbox %s %s.", sb->id, why);
}

void rollback_asked(struct sandbox *sb, struct checkpoint *c, struct http_req *r)
{
	bool runs = sb->phase == PHASE_RUNNING;
	struct refusal x;

	if (sb->op.kind != OP_NONE) {
		refused(r, sb, "is being changed by another request");
		return;
	}
	if (!runs && sb->phase != PHASE_PAUSED) {
		refused(r, sb,
			sb->phase == PHASE_RESIDENT ? "is paused in memory: resume it first"
						    : "is neither Running nor Paused");
		return;
	}
	if (!runs && admission_check_resume(sb, &x) < 0) {
		http_add_header(r, "Retry-After", "1");
		http_error(r, x.status, x.code, "%s", x.msg);
		return;
	}
	if (!rollback_swap(sb, c)) {
		http_error(r, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
		return;
	}
	operation_client_waits(sb, r);
	if (runs) {
		operation_begin(sb, OP_PAUSE, 0);
		operation_commit(sb, EV_DONE, "ROLLED_BACK", rollback_paused);
	} else {
		operation_begin_saved(sb, OP_RESUME, sb->d->cfg.resume_timeout_seconds,
			"ROLLED_BACK", rollback_resume);
	}
}
