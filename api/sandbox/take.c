/* SPDX-License-Identifier: Apache-2.0
 *
 * take.c: see take.h. mayflyd's loop. The order makes a kill at any moment harmless. The new files
 * are made, and the source's record names them before the VMM is asked. The VMM writes them. The
 * source's record gets its new layers as soon as the VMM has them. The checkpoint becomes visible only
 * when the VMM says that all of it is durable. After a kill the next daemon finds the files in the
 * record, and finds out how far the checkpoint got (recover.c).
 */
#include "api/sandbox/take.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "api/sandbox/template_build.h"
#include "api/sandbox/disk_guard.h"
#include "api/sandbox/entrypoint.h"
#include "api/sandbox/fault.h"
#include "api/sandbox/headroom.h"
#include "api/sandbox/launch.h"
#include "api/sandbox/take_int.h"
#include "api/sandbox/volume_table.h"
#include "api/volumes/volumes.h"
#include "api/core/database.h"
#include "api/core/text.h"
#include "api/sandbox/image_template.h"
#include "api/http/http.h"
#include "api/links/monitor_client.h"
#include "lib/log.h"

#define PREPARE_LIMIT_MS 10000u
#define RAM_EXTRA_BYTES  MIB(16) /* checksums, tables, the state of the devices */
/* A template is taken on the way of a create that somebody waits for. So the agent has as much time to freeze
 * the guest as the boot took, within these limits. After that time the create continues without the template, which is taken of a sandbox
 * that no client waits for (image_template.c). What the monitor does afterwards is bounded by the deadline of the create only. */
#define TEMPLATE_MIN_MS 1000u
#define TEMPLATE_MAX_MS 4000u

/* The operation ends with its checkpoint, unless a create goes on or the guest is still being thawed. */
static void snap_operation_end(struct sandbox *sb)
{
	if (sb->op.kind == OP_CREATE) {
		if (sb->build)
			build_changed(sb->build);
	} else if (sb->op.step == STEP_RELEASE) {
		sb->op.kind = OP_THAW;
	} else if (!sb->vm && sb->phase == PHASE_RUNNING) {
		/* its monitor has ended, and that event will end the sandbox: no request may reach it before */
	} else {
		operation_end(sb);
	}
}

static void new_files_close(struct snap *s)
{
	for (size_t i = 0; i < ARRAY_LEN(s->fds); i++)
		close_fd(&s->fds[i]);
}

void snap_free(struct snap *s)
{
	struct sandbox *sb = s->sb && s->sb->op.snap == s ? s->sb : NULL;
	bool noted = s->noted;

	agent_call_cancel(s->prepare);
	database_forget(s->d->database, s);
	new_files_close(s);
	table_cancel(s->table);
	timer_remove(s->prove);
	/* answers to s may still come */
	if (s->sb && s->sb->vm)
		vmmctl_forget(s->sb->vm->ctl, s);
	if (s->orphan)
		vmmctl_forget(s->orphan->ctl, s);
	headroom_end(s->headroom);
	memory_unref(s->d->blobs, &s->base);
	free(s);
	if (!sb)
		return;
	sb->op.snap = NULL;
	/* The record need not be synced: if it still names this checkpoint, the next daemon only looks at
	 * the files once more. */
	if (noted)
		sandbox_save_later(sb);
	snap_operation_end(sb);
}

static void drop_new(struct snap *s)
{
	blob_unref(s->d->blobs, s->mem_id);
	if (s->followed)
		return;
	blob_unref(s->d->blobs, s->index_id);
	blob_unref(s->d->blobs, s->data_id);
}

/* ---- the source goes on */

void snap_source_goes_on(struct snap *s)
{
	struct sandbox *sb = s->sb;

	if (!sb || s->thawed)
		return;
	s->thawed = true;
	if (s->kind == SNAP_TEMPLATE)
		launch_continue(sb);
	else if (sb->agent)
		operation_thaw(sb);
}

