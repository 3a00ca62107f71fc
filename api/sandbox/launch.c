/* SPDX-License-Identifier: Apache-2.0
 *
 * launch.c: from a checked request to Running: image, disk, VMM, boot or restore, the agent's word,
 * identity, entrypoint. mayflyd's loop. Each step is an event's handler; one deadline stands over
 * all of them, a shorter one over each of a VMM's, and a failure names its step. Nothing is handed
 * to the user before the agent has confirmed that the machine is another one (THAW after every
 * restore): it fails closed.
 */
#include "api/sandbox/launch.h"

#include <cjson/cJSON.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "api/sandbox/entrypoint.h"
#include "api/sandbox/fault.h"
#include "api/sandbox/identity.h"
#include "api/links/images.h"
#include "api/sandbox/resident_pause.h"
#include "api/sandbox/take.h"
#include "api/checkpoint/image_template.h"
#include "api/checkpoint/user_template.h"
#include "api/checkpoint/verify.h"
#include "api/checkpoint/working_set.h"
#include "lib/log.h"

#define SEC          1000000000ull
#define START_FAILED "DOCKER::SANDBOX_START_FAILED"
#define PROMISED     "PENDING" /* status.reason of one whose client was told that it is coming */

const char *const step_names[STEP_COUNT] = {[STEP_IMAGE] = "getting the image",
	[STEP_TURN] = "waiting for its turn",
	[STEP_DISK] = "making the disk",
	[STEP_VMM] = "starting the VMM",
	[STEP_BOOT] = "booting",
	[STEP_RESTORE] = "restoring",
	[STEP_AGENT] = "waiting for the agent",
	[STEP_THAW] = "giving it its identity",
	[STEP_SNAPSHOT] = "taking the template",
	[STEP_SETUP] = "starting the entrypoint",
	[STEP_RUN] = "running"};

/* One deadline over all, and a shorter one for what a VMM alone must answer: one that hangs is not
 * waited for as a registry is. */
static void step_deadline(struct sandbox *sb)
{
	struct launch *l = sb->launch;
	const struct config *c = &sb->d->cfg;
	bool vmm = l->step == STEP_VMM || l->step == STEP_BOOT || l->step == STEP_RESTORE ||
		   l->step == STEP_THAW || l->step == STEP_SETUP ||
		   (l->step == STEP_AGENT && *l->from.state);
	uint64_t at = l->ends_ns;

	l->limit_s = l->resume ? c->resume_timeout_seconds : c->create_timeout_seconds;
	if (vmm && l->step_ns + (uint64_t)c->step_timeout_seconds * SEC < at) {
		l->limit_s = c->step_timeout_seconds;
		at = l->step_ns + (uint64_t)l->limit_s * SEC;
	}
	if (sb->deadline)
		timer_set(sb->deadline, at);
}

static void step_to(struct sandbox *sb, enum step s)
{
	static const enum phase phases[STEP_COUNT] = {[STEP_IMAGE] = PH_IMAGE,
		[STEP_TURN] = PH_TURN,
		[STEP_DISK] = PH_DISK,
		[STEP_VMM] = PH_BLANK,
		[STEP_BOOT] = PH_BOOT,
		[STEP_RESTORE] = PH_RESTORE,
		[STEP_AGENT] = PH_AGENT,
		[STEP_THAW] = PH_SETUP,
		[STEP_SNAPSHOT] = PH_SNAPSHOT,
		[STEP_SETUP] = PH_SETUP,
		[STEP_RUN] = PH_SETUP};
	struct launch *l = sb->launch;
	uint64_t now = mono_ns();

	sb->phase_ns[phases[l->step]] += now - l->step_ns;
	l->step = s;
	l->step_ns = now;
	step_deadline(sb);
	if (sb->state == SB_PENDING)
		snprintf(sb->message, sizeof(sb->message), "%s", step_names[s]);
}

static void launch_end(struct sandbox *sb)
{
	struct launch *l = sb->launch;

	/* also those of a pause, or of a resume without a launch */
	timer_remove(take_ptr(sb->deadline));
	timer_remove(take_ptr(sb->pending));
	if (!l)
		return;
	sb->launch = NULL;
	turn_end(&l->turn);
	if (l->image)
		image_cancel(l->image);
	snap_cancel(l->snap);
	free(l);
}

/* ---- answers */

