/* SPDX-License-Identifier: Apache-2.0
 *
 * launch.c: from a checked request to Running: image, disk, VMM, boot or restore, the agent is ready,
 * identity, entrypoint. mayflyd's loop. Each step is the handler of an event. All steps together have
 * one deadline. Steps that only the VMM or the agent can finish have a shorter one, except the guest's boot
 * (STEP_AGENT) and the image's template (STEP_TEMPLATE). A failure names its step. After a restore no user reaches the machine before the
 * agent has confirmed its new identity (THAW): it fails closed.
 */
#include "api/sandbox/launch.h"

#include <cjson/cJSON.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "api/sandbox/admission.h"
#include "api/sandbox/disk_guard.h"
#include "api/sandbox/entrypoint.h"
#include "api/sandbox/fault.h"
#include "api/sandbox/floor.h"
#include "api/sandbox/identity.h"
#include "api/sandbox/own_api.h"
#include "api/sandbox/own_base.h"
#include "api/sandbox/record_writer.h"
#include "api/http/http.h"
#include "api/links/images.h"
#include "api/sandbox/resident_pause.h"
#include "api/sandbox/restore_hook.h"
#include "api/sandbox/take.h"
#include "api/sandbox/volume_table.h"
#include "api/network/egress_policy.h"
#include "api/network/network.h"
#include "api/sandbox/image_template.h"
#include "api/sandbox/user_template.h"
#include "api/checkpoint/verify.h"
#include "api/sandbox/working_set.h"
#include "api/volumes/volume_request.h"
#include "api/volumes/volumes.h"
#include "lib/log.h"

#define SEC          1000000000ull
#define START_FAILED "DOCKER::SANDBOX_START_FAILED"
#define PROMISED     "PENDING" /* status.reason of a sandbox whose client got Pending as its answer */

static bool resuming(const struct sandbox *sb)
{
	return sb->op.kind == OP_RESUME;
}

void launch_free(struct sandbox *sb)
{
	struct launch *l = take_ptr(sb->op.launch);

	if (!l)
		return;
	turn_end(&l->turn);
	if (l->image)
		image_cancel(l->image);
	disk_private_cancel(l->layer);
	table_cancel(l->table);
	restore_hook_cancel(l->hook);
	own_base_cancel(l->base);
	free(l);
}

/* ---- answers */

static void answer_created(struct sandbox *sb)
{
	struct http_req *r = operation_client(sb);

	if (r)
		http_reply_json(r, 202, sandbox_to_json(sb, true));
}

void launch_fail(struct sandbox *sb, int status, const char *code, const char *fmt, ...)
{
	bool resume = resuming(sb);
	struct http_req *r = operation_client(sb);
	enum op_step step = sb->op.kind ? sb->op.step : STEP_RUN;
	struct refusal x;
	char text[420];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	launch_free(sb);
	/* before the answer: a client that has it finds no claim of this create any more */
	if (!resume && sb->volumes_held) {
		volumes_release(sb->d->volumes, sb->spec.volumes, true);
		sb->volumes_held = false;
	}
	sb->d->metrics.create_failed += !resume;
	sandbox_ref(sb);
	/* after a failed resume it is Paused, whichever step failed: the files of its pause are complete,
	 * and the next resume makes a new private layer */
	sandbox_apply(sb, EV_FAILED, resume ? "RESUME_FAILED" : "START_FAILED", "%s: %s",
		op_steps[step].name, text);
	launch_teardown(sb);
	if (r) {
		http_error(r, status, code, "%s: %s", op_steps[step].name, text);
		/* a create whose client gets the error leaves nothing behind; one that was
		 * answered as Pending stays, as Failed */
		if (!resume)
			sandbox_delete(sb, "creation failed");
	} else if (sb->created) {
		refuse(&x, status, code, "%s: %s", op_steps[step].name, text);
		sandbox_created(sb, &x);
		sandbox_delete(sb, "creation failed");
	}
	sandbox_unref(sb);
}

void launch_late(struct sandbox *sb)
{
	launch_fail(sb, 504, START_FAILED, "not done within %lld s", (long long)sb->op.limit_s);
}

/* ---- the promise: its client may hear that it is Pending */

struct promise {
	struct record_write w;
	char reason[64];
	void (*fn)(struct sandbox *sb, struct http_req *r, bool saved);
};

static struct promise *promise_of(struct record_write *w)
{
	return container_of(w, struct promise, w);
}

static void promise_swap(struct record_write *w)
{
	struct promise *p = promise_of(w);
	char reason[sizeof(p->reason)];

	memcpy(reason, w->sb->reason, sizeof(reason));
	memcpy(w->sb->reason, p->reason, sizeof(reason));
	memcpy(p->reason, reason, sizeof(reason));
}

/* A sandbox that is not Pending any more needs no promise. */
static bool promise_turn(struct record_write *w)
{
	if (w->sb->state == SB_PENDING)
		return true;
	promise_of(w)->fn(w->sb, w->r, true);
	return false;
}

static void promise_ended(struct record_write *w, enum record_end how)
{
	promise_of(w)->fn(w->sb, w->r, how == RECORD_SAVED);
}

static const struct record_write_kind promise_kind = {.bytes = sizeof(struct promise),
	.turn = promise_turn,
	.swap = promise_swap,
	.ended = promise_ended};

