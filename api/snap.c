/* SPDX-License-Identifier: Apache-2.0
 *
 * snap.c: see snap.h. mayflyd's loop. The order is what makes a kill at any moment harmless: the new files are made and referenced, the VMM
 * writes them, the source's record gets its new layers as soon as the VMM has them, and the point becomes visible only when the VMM says
 * that all of it is durable.
 */
#include "api/snap.h"

#include <stdio.h>
#include <string.h>

#include "api/template.h"
#include "api/vmmctl.h"
#include "lib/log.h"

#define PREPARE_LIMIT_MS 10000u
/* A template is taken on the way of a create that somebody waits for: it may take a few times what the boot took, then the sandbox goes on without. */
#define TEMPLATE_MIN_MS 3000u
#define TEMPLATE_MAX_MS 12000u

enum snap_kind { SNAP_TEMPLATE, SNAP_LIVE, SNAP_PAUSE };

struct snap {
	struct sandbox *sb; /* NULL: it was cleared away meanwhile */
	struct daemon *d;
	struct vm *orphan;  /* then: the VM that still writes */
	struct agent_call *quiet; /* the question that is_quiet() answers */
	enum snap_kind kind;
	bool asked, replied, thawed;
	uint32_t kept_mem;
	char mem_id[BLOB_ID], index_id[BLOB_ID], data_id[BLOB_ID], key[200];
	struct disk point; /* frozen, after the reply */
	struct memory mem;
	uint64_t begun_ns, stopped_ns;
	snap_fn fn;
	void *arg;
};

static void snap_free(struct snap *s)
{
	struct sandbox *sb = s->sb && s->sb->snap == s ? s->sb : NULL;

	/* its sandbox may be deleted while the guest still makes itself quiet: the answer would find nothing */
	agent_call_cancel(s->quiet);
	free(s);
	if (!sb)
		return;
	sb->snap = NULL;
	if (sb->pause_waits) {
		sb->pause_waits = false;
		if (sb->state == SB_RUNNING && !sb->gone && sb->answer)
			launch_pause(sb);
	}
}

static void drop_new(struct snap *s)
{
	blob_unref(s->d->blobs, s->mem_id);
	if (s->replied)
		return;
	blob_unref(s->d->blobs, s->index_id);
	blob_unref(s->d->blobs, s->data_id);
}

/* ---- the source goes on */

static void thawed(void *arg, const struct agent_reply *r)
{
	struct sandbox *sb = arg;

	if (r->err && r->err != ECANCELED)
		log_warn("sandbox %s: going on after a snapshot: %s", sb->id, r->text);
	sandbox_unref(sb);
}

static void source_goes_on(struct snap *s)
{
	struct sandbox *sb = s->sb;
	struct buf b;

	if (!sb || s->thawed)
		return;
	s->thawed = true;
	if (s->kind == SNAP_TEMPLATE) {
		if (sb->launch && sb->launch->snap == s)
			launch_continue(sb);
		return;
	}
	if (!sb->agent)
		return;
	agentc_up(sb->agent);
	buf_init(&b, AGENT_FRAME_MAX);
	identity_put(&b, sb);
	sandbox_ref(sb);
	if (!agentc_call(sb->agent, AGENT_THAW, &b, PREPARE_LIMIT_MS, thawed, sb))
		sandbox_unref(sb);
	buf_fini(&b);
}

static void pause_failed(struct snap *s, const char *text)
{
	struct sandbox *sb = s->sb;
	struct http_req *r;

	if (!sb)
		return;
	r = sb->answer;
	sb->answer = NULL;
	sandbox_apply(sb, EV_PAUSE_FAILED, "PAUSE_FAILED", "%s", text);
	if (r)
		http_error(r, 500, "DOCKER::SANDBOX_PAUSE_FAILED", "%s", text);
}