static struct http_req *take_answer(struct sandbox *sb)
{
	struct http_req *r = sb->answer;

	sb->answer = NULL;
	return r;
}

static void answer_created(struct sandbox *sb)
{
	struct http_req *r = take_answer(sb);

	if (r)
		http_reply_json(r, 202, sandbox_to_json(sb, true));
}

void launch_fail(struct sandbox *sb, int status, const char *code, const char *fmt, ...)
{
	bool resume = sb->launch && sb->launch->resume;
	struct http_req *r = take_answer(sb);
	enum step step = sb->launch ? sb->launch->step : STEP_RUN;
	char text[420];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	launch_end(sb);
	sb->d->metrics.create_failed += !resume;
	sandbox_ref(sb);
	/* a resume stays Paused, however far it got: what it was paused with is whole, and its
	 * private layer is made anew */
	sandbox_apply(sb, EV_START_FAILED, resume ? "RESUME_FAILED" : "START_FAILED", "%s: %s",
		step_names[step], text);
	launch_teardown(sb);
	if (r) {
		http_error(r, status, code, "%s: %s", step_names[step], text);
		/* an answered failure leaves nothing behind; one that was Pending stays to be
		 * looked at */
		if (!resume)
			sandbox_delete(sb, "creation failed");
	}
	sandbox_unref(sb);
}

static void deadline_passed(void *arg)
{
	struct sandbox *sb = arg;

	launch_fail(
		sb, 504, START_FAILED, "not done within %lld s", (long long)sb->launch->limit_s);
}

int launch_promise(struct sandbox *sb)
{
	char old[sizeof(sb->reason)];
	int rc;

	memcpy(old, sb->reason, sizeof(old));
	snprintf(sb->reason, sizeof(sb->reason), PROMISED);
	rc = sandbox_save(sb, false);
	if (rc < 0)
		memcpy(sb->reason, old, sizeof(old));
	return rc;
}

static void is_pending(void *arg)
{
	struct sandbox *sb = arg;

	if (sb->state != SB_PENDING)
		return;
	if (launch_promise(sb) == 0)
		answer_created(sb);
	else
		timer_after(sb->pending, SEC);
}

/* ---- the last steps: identity, entrypoint, Running */

static void now_running(struct sandbox *sb)
{
	struct launch *l = sb->launch;
	bool resume = l->resume;

	step_to(sb, STEP_RUN);
	sb->frozen = false;
	if (resume)
		fault_at(sb, FAULT_RESUME_THAWED);
	if (!sandbox_apply_saved(sb, resume ? EV_RESUMED : EV_STARTED, "CONTAINER_RUNNING")) {
		launch_fail(sb, 500, START_FAILED, "the record cannot be written");
		return;
	}
	if (resume)
		fault_at(sb, FAULT_RESUME_SAVED);
	sb->phase_ns[resume ? PH_RESUME : PH_CREATE] = mono_ns() - sb->begun_ns;
	for (int p = 0; p < PH_COUNT; p++)
		if (sb->phase_ns[p])
			hist_add(&sb->d->metrics.phase[p], sb->phase_ns[p]);
	if (!resume) {
		sb->d->metrics.created++;
		if (sb->origin == FROM_BOOT)
			sb->d->metrics.booted++;
		else
			sb->d->metrics.restored++;
	}
	launch_end(sb);
	entry_watch(sb);
	if (resume) {
		struct http_req *r = take_answer(sb);

		if (r)
			http_reply_empty(r, 202);
	} else {
		answer_created(sb);
	}
	vms_refill(sb->d->vms, sb->cls);
	if (!resume && sb->origin != FROM_BOOT)
		workset_ran(sb);
}