int launch_promise(struct sandbox *sb, struct http_req *r,
	void (*fn)(struct sandbox *sb, struct http_req *r, bool saved))
{
	struct record_write *w = record_write_new(&promise_kind, sb, r);

	if (!w)
		return -ENOMEM;
	str_copy(promise_of(w)->reason, sizeof(promise_of(w)->reason), PROMISED);
	promise_of(w)->fn = fn;
	record_write_submit(w);
	return 0;
}

static void long_promised(struct sandbox *sb, struct http_req *r, bool saved)
{
	if (sb->op.kind != OP_CREATE || sb->state != SB_PENDING)
		return;
	if (!saved) {
		timer_after(sb->pending, SEC);
		return;
	}
	answer_created(sb);
	sandbox_created(sb, NULL);
}

void launch_is_long(struct sandbox *sb)
{
	/* nobody waits for a pool's machine */
	if (sb->state == SB_PENDING && !sb->hold && launch_promise(sb, NULL, long_promised) < 0)
		timer_after(sb->pending, SEC);
}

/* ---- the last steps: identity, entrypoint, Running */

static void running_counted(struct sandbox *sb, bool resume)
{
	uint64_t now = mono_ns();

	sb->phase_ns[PH_COMMIT] += now - sb->op.step_ns;
	sb->phase_ns[resume ? PH_RESUME : PH_CREATE] = now - sb->op.begun_ns;
	for (int p = 0; p < PH_COUNT; p++)
		if (sb->phase_ns[p])
			hist_add(&sb->d->metrics.phase[p], sb->phase_ns[p]);
	if (resume)
		return;
	sb->d->metrics.created++;
	if (sb->origin == FROM_BOOT)
		sb->d->metrics.booted++;
	else
		sb->d->metrics.restored++;
}

/* The create is done; the image's template that it left may still be written. */
static void running_end(struct sandbox *sb)
{
	launch_free(sb);
	if (!sb->op.snap) {
		operation_end(sb);
		return;
	}
	timer_set(sb->pending, 0);
	operation_begin(sb, OP_TEMPLATE, 0);
	operation_step(sb, STEP_WRITE);
	sandboxes_wake(sb);
}

static void running_saved(struct sandbox *sb, bool saved)
{
	bool resume = sb->op.launch->resume;
	struct http_req *r;

	if (!saved) {
		launch_fail(sb, 500, START_FAILED, "the record cannot be written");
		return;
	}
	if (resume)
		fault_at(sb, FAULT_RESUME_SAVED);
	running_counted(sb, resume);
	entry_watch(sb);
	own_api_start(sb);
	r = operation_client(sb);
	if (r && resume)
		http_reply_empty(r, 202);
	else if (r)
		http_reply_json(r, 202, sandbox_to_json(sb, true));
	sandbox_created(sb, NULL);
	vms_refill(sb->d->vms, sb->cls);
	if (!resume && sb->origin != FROM_BOOT)
		workset_ran(sb);
	running_end(sb);
}

static void now_running(struct sandbox *sb)
{
	operation_step(sb, STEP_RUN);
	if (resuming(sb))
		fault_at(sb, FAULT_RESUME_THAWED);
	/* its VM is made: while the record is written, another create may make its own */
	turn_end(&sb->op.launch->turn);
	operation_commit(sb, EV_DONE, "CONTAINER_RUNNING", running_saved);
}

static void hook_done(struct sandbox *sb, const char *failure)
{
	if (failure)
		launch_fail(sb, 500, START_FAILED, "%s (" RESTORE_HOOK_VAR ")", failure);
	else
		now_running(sb);
}

/* The restored memory has its new identity: runs the restore hook, if one is due. */
static void memory_goes_on(struct sandbox *sb)
{
	const char *command = restore_hook_due(sb);

	if (!command) {
		now_running(sb);
		return;
	}
	operation_step(sb, STEP_HOOK);
	sb->op.launch->hook = restore_hook_run(sb, command, hook_done);
	if (!sb->op.launch->hook)
		launch_fail(sb, 500, START_FAILED, "the agent takes no requests");
}

static bool agent_answered(struct sandbox *sb, const struct agent_reply *r)
{
	if (r->err == ECANCELED || !sb->op.launch)
		return false;
	if (r->err) {
		launch_fail(sb, 500, START_FAILED, "%s: %s", strerror(r->err), r->text);
		return false;
	}
	return true;
}

static void setup_done(void *arg, const struct agent_reply *r)
{
	struct sandbox *sb = arg;

	if (agent_answered(sb, r))
		now_running(sb);
}

static void limits_set(void *arg, const struct agent_reply *r)
{
	struct sandbox *sb = arg;

	if (r->err == ECANCELED || !sb->op.launch || !r->err)
		return;
	/* A checkpoint may bring an agent that is older than this request. */
	if (r->err == ENOSYS)
		sandbox_note(sb, "its agent is older than memory limits: it has the whole machine");
	else
		launch_fail(sb, 500, START_FAILED, "%s", *r->text ? r->text : strerror(r->err));
}

/* The machine is as large as its size class. Its processes together may use what was asked for: the guest's
 * kernel limits them, as in a container. Sent before the next request, which does not wait for the answer. false: the launch has failed. */