static void pause_failed(struct snap *s, const char *text)
{
	struct sandbox *sb = s->sb;
	struct http_req *r;

	if (!sb)
		return;
	r = operation_client(sb);
	/* without a VM the sandbox fails, and does not go back to Running */
	if (sb->vm)
		sandbox_apply(sb, EV_FAILED, "PAUSE_FAILED", "%s", text);
	if (r)
		http_error(r, 500, "DOCKER::SANDBOX_PAUSE_FAILED", "%s", text);
}

void snap_failed(struct snap *s, int err, const char *text)
{
	log_warn("snapshot of %s failed: %s", s->sb ? s->sb->id : "a deleted sandbox", text);
	drop_new(s);
	if (s->followed)
		disk_unref(s->d->blobs, &s->point);
	if (s->kind == SNAP_PAUSE)
		pause_failed(s, text);
	snap_source_goes_on(s);
	if (s->kind == SNAP_PAUSE && s->sb && s->sb->vm)
		entry_watch(s->sb);
	if (s->kind == SNAP_TEMPLATE)
		template_failed(s->d, s->key, s->held, s->sb);
	if (s->fn)
		s->fn(s->arg, err ? err : EIO, text, NULL, NULL);
	if (s->orphan)
		vm_abandon(s->orphan);
	snap_free(s);
}

/* If the VM was asked and lives, only the VM knows which layers it has now and whether it runs. */
static void failed(struct snap *s, int err, const char *text)
{
	s->err = err ? err : EIO;
	snprintf(s->why, sizeof(s->why), "%s", text);
	if (s->asked && s->sb && s->sb->vm && s->sb->vm->ctl)
		settle_ask(s);
	else
		snap_failed(s, s->err, s->why);
}

/* ---- the VMM's answers */

void snap_follow(struct snap *s, const struct disk *now)
{
	struct blobs *b = s->d->blobs;
	struct sandbox *sb = s->sb;

	disk_ref(b, now);
	disk_unref(b, &sb->disk);
	sb->disk = s->point = *now;
	s->point.data[0] = 0;
	disk_ref(b, &s->point);
	blob_unref(b, s->index_id);
	blob_unref(b, s->data_id);
	s->followed = true;
	fault_at(sb, FAULT_POINT_FROZEN);
	/* if this write fails, the next daemon finds the new layers by asking the VM */
	sandbox_save_later(sb);
	fault_at(sb, FAULT_POINT_FOLLOWED);
}

static void freeze_done(struct snap *s, struct cur *body)
{
	struct disk d = s->sb->disk;
	uint16_t ndisks;
	int32_t dropped = -1;

	s->stopped_ns = cur_u64(body);
	(void)cur_u64(body);
	ndisks = cur_u16(body);
	if (ndisks > 0)
		dropped = (int32_t)cur_u32(body);
	if (dropped >= 0 && dropped < d.nfrozen) {
		memmove(d.frozen[dropped], d.frozen[dropped + 1],
			(size_t)(d.nfrozen - dropped - 1) * BLOB_ID);
		d.nfrozen--;
	}
	/* the private layer became the newest frozen one */
	if (d.nfrozen < DISK_FROZEN_MAX)
		memcpy(d.frozen[d.nfrozen++], d.data, BLOB_ID);
	memcpy(d.index, s->index_id, BLOB_ID);
	memcpy(d.data, s->data_id, BLOB_ID);
	snap_follow(s, &d);
}

static void on_reply(void *arg, const struct vmm_answer *a)
{
	struct snap *s = arg;
	struct cur body = a->body;

	if (a->err == ECONNRESET) {
		/* the end of the VM comes as an event of its own */
		return;
	}
	if (a->err) {
		failed(s, a->err, a->text);
		return;
	}
	freeze_done(s, &body);
	sandbox_note(s->sb, "snapshot: stood still for %.2f ms", (double)s->stopped_ns / 1e6);
	headroom_writer(s->headroom);
	/* the time of the writing depends on the disk: that step has no limit */
	if (s->kind != SNAP_PAUSE)
		snap_source_goes_on(s);
	else
		operation_step(s->sb, STEP_WRITE);
}