static bool agent_answered(struct sandbox *sb, const struct agent_reply *r)
{
	if (r->err == ECANCELED || !sb->launch)
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

static void do_setup(struct sandbox *sb)
{
	struct buf b;

	step_to(sb, STEP_SETUP);
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
	if (sb->launch->resume || sb->origin == FROM_MEMORY)
		now_running(sb);
	else
		do_setup(sb);
}

static void do_thaw(struct sandbox *sb)
{
	struct buf b;

	step_to(sb, STEP_THAW);
	buf_init(&b, AGENT_FRAME_MAX);
	identity_put(&b, sb);
	if (b.bad || !agentc_call(sb->agent, AGENT_THAW, &b, 0, thaw_done, sb))
		launch_fail(sb, 500, START_FAILED, "the agent takes no requests");
	buf_fini(&b);
}

void launch_continue(struct sandbox *sb)
{
	sb->launch->snap = NULL;
	do_setup(sb);
}

/* ---- the VM's events */

static void on_ready(void *arg, bool prepared)
{
	struct sandbox *sb = arg;
	struct launch *l = sb->launch;

	if (!sb->agent) {
		sb->agent = agentc_create(sb->d->loop, sb->vm->vsock_path, VSOCK_PORT_AGENT);
		if (!sb->agent) {
			launch_fail(sb, 500, START_FAILED, "no memory");
			return;
		}
		agentc_keep_spare(sb->agent);
	}
	if (l && agentc_move(sb->agent, sb->vm->vsock_path) < 0) {
		launch_fail(sb, 500, START_FAILED, "no memory");
		return;
	}
	agentc_up(sb->agent);
	if (!l || (l->step != STEP_AGENT && l->step != STEP_BOOT && l->step != STEP_RESTORE))
		return;
	if (l->resume)
		fault_at(sb, FAULT_RESUME_READY);
	if (prepared && (sb->origin != FROM_TEMPLATE || l->resume)) {
		do_thaw(sb);
	} else if (!prepared && *l->from.state) {
		launch_fail(sb, 500, START_FAILED,
			"the restored machine does not ask for a new identity");
	} else if (!prepared && template_wanted(sb)) {
		l->took_template = true;
		step_to(sb, STEP_SNAPSHOT);
		l->snap = snap_template(sb);
		if (!l->snap)
			do_setup(sb);
	} else {
		/* it carries the identity, too, and is the thaw of a template's machine, which
		 * never had one */
		do_setup(sb);
	}
}

static void make_disk(struct sandbox *sb);

/* A template that cannot be restored costs time, not the create: the sandbox boots, as if there had
 * been none. */
static bool boot_instead(struct sandbox *sb, const char *why)
{
	struct launch *l = sb->launch;
	struct disk plain = {.bytes = sb->disk.bytes};

	if (sb->origin != FROM_TEMPLATE || l->resume)
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

static void on_loaded(void *arg, int err, const char *text, struct cur *body)
{
	struct sandbox *sb = arg;

	if (!sb->launch || err == ECONNRESET)
		return;
	if (err) {
		if (boot_instead(sb, text))
			return;
		if (*sb->launch->from.state && !sb->launch->resume)
			utemplate_bad(sb);
		launch_fail(sb, 500, START_FAILED, "%s (%s)", text, strerror(err));
		return;
	}
	if (sb->launch->resume)
		fault_at(sb, FAULT_RESUME_LOADED);
	if (*sb->launch->from.state) {
		uint16_t n = cur_u16(body);

		verify_restored(sb->d, &sb->launch->from);

		for (unsigned int i = 0; i < n && i < 16 && !body->bad; i++) {
			char name[32];
			uint64_t ns;

			cur_str(body, name, sizeof(name));
			ns = cur_u64(body);
			if (!body->bad)
				sandbox_note(sb, "restore %s %.3f ms", name, (double)ns / 1e6);
		}
	}
	if (sb->launch->step == STEP_BOOT || sb->launch->step == STEP_RESTORE)
		step_to(sb, STEP_AGENT);
}

static int restore(struct sandbox *sb, const struct vm_disk_fds *disk, struct err *e)
{
	struct launch *l = sb->launch;
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
	struct launch *l = sb->launch;
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
	vm_limits(sb->vm, sb->spec.cpu_millis, sb->spec.memory_bytes);
	if (*l->from.state) {
		step_to(sb, STEP_RESTORE);
		rc = restore(sb, &disk, &e);
		if (l->resume)
			fault_at(sb, FAULT_RESUME_ASKED);
	} else {
		step_to(sb, STEP_BOOT);
		rc = vm_boot(sb->vm, "reboot=t", &disk);
		if (rc < 0)
			err_set(&e, -rc, "the VMM takes no requests");
	}
	disk_fds_close(&disk);
	if (rc < 0 && !boot_instead(sb, e.msg))
		launch_fail(sb, 500, START_FAILED, "%s", e.msg);
}

static void on_blank(void *arg)
{
	struct sandbox *sb = arg;

	if (sb->launch && sb->launch->step == STEP_VMM)
		load(sb);
}

static void on_snapshot(void *arg, int status, uint32_t kept, const char *text)
{
	snap_durable(arg, status, kept, text);
}

static void on_ended(void *arg, uint32_t reason, const char *text)
{
	struct sandbox *sb = arg;
	bool running = sb->state == SB_RUNNING;

	sb->vm = NULL;
	sandbox_ref(sb);
	if (snap_vm_ended(sb, reason, text) ||
		(sb->launch &&
			(sb->launch->step == STEP_RESTORE || sb->launch->step == STEP_AGENT) &&
			boot_instead(sb, text))) {
		/* it was to end: paused; or nothing of the user's ran in it */
	} else if (sb->launch) {
		launch_fail(sb, 500, START_FAILED, "%s", text);
	} else if (sandbox_apply(sb, EV_VM_DIED, "VM_ENDED", "%s", text)) {
		sb->d->metrics.ended += running;
		launch_teardown(sb);
	}
	sandbox_unref(sb);
}

static const struct vm_ops vm_ops = {.blank = on_blank,
	.loaded = on_loaded,
	.ready = on_ready,
	.snapshot = on_snapshot,
	.ended = on_ended};

const struct vm_ops *launch_vm_ops(void)
{
	return &vm_ops;
}

static void get_vm(struct sandbox *sb)
{
	struct err e;

	step_to(sb, STEP_VMM);
	sb->vm = vm_acquire(sb->d->vms, sb->cls, &vm_ops, sb, &e);
	if (!sb->vm) {
		launch_fail(sb, 503, START_FAILED, "%s", e.msg);
		return;
	}
	if (sb->vm->phase == VM_BLANK)
		load(sb);
}

/* ---- image and disk */

static void make_disk(struct sandbox *sb)
{
	struct err e;

	step_to(sb, STEP_DISK);
	if (disk_private_make(sb->d->blobs, &sb->disk, &e) < 0) {
		launch_fail(sb, 500, START_FAILED, "%s", e.msg);
		return;
	}
	get_vm(sb);
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
	/* only now: while it waited, one before it may have made the template */
	if (sb->spec.source == SRC_IMAGE && template_use(sb, &sb->launch->from))
		sb->origin = FROM_TEMPLATE;
	make_disk(sb);
}

static void wait_turn(struct sandbox *sb)
{
	step_to(sb, STEP_TURN);
	turn_take(&sb->launch->turn, sb, has_turn);
}

static void on_image(void *arg, struct image *img, const struct err *failed)
{
	struct sandbox *sb = arg;
	struct err e;

	sb->launch->image = NULL;
	spec_forget_credentials(&sb->spec);
	if (!img) {
		bool none = failed->code == ENOENT;

		launch_fail(sb, none ? 404 : 500, "DOCKER::SANDBOX_IMAGE_PULL_FAILED", "%s: %s",
			sb->spec.image, failed->msg);
		return;
	}
	snprintf(sb->image_digest, sizeof(sb->image_digest), "%s", img->digest);
	sb->image_config = take_ptr(img->config);
	if (disk_of_image(sb, img->disk, &e) < 0) {
		launch_fail(sb, 500, START_FAILED, "%s", e.msg);
		return;
	}
	wait_turn(sb);
}

static void on_progress(void *arg, const char *text)
{
	struct sandbox *sb = arg;

	snprintf(sb->message, sizeof(sb->message), "%s: %.300s", step_names[STEP_IMAGE], text);
}

static struct launch *launch_begin(struct sandbox *sb, bool resume)
{
	struct launch *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	*l = (struct launch){.sb = sb, .resume = resume, .step_ns = mono_ns()};
	sb->launch = l;
	sb->begun_ns = l->step_ns;
	memset(sb->phase_ns, 0, sizeof(sb->phase_ns));
	sb->deadline = loop_timer(sb->d->loop, deadline_passed, sb);
	sb->pending = loop_timer(sb->d->loop, is_pending, sb);
	l->ends_ns = l->step_ns + (uint64_t)(resume ? sb->d->cfg.resume_timeout_seconds
						    : sb->d->cfg.create_timeout_seconds) *
					  SEC;
	step_deadline(sb);
	if (sb->pending && !resume)
		timer_after(sb->pending, (uint64_t)sb->d->cfg.pending_after_seconds * SEC);
	return l;
}

void launch_create(struct sandbox *sb)
{
	struct launch *l = launch_begin(sb, false);
	struct err e;

	if (!l) {
		launch_fail(sb, 500, START_FAILED, "no memory");
		return;
	}
	if (sb->spec.source == SRC_IMAGE) {
		l->image = image_get(sb->d, sb->spec.image, sb->spec.auth_user,
			sb->spec.auth_password, sb->owner, on_progress, on_image, sb, &e);
		if (!l->image)
			launch_fail(sb, 500, "DOCKER::SANDBOX_IMAGE_PULL_FAILED", "%s: %s",
				sb->spec.image, e.msg);
		return;
	}
	/* a snapshot's or template's point was put into the sandbox by its route */
	l->from = sb->memory;
	sb->origin = *l->from.state ? FROM_MEMORY : FROM_BOOT;
	wait_turn(sb);
}

static void create_again(void *arg)
{
	struct sandbox *sb = arg;

	if (!sb->gone && sb->state == SB_PENDING)
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
		/* a snapshot's or template's point is in the sandbox, whole but for the private
		 * layer: a VM may have written to that */
		blob_unref(sb->d->blobs, sb->disk.data);
		sb->disk.data[0] = 0;
	}
	sandbox_ref(sb);
	if (!loop_defer(sb->d->loop, create_again, sb))
		return true;
	sandbox_unref(sb);
	return false;
}

void launch_resume(struct sandbox *sb)
{
	char old[BLOB_ID];
	struct err e;

	if (sb->resident) {
		resident_resume(sb);
		return;
	}
	if (!launch_begin(sb, true)) {
		launch_fail(sb, 500, START_FAILED, "no memory");
		return;
	}
	fault_at(sb, FAULT_RESUME_BEGUN);
	sb->launch->from = sb->memory;
	/* an earlier attempt may have run for a moment, and written: the memory that is restored
	 * now knows nothing of that */
	memcpy(old, sb->disk.data, sizeof(old));
	step_to(sb, STEP_DISK);
	if (disk_private_make(sb->d->blobs, &sb->disk, &e) < 0) {
		launch_fail(sb, 500, START_FAILED, "%s", e.msg);
		return;
	}
	blob_unref(sb->d->blobs, old);
	fault_at(sb, FAULT_RESUME_DISK);
	get_vm(sb);
}

static void adopted_thawed(void *arg, const struct agent_reply *r)
{
	struct sandbox *sb = arg;

	if (r->err && r->err != ECANCELED)
		log_warn("sandbox %s: going on after the daemon's restart: %s", sb->id, r->text);
	sandbox_let_go(sb);
	sandbox_unref(sb);
}

/* The last daemon may have died between freezing the guest's processes and letting them go; for one
 * that was not frozen this says what it knows. */
static void thaw_adopted(struct sandbox *sb)
{
	struct buf b;

	buf_init(&b, AGENT_FRAME_MAX);
	identity_put(&b, sb);
	sandbox_ref(sb);
	sb->frozen = agentc_call(sb->agent, AGENT_THAW, &b,
			     (uint32_t)sb->d->cfg.step_timeout_seconds * 1000, adopted_thawed,
			     sb) != NULL;
	if (!sb->frozen)
		sandbox_unref(sb);
	buf_fini(&b);
}

bool launch_adopt(struct sandbox *sb)
{
	if (vm_adopt(sb->d->vms, sb->vm_slot, sb->vm_pid, sb->vm_start, sb->cls, &vm_ops, sb,
		    &sb->vm) < 0)
		return false;
	sb->agent = agentc_create(sb->d->loop, sb->vm->vsock_path, VSOCK_PORT_AGENT);
	if (!sb->agent)
		return false;
	agentc_keep_spare(sb->agent);
	entry_watch(sb);
	if (sb->resident || sb->state == SB_PAUSING) {
		if (!sb->snap)
			resident_take_up(sb);
		return true;
	}
	agentc_up(sb->agent);
	/* while a point of it was being taken it may stand still: then it is let go when that is
	 * known */
	if (!sb->snap)
		thaw_adopted(sb);
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
	struct http_req *r;
	struct reap *x;

	launch_end(sb);
	r = take_answer(sb);
	if (r)
		http_error(r, 409, "DOCKER::SANDBOX_NOT_RUNNING",
			"Sandbox %s was deleted meanwhile.", sb->id);
	snap_sandbox_gone(sb);
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