static bool limits_send(struct sandbox *sb)
{
	struct buf b;

	bool sent;

	if (!sb->spec.memory_bytes || sb->spec.memory_bytes >= MIB(sb->cls.mem_mib))
		return true;
	buf_init(&b, 16);
	buf_u64(&b, sb->spec.memory_bytes);
	sent = agentc_call(sb->agent, AGENT_LIMITS, &b, 0, limits_set, sb) != NULL;
	buf_fini(&b);
	if (!sent)
		launch_fail(sb, 500, START_FAILED, "the agent takes no requests");
	return sent;
}

/* ---- volumes: they are mounted before the daemon starts anything of the user's. If the restored memory
 * had no volumes, its processes run earlier: the thaw comes before the mount */

static bool mount_due(const struct sandbox *sb)
{
	return sb->spec.volumes && !resuming(sb) && !sb->op.launch->mounted;
}

static void do_setup(struct sandbox *sb);

static void mount_done(void *arg, const struct agent_reply *r)
{
	struct sandbox *sb = arg;

	if (r->err == ECANCELED || !sb->op.launch)
		return;
	if (r->err) {
		launch_fail(sb, r->step == AGENT_STEP_PATH ? 400 : 500,
			r->step == AGENT_STEP_PATH ? "VOLUME::INVALID_MOUNT_PATH" : START_FAILED,
			"%s", *r->text ? r->text : strerror(r->err));
		return;
	}
	sb->op.launch->mounted = true;
	if (sb->origin == FROM_MEMORY)
		memory_goes_on(sb);
	else
		do_setup(sb);
}

static void volumes_linked(void *arg, const struct refusal *x)
{
	struct sandbox *sb = arg;
	struct volume_item i;
	const cJSON *v;
	struct buf b;
	uint32_t n = 0;

	if (x) {
		launch_fail(sb, x->status, x->code, "%s", x->msg);
		return;
	}
	buf_init(&b, AGENT_FRAME_MAX);
	buf_u32(&b, (uint32_t)cJSON_GetArraySize(sb->spec.volumes));
	cJSON_ArrayForEach (v, sb->spec.volumes) {
		b.bad |= !volume_item_get(v, &i);
		buf_str(&b, i.mount ? i.mount : "");
		buf_u32(&b, (i.read_only ? AGENT_MO_READ_ONLY : 0) |
				    (fileserver_is_file(sb->files, n) ? AGENT_MO_FILE : 0));
		n++;
	}
	if (b.bad || !agentc_call(sb->agent, AGENT_MOUNT, &b, 0, mount_done, sb))
		launch_fail(sb, 500, START_FAILED, "the agent takes no requests");
	buf_fini(&b);
}

static void do_mount(struct sandbox *sb)
{
	operation_step(sb, STEP_MOUNT);
	fileserver_attach(sb->files, sb->vm, volumes_linked, sb);
}

static void setup_send(struct sandbox *sb);
static void thaw_send(struct sandbox *sb);

/* The agent has answered whether the floor is set. Nothing of the user's has run yet. */
static void floor_set(void *arg, const struct agent_reply *r)
{
	struct sandbox *sb = arg;
	struct err e = {0};

	if (r->err == ECANCELED || !sb->op.launch)
		return;
	if (floor_check(&sb->d->cfg, r, &e) < 0) {
		if (sb->d->cfg.harden_required) {
			launch_fail(sb, 500, START_FAILED, "%s", e.msg);
			return;
		}
		sandbox_note(sb, "%s", e.msg);
	}
	(sb->op.step == STEP_THAW ? thaw_send : setup_send)(sb);
}

/* Goes on with `next` when the floor is set; at once where none is configured. */
static void floor_then(struct sandbox *sb, void (*next)(struct sandbox *sb))
{
	struct buf b;

	if (!floor_wanted(&sb->d->cfg)) {
		next(sb);
		return;
	}
	buf_init(&b, AGENT_FRAME_MAX);
	floor_put(&b, &sb->d->cfg);
	if (!agentc_call(sb->agent, AGENT_HARDEN, &b, 0, floor_set, sb))
		launch_fail(sb, 500, START_FAILED, "the agent takes no requests");
	buf_fini(&b);
}

/* Nothing of a user's has run, and the machine has no identity yet: here a pool's machine waits, for as long as it takes. */
static void launch_held(struct sandbox *sb)
{
	sb->op.ends_ns = 0;
	timer_set(sb->pending, 0);
	turn_end(&sb->op.launch->turn);
	operation_step(sb, STEP_HELD);
	sandbox_created(sb, NULL);
}

void launch_release(struct sandbox *sb)
{
	const struct config *c = &sb->d->cfg;

	sb->hold = false;
	timer_after(sb->pending, (uint64_t)c->pending_after_seconds * SEC);
	/* a create that has not come to STEP_HELD yet will not stop there */
	if (sb->op.step != STEP_HELD)
		return;
	sb->op.begun_ns = mono_ns();
	sb->op.ends_ns = sb->op.begun_ns + (uint64_t)c->create_timeout_seconds * SEC;
	memset(sb->phase_ns, 0, sizeof(sb->phase_ns));
	do_setup(sb);
}

static void do_setup(struct sandbox *sb)
{
	if (sb->hold) {
		launch_held(sb);
		return;
	}
	if (mount_due(sb)) {
		do_mount(sb);
		return;
	}
	operation_step(sb, STEP_SETUP);
	if (limits_send(sb))
		floor_then(sb, setup_send);
}