void snap_memory_list(const struct snap *s, struct memory *m)
{
	const struct memory *old = s->sb ? &s->sb->memory : &s->base;

	*m = (struct memory){0};
	for (int i = 0; i < old->nmem && m->nmem < (int)VMM_MAX_MEM - 1; i++)
		if (s->kept_mem & (1u << i))
			memcpy(m->mem[m->nmem++], old->mem[i], BLOB_ID);
	memcpy(m->mem[m->nmem++], s->mem_id, BLOB_ID);
	memcpy(m->state, s->mem_id, BLOB_ID);
}

static void memory_take(struct snap *s)
{
	snap_memory_list(s, &s->mem);
	memory_ref(s->d->blobs, &s->mem);
	blob_unref(s->d->blobs, s->mem_id);
}

/* If the new record cannot be written, the old one still says Pausing and names the new files. The next daemon would find them complete,
 * so the sandbox is Paused all the same. The files from before the pause are kept then, because the old record names them, too. */
static void pause_saved(struct sandbox *sb, bool saved)
{
	struct snap *s = sb->op.snap;
	struct http_req *r;

	if (!saved) {
		s->base = (struct memory){0};
		sandbox_entered(sb, EV_DONE, (int64_t)wall_ns(), "CONTAINER_PAUSED");
	}
	fault_at(sb, FAULT_POINT_SAVED);
	r = operation_client(sb);
	if (r)
		http_reply_empty(r, 202);
	snap_free(s);
}

void snap_paused(struct snap *s)
{
	struct sandbox *sb = s->sb;

	fault_at(sb, FAULT_POINT_DURABLE);
	s->base = sb->memory;
	sb->memory = s->mem;
	disk_unref(s->d->blobs, &s->point);
	/* The old monitor is still ending, and a resume may start a new one meanwhile. So the end of
	 * the old one must not reach this sandbox any more. */
	fileserver_destroy(take_ptr(sb->files));
	if (sb->vm)
		vm_abandon(sb->vm);
	sb->vm = NULL;
	sb->vm_pid = 0;
	sb->phase_ns[PH_PAUSE] = mono_ns() - s->begun_ns;
	hist_add(&sb->d->metrics.phase[PH_PAUSE], sb->phase_ns[PH_PAUSE]);
	s->noted = false;
	s->sealed = true;
	/* the record is synced before the client hears of it */
	operation_commit(sb, EV_DONE, "CONTAINER_PAUSED", pause_saved);
}

void snap_published(struct snap *s)
{
	memory_take(s);
	if (s->sb)
		sandbox_note(s->sb, "snapshot: %llu KiB of memory and state, %s, after %.1f ms",
			(unsigned long long)(blob_bytes(s->d->blobs, s->mem.state) >> 10),
			s->mem.nmem > 1 ? "a difference" : "whole",
			(double)(mono_ns() - s->begun_ns) / 1e6);
	hist_add(&s->d->metrics.phase[PH_SNAPSHOT], mono_ns() - s->begun_ns);
	if (s->kind == SNAP_PAUSE && s->sb) {
		snap_paused(s);
		return;
	}
	fault_at(s->sb, FAULT_POINT_DURABLE);
	if (s->kind == SNAP_TEMPLATE)
		template_made(s->d, s->key, &s->point, &s->mem);
	else if (s->fn)
		s->fn(s->arg, 0, "", &s->point, &s->mem);
	if (s->orphan)
		vm_abandon(s->orphan);
	snap_free(s);
}

static bool pause_by_files(struct snap *s)
{
	struct err e;

	if (s->kind != SNAP_PAUSE || !s->asked || !s->sb)
		return false;
	if (settle_files(s, &e) < 0) {
		log_info("sandbox %s: not paused: %s", s->sb->id, e.msg);
		return false;
	}
	snap_paused(s);
	return true;
}

static void durable(struct snap *s, int status, uint32_t kept, const char *text)
{
	s->kept_mem = kept;
	if (status >= 0 && (kept & s->carried)) {
		status = -EPROTO;
		text = "the monitor's snapshot refers to a memory file that is in RAM";
	}
	if (s->taken_up) {
		if (status < 0 || !pause_by_files(s))
			failed(s, s->err, s->why);
	} else if (status < 0) {
		failed(s, -status, text);
	} else if (s->followed && s->kind == SNAP_PAUSE && s->sb) {
		/* the monitor ends, and only this sandbox uses the files */
		snap_published(s);
	} else if (s->followed && !s->prove) {
		if (s->orphan)
			vm_abandon(s->orphan);
		s->orphan = NULL;
		publish_begin(s);
	}
}