static void failed(struct snap *s, int err, const char *text)
{
	log_warn("snapshot of %s failed: %s", s->sb ? s->sb->id : "a deleted sandbox", text);
	drop_new(s);
	if (s->replied)
		disk_unref(s->d->blobs, &s->point);
	source_goes_on(s);
	if (s->kind == SNAP_PAUSE)
		pause_failed(s, text);
	if (s->kind == SNAP_TEMPLATE)
		template_failed(s->d, s->key);
	if (s->fn)
		s->fn(s->arg, err ? err : EIO, text, NULL, NULL);
	if (s->orphan)
		vm_abandon(s->orphan);
	snap_free(s);
}

/* ---- the VMM's answers */

static void freeze_done(struct snap *s, struct cur *body)
{
	struct sandbox *sb = s->sb;
	struct disk *d = &sb->disk;
	uint16_t ndisks;
	int32_t dropped = -1;

	s->stopped_ns = cur_u64(body);
	(void)cur_u64(body);
	ndisks = cur_u16(body);
	if (ndisks > 0)
		dropped = (int32_t)cur_u32(body);
	if (dropped >= 0 && dropped < d->nfrozen) {
		blob_unref(s->d->blobs, d->frozen[dropped]);
		memmove(d->frozen[dropped], d->frozen[dropped + 1], (size_t)(d->nfrozen - dropped - 1) * BLOB_ID);
		d->nfrozen--;
	}
	/* the private layer became the newest frozen one; its reference goes with it */
	if (d->nfrozen < DISK_FROZEN_MAX)
		memcpy(d->frozen[d->nfrozen++], d->data, BLOB_ID);
	blob_unref(s->d->blobs, d->index);
	memcpy(d->index, s->index_id, BLOB_ID);
	memcpy(d->data, s->data_id, BLOB_ID);
	s->point = *d;
	s->point.data[0] = 0;
	disk_ref(s->d->blobs, &s->point);
	s->replied = true;
	sandbox_save(sb, false);
}

static void on_reply(void *arg, const struct vmm_answer *a)
{
	struct snap *s = arg;
	struct cur body = a->body;

	if (a->err == ECONNRESET) {
		/* the VM's end is told by its own event; without a sandbox nobody else is left to clear this away */
		return;
	}
	if (a->err || !s->sb) {
		failed(s, a->err, a->text);
		return;
	}
	freeze_done(s, &body);
	sandbox_note(s->sb, "snapshot: stood still for %.2f ms", (double)s->stopped_ns / 1e6);
	if (s->kind != SNAP_PAUSE)
		source_goes_on(s);
}

/* What the new point's memory stands on: the files the VMM still counts on, and the new one. */
static void memory_list(struct snap *s)
{
	const struct memory *old = s->sb ? &s->sb->memory : &s->mem;
	struct memory m = {0};

	for (int i = 0; i < old->nmem && m.nmem < (int)VMM_MAX_MEM - 1; i++)
		if (s->kept_mem & (1u << i))
			memcpy(m.mem[m.nmem++], old->mem[i], BLOB_ID);
	memcpy(m.mem[m.nmem++], s->mem_id, BLOB_ID);
	memcpy(m.state, s->mem_id, BLOB_ID);
	s->mem = m;
	memory_ref(s->d->blobs, &s->mem);
	blob_unref(s->d->blobs, s->mem_id);
}

static void paused(struct snap *s)
{
	struct sandbox *sb = s->sb;
	struct http_req *r;

	memory_unref(s->d->blobs, &sb->memory);
	sb->memory = s->mem;
	disk_unref(s->d->blobs, &s->point);
	/* its process is on its way out: a resume may come before it is gone, and its end must not be taken for the next one's */
	if (sb->vm)
		vm_abandon(sb->vm);
	sb->vm = NULL;
	sb->vm_pid = 0;
	sb->phase_ns[PH_PAUSE] = mono_ns() - s->begun_ns;
	hist_add(&sb->d->metrics.phase[PH_PAUSE], sb->phase_ns[PH_PAUSE]);
	r = sb->answer;
	sb->answer = NULL;
	/* the record is synced before the client hears of it */
	sandbox_apply(sb, EV_PAUSED, "CONTAINER_PAUSED", "%s", "");
	if (r)
		http_reply_empty(r, 202);
	snap_free(s);
}