static void setup_send(struct sandbox *sb)
{
	struct buf b;

	buf_init(&b, AGENT_FRAME_MAX);
	setup_put(&b, sb);
	if (b.bad || !agentc_call(sb->agent, AGENT_SETUP, &b, 0, setup_done, sb))
		launch_fail(sb, 400, "SANDBOX::INVALID_PARAMETER",
			"environment and entrypoint are too long together");
	buf_fini(&b);
}

static void thaw_done(void *arg, const struct agent_reply *r)
{
	struct sandbox *sb = arg;

	if (!agent_answered(sb, r))
		return;
	if (sb->origin == FROM_MEMORY && mount_due(sb))
		do_mount(sb);
	else if (resuming(sb) || sb->origin == FROM_MEMORY)
		memory_goes_on(sb);
	else
		do_setup(sb);
}

static void do_thaw(struct sandbox *sb)
{
	operation_step(sb, STEP_THAW);
	if (resuming(sb))
		thaw_send(sb);
	else if (limits_send(sb))
		floor_then(sb, thaw_send);
}

static void thaw_send(struct sandbox *sb)
{
	struct buf b;

	buf_init(&b, AGENT_FRAME_MAX);
	identity_put(&b, sb);
	if (b.bad || !agentc_call(sb->agent, AGENT_THAW, &b, 0, thaw_done, sb))
		launch_fail(sb, 500, START_FAILED, "the agent takes no requests");
	buf_fini(&b);
}

void launch_continue(struct sandbox *sb)
{
	if (sb->op.kind == OP_CREATE && sb->op.step == STEP_TEMPLATE)
		do_setup(sb);
}

/* ---- the VM's events */

static bool agent_expected(const struct sandbox *sb)
{
	enum op_step s = sb->op.step;

	return sb->op.launch &&
	       (s == STEP_AGENT || s == STEP_AGENT_BACK || s == STEP_BOOT || s == STEP_RESTORE);
}

static void agent_first(struct sandbox *sb, bool prepared);

static void volumes_back(void *arg, const struct refusal *x)
{
	struct sandbox *sb = arg;

	if (x) {
		launch_fail(sb, 500, START_FAILED, "%s", x->msg);
		return;
	}
	sb->op.launch->mounted = true;
	agent_first(sb, sb->op.launch->prepared);
}

/* The restored memory has its volumes mounted: requests wait in the device until the file server is there. */
static void attach_again(struct sandbox *sb, bool prepared)
{
	sb->op.launch->prepared = prepared;
	operation_step(sb, STEP_MOUNT);
	fileserver_attach(sb->files, sb->vm, volumes_back, sb);
}

/* The agent listens: what comes next depends on whether the machine was restored. */
static void agent_first(struct sandbox *sb, bool prepared)
{
	if (sb->op.launch->has_table && !sb->op.launch->mounted) {
		attach_again(sb, prepared);
		return;
	}
	if (resuming(sb))
		fault_at(sb, FAULT_RESUME_READY);
	if (prepared && (sb->origin != FROM_TEMPLATE || resuming(sb))) {
		do_thaw(sb);
	} else if (!prepared && *sb->op.launch->from.state) {
		launch_fail(sb, 500, START_FAILED,
			"the restored machine does not ask for a new identity");
	} else if (!prepared && template_wanted(sb)) {
		operation_step(sb, STEP_TEMPLATE);
		if (!snap_template(sb))
			do_setup(sb);
	} else {
		/* AGENT_SETUP carries the identity, too. It is also the thaw of an image
		 * template's machine, which never had an identity */
		do_setup(sb);
	}
}

static void on_ready(void *arg, bool prepared)
{
	struct sandbox *sb = arg;

	if (!sb->agent) {
		sb->agent = agentc_create(
			sb->d->loop, sb->vm->vsock_path, VSOCK_PORT_AGENT, &sb->traffic);
		if (!sb->agent) {
			launch_fail(sb, 500, START_FAILED, "no memory");
			return;
		}
		agentc_keep_spare(sb->agent);
	}
	if (sb->op.launch && agentc_move(sb->agent, sb->vm->vsock_path) < 0) {
		launch_fail(sb, 500, START_FAILED, "no memory");
		return;
	}
	agentc_up(sb->agent);
	if (agent_expected(sb))
		agent_first(sb, prepared);
}

static void make_disk(struct sandbox *sb);

/* A template that cannot be restored costs time, not the create: the sandbox boots, as if there had
 * been none. */
static bool boot_instead(struct sandbox *sb, const char *why)
{
	struct launch *l = sb->op.launch;
	struct disk plain = {.bytes = sb->disk.bytes};

	if (sb->origin != FROM_TEMPLATE || resuming(sb))
		return false;
	template_bad(sb, why);
	sandbox_note(sb, "its template was refused, it boots: %s", why);
	if (sb->vm)
		vm_abandon(sb->vm);
	sb->vm = NULL;
	str_copy(plain.base, sizeof(plain.base), sb->disk.base);
	disk_unref(sb->d->blobs, &sb->disk);
	memory_unref(sb->d->blobs, &sb->memory);
	sb->disk = plain;
	sb->memory = l->from = (struct memory){0};
	sb->origin = FROM_BOOT;
	sb->origin_id[0] = 0;
	make_disk(sb);
	return true;
}