void snap_durable(struct sandbox *sb, int status, uint32_t kept, const char *text)
{
	if (sb->op.snap)
		durable(sb->op.snap, status, kept, text);
}

bool snap_vm_ended(struct sandbox *sb, uint32_t reason, const char *text)
{
	struct snap *s = sb->op.snap;

	if (!s)
		return false;
	if (pause_by_files(s))
		return true;
	if (s->prove) {
		/* the files are complete, and their writer is gone */
		s->thawed = true;
		publish_without_monitor(s);
		return false;
	}
	/* the sandbox fails by its own event; a pause whose files are not complete fails, too */
	s->thawed = true;
	snap_failed(s, EIO, text);
	return false;
}

/* ---- the source ends or is deleted while its checkpoint is written */

static void orphan_snapshot(void *arg, int status, uint32_t kept, const char *text)
{
	durable(arg, status, kept, text);
}

static void orphan_ended(void *arg, uint32_t reason, const char *text)
{
	struct snap *s = arg;

	s->orphan = NULL;
	failed(s, EIO, text);
}

static void orphan_ready(void *arg, bool prepared)
{
}

static const struct vm_ops orphan_ops = {
	.ready = orphan_ready, .snapshot = orphan_snapshot, .ended = orphan_ended};

static void ignore(void *arg, const struct vmm_answer *a)
{
}

void snap_sandbox_gone(struct sandbox *sb)
{
	struct snap *s = sb->op.snap;

	if (!s)
		return;
	sb->op.snap = NULL;
	s->thawed = true;
	if (s->prove) {
		if (sb->vm)
			vm_abandon(sb->vm);
		sb->vm = NULL;
		s->base = sb->memory;
		memory_ref(s->d->blobs, &s->base);
		s->sb = NULL;
		publish_without_monitor(s);
		return;
	}
	if (!s->followed || s->err || s->taken_up || s->kind == SNAP_PAUSE || !sb->vm ||
		!sb->vm->ctl) {
		/* the VM's connection is closed, so its answers cannot reach s any more */
		if (sb->vm)
			vm_abandon(sb->vm);
		sb->vm = NULL;
		s->sb = NULL;
		snap_failed(s, ECANCELED, "the sandbox was deleted");
		return;
	}
	/* the writer needs only the monitor's memory: the vCPUs can stop */
	s->base = sb->memory;
	memory_ref(s->d->blobs, &s->base);
	s->sb = NULL;
	s->orphan = sb->vm;
	sb->vm = NULL;
	s->orphan->ops = &orphan_ops;
	s->orphan->arg = s;
	vmmctl_call(s->orphan->ctl, VMM_PAUSE, NULL, NULL, 0, ignore, NULL);
}

/* ---- from the request to the monitor's work */

static void memory_blob_make(struct snap *s)
{
	if (*s->mem_id)
		return;
	if (s->in_ram)
		blob_ram_id_make(s->mem_id);
	else
		blob_id_make(s->mem_id);
	blob_ref(s->d->blobs, s->mem_id);
}

/* Bit i: memory file i must be copied. A durable checkpoint refers to no file in RAM. A fork may, if this daemon still has the file. */
static uint32_t files_to_carry(const struct snap *s)
{
	const struct memory *m = &s->sb->memory;
	uint32_t bits = 0;

	for (int i = 0; i < m->nmem; i++) {
		_cleanup_close_ int fd = -1;

		if (!blob_in_ram(m->mem[i]))
			continue;
		fd = s->in_ram ? blob_open(s->d->blobs, m->mem[i], "mem", false) : -1;
		bits |= fd < 0 ? 1u << i : 0;
	}
	return bits;
}