static void finished(struct snap *s)
{
	memory_list(s);
	hist_add(&s->d->metrics.phase[PH_SNAPSHOT], mono_ns() - s->begun_ns);
	if (s->kind == SNAP_PAUSE && s->sb) {
		paused(s);
		return;
	}
	if (s->kind == SNAP_TEMPLATE)
		template_made(s->d, s->key, &s->point, &s->mem);
	else if (s->fn)
		s->fn(s->arg, 0, "", &s->point, &s->mem);
	if (s->orphan)
		vm_abandon(s->orphan);
	snap_free(s);
}

static void durable(struct snap *s, int status, uint32_t kept, const char *text)
{
	s->kept_mem = kept;
	if (status < 0)
		failed(s, -status, text);
	else if (s->replied)
		finished(s);
}

void snap_durable(struct sandbox *sb, int status, uint32_t kept, const char *text)
{
	if (sb->snap)
		durable(sb->snap, status, kept, text);
}

bool snap_vm_ended(struct sandbox *sb, uint32_t reason, const char *text)
{
	struct snap *s = sb->snap;

	if (!s)
		return sb->state == SB_PAUSED;
	if (s->kind == SNAP_PAUSE && s->replied && reason == VMM_X_SNAPSHOTTED) {
		finished(s);
		return true;
	}
	/* the sandbox's own end says the rest; a pause that lost its process is not a pause */
	s->thawed = true;
	if (s->kind == SNAP_PAUSE)
		s->kind = SNAP_LIVE;
	failed(s, EIO, text);
	return false;
}

/* ---- a source that is cleared away while it is written */

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

static const struct vm_ops orphan_ops = {.ready = orphan_ready, .snapshot = orphan_snapshot, .ended = orphan_ended};

static void ignore(void *arg, const struct vmm_answer *a)
{
}

void snap_sandbox_gone(struct sandbox *sb)
{
	struct snap *s = sb->snap;

	if (!s)
		return;
	sb->snap = NULL;
	if (!s->replied || s->kind == SNAP_PAUSE || !sb->vm || !sb->vm->ctl) {
		s->thawed = true;
		s->sb = NULL;
		if (!s->asked || s->replied || !sb->vm) {
			failed(s, ECANCELED, "the sandbox was deleted");
		} else {
			/* the VMM's answer will find nobody: it is cancelled with the connection, and this goes with it */
			vm_abandon(sb->vm);
			sb->vm = NULL;
			failed(s, ECANCELED, "the sandbox was deleted");
		}
		return;
	}
	/* only the copy is still written: the source itself need not run for that */
	s->mem = sb->memory;
	s->sb = NULL;
	s->orphan = sb->vm;
	sb->vm = NULL;
	s->orphan->ops = &orphan_ops;
	s->orphan->arg = s;
	vmmctl_call(s->orphan->ctl, VMM_PAUSE, NULL, NULL, 0, ignore, NULL);
}

void snap_cancel(struct snap *s)
{
	if (s)
		s->thawed = true;
}

/* ---- the way there */

static int ask_vmm(struct snap *s, struct err *e)
{
	struct blobs *b = s->d->blobs;
	_cleanup_close_ int state = -1, mem = -1, index = -1, data = -1, bitmap = -1;
	struct sandbox *sb = s->sb;
	uint32_t flags = s->kind == SNAP_PAUSE ? VMM_F_EXIT : VMM_F_LIVE;
	struct buf p;
	int rc;

	/* a difference, where there is something to differ from and room for one more file */
	if (sb->memory.nmem > 0)
		flags |= VMM_F_DIFF;
	blob_id_make(s->mem_id);
	blob_id_make(s->index_id);
	blob_id_make(s->data_id);
	blob_ref(b, s->mem_id);
	blob_ref(b, s->index_id);
	blob_ref(b, s->data_id);
	state = blob_make(b, s->mem_id, "state");
	mem = blob_make(b, s->mem_id, "mem");
	index = blob_make(b, s->index_id, "index");
	data = blob_make(b, s->data_id, "data");
	bitmap = blob_make(b, s->data_id, "bitmap");
	if (state < 0 || mem < 0 || index < 0 || data < 0 || bitmap < 0)
		return err_plain(e, ENOSPC, "the snapshot's files cannot be made");
	buf_init(&p, 64);
	buf_u32(&p, flags);
	buf_u16(&p, 1);
	rc = sb->vm && sb->vm->ctl ? vmmctl_call(sb->vm->ctl, VMM_SNAPSHOT, &p, (int[]){state, mem, index, data, bitmap}, 5, on_reply, s) : -ENOTCONN;
	buf_fini(&p);
	return rc < 0 ? err_set(e, -rc, "asking the VMM") : 0;
}