static void note_restored(struct sandbox *sb, struct cur *body)
{
	uint16_t n = cur_u16(body);

	verify_restored(sb->d, &sb->op.launch->from);
	for (unsigned int i = 0; i < n && i < 16 && !body->bad; i++) {
		char name[32];
		uint64_t ns;

		cur_str(body, name, sizeof(name));
		ns = cur_u64(body);
		if (!body->bad)
			sandbox_note(sb, "restore %s %.3f ms", name, (double)ns / 1e6);
	}
}

static void on_loaded(void *arg, int err, const char *text, struct cur *body)
{
	struct sandbox *sb = arg;
	bool restored;

	if (!sb->op.launch || err == ECONNRESET)
		return;
	restored = *sb->op.launch->from.state != 0;
	if (err) {
		if (boot_instead(sb, text))
			return;
		if (restored && !resuming(sb))
			utemplate_bad(sb);
		launch_fail(sb, 500, START_FAILED, "%s (%s)", text, strerror(err));
		return;
	}
	if (resuming(sb))
		fault_at(sb, FAULT_RESUME_LOADED);
	if (restored)
		note_restored(sb, body);
	if (sb->op.step == STEP_BOOT || sb->op.step == STEP_RESTORE)
		operation_step(sb, restored ? STEP_AGENT_BACK : STEP_AGENT);
}

static int restore(struct sandbox *sb, const struct vm_disk_fds *disk, struct err *e)
{
	struct launch *l = sb->op.launch;
	const char *bad = verify_damage(sb->d, &l->from);
	struct vm_restore_fds mem;
	int rc = bad ? err_plain(e, EBADMSG, "%s", bad)
		     : memory_fds_open(sb->d->blobs, &l->from, &mem, e);

	if (rc < 0)
		return rc;
	fault_tell_vm(sb);
	rc = vm_restore(sb->vm, &mem, disk, verify_known(sb->d, &l->from) ? 0 : VMM_F_VERIFY);
	memory_fds_close(&mem);
	return rc < 0 ? err_set(e, -rc, "the VMM takes no requests") : 0;
}

static void load(struct sandbox *sb)
{
	struct launch *l = sb->op.launch;
	struct vm_disk_fds disk;
	struct err e;
	int rc = disk_fds_open(sb->d->blobs, &sb->disk, &disk, &e);

	sb->vm_slot = sb->vm->slot;
	sb->vm_pid = sb->vm->pid;
	sb->vm_start = sb->vm->start_time;
	if (rc < 0) {
		if (!boot_instead(sb, e.msg))
			launch_fail(sb, 500, START_FAILED, "%s", e.msg);
		return;
	}
	vm_limits(sb->vm, sb->spec.cpu_millis);
	disk_guard_layer(sb, disk.data, disk.bitmap);
	if (*l->from.state) {
		operation_step(sb, STEP_RESTORE);
		rc = restore(sb, &disk, &e);
		if (resuming(sb))
			fault_at(sb, FAULT_RESUME_ASKED);
	} else {
		operation_step(sb, STEP_BOOT);
		rc = vm_boot(sb->vm, "reboot=t", &disk);
		if (rc < 0)
			err_set(&e, -rc, "the VMM takes no requests");
	}
	disk_fds_close(&disk);
	if (rc == 0)
		disk_guard_monitor(sb);
	if (rc < 0 && !boot_instead(sb, e.msg))
		launch_fail(sb, 500, START_FAILED, "%s", e.msg);
}

/* Called when the monitor is blank and when the private layer is made: the later call loads. */
static void load_if_ready(struct sandbox *sb)
{
	if (sb->vm->phase != VM_BLANK)
		return;
	if (sb->op.launch->layer)
		operation_step(sb, STEP_DISK);
	else
		load(sb);
}

static void on_blank(void *arg)
{
	struct sandbox *sb = arg;

	if (sb->op.launch && sb->op.step == STEP_VMM)
		load_if_ready(sb);
}

static void on_snapshot(void *arg, int status, uint32_t kept, const char *text)
{
	snap_durable(arg, status, kept, text);
}

/* A machine is being restored, or was restored or booted, and its agent has not said anything yet. */
static bool restoring(const struct sandbox *sb)
{
	enum op_step s = sb->op.step;

	return sb->op.launch && (s == STEP_RESTORE || s == STEP_AGENT || s == STEP_AGENT_BACK);
}

static void on_ended(void *arg, uint32_t reason, const char *text)
{
	struct sandbox *sb = arg;
	bool running = sb->state == SB_RUNNING;

	sb->vm = NULL;
	sandbox_ref(sb);
	if (snap_vm_ended(sb, reason, text) || (restoring(sb) && boot_instead(sb, text))) {
		/* its end was expected (a pause), or the sandbox boots instead */
	} else if (sb->op.launch) {
		launch_fail(sb, 500, START_FAILED, "%s", text);
	} else if (sandbox_apply(sb, EV_VM_ENDED, "VM_ENDED", "%s", text)) {
		sb->d->metrics.ended += running;
		launch_teardown(sb);
	}
	sandbox_unref(sb);
}

#define DISK_WAITS_NS 200000000ull

/* A hostile monitor may send this event all the time. So a change that comes within 200 ms after the last one is ignored. An honest monitor
 * sends one so soon only if the disk is full again at once: then the sandbox's events miss it. */