static int new_files_make(struct snap *s, struct err *e)
{
	struct blobs *b = s->d->blobs;
	const struct {
		const char *id, *kind;
	} files[] = {{s->mem_id, "state"}, {s->mem_id, "mem"}, {s->index_id, "index"},
		{s->data_id, "data"}, {s->data_id, "bitmap"}};

	static_assert(ARRAY_LEN(files) == ARRAY_LEN(s->fds), "one descriptor a file");
	memory_blob_make(s);
	blob_id_make(s->index_id);
	blob_id_make(s->data_id);
	blob_ref(b, s->index_id);
	blob_ref(b, s->data_id);
	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		s->fds[i] = blob_make(b, files[i].id, files[i].kind);
		if (s->fds[i] < 0)
			return err_set(e, -s->fds[i], "making the snapshot's files");
	}
	disk_guard_layer(s->sb, s->fds[3], s->fds[4]);
	return 0;
}

static int ask_vmm(struct snap *s, struct err *e)
{
	struct sandbox *sb = s->sb;
	uint32_t flags = s->kind == SNAP_PAUSE ? VMM_F_EXIT : VMM_F_LIVE;
	struct buf p;
	int rc;

	/* a difference, if there is a memory file to differ from */
	if (sb->memory.nmem > 0)
		flags |= VMM_F_DIFF;
	s->carried = files_to_carry(s);
	flags |= s->carried << VMM_F_CARRY_SHIFT | (s->in_ram ? VMM_F_RAM : 0);
	if (!sb->vm || !sb->vm->ctl)
		return err_set(e, ENOTCONN, "asking the VMM");
	fault_tell_vm(sb);
	buf_init(&p, 64);
	buf_u32(&p, flags);
	buf_u16(&p, 1);
	rc = vmmctl_call(sb->vm->ctl, VMM_SNAPSHOT, &p, s->fds, ARRAY_LEN(s->fds), on_reply, s);
	buf_fini(&p);
	if (rc < 0)
		return err_set(e, -rc, "asking the VMM");
	new_files_close(s);
	s->asked = true;
	if (s->kind != SNAP_TEMPLATE)
		operation_step(sb, STEP_COPY);
	fault_at(sb, FAULT_POINT_ASKED);
	return 0;
}

static void noted_saved(void *arg, const struct err *failure)
{
	struct snap *s = arg;
	struct err e;

	if (failure) {
		log_error("sandbox %s: %s", s->sb->id, failure->msg);
		failed(s, ENOSPC, "the sandbox's record cannot be written");
		return;
	}
	fault_at(s->sb, FAULT_POINT_NOTED);
	if (ask_vmm(s, &e) < 0)
		failed(s, e.code, e.msg);
}

/* Makes the files and writes them into the record, before the monitor is asked. */
static int snap_note(struct snap *s, struct err *e)
{
	struct transaction *t;
	int rc;

	/* only a client's snapshot or fork is refused: a template is small */
	rc = s->kind == SNAP_LIVE ? headroom_check(s->headroom, e) : 0;
	if (!rc)
		rc = new_files_make(s, e);
	if (rc < 0)
		return rc;
	s->noted = true;
	fault_at(s->sb, FAULT_POINT_QUIET);
	t = sandbox_transaction_now(s->sb);
	if (!t)
		return err_plain(e, ENOSPC, "the sandbox's record cannot be written");
	if (s->kind == SNAP_PAUSE)
		transaction_sync(t);
	database_commit(s->d->database, t, noted_saved, s);
	return 0;
}

static void table_saved(void *arg, int fd, const struct err *why)
{
	struct snap *s = arg;
	struct err e;

	(void)fd;
	s->table = NULL;
	if (why)
		failed(s, why->code, why->msg);
	else if (snap_note(s, &e) < 0)
		failed(s, e.code, e.msg);
}

/* Called when the guest's processes are frozen and its agent has synced: until the thaw they open and close no file of a volume. */
static int save_table(struct snap *s, struct err *e)
{
	int fd = fileserver_table_dup(s->sb->files);

	if (fd < 0)
		return err_plain(e, EAGAIN,
			"the monitor has not told which files of its volumes are open yet; try "
			"again");
	memory_blob_make(s);
	s->table = table_save(s->d->blobs, s->mem_id, fd, table_saved, s);
	return s->table ? 0 : err_set(e, ENOMEM, "copying the table of its volumes");
}