static void is_quiet(void *arg, const struct agent_reply *r)
{
	struct snap *s = arg;
	struct err e;

	s->quiet = NULL;
	if (r->err == ECANCELED)
		return;
	if (r->err) {
		s->asked = r->err != ENOSYS;
		failed(s, r->err, *r->text ? r->text : strerror(r->err));
		return;
	}
	s->asked = true;
	if (s->kind == SNAP_PAUSE && s->sb->agent)
		agentc_down(s->sb->agent);
	if (ask_vmm(s, &e) < 0)
		failed(s, e.code, e.msg);
}

static uint32_t template_limit_ms(const struct sandbox *sb)
{
	uint64_t boots = 3 * (sb->phase_ns[PH_BOOT] + sb->phase_ns[PH_AGENT]) / 1000000;

	return (uint32_t)MIN(MAX(boots, TEMPLATE_MIN_MS), TEMPLATE_MAX_MS);
}

static struct snap *snap_begin(struct sandbox *sb, enum snap_kind kind, uint32_t prep)
{
	struct snap *s;
	struct buf b;

	if (sb->snap || !sb->agent || !sb->vm)
		return NULL;
	s = calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	*s = (struct snap){.sb = sb, .d = sb->d, .kind = kind, .begun_ns = mono_ns()};
	sb->snap = s;
	buf_init(&b, 64);
	buf_u32(&b, prep);
	buf_u32(&b, PREPARE_LIMIT_MS);
	s->quiet = agentc_call(sb->agent, AGENT_PREPARE, &b, kind == SNAP_TEMPLATE ? template_limit_ms(sb) : PREPARE_LIMIT_MS * 2, is_quiet, s);
	buf_fini(&b);
	if (!s->quiet) {
		snap_free(s);
		return NULL;
	}
	return s;
}

struct snap *snap_template(struct sandbox *sb)
{
	struct snap *s = snap_begin(sb, SNAP_TEMPLATE, AGENT_PREP_FREEZE | AGENT_PREP_FSFREEZE | AGENT_PREP_DROP);

	if (s) {
		snprintf(s->key, sizeof(s->key), "%s", sb->template_key);
		template_begun(sb->d, s->key);
	}
	return s;
}

int snap_live(struct sandbox *sb, snap_fn fn, void *arg)
{
	struct snap *s = snap_begin(sb, SNAP_LIVE, AGENT_PREP_FREEZE | AGENT_PREP_FSFREEZE);

	if (!s)
		return -EBUSY;
	s->fn = fn;
	s->arg = arg;
	return 0;
}

void launch_pause(struct sandbox *sb)
{
	struct http_req *r = sb->answer;
	struct snap *s;

	/* a template or snapshot of it is still written: the answer waits for that, too */
	if (sb->snap) {
		sb->pause_waits = true;
		return;
	}
	s = snap_begin(sb, SNAP_PAUSE, AGENT_PREP_FREEZE | AGENT_PREP_FSFREEZE);
	if (s) {
		sandbox_apply(sb, EV_PAUSE, "PAUSING", "%s", "");
		return;
	}
	sb->answer = NULL;
	http_error(r, 409, "DOCKER::SANDBOX_PAUSE_FAILED", "A snapshot of sandbox %s is being taken; try again.", sb->id);
}