static void on_disk_full(void *arg, uint32_t waiting)
{
	struct sandbox *sb = arg;
	uint64_t now = mono_ns();

	if ((waiting != 0) == sb->disk_waits ||
		(sb->disk_waits_ns && now - sb->disk_waits_ns < DISK_WAITS_NS))
		return;
	sb->disk_waits = waiting != 0;
	sb->disk_waits_ns = now;
	log_limited(LOG_WARN, "sandbox %s: %s", sb->id,
		waiting ? "its writes wait: the disk of this host is full"
			: "its writes go on: the disk of this host has room again");
	sandbox_note(sb, waiting ? "writes wait: the disk of this host is full"
				 : "writes go on: the disk of this host has room again");
}

static void on_net_wanted(void *arg)
{
	struct network_limits limits = {0};
	struct sandbox *sb = arg;
	struct err e = {0};
	struct buf b;

	if (network_limits_read(sb->spec.extensions, &limits, &e) < 0)
		log_warn("sandbox %s: %s The configuration's limits hold.", sb->id, e.msg);
	buf_init(&b, MIB(4));
	egress_policy_wire(sb->spec.network_policy, &b);
	if (!b.bad)
		network_start(sb->d->networks, sb->vm, &b, &limits);
	buf_fini(&b);
}

static void on_net_denied(void *arg, const char *place, const char *why)
{
	struct sandbox *sb = arg;

	sandbox_note(sb, "network: denied %.60s (%s)", place, why);
	if (sb->spec.deny_webhook)
		network_hook(sb->d->networks, sb->spec.deny_webhook, sb->id, place);
}

void launch_network_policy(struct sandbox *sb)
{
	struct buf b;

	if (!sb->vm)
		return;
	buf_init(&b, MIB(4));
	egress_policy_wire(sb->spec.network_policy, &b);
	network_policy(sb->d->networks, sb->vm, &b);
	buf_fini(&b);
}

static void on_files_lost(void *arg, const char *why)
{
	struct sandbox *sb = arg;

	if (sb->files)
		fileserver_lost(sb->files, why);
}

static void on_files_table(void *arg, int fd)
{
	struct sandbox *sb = arg;

	if (sb->files)
		fileserver_table(sb->files, fd);
	else
		close(fd);
}

static const struct vm_ops vm_ops = {.blank = on_blank,
	.loaded = on_loaded,
	.ready = on_ready,
	.net_wanted = on_net_wanted,
	.net_denied = on_net_denied,
	.files_lost = on_files_lost,
	.files_table = on_files_table,
	.disk_full = on_disk_full,
	.snapshot = on_snapshot,
	.ended = on_ended};

static void get_vm(struct sandbox *sb)
{
	struct err e;

	operation_step(sb, STEP_VMM);
	sb->vm = vm_acquire(sb->d->vms, sb->cls, &vm_ops, sb, &e);
	if (!sb->vm) {
		launch_fail(sb, 503, START_FAILED, "%s", e.msg);
		return;
	}
	load_if_ready(sb);
}

/* ---- image and disk */

static void disk_made(void *arg, const char *data, const struct err *e)
{
	struct sandbox *sb = arg;

	sb->op.launch->layer = NULL;
	if (e) {
		operation_step(sb, STEP_DISK);
		launch_fail(sb, 500, START_FAILED, "%s", e->msg);
		return;
	}
	/* Drops the old private layer. At a resume an earlier attempt may have written to it, and the memory
	 * that is restored does not know that. */
	blob_unref(sb->d->blobs, sb->disk.data);
	str_copy(sb->disk.data, sizeof(sb->disk.data), data);
	if (resuming(sb))
		fault_at(sb, FAULT_RESUME_DISK);
	if (sb->vm)
		load_if_ready(sb);
}

/* Makes the private layer and gets a monitor at the same time: neither needs the other. */
static void make_disk(struct sandbox *sb)
{
	struct launch *l = sb->op.launch;

	operation_step(sb, STEP_DISK);
	l->layer = disk_private_make(sb->d->blobs, sb->disk.bytes, disk_made, sb);
	if (l->layer)
		get_vm(sb);
	else
		launch_fail(sb, 500, START_FAILED, "no memory");
}

static int disk_of_image(struct sandbox *sb, const char *path, struct err *e)
{
	struct stat st;
	uint64_t want = MIB(sb->d->cfg.disk_mib);

	if (stat(path, &st) < 0)
		return err_set(e, errno, "%s", path);
	snprintf(sb->disk.base, sizeof(sb->disk.base), "%s", path);
	sb->disk.bytes = ALIGN_UP(MAX((uint64_t)st.st_size, want), (uint64_t)4096);
	return 0;
}

static void has_turn(struct sandbox *sb)
{
	/* only now: while this create waited, another one may have made the template */
	if (sb->spec.source == SRC_IMAGE && template_use(sb, &sb->op.launch->from))
		sb->origin = FROM_TEMPLATE;
	make_disk(sb);
}

static void wait_turn(struct sandbox *sb)
{
	operation_step(sb, STEP_TURN);
	turn_take(&sb->op.launch->turn, sb, has_turn);
}