static void is_quiet(void *arg, const struct agent_reply *r)
{
	struct snap *s = arg;
	struct err e;

	s->prepare = NULL;
	if (r->err) {
		failed(s, r->err, *r->text ? r->text : strerror(r->err));
		return;
	}
	if (s->kind == SNAP_PAUSE && s->sb->agent)
		agentc_down(s->sb->agent);
	if ((s->kind != SNAP_TEMPLATE && s->sb->files ? save_table(s, &e) : snap_note(s, &e)) < 0)
		failed(s, e.code, e.msg);
}

static uint32_t template_limit_ms(const struct sandbox *sb)
{
	uint64_t boot = (sb->phase_ns[PH_BOOT] + sb->phase_ns[PH_AGENT]) / 1000000;

	if (sb->build)
		return PREPARE_LIMIT_MS * 2;
	return (uint32_t)MIN(MAX(boot, TEMPLATE_MIN_MS), TEMPLATE_MAX_MS);
}

static struct snap *snap_begin(struct sandbox *sb, enum snap_kind kind, uint32_t prep)
{
	struct snap *s;
	struct buf b;

	if (sb->op.snap || !sb->agent || !sb->vm)
		return NULL;
	s = calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	*s = (struct snap){.sb = sb,
		.d = sb->d,
		.kind = kind,
		.begun_ns = mono_ns(),
		.fds = {-1, -1, -1, -1, -1}};
	sb->op.snap = s;
	/* during a pause the guest does not run, so it copies no pages */
	if (kind != SNAP_PAUSE)
		s->headroom = headroom_take(sb->vm);
	buf_init(&b, 64);
	buf_u32(&b, prep);
	buf_u32(&b, PREPARE_LIMIT_MS);
	s->prepare = agentc_call(sb->agent, AGENT_PREPARE, &b,
		kind == SNAP_TEMPLATE ? template_limit_ms(sb) : PREPARE_LIMIT_MS * 2, is_quiet, s);
	buf_fini(&b);
	if (s->prepare)
		return s;
	sb->op.snap = NULL;
	snap_free(s);
	return NULL;
}

struct snap *snap_template(struct sandbox *sb)
{
	/* No restore uses the disk of a template without its memory. So its root file system need not be
	 * frozen, which saves each restore a thaw that writes and waits. */
	struct snap *s = snap_begin(sb, SNAP_TEMPLATE, AGENT_PREP_FREEZE | AGENT_PREP_DROP);

	if (s) {
		snprintf(s->key, sizeof(s->key), "%s", sb->template_key);
		s->held = !sb->build;
		template_begun(sb->d, s->key);
	}
	return s;
}

static int take_live(struct sandbox *sb, struct snap *s, snap_fn fn, void *arg)
{
	if (!s)
		return -EBUSY;
	operation_begin(sb, OP_SNAPSHOT, 0);
	operation_step(sb, STEP_FREEZE);
	s->fn = fn;
	s->arg = arg;
	fault_at(sb, FAULT_POINT_BEGUN);
	return 0;
}

int take_snapshot(struct sandbox *sb, snap_fn fn, void *arg)
{
	return take_live(
		sb, snap_begin(sb, SNAP_LIVE, AGENT_PREP_FREEZE | AGENT_PREP_FSFREEZE), fn, arg);
}

int take_fork(struct sandbox *sb, snap_fn fn, void *arg)
{
	/* As for a template: no child has the disk without the memory, so the guest's file system need not be
	 * written first. */
	struct snap *s = snap_begin(sb, SNAP_LIVE, AGENT_PREP_FREEZE);

	if (s) {
		s->in_ram = true;
		s->ram_max_bytes = MIB(sb->cls.mem_mib) + RAM_EXTRA_BYTES;
	}
	return take_live(sb, s, fn, arg);
}

/* The guest is frozen and its requests wait. Without an answer of the agent the checkpoint fails and the guest goes on. A
 * monitor that does not answer ends, and with it the sandbox: nobody knows which layers its disk has. */