static void base_there(struct sandbox *sb, const char *path)
{
	struct err e;

	if (disk_of_image(sb, path, &e) < 0)
		launch_fail(sb, 500, START_FAILED, "%s", e.msg);
	else
		wait_turn(sb);
}

static void base_made(void *arg, const char *path, const struct err *e)
{
	struct sandbox *sb = arg;

	sb->op.launch->base = NULL;
	if (e)
		launch_fail(sb, 500, START_FAILED, "%s", e->msg);
	else
		base_there(sb, path);
}

static void base_of(struct sandbox *sb, const char *path)
{
	if (sb->d->cfg.share_memory) {
		base_there(sb, path);
		return;
	}
	operation_step(sb, STEP_DISK);
	sb->op.launch->base = own_base_make(sb->d->io, path, sb->owner, base_made, sb);
	if (!sb->op.launch->base)
		launch_fail(sb, 500, START_FAILED, "no memory");
}

static void on_image(void *arg, struct image *img, const struct err *failed)
{
	struct sandbox *sb = arg;

	sb->op.launch->image = NULL;
	spec_forget_credentials(&sb->spec);
	if (!img) {
		bool none = failed->code == ENOENT;

		launch_fail(sb, none ? 404 : 500, "DOCKER::SANDBOX_IMAGE_PULL_FAILED", "%s: %s",
			sb->spec.image, failed->msg);
		return;
	}
	snprintf(sb->image_digest, sizeof(sb->image_digest), "%s", img->digest);
	sb->image_config = take_ptr(img->config);
	base_of(sb, img->disk);
}

static void on_progress(void *arg, const char *text)
{
	struct sandbox *sb = arg;

	snprintf(sb->message, sizeof(sb->message), "%s: %.300s", op_steps[STEP_IMAGE].name, text);
}

static struct launch *launch_begin(struct sandbox *sb)
{
	struct launch *l = calloc(1, sizeof(*l));

	memset(sb->phase_ns, 0, sizeof(sb->phase_ns));
	if (l) {
		l->sb = sb;
		l->resume = resuming(sb);
		sb->op.launch = l;
	}
	return l;
}

/* Gets the image's disk. A snapshot, template or fork was put into the sandbox by its route. */
static void get_source(struct sandbox *sb)
{
	struct launch *l = sb->op.launch;
	struct err e;

	operation_step(sb, STEP_IMAGE);
	if (sb->spec.source == SRC_IMAGE) {
		l->image = image_get(sb->d, sb->spec.image, sb->spec.auth_user,
			sb->spec.auth_password, sb->owner, on_progress, on_image, sb, &e);
		if (!l->image)
			launch_fail(sb, 500, "DOCKER::SANDBOX_IMAGE_PULL_FAILED", "%s: %s",
				sb->spec.image, e.msg);
		return;
	}
	l->from = sb->memory;
	sb->origin = *l->from.state ? FROM_MEMORY : FROM_BOOT;
	wait_turn(sb);
}

/* The sources are open, and the table of a checkpoint is there. */
static void volumes_ready(struct sandbox *sb)
{
	if (resuming(sb))
		make_disk(sb);
	else
		get_source(sb);
}

static void table_loaded(void *arg, int fd, const struct err *e)
{
	struct sandbox *sb = arg;

	sb->op.launch->table = NULL;
	if (!e) {
		fileserver_table(sb->files, fd);
		sb->op.launch->has_table = true;
	} else if (e->code != ENOENT || resuming(sb)) {
		launch_fail(sb, 500, START_FAILED, "%s", e->msg);
		return;
	}
	volumes_ready(sb);
}

static void volumes_opened(void *arg, const struct refusal *x)
{
	struct sandbox *sb = arg;
	struct launch *l = sb->op.launch;

	if (x && resuming(sb)) {
		launch_fail(sb, 500, START_FAILED, "%s", x->msg);
	} else if (x) {
		launch_fail(sb, x->status, x->code, "%s", x->msg);
	} else if (sb->spec.source == SRC_IMAGE && !resuming(sb)) {
		volumes_ready(sb);
	} else if (!*sb->memory.state) {
		volumes_ready(sb); /* a snapshot's disk alone */
	} else {
		l->table = table_load(sb->d->blobs, sb->memory.state, table_loaded, sb);
		if (!l->table)
			launch_fail(sb, 500, START_FAILED, "no memory");
	}
}

/* The first step of all: if a volume cannot be opened, nothing else was done. */
static void open_volumes(struct sandbox *sb)
{
	struct refusal x = {0};

	operation_step(sb, STEP_VOLUMES);
	/* again for a paused sandbox or a snapshot: the configuration may have changed */
	if (volumes_allowed(sb->spec.volumes, &sb->d->cfg, &x) < 0) {
		launch_fail(sb, resuming(sb) ? 500 : x.status, x.code, "%s", x.msg);
		return;
	}
	if (!sb->volumes_held)
		sb->volumes_held =
			volumes_hold(sb->d->volumes, sb->spec.volumes, sb->owner, &x) == 0;
	if (sb->volumes_held)
		sb->files = fileserver_open(
			sb->d->volumes, sb->spec.volumes, !resuming(sb), volumes_opened, sb, &x);
	if (!sb->files)
		launch_fail(sb, x.status, x.code, "%s", x.msg);
}