void take_late(struct sandbox *sb)
{
	struct snap *s = sb->op.snap;

	if (sb->op.step == STEP_FREEZE && s && !s->asked)
		failed(s, ETIMEDOUT, "the agent did not freeze the guest's processes in time");
	else if (sb->vm)
		vm_fail(sb->vm, "the monitor did not answer a snapshot request in time");
}

/* The client gets 202 in time. The record says Pausing until the pause has ended, and the reason if it failed. */
void pause_is_long(struct sandbox *sb)
{
	struct http_req *r = sb->state == SB_PAUSING ? operation_client(sb) : NULL;

	if (r)
		http_reply_empty(r, 202);
}

void pause_in_time(struct sandbox *sb)
{
	timer_after(sb->pending, (uint64_t)sb->d->cfg.pending_after_seconds * 1000000000u);
}

static void pause_not_begun(struct sandbox *sb, const char *why)
{
	struct http_req *r = operation_client(sb);

	entry_watch(sb);
	if (r)
		http_error(r, 500, "DOCKER::SANDBOX_PAUSE_FAILED", "Sandbox %s is not paused: %s.",
			sb->id, why);
}

static void pause_begun(struct sandbox *sb, bool saved)
{
	if (!saved) {
		pause_not_begun(sb, "its record cannot be written");
		return;
	}
	if (snap_begin(sb, SNAP_PAUSE, AGENT_PREP_FREEZE | AGENT_PREP_FSFREEZE)) {
		operation_step(sb, STEP_FREEZE);
		pause_in_time(sb);
		fault_at(sb, FAULT_POINT_BEGUN);
		return;
	}
	sandbox_apply(sb, EV_FAILED, "PAUSE_FAILED", "%s", "the agent takes no requests");
	pause_not_begun(sb, "its agent takes no requests, try again");
	operation_end(sb);
}

void take_pause(struct sandbox *sb)
{
	operation_begin_saved(sb, OP_PAUSE, 0, "PAUSING", pause_begun);
}

/* ---- what an earlier daemon began */

cJSON *snap_record(const struct snap *s)
{
	cJSON *o;

	if (!s || !s->noted)
		return NULL;
	o = cJSON_CreateObject();
	cJSON_AddBoolToObject(o, "pause", s->kind == SNAP_PAUSE);
	cJSON_AddStringToObject(o, "mem", s->mem_id);
	cJSON_AddStringToObject(o, "index", s->index_id);
	cJSON_AddStringToObject(o, "data", s->data_id);
	return o;
}

void snap_from_record(struct sandbox *sb, const cJSON *o)
{
	static const char *const names[] = {"mem", "index", "data"};
	struct snap *s = cJSON_IsObject(o) ? calloc(1, sizeof(*s)) : NULL;

	if (!s)
		return;
	*s = (struct snap){.sb = sb,
		.d = sb->d,
		.noted = true,
		.asked = true,
		.taken_up = true,
		.begun_ns = mono_ns(),
		.fds = {-1, -1, -1, -1, -1},
		.err = ECANCELED,
		.why = "The server was stopped meanwhile.",
		.kind = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(o, "pause")) ? SNAP_PAUSE
										   : SNAP_LIVE};
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, names[i]);
		char *to = i == 0 ? s->mem_id : i == 1 ? s->index_id : s->data_id;

		if (!cJSON_IsString(v) || !uuid_ok(v->valuestring)) {
			free(s);
			return;
		}
		str_copy(to, BLOB_ID, v->valuestring);
	}
	blob_ref(sb->d->blobs, s->mem_id);
	blob_ref(sb->d->blobs, s->index_id);
	blob_ref(sb->d->blobs, s->data_id);
	sb->op.snap = s;
	operation_begin(sb, s->kind == SNAP_PAUSE ? OP_PAUSE : OP_SNAPSHOT, 0);
	operation_step(sb, STEP_SETTLE);
}

bool snap_take_up(struct sandbox *sb)
{
	struct snap *s = sb->op.snap;

	if (!s)
		return false;
	if (sb->vm) {
		settle_ask(s);
		return true;
	}
	if (pause_by_files(s))
		return true;
	s->thawed = true;
	snap_failed(s, s->err, s->why);
	return false;
}