void launch_create(struct sandbox *sb)
{
	const struct config *c = &sb->d->cfg;

	if (sb->phase == PHASE_NEW)
		sandbox_accept(sb);
	operation_begin(sb, OP_CREATE, c->create_timeout_seconds);
	timer_after(sb->pending, (uint64_t)c->pending_after_seconds * SEC);
	if (!launch_begin(sb)) {
		launch_fail(sb, 500, START_FAILED, "no memory");
		return;
	}
	if (sb->spec.volumes)
		open_volumes(sb);
	else
		get_source(sb);
}

static void create_again(void *arg)
{
	struct sandbox *sb = arg;

	if (sb->phase == PHASE_ACCEPTED)
		launch_create(sb);
	sandbox_unref(sb);
}

bool launch_take_up(struct sandbox *sb)
{
	if (strcmp(sb->reason, PROMISED) != 0)
		return false;
	sb->vm_pid = 0;
	if (sb->spec.source == SRC_IMAGE) {
		disk_unref(sb->d->blobs, &sb->disk);
		memory_unref(sb->d->blobs, &sb->memory);
		sb->disk = (struct disk){0};
		sb->memory = (struct memory){0};
		sb->origin = FROM_BOOT;
		sb->origin_id[0] = 0;
		cJSON_Delete(take_ptr(sb->image_config));
	} else if (*sb->disk.data) {
		/* the files of a snapshot or template are complete, but for the private layer: a
		 * VM may have written to it */
		blob_unref(sb->d->blobs, sb->disk.data);
		sb->disk.data[0] = 0;
	}
	sandbox_ref(sb);
	if (!loop_defer(sb->d->loop, create_again, sb))
		return true;
	sandbox_unref(sb);
	return false;
}

void launch_resume_begun(struct sandbox *sb)
{
	if (!launch_begin(sb)) {
		launch_fail(sb, 500, START_FAILED, "no memory");
		return;
	}
	fault_at(sb, FAULT_RESUME_BEGUN);
	sb->op.launch->from = sb->memory;
	if (sb->spec.volumes)
		open_volumes(sb);
	else
		make_disk(sb);
}

static void resume_begun(struct sandbox *sb, bool saved)
{
	struct http_req *r = saved ? NULL : operation_client(sb);

	if (saved)
		launch_resume_begun(sb);
	else if (r)
		http_error(r, 500, "DOCKER::SANDBOX_RESUME_FAILED",
			"The record of sandbox %s cannot be written; it stays Paused.", sb->id);
}

void launch_resume(struct sandbox *sb)
{
	struct http_req *r;
	struct refusal x;

	if (admission_check_resume(sb, &x) < 0) {
		r = operation_client(sb);
		if (!r)
			return;
		http_add_header(r, "Retry-After", "1");
		http_error(r, x.status, x.code, "%s It stays Paused.", x.msg);
		return;
	}
	operation_begin_saved(
		sb, OP_RESUME, sb->d->cfg.resume_timeout_seconds, "RESUMING", resume_begun);
}

bool launch_adopt(struct sandbox *sb)
{
	if (vm_adopt(sb->d->vms, sb->vm_slot, sb->vm_pid, sb->vm_start, sb->cls, &vm_ops, sb,
		    &sb->vm) < 0)
		return false;
	sb->agent = agentc_create(sb->d->loop, sb->vm->vsock_path, VSOCK_PORT_AGENT, &sb->traffic);
	if (!sb->agent)
		return false;
	agentc_keep_spare(sb->agent);
	if (sb->spec.volumes) {
		sb->files = fileserver_adopt(sb->d->volumes, sb->spec.volumes, sb->vm);
		if (!sb->files)
			return false;
	}
	entry_watch(sb);
	if (sb->phase == PHASE_RESIDENT || sb->op.kind == OP_PAUSE_MEMORY) {
		resident_take_up(sb);
		return true;
	}
	if (sb->op.kind == OP_PAUSE)
		return true;
	agentc_up(sb->agent);
	/* The last daemon may have died between freezing the guest's processes and thawing them. If
	 * they were not frozen, the agent only takes the identity again, which does no harm. While a checkpoint was being taken the
	 * guest may be frozen: recover.c thaws it when the state of the monitor is known. */
	if (!sb->op.snap)
		operation_thaw(sb);
	own_api_start(sb);
	return true;
}

/* ---- clearing away */

struct reap {
	struct sandbox *sb;
	struct agentc *agent;
	struct agent_exec *entry;
};

static void agent_reap(void *arg)
{
	struct reap *r = arg;

	if (r->entry)
		agent_exec_close(r->entry);
	agentc_destroy(r->agent);
	sandbox_unref(r->sb);
	free(r);
}

void launch_teardown(struct sandbox *sb)
{
	struct reap *x;

	operation_drop(sb);
	fileserver_destroy(take_ptr(sb->files));
	workset_sandbox_goes(sb);
	if (sb->agent) {
		/* not from inside one of its own callbacks */
		x = calloc(1, sizeof(*x));
		ASSERT(x);
		x->sb = sb;
		x->agent = take_ptr(sb->agent);
		x->entry = take_ptr(sb->entry);
		sandbox_ref(sb);
		agentc_down(x->agent);
		if (loop_defer(sb->d->loop, agent_reap, x) < 0)
			agent_reap(x);
	}
	if (sb->vm) {
		vm_abandon(sb->vm);
		sb->vm = NULL;
	}
}
